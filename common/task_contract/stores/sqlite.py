"""Records in an SQLite file: for one host. Claims are shared by the processes that see the file, and by nobody else.

Each verb is one `BEGIN IMMEDIATE` transaction: the row is read, `transitions` decides, the row is written back.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

from task_contract.errors import ConfigurationError, StoreUnavailable
from task_contract.stores import transitions
from task_contract.stores.base import (
    ROW_FIELDS,
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
from task_contract.stores.pool import Pool, patiently

T = TypeVar("T")

#: Before this release a checkpoint could lose committed pages of a WAL that another process had reset.
SAFE_VERSION = (3, 51, 3)
MIGRATIONS = ("0001_init",)

_LETTER = (
    "state",
    "store_key",
    "generation",
    "replays",
    "failed_at",
    "expires_at",
    "closed_at",
    "closed_by",
    "closed_reason",
    "body",
)
_COLUMNS = ", ".join(ROW_FIELDS)
_SELECT_ROW = f"SELECT {_COLUMNS} FROM records WHERE store_key = ? AND expires_at > ?"  # noqa: S608  (own names)
_WRITE_ROW = f"INSERT OR REPLACE INTO records (store_key, {_COLUMNS}) VALUES (?{', ?' * len(ROW_FIELDS)})"  # noqa: S608


@cache
def queries() -> dict[str, str]:
    """The named queries of sql/sqlite/queries.sql."""
    blocks = _read("queries").split("-- name: ")[1:]
    return {name.strip(): text.strip() for name, _, text in (block.partition("\n") for block in blocks)}


def _read(name: str) -> str:
    return (files("task_contract.stores") / "sql" / "sqlite" / f"{name}.sql").read_text("utf-8")


class SQLiteStore(Store):
    scope = "host"

    def __init__(self, path: str | Path, *, namespace: str = "task-contract", timeout: float = 2.0) -> None:
        if str(path) in ("", ":memory:"):
            raise ConfigurationError("an SQLite store needs a file that other processes can open; or use memory://")
        self.path, self.namespace, self._timeout = Path(path), namespace, timeout
        # One connection a process: its threads queue for it instead of polling for the file's lock. And none across a
        # fork: SQLite keeps book of its locks in memory, a child inherits the book, and the parent's closing would then
        # delete the log under the child's feet.
        self._pool: Pool[sqlite3.Connection] = Pool(
            self._connect, sqlite3.Connection.close, size=1, timeout=timeout * 2, inheritable=False
        )

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
        def step(tx: Transaction) -> Reservation:
            place = tx.place(key)
            wanted = transitions.Wanted(token, message_id, payload_hash, take_over)
            answer = transitions.reserve(place, tx.row(record_key), wanted)
            if answer.outcome == "won" and not (place and place.confirmed):
                tx.run("put_place", key, token, answer.message_id, payload_hash, 0, tx.now + to_ms(ttl))
            return answer

        return self._transact(step, "reserve")

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
        def step(tx: Transaction) -> bool:
            allowed = transitions.confirmable(tx.place(key), tx.row(record_key), token, message_id, until_done)
            if allowed:
                tx.run("put_place", key, token, message_id, payload_hash, 1, tx.now + to_ms(ttl))
            return allowed

        return self._transact(step, "confirm")

    def release(self, key: str, *, token: str) -> bool:
        def step(tx: Transaction) -> bool:
            place = tx.place(key)
            mine = place is not None and place.token == token and not place.confirmed
            if mine:
                tx.run("drop_place", key)
            return mine

        return self._transact(step, "release")

    def free(self, key: str, *, message_id: str) -> bool:
        def step(tx: Transaction) -> bool:
            return tx.place(key) is not None and tx.run("drop_place_of", key, message_id).rowcount == 1

        return self._transact(step, "free")

    # Execution.

    def claim(self, key: str, work: Work, *, owner: str, lease: float, keep: float, limits: Limits) -> Claim:
        def step(tx: Transaction) -> Claim:
            asked = transitions.Asked(
                work,
                owner,
                to_ms(lease),
                to_ms(keep),
                limits,
                tx.now,
                lambda slot: int(tx.one("slots_taken", slot, key, tx.now)[0]),
                lambda: tx.run("suspect_elsewhere", key, tx.now).fetchone() is not None,
            )
            claimed = transitions.claim(tx.row(key), asked)
            if claimed.row is not None:
                tx.write(key, claimed.row)
            if claimed.superseded:
                tx.run("supersede", tx.now, claimed.superseded)
            return claimed.answer

        return self._transact(step, "claim")

    def extend(self, beats: Sequence[Beat]) -> list[BeatAnswer]:
        def step(tx: Transaction) -> list[BeatAnswer]:
            return [extend_one(tx, beat) for beat in beats]

        def extend_one(tx: Transaction, beat: Beat) -> BeatAnswer:
            row = tx.row(beat.hold.key)
            answer = transitions.extend(row, beat, tx.now)
            if row is not None and answer == "held":
                tx.write(beat.hold.key, row)
            return answer

        return self._transact(step, "extend") if beats else []

    def complete(self, hold: Hold, *, keep: float, result: bytes | None, reservation: str = "") -> None:
        def step(tx: Transaction, row: Row) -> None:
            transitions.complete(row, result, keep, tx.now)
            tx.run("close_replaying", tx.now, row.letter_id)
            tx.run("drop_place_of", reservation, hold.work.message_id)

        self._end(hold, "complete", "done", step)

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
        def step(tx: Transaction, row: Row) -> None:
            transitions.charge(row, ending, interruptions)
            transitions.retry(row, delay, error, keep, tx.now)

        self._end(hold, "retry", "waiting", step)

    def bury(self, hold: Hold, letter: DeadLetter, *, keep: float, reservation: str = "") -> str:
        def step(tx: Transaction, row: Row) -> None:
            previous = transitions.bury(row, letter, keep, tx.now)
            tx.run("close_replaying", tx.now, previous)
            tx.file(letter, keep, hold.key, row.generation, row.replays)
            tx.run("drop_place_of", reservation, hold.work.message_id)

        return self._end(hold, "bury", "dead", step).letter_id

    def _end(self, hold: Hold, verb: str, target: str, change: Callable[[Transaction, Row], None]) -> Row:
        def step(tx: Transaction) -> Row:
            answer, row = transitions.ending(tx.row(hold.key), hold, target, tx.now)
            if answer != "again":
                settle(answer, verb, hold.key, row.state)
                change(tx, row)
                tx.write(hold.key, row)
            return row

        return self._transact(step, verb)

    def get(self, key: str) -> Record | None:
        row = self._transact(lambda tx: tx.row(key), "get", begin="BEGIN")
        return None if row is None else Record.from_row(row)

    # Dead letters.

    def put_letter(self, letter: DeadLetter, *, keep: float) -> str:
        def step(tx: Transaction) -> None:
            if tx.letter(letter.id) is None:
                tx.file(letter, keep)

        self._transact(step, "put_letter")
        return letter.id

    def get_letter(self, letter_id: str) -> DeadLetter | None:
        return self._transact(lambda tx: tx.letter(letter_id), "get_letter", begin="BEGIN")

    def page_letters(self, where: Filter, *, limit: int = 50, cursor: str = "") -> Page:
        check_limit(limit)
        query, values = _page_query(where, cursor)

        def step(tx: Transaction) -> list[tuple[Any, ...]]:
            return tx.connection.execute(query, (*values, tx.now, limit + 1)).fetchall()

        rows = self._transact(step, "page_letters", begin="BEGIN")
        letters = tuple(_letter(row) for row in rows[:limit])
        last = letters[-1] if len(rows) > limit else None
        return Page(letters, encode_cursor(datetime_ms(last.failed_at), last.id) if last else "")

    def replay_letter(self, letter_id: str, *, by: str, reason: str, keep: float) -> DeadLetter:
        def step(tx: Transaction) -> DeadLetter:
            letter = tx.letter(letter_id)
            row = tx.row(letter.store_key) if letter else None
            answer, state = transitions.replayable(letter, row)
            refuse_letter(answer, "replay", letter_id, state)
            if letter and letter.generation:
                tx.write(letter.store_key, transitions.replay(letter, row, keep, tx.now))
            tx.run("replaying", by, reason, letter_id)
            return _letter(tx.one("letter", letter_id, tx.now))

        return self._transact(step, "replay_letter")

    def mark_replayed(self, letter_id: str) -> bool:
        def step(tx: Transaction) -> bool:
            tx.run("close_replaying", tx.now, letter_id)
            letter = tx.letter(letter_id)
            return letter is not None and letter.state == "replayed"

        return self._transact(step, "mark_replayed")

    def discard_letter(self, letter_id: str, *, by: str, reason: str) -> bool:
        def step(tx: Transaction) -> bool:
            letter = tx.letter(letter_id)
            if letter is not None and letter.state == "discarded":
                return False
            answer, state = transitions.replayable(letter, None)
            refuse_letter(answer, "discard", letter_id, state)
            tx.run("discard", tx.now, by, reason, letter_id)
            return True

        return self._transact(step, "discard_letter")

    def letter_stats(self) -> LetterStats:
        def step(tx: Transaction) -> LetterStats:
            tx.run("expire_letters", tx.now, 1000)
            reasons = dict(tx.run("reasons").fetchall())
            return LetterStats(sum(reasons.values()), from_ms(tx.one("oldest")[0] or 0), reasons)

        return self._transact(step, "letter_stats")

    # Housekeeping.

    def expire(self, limit: int = 1000) -> int:
        def step(tx: Transaction) -> int:
            left = limit
            for query in ("expire_records", "expire_places", "expire_letters"):
                left -= tx.run(query, tx.now, left).rowcount
            return limit - left

        return self._transact(step, "expire")

    def ping(self) -> None:
        self._transact(lambda tx: tx.connection.execute("SELECT 1").fetchone(), "ping", begin="BEGIN")

    def findings(self) -> list[tuple[Literal["error", "warning"], str, str]]:
        if sqlite3.sqlite_version_info >= SAFE_VERSION:
            return []
        what = f"SQLite {sqlite3.sqlite_version} may lose a write-ahead log that another process has reset"
        return [("warning", what, "use SQLite 3.51.3 or newer, or another store")]

    def close(self) -> None:
        self._pool.clear()

    # Inside.

    def _connect(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self.path, timeout=self._timeout, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.OperationalError) as error:
            raise ConfigurationError(f"cannot open the store at {self.path}: {error}") from error
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            _migrate(connection, self.path, self.namespace)
            self._refuse_other_namespace(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_other_namespace(self, connection: sqlite3.Connection) -> None:
        (theirs,) = connection.execute("SELECT value FROM about WHERE name = 'namespace'").fetchone()
        if theirs != self.namespace:
            raise ConfigurationError(
                f"{self.path} holds the records of the namespace {theirs!r}, and this is {self.namespace!r}: "
                f"give each namespace a file of its own, or open this one with namespace={theirs!r}"
            )

    def _transact(self, step: Callable[[Transaction], T], what: str, begin: str = "BEGIN IMMEDIATE") -> T:
        def converse(connection: sqlite3.Connection) -> T:
            with _transaction(connection, begin):
                return step(Transaction(connection, self._time()))

        try:
            return patiently(lambda: self._pool.run(converse), _is_busy, what)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the store at {self.path} could not answer {what}: {error}") from error

    def _time(self) -> int:
        # Whoever sees the file runs on this host, so the host's clock is the store's.
        injected = self.now_ms()
        return injected if injected is not None else time.time_ns() // 1_000_000


class Transaction:
    """What the verbs read and write, at one moment."""

    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        self.connection, self.now = connection, now

    def run(self, name: str, *values: Any) -> sqlite3.Cursor:
        return self.connection.execute(queries()[name], tuple(map(_storable, values)))

    def one(self, name: str, *values: Any) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self.run(name, *values).fetchone()
        return row

    def row(self, key: str) -> Row | None:
        found = self.connection.execute(_SELECT_ROW, (key, self.now)).fetchone()
        return None if found is None else Row(*found)

    def write(self, key: str, row: Row) -> None:
        values = (_storable(getattr(row, name)) for name in ROW_FIELDS)
        self.connection.execute(_WRITE_ROW, (key, *values))

    def place(self, key: str) -> transitions.Place | None:
        found = self.run("place", key, self.now).fetchone()
        return None if found is None else transitions.Place(*found)

    def letter(self, letter_id: str) -> DeadLetter | None:
        found = self.run("letter", letter_id, self.now).fetchone()
        return None if found is None else _letter(found)

    def file(self, letter: DeadLetter, keep: float, store_key: str = "", generation: int = 0, replays: int = 0) -> None:
        times = (self.now, self.now + to_ms(keep))
        self.run("drop_letter", letter.id)
        self.run("put_letter", letter.id, store_key, generation, replays, *times, *letter.facets(), letter.body())


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _migrate(connection: sqlite3.Connection, path: Path, namespace: str) -> None:
    if _version(connection) == len(MIGRATIONS):
        return
    with _transaction(connection, "BEGIN IMMEDIATE"):
        version = _version(connection)
        if version > len(MIGRATIONS):
            raise ConfigurationError(f"{path} was written by a newer task-contract: upgrade this installation")
        for name in MIGRATIONS[version:]:
            for statement in _statements(_read(name)):
                connection.execute(statement)
        if version == 0:
            connection.execute("INSERT INTO about VALUES ('namespace', ?)", (namespace,))
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _statements(script: str) -> Iterator[str]:
    # executescript() would commit the transaction that keeps two processes from migrating at once.
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _is_busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and any(
        word in str(error) for word in ("locked", "busy", "disk I/O error")
    )


def _storable(value: Any) -> Any:
    # A lone surrogate cannot be written as UTF-8, and a record must be written whatever a task's arguments contain.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) and not value.isascii() else value


def _page_query(where: Filter, cursor: str) -> tuple[str, list[Any]]:
    bounds: list[tuple[str, list[Any]]] = [("is_open = ?", [int(not where.closed)])]
    bounds += [(f'"{name}" = ?', [value]) for name, value in where.facets().items()]
    if where.since is not None:
        bounds.append(("failed_at >= ?", [datetime_ms(where.since)]))
    if where.until is not None:
        bounds.append(("failed_at < ?", [datetime_ms(where.until)]))
    if cursor:
        bounds.append(("(failed_at, id) < (?, ?)", [*decode_cursor(cursor)]))
    conditions = " AND ".join(condition for condition, _ in bounds)
    query = f"SELECT {', '.join(_LETTER)} FROM letters WHERE {conditions} AND expires_at > ?"  # noqa: S608  (own names)
    return f"{query} ORDER BY failed_at DESC, id DESC LIMIT ?", [value for _, part in bounds for value in part]


def _letter(row: tuple[Any, ...]) -> DeadLetter:
    managed = dict(zip(_LETTER, row, strict=True))
    for name in ("failed_at", "expires_at", "closed_at"):
        managed[name] = from_ms(managed[name])
    return DeadLetter.restore(managed.pop("body"), **managed)
