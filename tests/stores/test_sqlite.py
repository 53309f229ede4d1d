"""What only the SQLite store has: a file, its lock, its schema and its indexes."""

from __future__ import annotations

import inspect
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from task_contract.errors import ConfigurationError, ContractError, InvalidTransition, StoreUnavailable
from task_contract.stores import open_store, sqlite_url
from task_contract.stores.base import FACETS, ROW_FIELDS, Filter
from task_contract.stores.pool import PAUSE, TRIES
from task_contract.stores.sqlite import MIGRATIONS, SQLiteStore, queries
from task_contract.testing import Clock
from task_contract.testing.acts import (
    all_letters,
    bury,
    claim,
    discard,
    finish,
    letter,
    record,
    replay,
    run,
    wait,
)
from tests.stores.strikes import Target, strike_at_random

#: What an enqueue's reservation lives while nobody confirms it: no verb may take nearly as long to give up.
RESERVATION = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(path)) as store:
        yield store


@contextmanager
def looking_into(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def asked(store: SQLiteStore, query: str, *values: object) -> list[tuple[Any, ...]]:
    return store._pool.run(lambda connection: connection.execute(query, values).fetchall())


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Another process, that says when it is ready and waits for a line before it goes on."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def told(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


# --- the schema ----------------------------------------------------------------------------------------------------

FIRST_USE = """
import sys
from task_contract.stores.sqlite import SQLiteStore
from task_contract.testing.acts import claim, run
print("ready", flush=True)
sys.stdin.readline()
store = SQLiteStore(sys.argv[1])
run(store, f"own-{sys.argv[2]}")
print(claim(store, "shared", owner=sys.argv[2]).outcome, flush=True)
"""


def test_eight_processes_may_start_at_once(path: Path) -> None:
    processes = [python(FIRST_USE, path, number) for number in range(8)]
    assert [heard(process) for process in processes] == ["ready"] * 8
    for process in processes:
        told(process, "go")
    assert sorted(process.communicate()[0].strip() for process in processes) == ["busy"] * 7 + ["won"]
    with looking_into(path) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert file.execute("SELECT count(*) FROM records").fetchone() == (9,)


def test_a_migration_that_fails_leaves_nothing_behind(path: Path, store: SQLiteStore) -> None:
    with looking_into(path) as file:
        file.execute("CREATE TABLE letter_counts (somebody_elses INTEGER)")
        with pytest.raises(ContractError, match="letter_counts"):
            store.ping()
        assert file.execute("SELECT name FROM sqlite_master").fetchall() == [("letter_counts",)]
        assert file.execute("PRAGMA user_version").fetchone() == (0,)


def test_a_file_of_a_newer_release_is_refused(path: Path, store: SQLiteStore) -> None:
    run(store)
    store.close()
    with looking_into(path) as file:
        file.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigurationError, match=r"newer.*upgrade"):
        store.ping()


def test_a_file_of_this_release_is_opened_as_it_is(path: Path, store: SQLiteStore) -> None:
    finish(store, run(store))
    store.close()
    with closing(SQLiteStore(path)) as again:
        assert record(again).state == "done"


def test_a_file_is_of_one_namespace(path: Path) -> None:
    with closing(SQLiteStore(path, namespace="a")) as a, closing(SQLiteStore(path, namespace="b")) as b:
        finish(a, run(a))
        with pytest.raises(ConfigurationError, match=r"'a'.*'b'.*file of its own") as caught:
            claim(b)
        assert str(path) in str(caught.value)
        with pytest.raises(ConfigurationError, match="namespace 'a', and this is 'task-contract'"):
            open_store(sqlite_url(path)).ping()
        with closing(open_store(sqlite_url(path), namespace="a")) as again:
            assert record(again).state == "done"


def test_records_have_the_columns_of_a_row(path: Path, store: SQLiteStore) -> None:
    store.ping()
    with looking_into(path) as file:
        columns = [name for _, name, *_ in file.execute("PRAGMA table_info(records)")]
    assert columns == ["store_key", *ROW_FIELDS]


def test_writers_do_not_block_readers_and_a_commit_is_on_disk(path: Path, store: SQLiteStore) -> None:
    run(store)
    assert asked(store, "PRAGMA journal_mode") == [("wal",)]
    assert asked(store, "PRAGMA synchronous") == [(2,)]  # FULL
    with looking_into(path) as file:
        file.execute("BEGIN IMMEDIATE")
        assert record(store).state == "running"


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    with closing(SQLiteStore(tmp_path / "a" / "b" / "store.db")) as store:
        store.ping()
    assert (tmp_path / "a" / "b" / "store.db").exists()


def test_nothing_is_opened_before_it_is_used(path: Path) -> None:
    SQLiteStore(path).close()
    assert not path.exists()


# --- one connection ------------------------------------------------------------------------------------------------


def test_threads_share_one_connection_without_a_deadlock(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    most, opened = [0], set[int]()
    connect, close = store._pool._connect, store._pool._close

    def opening() -> sqlite3.Connection:
        connection = connect()
        opened.add(id(connection))
        most[0] = max(most[0], len(opened))
        return connection

    def closing_one(connection: sqlite3.Connection) -> None:
        opened.discard(id(connection))
        close(connection)

    monkeypatch.setattr(store._pool, "_connect", opening)
    monkeypatch.setattr(store._pool, "_close", closing_one)
    start, ended = threading.Barrier(16), []

    def work(number: int) -> None:
        start.wait()
        for turn in range(5):
            finish(store, run(store, f"{number}-{turn}"))
            with suppress(InvalidTransition):
                replay(store, "nothing")  # a refusal in the middle of a transaction
        ended.append(number)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ended) == list(range(16))
    with looking_into(store.path) as file:
        assert file.execute("SELECT count(*) FROM records WHERE state = 'done'").fetchone() == (80,)
    assert most == [1]


def test_a_verb_that_writes_asks_for_the_lock_before_it_reads(store: SQLiteStore) -> None:
    said: list[str] = []
    store.ping()
    store._pool.run(lambda connection: connection.set_trace_callback(said.append))
    finish(store, run(store))
    assert [each for each in said if each.startswith("BEGIN")] == ["BEGIN IMMEDIATE"] * 2


def test_time_limits_leave_neither_the_connection_nor_the_lock_taken(path: Path, store: SQLiteStore) -> None:
    target = Target(lambda: store.reserve("k", token="t", message_id="m", ttl=30))
    strike_at_random([target], seconds=2)
    assert target.failure is None
    assert target.felt > 10
    store.reserve("k", token="t", message_id="m", ttl=30)
    with looking_into(path) as file:
        file.execute("PRAGMA busy_timeout = 0")
        file.execute("BEGIN IMMEDIATE")


def test_a_refusal_leaves_no_transaction_open(path: Path, store: SQLiteStore) -> None:
    with pytest.raises(InvalidTransition):
        replay(store, "nothing")
    with looking_into(path) as file:
        file.execute("PRAGMA busy_timeout = 0")
        file.execute("BEGIN IMMEDIATE")


# --- the lock ------------------------------------------------------------------------------------------------------

HOLD_THE_LOCK = """
import sqlite3, sys
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
file.execute("COMMIT")
print("released", flush=True)
"""


@contextmanager
def lock_held(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = python(HOLD_THE_LOCK, path)
    try:
        assert heard(process) == "held"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_lock_that_is_not_given_back_ends_in_an_error_in_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    with closing(SQLiteStore(path, timeout=0.1)) as store:
        store.ping()
        monkeypatch.setattr(time, "sleep", pauses.append)
        with lock_held(path), pytest.raises(StoreUnavailable, match="locked") as caught:
            claim(store)
        assert len(pauses) == TRIES - 1
        assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
        assert claim(store).outcome == "won"


def test_the_longest_wait_for_the_lock_is_below_a_reservations_life() -> None:
    default = inspect.signature(SQLiteStore).parameters["timeout"].default
    assert TRIES * (default + PAUSE * 2**TRIES) < RESERVATION


def test_whoever_finds_the_file_locked_waits_for_it(path: Path, store: SQLiteStore) -> None:
    store.ping()
    outcomes: list[str] = []
    with lock_held(path) as holder:
        thread = threading.Thread(target=lambda: outcomes.append(claim(store).outcome))
        thread.start()
        assert outcomes == []
        told(holder, "release")
        assert heard(holder) == "released"
        thread.join(30)
    assert outcomes == ["won"]


def test_a_holder_that_is_killed_gives_the_lock_back(path: Path, store: SQLiteStore) -> None:
    store.ping()
    with lock_held(path):
        pass
    assert claim(store).outcome == "won"


# --- a file that will not have us ----------------------------------------------------------------------------------


def test_a_path_that_cannot_be_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path, tmp_path / "file" / "store.db", Path("/proc/nowhere/store.db")):
        with pytest.raises(ConfigurationError, match="cannot open the store") as caught:
            SQLiteStore(path).ping()
        assert str(path) in str(caught.value)


def test_a_file_that_may_not_be_written_is_named(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        store.ping()
    with pytest.raises(ContractError, match=r"readonly|read-only") as caught:
        claim(ReadOnly(path))
    assert str(path) in str(caught.value)


class ReadOnly(SQLiteStore):
    """As for a user who may only read. (Root, who runs some tests, may write whatever the mode says.)"""

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection


def test_a_file_that_is_no_database_is_named_and_left_alone(path: Path) -> None:
    content = b"Dear diary, " * 1000
    path.write_bytes(content)
    with pytest.raises(ContractError, match="not a database") as caught:
        SQLiteStore(path).ping()
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_store_of_this_process_alone_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="memory://"):
        SQLiteStore(path)


class Small(SQLiteStore):
    """On a disk that is full."""

    full = False

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages if self.full else 1_000_000}")
        return connection


def fill(store: Small) -> None:
    """No page is left: neither free ones nor room in those that are in use."""
    store.close()
    store.full = True
    with suppress(StoreUnavailable):
        for number in range(100):
            store.put_letter(letter(f"filler-{number}", traceback="x" * 3000), keep=60)
    with suppress(StoreUnavailable):
        for number in range(100):
            run(store, f"filler-{number}")


TOO_MUCH = b"x" * 100_000


@pytest.mark.parametrize(
    "verb",
    [
        lambda store, hold: finish(store, hold, TOO_MUCH),
        lambda store, hold: wait(store, hold, error="x" * 100_000),
        lambda store, hold: store.bury(hold, letter("L2", message=TOO_MUCH), keep=60, reservation="k"),
        lambda store, hold: claim(store, "new" * 50_000),
        lambda store, hold: store.put_letter(letter("L2", message=TOO_MUCH), keep=60),
        lambda store, hold: store.reserve("new" * 50_000, token="t", message_id="m", ttl=30),
    ],
    ids=["complete", "retry", "bury", "claim", "put_letter", "reserve"],
)
def test_a_full_disk_refuses_a_verb_whole(path: Path, verb: Callable[[SQLiteStore, Any], object]) -> None:
    with closing(Small(path)) as store:
        hold = run(store)
        store.reserve("k", token="t", message_id="m1", ttl=60)
        bury(store, run(store, "dead"))
        fill(store)
        before = content(path)
        with pytest.raises(StoreUnavailable, match="full") as caught:
            verb(store, hold)
        assert str(path) in str(caught.value)
        assert content(path) == before
        store.close()
        store.full = False
        verb(store, hold)
        assert content(path) != before


def content(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with looking_into(path) as file:
        tables = ("records", "places", "letters", "letter_counts")
        return {table: file.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables}


# --- dead letters --------------------------------------------------------------------------------------------------

SOME_DAY = datetime(2030, 1, 1, tzinfo=timezone.utc)
BOUNDS: dict[str, Any] = {"alone": {}, "since": {"since": SOME_DAY}, "until": {"until": SOME_DAY}}


@pytest.mark.parametrize("cursor", ["", "1893456000000-L1"], ids=["first page", "next page"])
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("facet", ["", *FACETS])
def test_every_page_walks_an_index(store: SQLiteStore, facet: str, closed: bool, bounds: str, cursor: str) -> None:
    where = Filter(**{**({facet: "x"} if facet else {}), **BOUNDS[bounds], "closed": closed})
    said: list[str] = []
    store.ping()
    store._pool.run(lambda connection: connection.set_trace_callback(said.append))
    store.page_letters(where, cursor=cursor)
    store._pool.run(lambda connection: connection.set_trace_callback(None))
    (query,) = [each for each in said if each.startswith("SELECT")]
    plan = " ".join(row[3] for row in asked(store, f"EXPLAIN QUERY PLAN {query}"))
    assert f"USING INDEX letters_{facet or 'time'} (" in plan
    assert "SCAN" not in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.parametrize(
    "name", ["expire_records", "expire_places", "expire_letters", "suspect_elsewhere", "slots_taken"]
)
def test_housekeeping_and_places_walk_an_index(store: SQLiteStore, name: str) -> None:
    store.ping()
    query = queries()[name]
    plan = [row[3] for row in asked(store, f"EXPLAIN QUERY PLAN {query}", *"x" * query.count("?"))]
    assert not [step for step in plan if step.startswith("SCAN")], plan


@pytest.mark.parametrize("seed", range(10))
def test_the_counts_are_right_after_any_history(path: Path, store: SQLiteStore, seed: int) -> None:
    clock, chance = Clock(), random.Random(seed)
    store.now = clock
    steps: list[Callable[[str, str], object]] = [
        lambda key, reason: bury(store, run(store, key, message_id=new_id(chance)), new_id(chance), reason=reason),
        lambda key, reason: store.put_letter(letter(new_id(chance), reason=reason), keep=chance.randint(1, 50)),
        lambda key, reason: store.put_letter(letter("always the same", reason=reason), keep=20),
        lambda key, reason: replay(store, some_letter(store, chance)),
        lambda key, reason: store.mark_replayed(some_letter(store, chance)),
        lambda key, reason: discard(store, some_letter(store, chance)),
        lambda key, reason: store.expire(chance.randint(1, 5)),
        lambda key, reason: clock.advance(chance.randint(1, 10)),
        lambda key, reason: store.letter_stats(),
    ]
    for _ in range(300):
        with suppress(ContractError, AssertionError):  # a step that is not allowed just now
            chance.choice(steps)(f"k{chance.randint(1, 5)}", f"reason {chance.randint(1, 3)}")
    assert counted(path) == counted_anew(path)
    stats = store.letter_stats()
    found = all_letters(store)
    assert stats.depth == len(found)
    assert dict(stats.reasons) == {
        each: sum(one.reason == each for one in found) for each in {one.reason for one in found}
    }
    assert stats.oldest_at == min((one.failed_at for one in found if one.failed_at), default=None)


def new_id(chance: random.Random) -> str:
    return f"{chance.getrandbits(64):x}"


def some_letter(store: SQLiteStore, chance: random.Random) -> str:
    letters = (
        *store.page_letters(Filter(), limit=5).letters,
        *store.page_letters(Filter(closed=True), limit=2).letters,
    )
    return chance.choice(letters).id if letters else "none"


def counted(path: Path) -> list[tuple[Any, ...]]:
    with looking_into(path) as file:
        return file.execute(
            "SELECT is_open, reason, count FROM letter_counts WHERE count <> 0 ORDER BY 1, 2"
        ).fetchall()


def counted_anew(path: Path) -> list[tuple[Any, ...]]:
    with looking_into(path) as file:
        return file.execute("SELECT is_open, reason, count(*) FROM letters GROUP BY 1, 2 ORDER BY 1, 2").fetchall()


def test_an_old_release_of_sqlite_is_a_finding(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 2))
    ((severity, what, remedy),) = store.findings()
    assert (severity, "lose" in what, "3.51.3" in remedy) == ("warning", True, True)
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 3))
    assert store.findings() == []
