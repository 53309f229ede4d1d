"""Records in PostgreSQL: one function call, one round trip, one transaction per verb.

The functions are created by the migrations in `sql/postgres`, on first use or by `PostgresStore.migrate()`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from importlib import resources
from itertools import repeat
from typing import Any, TypeVar, cast

from task_contract.errors import ConfigurationError, ContractError, StoreUnavailable
from task_contract.stores.base import (
    FACETS,
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
from task_contract.stores.urls import refuse_unclear

try:
    import psycopg
    from psycopg import errors
    from psycopg.conninfo import conninfo_to_dict
except ImportError as missing:
    raise ImportError(
        "a postgresql:// store needs psycopg 3, which is not installed: pip install 'task-contract[postgres]'"
    ) from missing

T = TypeVar("T")

#: `expire` removes this many per transaction, so that none of them holds locks for long.
BATCH = 1000

_LETTER_TIMES = ("failed_at", "expires_at", "closed_at")
_LETTER = ("id", "body", "store_key", "state", "generation", "replays", *_LETTER_TIMES, "closed_by", "closed_reason")

#: The functions: how many arguments each takes, and what is wanted of its answer.
_VERBS = {
    "reserve": (8, "*"),
    "confirm": (8, "*"),
    "release": (3, "*"),
    "free": (3, "*"),
    "claim": (19, "*"),
    "extend": (9, "*"),
    "complete": (16, "*"),
    "retry": (18, "*"),
    "bury": (28, "*"),
    "get_record": (2, ", ".join(ROW_FIELDS)),
    "put_letter": (14, "*"),
    "get_letter": (2, ", ".join(_LETTER)),
    "page_letters": (8, ", ".join(_LETTER)),
    "replay_letter": (5, ", ".join(("o_answer", "o_state", *(f"(o_letter).{name}" for name in _LETTER)))),
    "mark_replayed": (2, "*"),
    "discard_letter": (4, "*"),
    "letter_stats": (1, "*"),
    "expire": (2, "*"),
}

#: The SQLSTATE classes of what may go well the next time: connection, rollback (serialization, deadlock), resources,
#: locks, intervention (shutdown, timeout), system. None: no server has spoken.
_TRANSIENT = frozenset({"08", "40", "53", "55", "57", "58", None})
_MISSING = (errors.UndefinedTable, errors.UndefinedFunction, errors.InvalidSchemaName)

#: What no text in PostgreSQL can hold, NUL and lone surrogates, is kept as a pair of characters that no text has: a
#: "noncharacter" of Unicode and a private one. So it comes back as it was, and two different texts stay different.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_MARK, _SHIFT = "\ufdd0", 0xF0000
_MARKED = re.compile(f"{_MARK}([\U000f0000\U000fd800-\U000fdfff])")


class PostgresStore(Store):
    def __init__(
        self, url: str, *, schema: str = "task_contract", timeout: float = 1.0, max_connections: int = 10
    ) -> None:
        self._schema, self._quoted = schema, _quote(schema)
        self._url, self._timeout = url, timeout
        self._options = _options(url, timeout)
        self._statements = {
            verb: f"SELECT {wanted} FROM {self._quoted}.{verb}({', '.join(repeat('%s', arity))})"  # noqa: S608  (quoted)
            for verb, (arity, wanted) in _VERBS.items()
        }
        self._ready = False
        self._pool = Pool(self._connect, _Connection.close, size=max_connections, timeout=timeout)

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
        return Reservation._make(
            self._row("reserve", self.now_ms(), key, token, message_id, to_ms(ttl), payload_hash, record_key, take_over)
        )

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
        what = token, message_id, to_ms(ttl), payload_hash, record_key, until_done
        return self._flag("confirm", self.now_ms(), key, *what)

    def release(self, key: str, *, token: str) -> bool:
        return self._flag("release", self.now_ms(), key, token)

    def free(self, key: str, *, message_id: str) -> bool:
        return self._flag("free", self.now_ms(), key, message_id)

    # Execution.

    def claim(self, key: str, work: Work, *, owner: str, lease: float, keep: float, limits: Limits) -> Claim:
        return Claim._make(self._row("claim", self.now_ms(), key, owner, to_ms(lease), to_ms(keep), *work, *limits))

    def extend(self, beats: Sequence[Beat]) -> list[BeatAnswer]:
        if not beats:
            return []
        columns = zip(*map(_beat, beats), strict=True)
        (answers,) = self._row("extend", self.now_ms(), *map(list, columns))
        return cast("list[BeatAnswer]", answers)

    def complete(self, hold: Hold, *, keep: float, result: bytes | None, reservation: str = "") -> None:
        answer, state = self._row("complete", self.now_ms(), *_held(hold), to_ms(keep), result, reservation)
        if answer != "again":
            settle(answer, "complete", hold.key, state)

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
        how = to_ms(keep), to_ms(delay), error, ending, interruptions
        answer, state = self._row("retry", self.now_ms(), *_held(hold), *how)
        if answer != "again":
            settle(answer, "retry", hold.key, state)

    def bury(self, hold: Hold, letter: DeadLetter, *, keep: float, reservation: str = "") -> str:
        what = to_ms(keep), letter.summary(), reservation, *_filed(letter)
        answer, state, letter_id = self._row("bury", self.now_ms(), *_held(hold), *what)
        if answer != "again":
            settle(answer, "bury", hold.key, state)
        return cast("str", letter_id)

    def get(self, key: str) -> Record | None:
        found = self._rows("get_record", self.now_ms(), key)
        return Record.from_row(Row(*found[0])) if found else None

    # Dead letters.

    def put_letter(self, letter: DeadLetter, *, keep: float) -> str:
        self._row("put_letter", self.now_ms(), to_ms(keep), *_filed(letter))
        return letter.id

    def get_letter(self, letter_id: str) -> DeadLetter | None:
        found = self._rows("get_letter", self.now_ms(), letter_id)
        return _letter(found[0]) if found else None

    def page_letters(self, where: Filter, *, limit: int = 50, cursor: str = "") -> Page:
        check_limit(limit)
        since = None if where.since is None else datetime_ms(where.since)
        until = None if where.until is None else datetime_ms(where.until)
        facets, at = [getattr(where, name) for name in FACETS], decode_cursor(cursor)
        found = self._rows("page_letters", self.now_ms(), limit + 1, where.closed, since, until, *at, facets)
        more = len(found) > limit
        last = dict(zip(_LETTER, found[limit - 1], strict=True)) if more else {}
        return Page(tuple(map(_letter, found[:limit])), encode_cursor(last["failed_at"], last["id"]) if more else "")

    def replay_letter(self, letter_id: str, *, by: str, reason: str, keep: float) -> DeadLetter:
        answer, state, *letter = self._row("replay_letter", self.now_ms(), letter_id, by, reason, to_ms(keep))
        refuse_letter(answer, "replay", letter_id, state)
        return _letter(letter)

    def mark_replayed(self, letter_id: str) -> bool:
        return self._flag("mark_replayed", self.now_ms(), letter_id)

    def discard_letter(self, letter_id: str, *, by: str, reason: str) -> bool:
        answer, state = self._row("discard_letter", self.now_ms(), letter_id, by, reason)
        if answer == "again":
            return False
        refuse_letter(answer, "discard", letter_id, state)
        return True

    def letter_stats(self) -> LetterStats:
        found = self._rows("letter_stats", self.now_ms())
        reasons = {reason: depth for reason, depth, _ in found}
        return LetterStats(sum(reasons.values()), from_ms(found[0][2]) if found else None, reasons)

    # Housekeeping.

    def expire(self, limit: int = 1000) -> int:
        removed = 0
        while removed < limit:
            asked = min(BATCH, limit - removed)
            (gone,) = self._row("expire", self.now_ms(), asked)
            removed += gone
            if gone < asked:
                break
        return removed

    def ping(self) -> None:
        self._patiently("ping", lambda: self._query("SELECT 1", ()))

    def close(self) -> None:
        self._pool.clear()

    def migrate(self) -> int:
        """Bring the schema up to date, as a role that may create it; the version it has now.

        Happens by itself on first use. Call it in a deployment step where workers have no right to create tables.
        """
        return self._patiently("migrate", self._migrate)

    # Inside: calls.

    def _row(self, verb: str, *arguments: Any) -> tuple[Any, ...]:
        return self._rows(verb, *arguments)[0]

    def _flag(self, verb: str, *arguments: Any) -> bool:
        return bool(self._row(verb, *arguments)[0])

    def _rows(self, verb: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return self._patiently(verb, partial(self._ask, self._statements[verb], arguments))

    def _patiently(self, verb: str, operation: Callable[[], T]) -> T:
        try:
            return patiently(operation, self._transient, verb)
        except errors.InsufficientPrivilege as error:
            raise StoreUnavailable(f"the store refused {verb}: {_first_line(error)}. {self._advice()}") from error
        except psycopg.Error as error:
            raise StoreUnavailable(f"the store refused {verb}: {error}") from error

    def _transient(self, error: Exception) -> bool:
        if not _may_pass(error):
            return False
        # The server went away, or is no longer the primary: whoever takes one of the other connections would meet
        # the same.
        self._pool.clear()
        return True

    def _ask(self, statement: str, arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
        if not self._ready:
            self._prepare()
        try:
            return self._query(statement, arguments)
        except _MISSING:
            # Somebody dropped the schema while we ran. (A function that is gone for good fails again below.)
            self._migrate()
            return self._query(statement, arguments)

    def _query(self, statement: str, arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
        rows = self._pool.run(lambda connection: connection.ask_storably(statement, arguments))
        return [tuple([_plain(v) if v.__class__ is str and _MARK in v else v for v in row]) for row in rows]

    # Inside: connections.

    def _connect(self) -> _Connection:
        try:
            connection = self._open(**({"options": self._options} if self._options else {}))
        except psycopg.OperationalError as error:
            # pgbouncer lets no options through that it does not know. The deadline in `_Connection` remains.
            if not self._options or "unsupported startup parameter" not in str(error):
                raise
            self._options = ""
            connection = self._open()
        # More than the server's own timeout, whose answer says more.
        connection.patience = self._timeout * 1.25
        return connection

    def _open(self, **parameters: Any) -> _Connection:
        parameters["fallback_application_name"] = "task-contract"
        if "connect_timeout" not in conninfo_to_dict(self._url):
            parameters["connect_timeout"] = max(2, round(self._timeout))  # libpq knows no less than 2
        # No prepared statements: behind pgbouncer the next call may go to another server process.
        return _Connection.connect(
            self._url, autocommit=True, prepare_threshold=None, client_encoding="UTF8", **parameters
        )

    # Inside: the schema.

    def _prepare(self) -> None:
        """Once per process: is this a database we can work with, and is the schema there?"""
        ((encoding, isolation),) = self._query(
            "SELECT current_setting('server_encoding'), current_setting('transaction_isolation')", ()
        )
        if encoding not in ("UTF8", "SQL_ASCII"):
            raise ContractError(f"the database has the encoding {encoding}, which cannot hold every text; use UTF8")
        if isolation != "read committed":
            raise ContractError(
                f"default_transaction_isolation is {isolation!r} on this server or role, under which a claim would not "
                "see the latest one; ALTER ROLE … SET default_transaction_isolation = 'read committed'"
            )
        try:
            version = self._version(self._query)
        except _MISSING:
            version = 0
        if version < _migrations()[-1][0]:
            self._migrate()
        self._ready = True

    def _version(self, query: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]) -> int:
        statement = f"SELECT coalesce(max(version), 0) FROM {self._quoted}.migrations"  # noqa: S608  (quoted)
        version, newest = int(query(statement, ())[0][0]), _migrations()[-1][0]
        if version > newest:
            raise ContractError(
                f"the schema {self._schema!r} has version {version}, and this task-contract knows {newest}: "
                "a newer release has migrated it; upgrade here as well"
            )
        return version

    def _migrate(self) -> int:
        # A connection of its own: a migration may take longer than a verb.
        with self._connect() as connection:
            connection.patience = None
            try:
                with connection.transaction():
                    return self._apply(connection)
            except errors.InsufficientPrivilege as error:
                problem = f"the schema {self._schema!r} is missing or out of date, and this role may not change that"
                raise ContractError(f"{problem}: {_first_line(error)}. {self._advice()}") from error

    def _apply(self, connection: _Connection) -> int:
        connection.execute("SELECT set_config('statement_timeout', '0', true)")
        # Workers start together; one of them migrates, the others wait for it and find nothing left to do.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"task-contract {self._quoted}",))
        connection.execute("SET LOCAL client_min_messages = warning")
        (_, start), *steps = _migrations()
        self._run(connection, start)
        version = self._version(connection.ask)
        for number, text in steps:
            if number > version:
                self._run(connection, text)
                connection.execute(f"INSERT INTO {self._quoted}.migrations (version) VALUES (%s)", (number,))  # noqa: S608
        return steps[-1][0]

    def _run(self, connection: _Connection, text: str) -> None:
        connection.execute(cast("Any", text.replace("{schema}", self._quoted)))

    def _advice(self) -> str:
        return (
            f"Run PostgresStore(url, schema={self._schema!r}).migrate() once as a role that owns the schema or may "
            f"create it, then: GRANT USAGE ON SCHEMA {self._quoted} TO …; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL "
            f"TABLES IN SCHEMA {self._quoted} TO …"
        )


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that does not wait for ever. The server's statement_timeout is no help if its answer never comes."""

    patience: float | None = None
    _asking: psycopg.Cursor[tuple[Any, ...]] | None = None

    def ask(self, statement: str, arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
        # One cursor for all: to make one costs a tenth of a call.
        if self._asking is None:
            self._asking = self.cursor()
        return self._asking.execute(cast("Any", statement), arguments).fetchall()

    def ask_storably(self, statement: str, arguments: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self.ask(statement, arguments)
        except (psycopg.DataError, UnicodeEncodeError):
            return self.ask(statement, _storable(arguments))

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(gen if self.patience is None else _hurry(gen, self.patience), *args, **kwargs)


def _hurry(gen: Generator[Any, Any, T], patience: float) -> Generator[Any, Any, T]:
    """The driver's own steps, up to a deadline. It resumes them ten times a second even if nothing has arrived."""
    deadline = time.monotonic() + patience
    try:
        step = next(gen)
        while True:
            ready = yield step
            if not ready and time.monotonic() > deadline:
                raise psycopg.OperationalError(f"no answer within {patience:g} s")
            step = gen.send(ready)
    except StopIteration as end:
        return cast("T", end.value)


def _quote(schema: str) -> str:
    # It stands inside quoted identifiers, literals and function bodies; what is harmless in all of them is enough.
    if not re.fullmatch(r"[\w.-]+", schema) or len(schema.encode()) > 63:
        raise ConfigurationError(
            f"not a schema name: {schema!r}; use up to 63 letters, digits, underscores, hyphens and dots"
        )
    return f'"{schema}"'


def _options(url: str, timeout: float) -> str:
    refuse_unclear(url)
    try:
        theirs = str(conninfo_to_dict(url).get("options") or "")
    except psycopg.ProgrammingError:
        # What the driver says may quote the password, and so would the chain of exceptions.
        raise ConfigurationError(
            "not a PostgreSQL URL: postgresql://user:password@host:5432/database?option=value, with options that libpq "
            "knows, and what is special in a URL (@ : / ? # %) percent-encoded in its parts"
        ) from None
    ours = {
        "statement_timeout": to_ms(timeout),
        "default_transaction_isolation": r"read\ committed",
        # A plan made while a table was small is kept; each of ours has an index to use.
        "enable_seqscan": "off",
        "jit": "off",
    }
    # Theirs come last and win.
    return " ".join([*(f"-c {name}={value}" for name, value in ours.items()), theirs]).strip()


def _migrations() -> list[tuple[int, str]]:
    """The first is run before each migration; the others once, in this order."""
    if not _MIGRATIONS:
        folder = resources.files("task_contract.stores") / "sql" / "postgres"
        files = sorted((file.name, file.read_text("utf-8")) for file in folder.iterdir() if file.name.endswith(".sql"))
        _MIGRATIONS.extend((int(name.partition("_")[0]), text) for name, text in files)
    return _MIGRATIONS


_MIGRATIONS: list[tuple[int, str]] = []


def _may_pass(error: Exception) -> bool:
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return True
    if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    return (error.sqlstate[:2] if error.sqlstate else None) in _TRANSIENT


def _first_line(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error)


def _storable(value: Any) -> Any:
    """Texts as PostgreSQL can hold them. Needed only once the driver has refused the plain ones."""
    if isinstance(value, str):
        return _UNSTORABLE.sub(lambda found: _MARK + chr(ord(found[0]) + _SHIFT), value)
    return [_storable(each) for each in value] if isinstance(value, (list, tuple)) else value


def _plain(text: str) -> str:
    return _MARKED.sub(lambda found: chr(ord(found[1]) - _SHIFT), text)


def _held(hold: Hold) -> tuple[Any, ...]:
    return hold.key, hold.owner, hold.fence, hold.attempt, *hold.work


def _beat(beat: Beat) -> tuple[Any, ...]:
    silent_for = to_ms(beat.silent_for) if beat.silent_for >= 0 else -1
    hold = beat.hold
    return hold.key, hold.owner, hold.fence, to_ms(beat.lease), beat.draining, beat.progress, beat.note, silent_for


def _filed(letter: DeadLetter) -> tuple[Any, ...]:
    return letter.id, letter.body(), *letter.facets(), letter.key, letter.causation_id


def _letter(row: Sequence[Any]) -> DeadLetter:
    managed = dict(zip(_LETTER, row, strict=True))
    managed |= {name: from_ms(managed[name]) for name in _LETTER_TIMES}
    del managed["id"]
    return DeadLetter.restore(managed.pop("body"), **managed)
