"""The record protocol once more, as simply as it can be said: dicts, lists and plain ifs.

Written from DESIGN section 3 and the docstrings of `stores/base.py` alone. It shares no logic with any store, so that a
mistake would have to be made twice to go unseen. Times are milliseconds; a refusal is returned, not raised.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from task_contract.stores.base import Claim, DeadLetter, Hold, Limits, Reservation, Work

#: A refused step, as `(exception's name, state it names)`.
Refusal = tuple[str, str | None]


def ms(seconds: float) -> int:
    return round(seconds * 1000)


@dataclass
class ModelRecord:
    state: str
    work: Work
    owner: str = ""
    fence: int = 0
    lease_until: int = 0
    not_before: int = 0
    attempts: int = 0
    crashes: int = 0
    interruptions: int = 0
    exhausted: bool = False
    suspect: bool = False
    draining: bool = False
    slot: str = ""
    generation: int = 0
    replays: int = 0
    letter_id: str = ""
    #: Who ran before: in this generation, and in the ones that are over.
    older_ids: list[str] = field(default_factory=list)
    former_ids: list[str] = field(default_factory=list)
    result: bytes | None = None
    last_error: str = ""
    progress: int = -1
    note: str = ""
    beat_at: int = 0
    created_at: int = 0
    started_at: int = 0
    updated_at: int = 0
    expires_at: int = 0


@dataclass
class ModelPlace:
    token: str
    message_id: str
    payload_hash: str
    confirmed: bool
    expires_at: int


@dataclass
class ModelLetter:
    letter: DeadLetter
    store_key: str
    generation: int
    replays: int
    failed_at: int
    expires_at: int
    state: str = "open"
    closed_at: int = 0
    closed_by: str = ""
    closed_reason: str = ""

    @property
    def is_open(self) -> bool:
        return self.state in ("open", "replaying")


class Model:
    def __init__(self, now: int) -> None:
        self.now = now
        self.records: dict[str, ModelRecord] = {}
        self.places: dict[str, ModelPlace] = {}
        self.letters: dict[str, ModelLetter] = {}

    # What is there at this moment.

    def record(self, key: str) -> ModelRecord | None:
        found = self.records.get(key)
        return found if found and found.expires_at > self.now else None

    def place(self, key: str) -> ModelPlace | None:
        found = self.places.get(key)
        return found if found and found.expires_at > self.now else None

    def letter(self, letter_id: str) -> ModelLetter | None:
        found = self.letters.get(letter_id)
        return found if found and found.expires_at > self.now else None

    def live_letters(self, closed: bool) -> list[ModelLetter]:
        """Newest first."""
        found = [each for each in self.letters.values() if each.expires_at > self.now and each.is_open is not closed]
        return sorted(found, key=lambda each: (each.failed_at, each.letter.id), reverse=True)

    def deadlines(self) -> list[int]:
        """Every moment at which something is going to change by itself."""
        moments = [m for r in self.records.values() for m in (r.lease_until, r.not_before, r.expires_at)]
        moments += [place.expires_at for place in self.places.values()]
        moments += [letter.expires_at for letter in self.letters.values()]
        return sorted({moment for moment in moments if moment > self.now})

    # Enqueue.

    def reserve(
        self, key: str, token: str, message_id: str, ttl: float, payload_hash: str, record_key: str, take_over: str
    ) -> Reservation:
        place = self.place(key)
        record = self.record(record_key) if record_key else None
        state = record.state if record else "enqueued" if place and place.confirmed else "pending"
        holder = place or (record.work if record and record.state != "dead" else None)
        if holder and holder.payload_hash and payload_hash and holder.payload_hash != payload_hash:
            return Reservation("mismatch", holder.message_id, "", state)
        if place is None:
            self.places[key] = ModelPlace(token, message_id, payload_hash, False, self.now + ms(ttl))
            return Reservation("won", message_id, token)
        if place.token == token and place.confirmed:
            return Reservation("won", place.message_id, token)
        if not place.confirmed and place.token in (token, take_over):
            self.places[key] = ModelPlace(token, place.message_id, payload_hash, False, self.now + ms(ttl))
            return Reservation("won", place.message_id, token)
        return Reservation("duplicate" if place.confirmed else "pending", place.message_id, place.token, state)

    def confirm(
        self, key: str, token: str, message_id: str, ttl: float, payload_hash: str, record_key: str, until_done: bool
    ) -> bool:
        place = self.place(key)
        record = self.record(record_key) if record_key else None
        if place and place.token != token:
            return False
        if not place and record and record.work.message_id == message_id:
            if record.state == "dead":
                return False
            if record.state == "done" and until_done:
                return False
        self.places[key] = ModelPlace(token, message_id, payload_hash, True, self.now + ms(ttl))
        return True

    def release(self, key: str, token: str) -> bool:
        place = self.place(key)
        if place and place.token == token and not place.confirmed:
            del self.places[key]
            return True
        return False

    def free(self, key: str, message_id: str) -> bool:
        place = self.place(key)
        if place and place.message_id == message_id:
            del self.places[key]
            return True
        return False

    # Execution.

    def claim(  # noqa: PLR0911  (the table of DESIGN 3, row by row)
        self, key: str, work: Work, owner: str, lease: float, keep: float, limits: Limits
    ) -> Claim:
        record = self.record(key)
        if record is None:
            return self._start(key, ModelRecord("running", work, created_at=self.now), work, owner, lease, keep, limits)
        ran_here = [record.work.message_id, *record.older_ids]
        if record.state == "dead":
            if work.message_id in ran_here or work.message_id in record.former_ids:
                return self._say("dead", record)
            return self._start_over(key, record, work, owner, lease, keep, limits)
        hashes = {record.work.payload_hash, work.payload_hash} - {""}
        if len(hashes) == 2 and work.message_id not in ran_here:
            return self._say("mismatch", record)
        if record.state == "done":
            has_result = record.result is not None
            return self._say("done", record)._replace(has_result=has_result, result=record.result or b"")
        if record.state == "waiting":
            return self._take_up(key, record, work, owner, lease, keep, limits)
        return self._meet(key, record, work, owner, lease, keep, limits)

    def _take_up(
        self, key: str, record: ModelRecord, work: Work, owner: str, lease: float, keep: float, limits: Limits
    ) -> Claim:
        if record.not_before > self.now:
            return self._say("early", record)._replace(wait=(record.not_before - self.now) / 1000)
        if record.attempts >= limits.attempts:
            return self._exhaust(key, record, owner, lease, keep, limits)
        if record.crashes >= limits.crashes:
            return self._exhaust(key, record, owner, lease, keep, limits)
        return self._start(key, record, work, owner, lease, keep, limits)

    def _meet(
        self, key: str, record: ModelRecord, work: Work, owner: str, lease: float, keep: float, limits: Limits
    ) -> Claim:
        if record.owner == owner:
            record.lease_until = self.now + ms(lease)
            record.expires_at = max(record.expires_at, record.lease_until)
            return self._say_exhausted(record, limits) if record.exhausted else self._say("won", record)
        if record.lease_until > self.now:
            return self._say("busy", record)._replace(wait=(record.lease_until - self.now) / 1000, reason="running")
        return self._take_over(key, record, work, owner, lease, keep, limits)

    def _take_over(
        self, key: str, record: ModelRecord, work: Work, owner: str, lease: float, keep: float, limits: Limits
    ) -> Claim:
        if record.exhausted:
            return self._exhaust(key, record, owner, lease, keep, limits)
        lapsed = replace(record)
        crashed = True
        if record.draining and record.interruptions < limits.interruptions:
            crashed = False
            lapsed.interruptions += 1
            lapsed.attempts -= 1
        else:
            lapsed.crashes += 1
        proven = record.suspect or not limits.suspects or limits.crashes == 1
        if crashed and proven and lapsed.crashes >= limits.crashes:
            return self._exhaust(key, lapsed, owner, lease, keep, limits)
        if lapsed.attempts >= limits.attempts:
            return self._exhaust(key, lapsed, owner, lease, keep, limits)
        return self._start(key, lapsed, work, owner, lease, keep, limits)

    def _start_over(
        self, key: str, dead: ModelRecord, work: Work, owner: str, lease: float, keep: float, limits: Limits
    ) -> Claim:
        fresh = ModelRecord("running", work, fence=dead.fence, generation=dead.generation + 1, created_at=self.now)
        fresh.former_ids = [*dead.former_ids, *dead.older_ids, dead.work.message_id][-4:]
        answer = self._start(key, fresh, work, owner, lease, keep, limits)
        letter = self.letter(dead.letter_id)
        if answer.outcome == "won" and letter and letter.is_open:
            letter.state, letter.closed_at = "superseded", self.now
        return answer

    def _others_running(self, key: str) -> list[ModelRecord]:
        return [
            other
            for name, other in self.records.items()
            if name != key and other.state == "running" and other.lease_until > self.now
        ]

    def _start(
        self, key: str, before: ModelRecord, work: Work, owner: str, lease: float, keep: float, limits: Limits
    ) -> Claim:
        others = self._others_running(key)
        if limits.slot and len([other for other in others if other.slot == limits.slot]) >= limits.slots:
            return self._say("busy", before)._replace(wait=lease, reason="slots")
        needs_lock = limits.suspects and limits.crashes > 1 and before.crashes + 1 >= limits.crashes
        if needs_lock and any(other.suspect for other in others):
            return self._say("busy", before)._replace(wait=lease, reason="suspect")
        record = replace(before)
        self.records[key] = record
        self._hand_over(record, owner, lease, keep)
        if record.work.message_id != work.message_id:
            record.older_ids = [*record.older_ids, record.work.message_id][-4:]
            record.former_ids = record.former_ids[max(0, len(record.former_ids) + len(record.older_ids) - 4) :]
        record.work = record.work._replace(
            message_id=work.message_id,
            payload_hash=record.work.payload_hash or work.payload_hash,
            worker=work.worker,
        )
        record.attempts += 1
        record.started_at, record.suspect, record.slot = self.now, needs_lock, limits.slot
        return self._say("won", record)

    def _exhaust(self, key: str, before: ModelRecord, owner: str, lease: float, keep: float, limits: Limits) -> Claim:
        record = self.records[key] = replace(before, exhausted=True, suspect=False, slot="")
        self._hand_over(record, owner, lease, keep)
        return self._say_exhausted(record, limits)

    def _hand_over(self, record: ModelRecord, owner: str, lease: float, keep: float) -> None:
        record.state, record.owner = "running", owner
        record.fence += 1
        record.lease_until, record.not_before, record.draining = self.now + ms(lease), 0, False
        record.progress, record.note, record.beat_at = -1, "", 0
        record.updated_at, record.expires_at = self.now, self.now + ms(keep)

    @staticmethod
    def _say(outcome: Any, record: ModelRecord) -> Claim:
        return Claim(outcome, record.fence, record.attempts, record.crashes, message_id=record.work.message_id)

    def _say_exhausted(self, record: ModelRecord, limits: Limits) -> Claim:
        reason = "crashes" if record.crashes >= limits.crashes else "attempts"
        return self._say("exhausted", record)._replace(reason=reason)

    def extend(self, hold: Hold, lease: float, draining: bool, progress: int, note: str, silent_for: float) -> str:
        record = self.record(hold.key)
        if record is None:
            return "missing"
        if (record.owner, record.fence) != (hold.owner, hold.fence):
            return "lost"
        if record.state == "running":
            record.lease_until = self.now + ms(lease)
            record.expires_at = max(record.expires_at, record.lease_until)
            record.draining = draining
            if progress >= 0:
                record.progress, record.note = progress, note
            if silent_for >= 0:
                record.beat_at = self.now - ms(silent_for)
        return "held"

    def _end(self, hold: Hold, target: str) -> ModelRecord | Refusal | None:
        """The record to change, a refusal, or None if this was done before."""
        record = self.record(hold.key)
        if record is None:
            record = self.records[hold.key] = ModelRecord(
                "running",
                hold.work,
                owner=hold.owner,
                fence=hold.fence,
                attempts=hold.attempt,
                created_at=self.now,
                started_at=self.now,
            )
            return record
        if (record.owner, record.fence) != (hold.owner, hold.fence):
            return "LeaseLost", record.state
        if record.state == target:
            return None
        if record.state != "running" or (record.exhausted and target != "dead"):
            return "InvalidTransition", record.state
        return record

    def _settle(self, record: ModelRecord, state: str, keep: float) -> None:
        record.state, record.lease_until, record.not_before = state, 0, 0
        record.exhausted = record.suspect = record.draining = False
        record.slot = ""
        record.updated_at, record.expires_at = self.now, self.now + ms(keep)

    def complete(self, hold: Hold, keep: float, result: bytes | None, reservation: str) -> Refusal | None:
        record = self._end(hold, "done")
        if isinstance(record, ModelRecord):
            self._settle(record, "done", keep)
            record.result = result
            self._end_replay(record)
            self.free(reservation, hold.work.message_id)
            return None
        return record

    def retry(
        self, hold: Hold, delay: float, keep: float, error: str, ending: str, interruptions: int
    ) -> Refusal | None:
        record = self._end(hold, "waiting")
        if isinstance(record, ModelRecord):
            if ending == "interrupted" and record.interruptions < interruptions:
                record.interruptions += 1
                record.attempts = max(0, record.attempts - 1)
            if ending == "crashed":
                record.crashes += 1
            self._settle(record, "waiting", keep)
            record.not_before = self.now + ms(delay)
            record.last_error = error or record.last_error
            return None
        return record

    def bury(self, hold: Hold, letter: DeadLetter, keep: float, reservation: str) -> Refusal | str:
        """The id of the letter, or a refusal."""
        record = self._end(hold, "dead")
        if record is None:
            return self.records[hold.key].letter_id
        if not isinstance(record, ModelRecord):
            return record
        self._end_replay(record)
        self._settle(record, "dead", keep)
        record.generation += 1
        record.letter_id = letter.id
        record.last_error = letter.summary() or record.last_error
        self.letters[letter.id] = ModelLetter(
            letter, hold.key, record.generation, record.replays, self.now, self.now + ms(keep)
        )
        self.free(reservation, hold.work.message_id)
        return letter.id

    def _end_replay(self, record: ModelRecord) -> None:
        previous = self.letter(record.letter_id)
        if previous and previous.state == "replaying":
            previous.state, previous.closed_at = "replayed", self.now

    # Dead letters.

    def put_letter(self, letter: DeadLetter, keep: float) -> str:
        if self.letter(letter.id) is None:
            self.letters[letter.id] = ModelLetter(letter, "", 0, 0, self.now, self.now + ms(keep))
        return letter.id

    def replay(self, letter_id: str, by: str, reason: str, keep: float) -> Refusal | None:
        letter = self.letter(letter_id)
        if letter is None:
            return "InvalidTransition", None
        if not letter.is_open:
            return "InvalidTransition", letter.state
        if letter.generation:
            record = self.record(letter.store_key)
            if record and (record.generation != letter.generation or record.state not in ("dead", "waiting")):
                return "InvalidTransition", record.state
            if record is None:
                record = self.records[letter.store_key] = self._record_of(letter)
            self._settle(record, "waiting", keep)
            record.attempts = record.crashes = record.interruptions = 0
            record.owner, record.replays = "", letter.replays + 1
        letter.state, letter.closed_by, letter.closed_reason = "replaying", by, reason
        return None

    def _record_of(self, filed: ModelLetter) -> ModelRecord:
        letter = filed.letter
        work = Work(
            message_id=letter.message_id,
            message_type=letter.message_type,
            key=letter.key,
            correlation_id=letter.correlation_id,
            causation_id=letter.causation_id,
            subject=letter.subject,
        )
        return ModelRecord("waiting", work, generation=filed.generation, letter_id=letter.id, created_at=self.now)

    def mark_replayed(self, letter_id: str) -> bool:
        letter = self.letter(letter_id)
        if letter is None or letter.state not in ("replaying", "replayed"):
            return False
        if letter.state == "replaying":
            letter.state, letter.closed_at = "replayed", self.now
        return True

    def discard(self, letter_id: str, by: str, reason: str) -> Refusal | bool:
        letter = self.letter(letter_id)
        if letter is None:
            return "InvalidTransition", None
        if letter.state == "discarded":
            return False
        if not letter.is_open:
            return "InvalidTransition", letter.state
        letter.state, letter.closed_at, letter.closed_by, letter.closed_reason = "discarded", self.now, by, reason
        return True

    def stats(self) -> tuple[int, int, dict[str, int]]:
        """Depth, when the oldest failed (0 if there is none), and how many there are of each reason."""
        found = self.live_letters(closed=False)
        reasons: dict[str, int] = {}
        for each in found:
            reasons[each.letter.reason] = reasons.get(each.letter.reason, 0) + 1
        return len(found), min((each.failed_at for each in found), default=0), reasons
