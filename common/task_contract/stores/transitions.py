"""The transitions of a record as plain functions, for the stores that have no language of their own.

Each takes a copy of the row (None if there is none), changes it or makes one, and answers. The store supplies what lies
outside the row and writes back what comes out, inside one lock or transaction; a row that is not handed back must not
be written. The Redis scripts and the PostgreSQL functions say the same in Lua and SQL; the conformance suite keeps the
three alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from task_contract.stores.base import (
    FORMER,
    SEEN_IDS,
    Beat,
    BeatAnswer,
    Claim,
    DeadLetter,
    Ending,
    Hold,
    Limits,
    Outcome,
    Reservation,
    Row,
    Work,
    to_ms,
)


class Asked(NamedTuple):
    """A claim, with what it must know beyond its own row; that is asked only when it matters."""

    work: Work
    owner: str
    lease: int
    keep: int
    limits: Limits
    now: int
    #: How many other records hold a live place in a slot.
    slots_taken: Callable[[str], int]
    #: Whether another live record holds the suspect lock.
    suspect_elsewhere: Callable[[], bool]


class Claimed(NamedTuple):
    answer: Claim
    #: The row to write, or None where nothing changed.
    row: Row | None = None
    #: The dead letter that a fresh message supersedes.
    superseded: str = ""


class Place(NamedTuple):
    """An enqueue's reservation."""

    token: str
    message_id: str
    payload_hash: str
    confirmed: bool
    expires_at: int


class Wanted(NamedTuple):
    """A place as an enqueue wants it."""

    token: str
    message_id: str
    payload_hash: str
    take_over: str


def reserve(place: Place | None, row: Row | None, wanted: Wanted) -> Reservation:
    """Whether the enqueue may go on. "won" is to be written, unless a confirmed place says so already."""
    known = place.payload_hash if place else row.payload_hash if row and row.state != "dead" else ""
    state = _work_state(place, row)
    if known and wanted.payload_hash and known != wanted.payload_hash:
        return Reservation("mismatch", _holder(place, row), state=state)
    if place is None:
        return Reservation("won", wanted.message_id, wanted.token)
    if place.token == wanted.token or (not place.confirmed and place.token == wanted.take_over):
        return Reservation("won", place.message_id, wanted.token)
    return Reservation("duplicate" if place.confirmed else "pending", place.message_id, place.token, state)


def _holder(place: Place | None, row: Row | None) -> str:
    return place.message_id if place else row.message_id if row else ""


def _work_state(place: Place | None, row: Row | None) -> str:
    if row is not None:
        return row.state
    return "enqueued" if place and place.confirmed else "pending"


def confirmable(place: Place | None, row: Row | None, token: str, message_id: str, until_done: bool) -> bool:
    if place is not None:
        return place.token == token
    # The worker was faster than the confirmation and ended the work, which released the reservation: writing it again
    # would keep the next enqueue out for a whole window.
    ended = ("dead", "done") if until_done else ("dead",)
    return not (row is not None and row.state in ended and row.message_id == message_id)


def live(row: Row | None, now: int) -> Row | None:
    return row if row is not None and row.expires_at > now else None


def claim(row: Row | None, asked: Asked) -> Claimed:
    work = asked.work
    if row is None:
        return _start(_fresh(work, asked.now), asked)
    if row.state == "dead" and not _stale(row, work.message_id):
        return _new_generation(row, asked)
    if row.state == "dead":
        return Claimed(_answer("dead", row))
    if _differ(row, work) and not _ran(row, work.message_id):
        return Claimed(_answer("mismatch", row))
    if row.state == "running":
        return _meet_running(row, asked)
    return _meet_waiting(row, asked) if row.state == "waiting" else Claimed(_answer("done", row))


def _differ(row: Row, work: Work) -> bool:
    return bool(row.payload_hash and work.payload_hash) and row.payload_hash != work.payload_hash


def _fresh(work: Work, now: int) -> Row:
    return Row(**{**work._asdict(), "created_at": now})


def _answer(outcome: Outcome, row: Row, wait: int = 0, reason: str = "") -> Claim:
    return Claim(
        outcome,
        row.fence,
        row.attempts,
        row.crashes,
        wait / 1000,
        reason,
        row.message_id,
        outcome == "done" and bool(row.has_result),
        row.result if outcome == "done" else b"",
    )


def _new_generation(row: Row, asked: Asked) -> Claimed:
    renewed = _fresh(asked.work, asked.now)
    renewed.fence, renewed.generation, renewed.seen_ids = row.fence, row.generation + 1, _former_ids(row)
    step = _start(renewed, asked)
    return step._replace(superseded=row.letter_id if step.row else "")


def _meet_waiting(row: Row, asked: Asked) -> Claimed:
    if row.not_before > asked.now:
        return Claimed(_answer("early", row, row.not_before - asked.now))
    # Whoever put these crashes on a record that waits knew the culprit: it needs no further proof.
    if row.attempts >= asked.limits.attempts or row.crashes >= asked.limits.crashes:
        return _exhaust(row, asked)
    return _start(row, asked)


def _meet_running(row: Row, asked: Asked) -> Claimed:
    limits = asked.limits
    if row.owner == asked.owner:
        # Its reply was lost, and by now the lease may be as well: the run that begins needs a whole one.
        _lease(row, asked.now + asked.lease)
        return Claimed(_exhausted(row, limits) if row.exhausted else _answer("won", row), row)
    if row.lease_until > asked.now:
        return Claimed(_answer("busy", row, row.lease_until - asked.now, "running"))
    if row.exhausted:
        return _exhaust(row, asked)
    crashed = _lapse(row, limits.interruptions)
    alone = bool(row.suspect) or not _needs_lock(limits)
    if (crashed and alone and row.crashes >= limits.crashes) or row.attempts >= limits.attempts:
        return _exhaust(row, asked)
    return _start(row, asked)


def _lapse(row: Row, interruptions: int) -> bool:
    """Account for a lease that ran out: an announced shutdown gives the attempt back, anything else is a crash."""
    if row.draining and row.interruptions < interruptions:
        row.interruptions += 1
        row.attempts -= 1
        return False
    row.crashes += 1
    return True


def _needs_lock(limits: Limits) -> bool:
    # With a single permitted crash every first run would need the lock, and the fleet would run one task at a time.
    return limits.suspects and limits.crashes > 1


def _exhausted(row: Row, limits: Limits) -> Claim:
    return _answer("exhausted", row, reason="crashes" if row.crashes >= limits.crashes else "attempts")


def _exhaust(row: Row, asked: Asked) -> Claimed:
    """No attempt is left: whoever asks gets the record to bury it, without running it."""
    _hand_over(row, asked)
    row.exhausted, row.suspect, row.slot = 1, 0, ""
    return Claimed(_exhausted(row, asked.limits), row)


def _start(row: Row, asked: Asked) -> Claimed:
    limits = asked.limits
    suspect = _needs_lock(limits) and row.crashes >= limits.crashes - 1
    if limits.slot and asked.slots_taken(limits.slot) >= limits.slots:
        return Claimed(_answer("busy", row, asked.lease, "slots"))
    if suspect and asked.suspect_elsewhere():
        return Claimed(_answer("busy", row, asked.lease, "suspect"))
    _hand_over(row, asked)
    _adopt(row, asked.work)
    row.attempts += 1
    row.started_at, row.suspect, row.slot = asked.now, int(suspect), limits.slot
    return Claimed(_answer("won", row), row)


def _hand_over(row: Row, asked: Asked) -> None:
    row.state, row.owner, row.fence = "running", asked.owner, row.fence + 1
    row.lease_until, row.not_before, row.draining = asked.now + asked.lease, 0, 0
    row.progress, row.note, row.beat_at = -1, "", 0
    row.updated_at, row.expires_at = asked.now, asked.now + asked.keep


def _lease(row: Row, until: int) -> None:
    row.lease_until, row.expires_at = until, max(row.expires_at, until)


def _ran(row: Row, message_id: str) -> bool:
    """Whether this is a copy of a message that ran in this generation."""
    return message_id == row.message_id or _one_word(message_id) in _seen(row)


def _stale(row: Row, message_id: str) -> bool:
    """Whether this is a copy of a message that ran in this generation or in one before."""
    return _ran(row, message_id) or FORMER + _one_word(message_id) in _seen(row)


def _former_ids(row: Row) -> str:
    """What the next generation remembers of this one."""
    ids = [*_seen(row), _one_word(row.message_id)][-SEEN_IDS:]
    return " ".join(word if word.startswith(FORMER) else FORMER + word for word in ids)


def _seen(row: Row) -> list[str]:
    return row.seen_ids.split(" ") if row.seen_ids else []


def _one_word(message_id: str) -> str:
    """An id as one word among others: "a b" must not make a stranger called "b" known."""
    return message_id.replace("%", "%25").replace(" ", "%20")


def _adopt(row: Row, work: Work) -> None:
    if row.message_id != work.message_id:
        row.seen_ids = " ".join([*_seen(row), _one_word(row.message_id)][-SEEN_IDS:])
        row.message_id = work.message_id
    row.payload_hash = row.payload_hash or work.payload_hash
    row.worker = work.worker


def extend(row: Row | None, beat: Beat, now: int) -> BeatAnswer:
    if row is None:
        return "missing"
    if not _owns(row, beat.hold):
        return "lost"
    if row.state == "running":
        _renew(row, beat, now)
    return "held"


def _renew(row: Row, beat: Beat, now: int) -> None:
    _lease(row, now + to_ms(beat.lease))
    row.draining = int(beat.draining)
    if beat.progress >= 0:
        row.progress, row.note = beat.progress, beat.note
    if beat.silent_for >= 0:
        row.beat_at = now - to_ms(beat.silent_for)


def _owns(row: Row, hold: Hold) -> bool:
    return row.owner == hold.owner and row.fence == hold.fence


def _lost_record(hold: Hold, now: int) -> Row:
    """The record of work that ran while the store forgot it (a flush, a failover)."""
    return Row(
        **{**hold.work._asdict(), "owner": hold.owner, "fence": hold.fence, "attempts": hold.attempt},
        created_at=now,
        started_at=now,
    )


def ending(row: Row | None, hold: Hold, target: str, now: int) -> tuple[str, Row]:
    """Whether `hold` may end the run in `target`: "ok" with the row to change, "again", "lost" or "invalid"."""
    if row is None:
        return "ok", _lost_record(hold, now)
    if not _owns(row, hold):
        return "lost", row
    if row.state == target:
        return "again", row
    if row.state != "running" or (row.exhausted and target != "dead"):
        return "invalid", row
    return "ok", row


def _settle(row: Row, state: str, keep: float, now: int) -> None:
    row.state, row.lease_until, row.not_before = state, 0, 0
    row.exhausted, row.suspect, row.draining, row.slot = 0, 0, 0, ""
    row.updated_at, row.expires_at = now, now + to_ms(keep)


def complete(row: Row, result: bytes | None, keep: float, now: int) -> None:
    _settle(row, "done", keep, now)
    row.has_result, row.result = int(result is not None), result or b""


def retry(row: Row, delay: float, error: str, keep: float, now: int) -> None:
    _settle(row, "waiting", keep, now)
    row.not_before, row.last_error = now + to_ms(delay), error or row.last_error


def charge(row: Row, how: Ending, interruptions: int) -> None:
    """What an attempt that did not succeed costs: one that was interrupted is given back, so many times."""
    if how == "interrupted" and row.interruptions < interruptions:
        row.interruptions += 1
        row.attempts = max(0, row.attempts - 1)
    row.crashes += int(how == "crashed")


def bury(row: Row, letter: DeadLetter, keep: float, now: int) -> str:
    """The letter this one replaces, if any."""
    previous = row.letter_id
    _settle(row, "dead", keep, now)
    row.generation, row.letter_id = row.generation + 1, letter.id
    row.last_error = letter.summary() or row.last_error
    return previous


def replayable(letter: DeadLetter | None, row: Row | None) -> tuple[str, str]:
    """Whether a letter may be replayed, and the state to name if not."""
    if letter is None:
        return "unknown", ""
    if letter.state not in ("open", "replaying"):
        return "closed", letter.state
    if letter.generation and row and (row.generation != letter.generation or row.state not in ("dead", "waiting")):
        return "moved", row.state
    return "ok", letter.state


def replay(letter: DeadLetter, row: Row | None, keep: float, now: int) -> Row:
    """The record, waiting for the message that is about to be published."""
    if row is None:
        row = _from_letter(letter, now)
    _settle(row, "waiting", keep, now)
    row.replays = letter.replays + 1
    row.attempts = row.crashes = row.interruptions = 0
    row.owner = ""
    return row


def _from_letter(letter: DeadLetter, now: int) -> Row:
    return Row(
        message_id=letter.message_id,
        message_type=letter.message_type,
        key=letter.key,
        correlation_id=letter.correlation_id,
        causation_id=letter.causation_id,
        subject=letter.subject,
        generation=letter.generation,
        letter_id=letter.id,
        created_at=now,
    )
