"""The record protocol: the verbs every store speaks and the values they exchange.

A store knows records, reservations and dead letters. It knows no policy and no framework: every bound arrives as an
argument. Each verb is one atomic step by the store's own clock, and may be repeated by the same caller after a lost
reply without changing its answer (`release`, `free` and `discard_letter` say whether it was this very call).
`docs/protocol.md` has the tables; `task_contract.testing` has the conformance suite.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple

from task_contract.errors import InvalidTransition, LeaseLost, StoreCorrupt

State = Literal["running", "waiting", "done", "dead"]
Outcome = Literal["won", "busy", "early", "done", "dead", "exhausted", "mismatch"]
Ending = Literal["failed", "interrupted", "crashed"]
LetterState = Literal["open", "replaying", "replayed", "discarded", "superseded"]
Scope = Literal["fleet", "host", "process"]

#: The fields of a dead letter that `page` filters by; each store indexes them.
FACETS = ("message_type", "queue", "error_type", "group", "reason", "correlation_id", "subject", "message_id")

#: How many message ids that ran are remembered besides the last (a stale copy of dead work is recognised by them).
SEEN_IDS = 4
#: Before the ids of generations that are over. No id has it: an id's own "%" is kept as "%25".
FORMER = "%-"


class Work(NamedTuple):
    """What is being done, for whom: the part of a message that its record keeps."""

    message_id: str
    message_type: str = ""
    key: str = ""
    payload_hash: str = ""
    correlation_id: str = ""
    causation_id: str = ""
    subject: str = ""
    worker: str = ""


class Limits(NamedTuple):
    """The bounds a claim is judged by."""

    attempts: int = 5
    crashes: int = 3
    interruptions: int = 20
    #: A record is buried for crashes only if it crashed while it held the fleet's suspect lock. Off where the
    #: framework names the culprit itself.
    suspects: bool = True
    #: Name and size of the fleet-wide set of places (`max_concurrency`); no name, no bound.
    slot: str = ""
    slots: int = 0


class Hold(NamedTuple):
    """What a worker holds once its claim won: the only thing that lets it move the record on."""

    key: str
    owner: str
    fence: int
    attempt: int
    work: Work
    slot: str = ""


class Claim(NamedTuple):
    """The answer to a claim."""

    outcome: Outcome
    fence: int = 0
    attempt: int = 0
    crashes: int = 0
    #: Seconds until asking again can help (`busy`, `early`).
    wait: float = 0.0
    #: `busy`: "running", "slots" or "suspect". `exhausted`: "crashes" if no crash is left by the limits of this claim,
    #: else "attempts"; where both have run out, "crashes".
    reason: str = ""
    message_id: str = ""
    #: `done` only: whether there is a stored result, and its bytes.
    has_result: bool = False
    result: bytes = b""


class Beat(NamedTuple):
    """One lease to renew, with whatever the running code said of itself since the last beat."""

    hold: Hold
    lease: float
    draining: bool = False
    #: 0 to 100, or -1 for "nothing said".
    progress: int = -1
    note: str = ""
    #: Seconds since the code itself last gave a sign of life; negative for "never".
    silent_for: float = -1.0


BeatAnswer = Literal["held", "lost", "missing"]


class Reservation(NamedTuple):
    """The answer to an enqueue's reservation."""

    outcome: Literal["won", "pending", "duplicate", "mismatch"]
    #: The message that holds the reservation; the caller's own if it won, unless it took over another's.
    message_id: str
    #: Who holds it, to take over from.
    token: str = ""
    #: Of the work: a record's state; else "enqueued", or "pending" while nobody has said that it was sent.
    state: str = ""


@dataclass
class Row:
    """A record as stores hold it: milliseconds, empty strings and zeros, no None. The Lua scripts keep this order."""

    state: str = "running"
    owner: str = ""
    fence: int = 0
    lease_until: int = 0
    not_before: int = 0
    attempts: int = 0
    crashes: int = 0
    interruptions: int = 0
    exhausted: int = 0
    suspect: int = 0
    draining: int = 0
    slot: str = ""
    generation: int = 0
    replays: int = 0
    letter_id: str = ""
    message_id: str = ""
    seen_ids: str = ""
    payload_hash: str = ""
    message_type: str = ""
    key: str = ""
    correlation_id: str = ""
    causation_id: str = ""
    subject: str = ""
    worker: str = ""
    has_result: int = 0
    result: bytes = b""
    last_error: str = ""
    progress: int = -1
    note: str = ""
    beat_at: int = 0
    created_at: int = 0
    started_at: int = 0
    updated_at: int = 0
    expires_at: int = 0


ROW_FIELDS = tuple(f.name for f in fields(Row))
_TIMES = frozenset({"lease_until", "not_before", "beat_at", "created_at", "started_at", "updated_at", "expires_at"})
_FLAGS = frozenset({"exhausted", "suspect", "draining", "has_result"})


@dataclass(frozen=True)
class Record:
    """A record as users see it (A7): times are aware datetimes, None where nothing is set."""

    key: str
    state: State
    message_id: str
    message_type: str
    payload_hash: str
    correlation_id: str
    causation_id: str
    subject: str
    owner: str
    worker: str
    fence: int
    attempts: int
    crashes: int
    interruptions: int
    generation: int
    replays: int
    exhausted: bool
    suspect: bool
    draining: bool
    slot: str
    seen_ids: str
    letter_id: str
    has_result: bool
    result: bytes
    last_error: str
    progress: int
    note: str
    lease_until: datetime | None
    not_before: datetime | None
    beat_at: datetime | None
    created_at: datetime | None
    started_at: datetime | None
    updated_at: datetime | None
    expires_at: datetime | None

    @classmethod
    def from_row(cls, row: Row) -> Record:
        return cls(**{name: _public(name, getattr(row, name)) for name in ROW_FIELDS})


def _public(name: str, value: Any) -> Any:
    if name in _TIMES:
        return from_ms(value)
    return bool(value) if name in _FLAGS else value


@dataclass(frozen=True)
class DeadLetter:
    """Work that will not be tried again, with everything needed to understand, fix and replay it (E3)."""

    id: str
    reason: str
    message: bytes
    message_type: str = ""
    key: str = ""
    message_id: str = ""
    correlation_id: str = ""
    causation_id: str = ""
    subject: str = ""
    queue: str = ""
    error_type: str = ""
    error: str = ""
    traceback: str = ""
    attempts: int = 0
    crashes: int = 0
    worker: str = ""
    group: str = ""
    framework: str = ""
    content_type: str = ""
    #: When the message was made, ISO 8601, as its envelope says.
    enqueued_at: str = ""
    #: Whatever else is worth keeping: attempt history, versions. JSON.
    details: Mapping[str, Any] = field(default_factory=dict)
    # What follows is the store's to write.
    store_key: str = ""
    state: LetterState = "open"
    generation: int = 0
    replays: int = 0
    failed_at: datetime | None = None
    expires_at: datetime | None = None
    closed_at: datetime | None = None
    closed_by: str = ""
    closed_reason: str = ""

    def body(self) -> bytes:
        """The part that never changes, as the stores keep it."""
        return json.dumps({**self._fixed(), "message": base64.b64encode(self.message).decode()}, default=str).encode()

    def facets(self) -> tuple[str, ...]:
        return tuple(getattr(self, name) for name in FACETS)

    def summary(self) -> str:
        """One line for the record, short enough to be kept there."""
        return f"{self.error_type}: {self.error}"[:500] if self.error_type else ""

    def _fixed(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in _MANAGED}

    @classmethod
    def restore(cls, body: bytes, **managed: Any) -> DeadLetter:
        try:
            data = json.loads(body)
            data["message"] = base64.b64decode(data["message"])
            return cls(**data, **managed)
        except (ValueError, TypeError, KeyError) as error:
            raise StoreCorrupt(f"a dead letter in the store cannot be read: {error}") from error


_MANAGED = frozenset(
    {
        "store_key",
        "state",
        "generation",
        "replays",
        "failed_at",
        "expires_at",
        "closed_at",
        "closed_by",
        "closed_reason",
    }
)


@dataclass(frozen=True)
class Filter:
    """Which dead letters: every facet named must match; `since` and `until` bound when they failed.

    Open ones unless `closed` is asked for; a letter whose replay was begun and not finished is still open.
    """

    closed: bool = False
    message_type: str = ""
    queue: str = ""
    error_type: str = ""
    group: str = ""
    reason: str = ""
    correlation_id: str = ""
    subject: str = ""
    message_id: str = ""
    since: datetime | None = None
    until: datetime | None = None

    def facets(self) -> dict[str, str]:
        return {name: value for name in FACETS if (value := getattr(self, name))}


@dataclass(frozen=True)
class Page:
    """Dead letters, newest first. `cursor` fetches the next page; empty at the end."""

    letters: tuple[DeadLetter, ...]
    cursor: str = ""


@dataclass(frozen=True)
class LetterStats:
    """Of the open dead letters (D10)."""

    depth: int
    oldest_at: datetime | None
    reasons: Mapping[str, int]


class Store(ABC):
    """A place for records. Subclass it, implement the verbs, and run `task_contract.testing` against it."""

    #: Who can see what is stored here.
    scope: Scope = "fleet"
    #: Tests inject a clock (seconds since the epoch); in production it stays None and the store's own clock counts.
    now: Callable[[], float] | None = None

    # Enqueue: reservations, apart from the records.

    @abstractmethod
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
        """Take the enqueue's place for `ttl` seconds, or say who has it.

        `take_over` names the token of a pending reservation whose producer never confirmed: if that still stands, it
        becomes the caller's, under the message id it had.
        """

    @abstractmethod
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
        """The message was sent: keep the reservation for the window. False if another holds it.

        A reservation that is gone is written again, except for work that is dead already under this message id, or
        done if the reservation was to last `until_done`.
        """

    @abstractmethod
    def release(self, key: str, *, token: str) -> bool:
        """Nothing was sent: give up one's own pending reservation. False if there is none."""

    @abstractmethod
    def free(self, key: str, *, message_id: str) -> bool:
        """The message has come to its end without a record of its own (a loose dead letter, a stored result).

        Gives up its reservation, pending or confirmed. False if there is none, or another message has it.
        """

    # Execution.

    @abstractmethod
    def claim(self, key: str, work: Work, *, owner: str, lease: float, keep: float, limits: Limits) -> Claim:
        """Ask for the right to run. `owner` is made per delivery; `keep` is how long an unfinished record stays.

        The owner of a running record may ask again: its lease is renewed, and nothing else changes. Other arguments
        than the record's are a mismatch, unless it is a message that ran in this generation: that one cannot have
        other arguments, only code that names them differently.
        """

    @abstractmethod
    def extend(self, beats: Sequence[Beat]) -> list[BeatAnswer]:
        """Renew leases, all in one round trip; an answer for each."""

    @abstractmethod
    def complete(self, hold: Hold, *, keep: float, result: bytes | None, reservation: str = "") -> None:
        """running → done, with the result if there is one to keep. `reservation` is the enqueue's to release.

        A replay that nobody marked is closed with it: the letter is `replayed`.
        Raises `LeaseLost` if another owner has the record, `InvalidTransition` if the work is not running.
        A record that is missing (a flush, a failover) is written as done.
        """

    @abstractmethod
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
        """running → waiting until `delay` seconds from now. Raises as `complete` does.

        An interrupted attempt is given back, up to `interruptions` times. A crashed one is counted as a crash, and
        may be the last without further proof: only say so of work that is known to be the culprit.
        """

    @abstractmethod
    def bury(self, hold: Hold, letter: DeadLetter, *, keep: float, reservation: str = "") -> str:
        """running → dead, together with its dead letter; the id of the letter. Raises as `complete` does."""

    @abstractmethod
    def get(self, key: str) -> Record | None:
        """The record, if there is one that has not expired."""

    # Dead letters.

    @abstractmethod
    def put_letter(self, letter: DeadLetter, *, keep: float) -> str:
        """A dead letter that has no record of its own (undecodable, unknown task, mismatch). Its id.

        One that is filed under this id already stays as it is, until it expires.
        """

    @abstractmethod
    def get_letter(self, letter_id: str) -> DeadLetter | None: ...

    @abstractmethod
    def page_letters(self, where: Filter, *, limit: int = 50, cursor: str = "") -> Page:
        """Newest first. A page may hold fewer than `limit`, or none, and still have a cursor."""

    @abstractmethod
    def replay_letter(self, letter_id: str, *, by: str, reason: str, keep: float) -> DeadLetter:
        """dead → waiting, with attempts and crashes reset: the caller publishes the message, then marks it replayed.

        May be repeated while the same generation stands. Raises `InvalidTransition` for a letter that is closed or
        that the work has moved on from.
        """

    @abstractmethod
    def mark_replayed(self, letter_id: str) -> bool:
        """The replay was published. False if the letter is not being replayed."""

    @abstractmethod
    def discard_letter(self, letter_id: str, *, by: str, reason: str) -> bool:
        """Terminal; the letter is kept until its retention ends. False if it was discarded before."""

    @abstractmethod
    def letter_stats(self) -> LetterStats: ...

    # Housekeeping.

    @abstractmethod
    def expire(self, limit: int = 1000) -> int:
        """Remove up to `limit` of what has expired; how many were removed."""

    @abstractmethod
    def ping(self) -> None:
        """Raise `StoreUnavailable` unless the store answers."""

    def findings(self) -> list[tuple[Literal["error", "warning"], str, str]]:
        """What of this store's own set-up weakens a guarantee, for `check`: severity, what, how to mend it."""
        return []

    def close(self) -> None:  # noqa: B027  (a store without connections has nothing to close)
        """Give back connections. The store may be used again afterwards."""

    def now_ms(self) -> int | None:
        """The injected time, or None to let the store look at its own clock."""
        return None if self.now is None else round(self.now() * 1000)


def to_ms(seconds: float) -> int:
    return round(seconds * 1000)


def from_ms(value: int) -> datetime | None:
    return datetime.fromtimestamp(value / 1000, timezone.utc) if value else None


def datetime_ms(value: datetime | None) -> int:
    return 0 if value is None else round(value.timestamp() * 1000)


def settle(answer: str, verb: str, key: str, state: str) -> None:
    """Turn a transition's answer into nothing, or into the exception that fits."""
    if answer == "ok":
        return
    if answer == "lost":
        raise LeaseLost(f"cannot {verb} {key}: another owner has taken the record over (it is {state})", state=state)
    raise InvalidTransition(f"cannot {verb} {key}: the record is {state}", state=state)


def refuse_letter(answer: str, verb: str, letter_id: str, state: str) -> None:
    """Turn the answer to an operator's step into nothing, or into a sentence that says what to do."""
    if answer == "ok":
        return
    if answer == "unknown":
        raise InvalidTransition(f"cannot {verb} {letter_id}: no such dead letter (it may have expired)")
    if answer == "moved":
        raise InvalidTransition(
            f"cannot {verb} {letter_id}: the work has moved on (its record is {state}); look at its newest letter",
            state=state,
        )
    raise InvalidTransition(f"cannot {verb} {letter_id}: it is {state} already", state=state)


def check_limit(limit: int) -> None:
    if limit < 1:
        raise ValueError(f"a page has room for at least one letter: limit must be 1 or more, not {limit}")


def encode_cursor(failed_at: int, letter_id: str) -> str:
    return f"{failed_at}-{letter_id}" if letter_id else ""


def decode_cursor(cursor: str) -> tuple[int, str]:
    """(0, "") for the first page."""
    at, _, letter_id = cursor.partition("-")
    if cursor and not (at.isdigit() and letter_id):
        raise ValueError(f"not a page cursor: {cursor[:80]!r}; pass the `cursor` of the page before")
    return (int(at), letter_id) if cursor else (0, "")
