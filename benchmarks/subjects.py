"""The stores, each with its driver used bare beside it."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import redis

from benchmarks.measure import Contestant
from benchmarks.samples import KEEP, LEASE, LIMITS, RESERVED, RESULT, RETAIN, WINDOW, Job
from task_contract.stores.base import SEEN_IDS, Store, to_ms
from task_contract.stores.memory import MemoryStore
from task_contract.stores.postgres import PostgresStore
from task_contract.stores.redis import RedisStore, script
from task_contract.stores.sqlite import SQLiteStore
from tests.servers import Servers

LEASE_MS, KEEP_MS, RETAIN_MS = to_ms(LEASE), to_ms(KEEP), to_ms(RETAIN)


@dataclass(frozen=True)
class Subject:
    """A store to measure."""

    name: str
    version: str
    store: Store
    #: An empty store of the same kind, beside the first.
    another: Callable[[], Store]
    #: Other ways to do what claim + complete do: "bare" is the same two calls, "floor" the least there could be.
    execution: Mapping[str, Contestant] = field(default_factory=dict)
    #: Likewise for reserve + confirm.
    enqueue: Mapping[str, Contestant] = field(default_factory=dict)


def claim_and_complete(store: Store) -> Contestant:
    def prepare(jobs: Sequence[Job]) -> Callable[[], None]:
        def run() -> None:
            for job in jobs:
                claim = store.claim(job.key, job.work, owner=job.owner, lease=LEASE, keep=KEEP, limits=LIMITS)
                store.complete(job.hold(claim.fence, claim.attempt), keep=RETAIN, result=RESULT)

        return run

    return prepare


def reserve_and_confirm(store: Store) -> Contestant:
    def prepare(jobs: Sequence[Job]) -> Callable[[], None]:
        def run() -> None:
            for key, work, _owner, token in jobs:
                told = {"token": token, "message_id": work.message_id, "payload_hash": work.payload_hash}
                store.reserve(key, ttl=RESERVED, record_key=key, **told)
                store.confirm(key, ttl=WINDOW, record_key=key, **told)

        return run

    return prepare


def calls(prepare: Callable[[Job], Sequence[Callable[[], object]]]) -> Contestant:
    """Bare calls with ready-made arguments, one after the other."""

    def ready(jobs: Sequence[Job]) -> Callable[[], None]:
        made = [call for job in jobs for call in prepare(job)]

        def run() -> None:
            for call in made:
                call()

        return run

    return ready


@contextmanager
def memory(_servers: Servers) -> Iterator[Subject]:
    yield Subject("memory", "", MemoryStore(), MemoryStore)


# --- SQLite --------------------------------------------------------------------------------------------------------


@contextmanager
def sqlite(_servers: Servers) -> Iterator[Subject]:
    with (
        tempfile.TemporaryDirectory(prefix="task-contract-bench-", dir=_memory_disk()) as folder,
        closing(_bare_sqlite(Path(folder) / "bare.db")) as connection,
    ):
        yield Subject(
            "sqlite",
            f"SQLite {sqlite3.sqlite_version}",
            SQLiteStore(Path(folder) / "store.db"),
            lambda: SQLiteStore(Path(folder) / f"{uuid4().hex}.db"),
            {"bare": _sqlite_execution(connection)},
            {"bare": _sqlite_enqueue(connection)},
        )


def _memory_disk() -> Path | None:
    """Waiting for a disk would take most of the time, for the store and for its bare driver alike."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else None


def _bare_sqlite(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE bare (key TEXT PRIMARY KEY, state TEXT, owner TEXT, result BLOB) WITHOUT ROWID")
    return connection


def _sqlite_execution(connection: sqlite3.Connection) -> Contestant:
    insert = "INSERT OR IGNORE INTO bare VALUES (?, 'running', ?, NULL)"
    update = "UPDATE bare SET state = 'done', result = ? WHERE key = ? AND owner = ?"

    def transact(statement: str, *values: Any) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(statement, values)
        connection.execute("COMMIT")

    return calls(
        lambda job: (
            lambda: transact(insert, job.key, job.owner),
            lambda: transact(update, RESULT, job.key, job.owner),
        )
    )


def _sqlite_enqueue(connection: sqlite3.Connection) -> Contestant:
    insert = "INSERT OR IGNORE INTO bare VALUES (?, 'enqueued', ?, NULL)"
    return calls(lambda job: (lambda: connection.execute(insert, (job.key, job.token)),))


# --- Redis ---------------------------------------------------------------------------------------------------------


@contextmanager
def redis_store(servers: Servers) -> Iterator[Subject]:
    namespace = f"tc-bench-{uuid4().hex[:12]}"
    url = servers.redis().url
    prefix = "{" + namespace + "}:"
    with redis.Redis.from_url(url) as client:
        try:
            yield Subject(
                "redis",
                f"Redis {_redis_info(client)['redis_version']}",
                RedisStore(url, namespace=namespace),
                lambda: RedisStore(url, namespace=f"{namespace}-{uuid4().hex[:8]}"),
                {
                    "bare": _redis_execution(client, prefix, client.evalsha),
                    "connection": _redis_execution(client, prefix, _on_connection(client)),
                    "floor": _redis_floor(client, prefix),
                },
                {"bare": calls(lambda job: (_set_nx(client, prefix, job),))},
            )
        finally:
            for key in client.scan_iter(match=f"{{{namespace}*", count=5000):
                client.unlink(key)


def _redis_info(client: redis.Redis) -> dict[str, Any]:
    info: Any = client.info("server")
    return dict(info)


def _redis_execution(client: redis.Redis, prefix: str, evalsha: Callable[..., object]) -> Contestant:
    claim, complete = (client.script_load(script(name).source) for name in ("claim", "complete"))

    def pair(job: Job) -> Sequence[Callable[[], object]]:
        attempts, crashes, interruptions, suspects, slot, slots = LIMITS
        bounds = (attempts, crashes, interruptions, int(suspects), slot, slots, SEEN_IDS)
        claimed = ("", job.key, job.owner, LEASE_MS, KEEP_MS, *bounds, *job.work)
        completed = ("", job.key, job.owner, 1, 1, RETAIN_MS, 1, RESULT, "", *job.work)
        return (
            lambda: evalsha(claim, 1, prefix, *claimed),
            lambda: evalsha(complete, 1, prefix, *completed),
        )

    return calls(pair)


def _on_connection(client: redis.Redis) -> Callable[..., object]:
    """EVALSHA on a connection of its own, without redis-py's client and pool: the least Python there could be."""
    connection = client.connection_pool.make_connection()

    def evalsha(*words: Any) -> object:
        connection.send_command("EVALSHA", *words)
        return connection.read_response()

    return evalsha


def _redis_floor(client: redis.Redis, prefix: str) -> Contestant:
    return calls(
        lambda job: (
            lambda: client.set(f"{prefix}{job.key}", job.owner, nx=True, px=KEEP_MS),
            lambda: client.set(f"{prefix}{job.key}", RESULT, px=RETAIN_MS),
        )
    )


def _set_nx(client: redis.Redis, prefix: str, job: Job) -> Callable[[], object]:
    return lambda: client.set(f"{prefix}{job.key}", job.work.message_id, nx=True, px=to_ms(WINDOW))


# --- PostgreSQL ----------------------------------------------------------------------------------------------------


@contextmanager
def postgres(servers: Servers) -> Iterator[Subject]:
    url, schema = _without_disk(servers.postgres().url), f"tc_bench_{uuid4().hex[:12]}"
    made = [schema]

    def another() -> Store:
        made.append(f"tc_bench_{uuid4().hex[:12]}")
        return PostgresStore(url, schema=made[-1])

    # `plain` is set up as the store's own connections are: no prepared statements, which pgbouncer may not know.
    with (
        psycopg.connect(url, autocommit=True, prepare_threshold=None) as plain,
        psycopg.connect(url, autocommit=True) as preparing,
    ):
        store = PostgresStore(url, schema=schema)
        try:
            store.migrate()
            plain.execute(f"CREATE TABLE {schema}.bare (key text PRIMARY KEY, state text, owner text, result bytea)")
            yield Subject(
                "postgres",
                f"PostgreSQL {_postgres_version(plain)}",
                store,
                another,
                {
                    "bare": _postgres_execution(plain, schema),
                    "prepared": _postgres_execution(preparing, schema),
                    "floor": _postgres_floor(plain, schema),
                },
                {"bare": _postgres_enqueue(plain, schema)},
            )
        finally:
            for name in made:
                plain.execute(f"SET client_min_messages = warning; DROP SCHEMA IF EXISTS {name} CASCADE")


def _without_disk(url: str) -> str:
    """The same for all: no commit waits for the disk, which would hide what else there is to see."""
    return f"{url}{'&' if '?' in url else '?'}options=-csynchronous_commit%3Doff"


def _postgres_version(connection: psycopg.Connection) -> str:
    version = connection.info.server_version
    return f"{version // 10000}.{version % 10000}"


def _postgres_execution(connection: psycopg.Connection, schema: str) -> Contestant:
    claim = f"SELECT * FROM {schema}.claim({', '.join(['%s'] * 19)})"
    complete = f"SELECT * FROM {schema}.complete({', '.join(['%s'] * 16)})"

    def pair(job: Job) -> Sequence[Callable[[], object]]:
        claimed = (None, job.key, job.owner, LEASE_MS, KEEP_MS, *job.work, *LIMITS)
        completed = (None, job.key, job.owner, 1, 1, *job.work, RETAIN_MS, RESULT, "")
        return (
            lambda: connection.execute(claim, claimed).fetchall(),
            lambda: connection.execute(complete, completed).fetchall(),
        )

    return calls(pair)


def _postgres_floor(connection: psycopg.Connection, schema: str) -> Contestant:
    insert = f"INSERT INTO {schema}.bare VALUES (%s, 'running', %s, NULL) ON CONFLICT DO NOTHING"
    update = f"UPDATE {schema}.bare SET state = 'done', result = %s WHERE key = %s AND owner = %s"
    return calls(
        lambda job: (
            lambda: connection.execute(insert, (job.key, job.owner)),
            lambda: connection.execute(update, (RESULT, job.key, job.owner)),
        )
    )


def _postgres_enqueue(connection: psycopg.Connection, schema: str) -> Contestant:
    insert = f"INSERT INTO {schema}.bare VALUES (%s, 'enqueued', %s, NULL) ON CONFLICT DO NOTHING"
    return calls(lambda job: (lambda: connection.execute(insert, (job.key, job.token)),))


SUBJECTS = {"memory": memory, "sqlite": sqlite, "redis": redis_store, "postgres": postgres}
