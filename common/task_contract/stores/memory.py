"""Records in this process's memory: for tests and for eager mode. A restart forgets everything."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from task_contract.forking import after_fork
from task_contract.stores import transitions
from task_contract.stores.base import (
    Beat,
    BeatAnswer,
    Claim,
    DeadLetter,
    Ending,
    Filter,
    Hold,
    LetterStats,
    Limits,
    Page,
    Record,
    Reservation,
    Row,
    Store,
    Work,
    check_limit,
    datetime_ms,
    decode_cursor,
    encode_cursor,
    from_ms,
    refuse_letter,
    settle,
    to_ms,
)


class MemoryStore(Store):
    scope = "process"

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._places: dict[str, transitions.Place] = {}
        self._letters: dict[str, DeadLetter] = {}
        self._lock = threading.RLock()
        after_fork(self._renew_lock)

    # Enqueue.

    def reserve(
        self,
        key: str,
        *,
        token: str,
        message_id: str,
        ttl: float,
        payload_hash: str = "",
        record_key: str = "",
        take_over: str = "",
    ) -> Reservation:
        with self._lock:
            now = self._time()
            place, row = self._place(key, now), self._row(record_key, now)
            wanted = transitions.Wanted(token, message_id, payload_hash, take_over)
            answer = transitions.reserve(place, row, wanted)
            if answer.outcome == "won" and not (place and place.confirmed):
                self._places[key] = transitions.Place(token, answer.message_id, payload_hash, False, now + to_ms(ttl))
            return answer

    def confirm(
        self,
        key: str,
        *,
        token: str,
        message_id: str,
        ttl: float,
        payload_hash: str = "",
        record_key: str = "",
        until_done: bool = False,
    ) -> bool:
        with self._lock:
            now = self._time()
            place, row = self._place(key, now), self._row(record_key, now)
            if not transitions.confirmable(place, row, token, message_id, until_done):
                return False
            self._places[key] = transitions.Place(token, message_id, payload_hash, True, now + to_ms(ttl))
            return True

    def release(self, key: str, *, token: str) -> bool:
        with self._lock:
            place = self._place(key, self._time())
            if place is None or place.token != token or place.confirmed:
                return False
            del self._places[key]
            return True

    def free(self, key: str, *, message_id: str) -> bool:
        with self._lock:
            place = self._place(key, self._time())
            if place is None or place.message_id != message_id:
                return False
            del self._places[key]
            return True

    # Execution.

    def claim(self, key: str, work: Work, *, owner: str, lease: float, keep: float, limits: Limits) -> Claim:
        with self._lock:
            now = self._time()
            asked = transitions.Asked(
                work,
                owner,
                to_ms(lease),
                to_ms(keep),
                limits,
                now,
                lambda slot: sum(1 for row in self._live_rows(key, now) if row.slot == slot),
                lambda: any(row.suspect for row in self._live_rows(key, now)),
            )
            step = transitions.claim(self._row(key, now), asked)
            if step.row is not None:
                self._rows[key] = step.row
            if step.superseded:
                self._close(step.superseded, "superseded", now)
            return step.answer

    def extend(self, beats: Sequence[Beat]) -> list[BeatAnswer]:
        with self._lock:
            return [self._extend(beat) for beat in beats]

    def _extend(self, beat: Beat) -> BeatAnswer:
        now = self._time()
        row = self._row(beat.hold.key, now)
        answer = transitions.extend(row, beat, now)
        if row is not None and answer == "held":
            self._rows[beat.hold.key] = row
        return answer

    def complete(self, hold: Hold, *, keep: float, result: bytes | None, reservation: str = "") -> None:
        with self._lock:
            now = self._time()
            row = self._end(hold, "complete", "done", now)
            if row is not None:
                transitions.complete(row, result, keep, now)
                self._close(row.letter_id, "replayed", now, only="replaying")
                self._write(hold, row, reservation)

    def retry(
        self,
        hold: Hold,
        *,
        delay: float,
        keep: float,
        error: str = "",
        ending: Ending = "failed",
        interruptions: int = 20,
    ) -> None:
        with self._lock:
            now = self._time()
            row = self._end(hold, "retry", "waiting", now)
            if row is not None:
                transitions.charge(row, ending, interruptions)
                transitions.retry(row, delay, error, keep, now)
                self._write(hold, row)

    def bury(self, hold: Hold, letter: DeadLetter, *, keep: float, reservation: str = "") -> str:
        with self._lock:
            now = self._time()
            row = self._end(hold, "bury", "dead", now)
            if row is None:
                return self._rows[hold.key].letter_id
            previous = transitions.bury(row, letter, keep, now)
            self._close(previous, "replayed", now, only="replaying")
            self._write(hold, row, reservation)
            self._file(letter, keep, now, store_key=hold.key, generation=row.generation, replays=row.replays)
            return letter.id

    def get(self, key: str) -> Record | None:
        with self._lock:
            row = self._row(key, self._time())
            return None if row is None else Record.from_row(row)

    # Dead letters.

    def put_letter(self, letter: DeadLetter, *, keep: float) -> str:
        with self._lock:
            if self.get_letter(letter.id) is None:
                self._file(letter, keep, self._time())
            return letter.id

    def get_letter(self, letter_id: str) -> DeadLetter | None:
        with self._lock:
            letter = self._letters.get(letter_id)
            return letter if letter and datetime_ms(letter.expires_at) > self._time() else None

    def page_letters(self, where: Filter, *, limit: int = 50, cursor: str = "") -> Page:
        check_limit(limit)
        before = decode_cursor(cursor)
        with self._lock:
            found = sorted(self._matching(where, before), key=_order, reverse=True)
        more = len(found) > limit
        return Page(tuple(found[:limit]), encode_cursor(*_order(found[limit - 1])) if more else "")

    def replay_letter(self, letter_id: str, *, by: str, reason: str, keep: float) -> DeadLetter:
        with self._lock:
            now = self._time()
            letter = self.get_letter(letter_id)
            row = self._row(letter.store_key, now) if letter else None
            answer, state = transitions.replayable(letter, row)
            refuse_letter(answer, "replay", letter_id, state)
            assert letter is not None  # noqa: S101  (replayable answered "ok")
            if letter.generation:
                self._rows[letter.store_key] = transitions.replay(letter, row, keep, now)
            return self._change(letter, state="replaying", closed_by=by, closed_reason=reason)

    def mark_replayed(self, letter_id: str) -> bool:
        with self._lock:
            letter = self.get_letter(letter_id)
            if letter is None or letter.state not in ("replaying", "replayed"):
                return False
            self._close(letter_id, "replayed", self._time(), only="replaying")
            return True

    def discard_letter(self, letter_id: str, *, by: str, reason: str) -> bool:
        with self._lock:
            letter = self.get_letter(letter_id)
            if letter is not None and letter.state == "discarded":
                return False
            answer, state = transitions.replayable(letter, None)
            refuse_letter(answer, "discard", letter_id, state)
            assert letter is not None  # noqa: S101  (replayable answered "ok")
            self._change(letter, state="discarded", closed_by=by, closed_reason=reason, closed_at=from_ms(self._time()))
            return True

    def letter_stats(self) -> LetterStats:
        with self._lock:
            found = list(self._matching(Filter(), (0, "")))
        oldest = min((letter.failed_at for letter in found if letter.failed_at), default=None)
        return LetterStats(len(found), oldest, Counter(letter.reason for letter in found))

    # Housekeeping.

    def expire(self, limit: int = 1000) -> int:
        with self._lock:
            now = self._time()
            removed = _drop(self._rows, (k for k, row in self._rows.items() if row.expires_at <= now), limit)
            gone = (k for k, place in self._places.items() if place.expires_at <= now)
            removed += _drop(self._places, gone, limit - removed)
            old = (k for k, letter in self._letters.items() if datetime_ms(letter.expires_at) <= now)
            return removed + _drop(self._letters, old, limit - removed)

    def ping(self) -> None:
        """Memory always answers."""

    # Inside.

    def _renew_lock(self) -> None:
        # A fork while another thread holds the lock would leave it held for ever in the child.
        self._lock = threading.RLock()

    def _time(self) -> int:
        injected = self.now_ms()
        return injected if injected is not None else time.time_ns() // 1_000_000

    def _row(self, key: str, now: int) -> Row | None:
        row = transitions.live(self._rows.get(key), now)
        return None if row is None else replace(row)

    def _place(self, key: str, now: int) -> transitions.Place | None:
        place = self._places.get(key)
        return place if place and place.expires_at > now else None

    def _live_rows(self, besides: str, now: int) -> Iterable[Row]:
        return (r for k, r in self._rows.items() if k != besides and r.state == "running" and r.lease_until > now)

    def _end(self, hold: Hold, verb: str, target: str, now: int) -> Row | None:
        """The row to change, or None if this very step was taken before."""
        answer, row = transitions.ending(self._row(hold.key, now), hold, target, now)
        if answer == "again":
            return None
        settle(answer, verb, hold.key, row.state)
        return row

    def _write(self, hold: Hold, row: Row, reservation: str = "") -> None:
        self._rows[hold.key] = row
        place = self._places.get(reservation)
        if place and place.message_id == hold.work.message_id:
            del self._places[reservation]

    def _file(self, letter: DeadLetter, keep: float, now: int, **managed: Any) -> None:
        fresh = DeadLetter.restore(letter.body())  # what the store manages is not the caller's to give
        managed |= {"failed_at": from_ms(now), "expires_at": from_ms(now + to_ms(keep))}
        self._letters[letter.id] = replace(fresh, **managed)

    def _change(self, letter: DeadLetter, **changes: Any) -> DeadLetter:
        self._letters[letter.id] = changed = replace(letter, **changes)
        return changed

    def _close(self, letter_id: str, state: str, now: int, only: str = "") -> None:
        letter = self._letters.get(letter_id)
        if letter and letter.state in ((only,) if only else ("open", "replaying")):
            self._change(letter, state=state, closed_at=from_ms(now))

    def _matching(self, where: Filter, before: tuple[int, str]) -> Iterable[DeadLetter]:
        now, facets = self._time(), where.facets()
        for letter in self._letters.values():
            if (
                datetime_ms(letter.expires_at) > now
                and (letter.state in ("open", "replaying")) is not where.closed
                and all(getattr(letter, name) == value for name, value in facets.items())
                and (before == (0, "") or _order(letter) < before)
                and _within(letter, where)
            ):
                yield letter


def _within(letter: DeadLetter, where: Filter) -> bool:
    at = datetime_ms(letter.failed_at)
    return datetime_ms(where.since) <= at and (where.until is None or at < datetime_ms(where.until))


def _order(letter: DeadLetter) -> tuple[int, str]:
    return datetime_ms(letter.failed_at), letter.id


def _drop(table: dict[str, Any], keys: Iterable[str], limit: int) -> int:
    doomed = [key for _, key in zip(range(max(0, limit)), keys, strict=False)]
    for key in doomed:
        del table[key]
    return len(doomed)
