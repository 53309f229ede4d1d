"""What is known of errors by name (E6): the standard library, brokers, databases and their wrappers."""

from __future__ import annotations

import asyncio
import errno
import http.client
import importlib
import json
import pickle
import smtplib
import socket
import socketserver
import sqlite3
import ssl
import struct
import subprocess
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kombu
import kombu.exceptions
import psycopg
import psycopg_pool
import pydantic
import pytest
import redis
import sqlalchemy
import sqlalchemy.exc
import sqlalchemy.orm.exc
from amqp import exceptions as amqp_errors
from django.core.exceptions import ObjectDoesNotExist
from django.db import utils as django_errors
from redis.backoff import NoBackoff
from redis.retry import Retry

from task_contract import errors, known_errors
from task_contract.classify import classify
from task_contract.peek import package_of
from tests.core.raising import caught, raised

IMPATIENT = 0.2


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def made_up(package: str, *names: str, base: type[BaseException] = Exception) -> type[BaseException]:
    """A class as a driver that is not installed here defines it, under its last name; the others are its bases."""
    for name in names:
        base = type(name, (base,), {"__module__": package})
    return base


# ---- the standard library --------------------------------------------------------------------------------------------


def undecodable() -> object:
    return b"\xff".decode()


class Model(pydantic.BaseModel):
    number: int


TRANSIENT: list[BaseException] = [
    TimeoutError(),
    ConnectionError(),
    ConnectionResetError(errno.ECONNRESET, "reset"),
    BrokenPipeError(),
    TimeoutError(),
    asyncio.TimeoutError(),
    asyncio.IncompleteReadError(b"", 1),
    futures.TimeoutError(),
    subprocess.TimeoutExpired("sleep", 1),
    socket.gaierror(socket.EAI_AGAIN, "try again"),
    socket.gaierror(socket.EAI_NONAME, "unknown name"),
    ssl.SSLError("bad record"),
    ssl.SSLEOFError(),
    http.client.RemoteDisconnected("?"),
    http.client.IncompleteRead(b""),
    http.client.BadStatusLine("?"),
    urllib.error.URLError(ConnectionRefusedError()),
    urllib.error.URLError(TimeoutError()),
    urllib.error.URLError(socket.gaierror(socket.EAI_AGAIN, "try again")),
    OSError(errno.EHOSTUNREACH, "unreachable"),
    OSError(errno.ENETUNREACH, "unreachable"),
    OSError(errno.EMFILE, "too many files"),
    OSError(errno.ENOSPC, "disk full"),
    OSError(errno.EIO, "disk"),
    BlockingIOError(),
    InterruptedError(),
    MemoryError(),
    smtplib.SMTPServerDisconnected(),
    smtplib.SMTPSenderRefused(451, b"later", "a@b"),
    smtplib.SMTPDataError(421, b"later"),
    smtplib.SMTPRecipientsRefused({"a@b": (550, b"unknown"), "c@d": (450, b"greylisted")}),
    errors.StoreUnavailable(),
    errors.RetryableError(),
]

PERMANENT: list[BaseException] = [
    TypeError(),
    AttributeError(),
    KeyError(),
    IndexError(),
    LookupError(),
    NameError(),
    UnboundLocalError(),
    ValueError(),
    ImportError(),
    ModuleNotFoundError(),
    AssertionError(),
    NotImplementedError(),
    SyntaxError(),
    RecursionError(),
    ZeroDivisionError(),
    OverflowError(),
    caught(undecodable),
    caught(lambda: json.loads("{")),
    caught(lambda: pickle.loads(b"garbage")),
    caught(lambda: struct.unpack("i", b"")),
    caught(lambda: zlib.decompress(b"garbage")),
    caught(lambda: Model(number="x")),  # type: ignore[arg-type]
    caught(lambda: Path("/no/such/file").read_bytes()),
    caught(lambda: Path("/").read_bytes()),
    FileNotFoundError(),
    PermissionError(),
    OSError(errno.ENAMETOOLONG, "too long"),
    ssl.SSLCertVerificationError(),
    urllib.error.URLError(ssl.SSLCertVerificationError()),
    urllib.error.URLError(FileNotFoundError()),
    smtplib.SMTPSenderRefused(550, b"no", "a@b"),
    smtplib.SMTPAuthenticationError(535, b"no"),
    smtplib.SMTPRecipientsRefused({"a@b": (550, b"unknown")}),
    errors.NonRetryableError(),
    errors.PayloadMismatch(),
    errors.EnvelopeError(),
    errors.SchemaTooNew(),
    errors.KeyDerivationError(),
    errors.PayloadTooLarge(),
    errors.DelayTooLong(),
    errors.ConfigurationError(),
    errors.StoreCorrupt(),
]

UNKNOWN: list[BaseException] = [
    Exception(),
    RuntimeError(),
    OSError(),
    OSError(errno.ECHILD, "no child"),
    urllib.error.URLError("just a text"),
    subprocess.CalledProcessError(1, "false"),
    KeyboardInterrupt(),
    SystemExit(404),
    # The commonest cause is work that was sent before its transaction was committed.
    ObjectDoesNotExist(),
    sqlalchemy.exc.NoResultFound(),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=repr)
def test_transient(error: BaseException) -> None:  # E6
    assert classify(error).kind == "transient"


@pytest.mark.parametrize("error", PERMANENT, ids=repr)
def test_permanent(error: BaseException) -> None:  # E6, A14
    assert classify(error).kind == "permanent"


@pytest.mark.parametrize("error", UNKNOWN, ids=repr)
def test_unclassified(error: BaseException) -> None:  # E6
    assert classify(error).kind == "unclassified"


@pytest.mark.parametrize(("greeting", "kind"), [(b"421 busy\r\n", "transient"), (b"554 go away\r\n", "permanent")])
def test_smtp_counts_the_other_way_round(greeting: bytes, kind: str) -> None:  # E6
    class Mailer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(greeting)

    with socketserver.TCPServer(("127.0.0.1", 0), Mailer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        error = caught(lambda: smtplib.SMTP("127.0.0.1", server.server_address[1], timeout=5))
        thread.join()
    found = classify(error)
    assert (found.kind, found.status) == (kind, None)


def test_unreadable_details_leave_the_cause_to_be_asked() -> None:  # E6
    unreadable: Any = {"a@b": 550}
    assert classify(raised(smtplib.SMTPRecipientsRefused(unreadable), TimeoutError())).kind == "transient"


# ---- Redis and AMQP --------------------------------------------------------------------------------------------------


def test_redis_out_of_reach_is_transient(closed_port: int) -> None:  # E6
    with redis.Redis(port=closed_port, retry=Retry(NoBackoff(), 0)) as client:
        assert classify(caught(client.ping)).kind == "transient"


def test_redis_without_an_answer_is_transient() -> None:  # E6
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        redis.Redis(port=server.getsockname()[1], socket_timeout=IMPATIENT, retry=Retry(NoBackoff(), 0)) as client,
    ):
        error = caught(client.ping)
    assert isinstance(error, redis.TimeoutError)
    assert classify(error).kind == "transient"


def test_redis_replies(redis_url: str, namespace: str) -> None:  # E6
    with redis.Redis.from_url(redis_url) as client:
        client.set(namespace, "text")
        wrong_type = caught(lambda: client.lpush(namespace, "x"))
        bad_data = caught(lambda: client.set(namespace, object()))  # type: ignore[arg-type]
        lock = client.lock(f"{namespace}-lock", timeout=5, blocking=False)
        not_locked = caught(lock.release)
    assert [classify(error).kind for error in (wrong_type, bad_data)] == ["permanent", "permanent"]
    # redis-py's LockError is a ValueError, but a lock that somebody else has is free a moment later.
    assert isinstance(not_locked, ValueError)
    assert classify(not_locked).kind == "transient"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (redis.exceptions.BusyLoadingError(), "transient"),
        (redis.exceptions.ReadOnlyError(), "transient"),
        (redis.exceptions.TryAgainError(), "transient"),
        (redis.exceptions.ClusterDownError("down"), "transient"),
        (redis.exceptions.MasterDownError("down"), "transient"),
        (redis.exceptions.MaxConnectionsError(), "transient"),
        (redis.exceptions.WatchError(), "transient"),
        (redis.exceptions.ResponseError("MISCONF cannot persist"), "transient"),
        (redis.exceptions.ResponseError("NOREPLICAS not enough"), "transient"),
        (redis.exceptions.ResponseError("surprise"), "unclassified"),
        (redis.exceptions.AuthenticationError(), "permanent"),  # a ConnectionError, too
        (redis.exceptions.NoPermissionError(), "permanent"),
        (redis.exceptions.DataError(), "permanent"),
        (amqp_errors.RecoverableConnectionError(), "transient"),
        (amqp_errors.ConnectionForced(), "transient"),
        (amqp_errors.ResourceLocked(), "transient"),
        (amqp_errors.PreconditionFailed(), "permanent"),
        (amqp_errors.AccessRefused(), "permanent"),
        (kombu.exceptions.OperationalError(), "transient"),
        (kombu.exceptions.EncodeError(), "permanent"),
    ],
    ids=repr,
)
def test_redis_and_amqp_by_name(error: BaseException, kind: str) -> None:  # E6
    assert classify(error).kind == kind


def test_broker_out_of_reach_is_transient(closed_port: int) -> None:  # E6
    with kombu.Connection(f"amqp://127.0.0.1:{closed_port}//", connect_timeout=1) as connection:
        error = caught(lambda: connection.ensure_connection(max_retries=1, interval_start=0))
    assert isinstance(error, kombu.exceptions.OperationalError)
    assert classify(error).kind == "transient"


# ---- databases -------------------------------------------------------------------------------------------------------


def test_postgres_out_of_reach_is_transient(closed_port: int) -> None:  # E6
    error = caught(lambda: psycopg.connect(f"postgresql://127.0.0.1:{closed_port}/x", connect_timeout=2))
    assert classify(error).kind == "transient"


@pytest.mark.parametrize(
    ("statement", "state", "kind"),
    [
        ("SELEC 1", "42601", "permanent"),
        ("SELECT * FROM no_such_table", "42P01", "permanent"),
        ("SELECT 1/0", "22012", "permanent"),
        ("CREATE TEMP TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (1)", "23505", "permanent"),
        ("SET statement_timeout = '10ms'; SELECT pg_sleep(5)", "57014", "transient"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", "57P01", "transient"),
        ("BEGIN READ ONLY; CREATE TABLE t (id int)", "25006", "transient"),
        ("DO $$ BEGIN RAISE EXCEPTION 'as asked' USING ERRCODE = '40001'; END $$", "40001", "transient"),
        ("DO $$ BEGIN RAISE EXCEPTION 'as asked' USING ERRCODE = '40002'; END $$", "40002", "permanent"),
        ("DO $$ BEGIN RAISE EXCEPTION 'as asked'; END $$", "P0001", "permanent"),
    ],
)
def test_postgres_errors(postgres_url: str, statement: str, state: str, kind: str) -> None:  # E6
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        error = caught(lambda: connection.execute(statement))
    assert isinstance(error, psycopg.Error)
    assert (error.sqlstate, classify(error).kind) == (state, kind)


def test_postgres_locks_are_transient(postgres_url: str, schema: str) -> None:  # E6
    with psycopg.connect(postgres_url) as first, psycopg.connect(postgres_url) as second:
        first.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t AS SELECT generate_series(1, 2) AS id")
        first.commit()
        first.execute(f"SELECT * FROM {schema}.t WHERE id = 1 FOR UPDATE")
        not_available = caught(lambda: second.execute(f"SELECT * FROM {schema}.t FOR UPDATE NOWAIT"))
        second.rollback()
        second.execute(f"SET deadlock_timeout = '10ms'; SELECT * FROM {schema}.t WHERE id = 2 FOR UPDATE")
        waiting = threading.Thread(target=first.execute, args=(f"SELECT * FROM {schema}.t FOR UPDATE",))
        waiting.start()
        # Whoever looks first is the victim, and the other one looks only after its default of one second.
        deadlock = caught(lambda: second.execute(f"SELECT * FROM {schema}.t WHERE id = 1 FOR UPDATE"))
        second.rollback()
        waiting.join()
    assert isinstance(not_available, psycopg.errors.LockNotAvailable)
    assert isinstance(deadlock, psycopg.errors.DeadlockDetected)
    assert [classify(error).kind for error in (not_available, deadlock)] == ["transient", "transient"]


def test_postgres_closed_connection_and_pool_are_transient(postgres_url: str) -> None:  # E6
    with psycopg.connect(postgres_url) as connection:
        pass
    closed = caught(lambda: connection.execute("SELECT 1"))
    with psycopg_pool.ConnectionPool(postgres_url, min_size=1, max_size=1, open=True) as pool, pool.connection():
        no_slot = caught(lambda: pool.getconn(timeout=0.05))
    assert [classify(error).kind for error in (closed, no_slot)] == ["transient", "transient"]


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """An SQLite file that another connection is writing to."""
    path = tmp_path / "locked.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    writer.execute("INSERT INTO t VALUES (1)")
    writer.execute("BEGIN IMMEDIATE")
    yield path
    writer.close()


SQLITE = [
    ("INSERT INTO t VALUES (2)", "transient"),  # database is locked
    ("SELECT * FROM nothing", "permanent"),  # an OperationalError, like the one above
    ("SELECT nothing FROM t", "permanent"),
    ("SELEC 1", "permanent"),
]


def with_sqlite(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        connection.execute(statement)
    finally:
        connection.close()


def with_django(path: Path, statement: str) -> None:
    # Django's own translation, without a Django project around it.
    with django_errors.DatabaseErrorWrapper(SimpleNamespace(Database=sqlite3, errors_occurred=False)):  # type: ignore[no-untyped-call]
        with_sqlite(path, statement)


def with_sqlalchemy(path: Path, statement: str) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0})
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


@pytest.mark.parametrize(("statement", "kind"), SQLITE)
@pytest.mark.parametrize("execute", [with_sqlite, with_django, with_sqlalchemy])
def test_sqlite_bare_and_wrapped(
    locked: Path, execute: Callable[[Path, str], None], statement: str, kind: str
) -> None:  # E6
    error = caught(lambda: execute(locked, statement))
    assert "OperationalError" in repr(type(error))
    assert classify(error).kind == kind


@pytest.mark.parametrize("execute", [with_sqlite, with_django, with_sqlalchemy])
def test_integrity_errors_are_permanent(tmp_path: Path, execute: Callable[[Path, str], None]) -> None:  # E6
    path = tmp_path / "free.db"
    with_sqlite(path, "CREATE TABLE t (id INTEGER PRIMARY KEY CHECK (id < 9))")
    error = caught(lambda: execute(path, "INSERT INTO t VALUES (9)"))
    assert "IntegrityError" in repr(type(error))
    assert classify(error).kind == "permanent"


def test_sqlalchemy_connections(closed_port: int) -> None:  # E6
    unreachable = sqlalchemy.create_engine(f"postgresql+psycopg://127.0.0.1:{closed_port}/x")
    error = caught(unreachable.connect)
    assert isinstance(error, sqlalchemy.exc.OperationalError)
    assert classify(error).kind == "transient"
    small = sqlalchemy.create_engine(
        "sqlite://", poolclass=sqlalchemy.pool.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.05
    )
    with small.connect():
        error = caught(small.connect)
    small.dispose()
    assert isinstance(error, sqlalchemy.exc.TimeoutError)
    assert classify(error).kind == "transient"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (sqlalchemy.exc.DBAPIError("SELECT 1", {}, Exception("?"), connection_invalidated=True), "transient"),
        (sqlalchemy.exc.DBAPIError("SELECT 1", {}, Exception("?")), "unclassified"),
        (sqlalchemy.exc.StatementError("bad parameter", "SELECT 1", {}, TypeError("?")), "permanent"),
        (sqlalchemy.exc.OperationalError("SELECT 1", {}, Exception("a driver nobody knows")), "transient"),
        (sqlalchemy.exc.ProgrammingError("SELECT 1", {}, Exception("a driver nobody knows")), "permanent"),
        # The driver is known, and does not say: then the wrapper's name counts for nothing.
        (sqlalchemy.exc.OperationalError("SELECT 1", {}, sqlite3.OperationalError("disk I/O error")), "unclassified"),
        (sqlalchemy.orm.exc.StaleDataError(), "transient"),
        (django_errors.OperationalError(), "transient"),
        (django_errors.InterfaceError(), "transient"),
        (django_errors.IntegrityError(), "permanent"),
        (django_errors.DatabaseError(), "unclassified"),
    ],
    ids=repr,
)
def test_wrappers_of_unknown_drivers(error: BaseException, kind: str) -> None:  # E6
    assert classify(error).kind == kind


@pytest.mark.parametrize(
    ("package", "names", "arguments", "kind"),
    [
        ("pymysql.err", ("DatabaseError", "OperationalError"), (2006, "gone away"), "transient"),
        ("pymysql.err", ("DatabaseError", "OperationalError"), (1213, "deadlock"), "transient"),
        ("pymysql.err", ("DatabaseError", "OperationalError"), (1045, "access denied"), "permanent"),
        ("pymysql.err", ("DatabaseError", "OperationalError"), (1054, "unknown column"), "permanent"),
        ("pymysql.err", ("DatabaseError", "OperationalError"), (9999, "?"), "unclassified"),
        ("pymysql.err", ("DatabaseError", "OperationalError"), ([],), "unclassified"),
        ("MySQLdb._exceptions", ("DatabaseError", "OperationalError"), (1205, "lock wait"), "transient"),
        ("MySQLdb._exceptions", ("DatabaseError", "IntegrityError"), (1062, "duplicate"), "permanent"),
        ("mysql.connector.errors", ("DatabaseError",), (2013, "lost", "HY000"), "transient"),
        ("pymongo.errors", ("ConnectionFailure", "AutoReconnect"), (), "transient"),
        ("pymongo.errors", ("OperationFailure", "WriteError", "DuplicateKeyError"), (), "permanent"),
        ("valkey.exceptions", ("ConnectionError", "AuthenticationError"), (), "permanent"),
        ("valkey.exceptions", ("ConnectionError",), (), "transient"),
        # Somebody's own exceptions, of names that are known elsewhere.
        ("shop.errors", ("OperationalError",), (), "unclassified"),
        ("shop.redis", ("ConnectionError",), (), "unclassified"),
        ("redis_tools", ("ConnectionError",), (), "unclassified"),
    ],
)
def test_by_package_and_name(
    package: str, names: tuple[str, ...], arguments: tuple[object, ...], kind: str
) -> None:  # E6
    assert classify(made_up(package, *names)(*arguments)).kind == kind


def test_tables_do_not_contradict_each_other() -> None:  # E6
    def keys(table: dict[str, str]) -> set[tuple[str, str]]:
        return {(package, name) for package, names in table.items() for name in names.split()}

    transient, permanent, judged = (
        keys(known_errors._TRANSIENT),
        keys(known_errors._PERMANENT),
        set(known_errors._JUDGED),
    )
    assert not (transient & permanent) | (transient & judged) | (permanent & judged)
    assert not known_errors._TRANSIENT_ERRNO & known_errors._PERMANENT_ERRNO
    assert not known_errors._TRANSIENT_MYSQL & known_errors._PERMANENT_MYSQL
    assert not known_errors._TRANSIENT_SQLSTATE & known_errors._PERMANENT_SQLSTATE


INSTALLED = [
    *("aiohttp", "amqp.exceptions", "billiard.exceptions", "botocore.exceptions", "celery.exceptions"),
    *("concurrent.futures", "django.core.exceptions", "django.db.utils", "dramatiq", "grpc", "httpcore", "httpx"),
    *("kombu.exceptions", "psycopg", "pydantic", "redis.exceptions", "redis.cluster", "requests.exceptions"),
    *("sqlalchemy.exc", "sqlalchemy.orm.exc", "sqlite3", "urllib3.exceptions", "dramatiq.results"),
    *(
        "smtplib",
        "ftplib",
        "pickle",
        "struct",
        "zlib",
        "gzip",
        "zipfile",
        "tarfile",
        "csv",
        "configparser",
        "subprocess",
    ),
    *("asyncio", "multiprocessing", "socket", "ssl", "http.client"),
]
NEITHER_INSTALLED_NOR_STANDARD = {
    *("_pickle", "_csv"),  # where the C versions of pickle and csv say they live
    *("aiosmtplib", "asyncpg", "elastic_transport", "jsonschema", "mysql", "MySQLdb", "pika", "psycopg2", "pymongo"),
    *("pymysql", "stripe", "yaml"),
}
ELSEWHERE = {
    ("dramatiq", "ConnectionError"),  # the name before dramatiq 2
    ("asyncio", "TimeoutError"),  # not yet the builtin one in Python 3.10
    ("concurrent", "TimeoutError"),  # likewise
    ("pickle", "PickleError"),  # PyPy
}


def test_names_exist() -> None:  # E6
    """A name that its package no longer has is knowledge that silently went out of date."""
    for module in INSTALLED:
        importlib.import_module(module)
    known = {(package_of(cls), cls.__name__) for cls in _all_exceptions()}
    checked = {key for key in known_errors._KNOWN if key[0] not in {*NEITHER_INSTALLED_NOR_STANDARD, "valkey"}}
    assert checked - ELSEWHERE <= known


def _all_exceptions() -> set[type[BaseException]]:
    found: set[type[BaseException]] = set()
    waiting: list[type[BaseException]] = [BaseException]
    while waiting:
        cls = waiting.pop()
        found.add(cls)
        waiting += [each for each in cls.__subclasses__() if each not in found]
    return found
