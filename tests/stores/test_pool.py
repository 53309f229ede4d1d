"""Connections that are shared, lost, forked; and patience that ends."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from task_contract.errors import StoreUnavailable
from task_contract.stores.pool import PAUSE, TRIES, Pool, patiently
from tests.servers.process import wait_until
from tests.stores.strikes import Struck, Target, strike, strike_at_random

#: What an enqueue's reservation lives while nobody confirms it.
RESERVATION = 30.0


@dataclass
class Connection:
    number: int
    closed: bool = False


@dataclass
class Server:
    """Makes connections and remembers all of them."""

    made: list[Connection] = field(default_factory=list)
    away: bool = False

    def connect(self) -> Connection:
        if self.away:
            raise ConnectionError("away")
        self.made.append(Connection(len(self.made) + 1))
        return self.made[-1]

    @staticmethod
    def close(connection: Connection) -> None:
        connection.closed = True

    def pool(self, *, size: int = 20, timeout: float = 0.05) -> Pool[Connection]:
        return Pool(self.connect, self.close, size=size, timeout=timeout)


@pytest.fixture
def server() -> Server:
    return Server()


# --- connections ---------------------------------------------------------------------------------------------------


def test_nothing_is_connected_before_it_is_needed(server: Server) -> None:
    server.pool()
    assert server.made == []


def test_one_after_the_other_needs_one_connection(server: Server) -> None:
    pool = server.pool()
    assert [pool.run(number) for _ in range(5)] == [1] * 5


def number(connection: Connection) -> int:
    return connection.number


@contextmanager
def lent(pool: Pool[Connection]) -> Iterator[Connection]:
    """A connection in the hands of another thread for a while."""
    got, end = queue.SimpleQueue[Connection](), threading.Event()

    def converse(connection: Connection) -> None:
        got.put(connection)
        end.wait(20)

    thread = threading.Thread(target=pool.run, args=(converse,))
    thread.start()
    try:
        yield got.get(timeout=20)
    finally:
        end.set()
        thread.join(20)


def test_the_last_one_given_back_is_the_first_one_lent(server: Server) -> None:
    pool = server.pool()
    with lent(pool) as first, lent(pool) as second:
        assert (first.number, second.number) == (1, 2)
    assert pool.run(number) == 1  # the outer one came back last
    assert len(server.made) == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_a_connection_that_something_went_wrong_on_is_not_used_again(
    server: Server, error: type[BaseException]
) -> None:
    pool = server.pool()
    with pytest.raises(error):
        pool.run(failing(error))
    assert server.made[0].closed
    assert pool.run(lambda connection: (connection.number, connection.closed)) == (2, False)


def failing(error: type[BaseException] = ValueError) -> Callable[[Connection], None]:
    def converse(connection: Connection) -> None:
        raise error("no")

    return converse


def test_a_connection_that_cannot_even_be_closed_does_not_hide_the_error(server: Server) -> None:
    def close(connection: Connection) -> None:
        raise OSError("already gone")

    pool = Pool(server.connect, close)
    with pytest.raises(ValueError, match="no"):
        pool.run(failing())
    assert pool.run(number) == 2
    pool.clear()


def test_no_more_than_its_size_are_lent_and_the_error_says_what_to_raise(server: Server) -> None:
    pool = server.pool(size=2)
    with lent(pool), lent(pool), pytest.raises(StoreUnavailable, match="all 2 connections") as caught:
        pool.run(number)
    assert "max_connections" in str(caught.value)
    with lent(pool), lent(pool):
        assert len(server.made) == 2


def test_whoever_finds_none_free_gets_the_next_one_given_back(server: Server) -> None:
    pool, got = server.pool(size=1, timeout=20), threading.Event()
    thread = threading.Thread(target=pool.run, args=(lambda _: got.set(),))
    with lent(pool):
        thread.start()
        assert not got.is_set()
    thread.join(20)
    assert got.is_set()
    assert len(server.made) == 1


def test_a_busy_neighbour_leaves_room(server: Server) -> None:
    """A thread that asks again and again does not come in before those who wait."""
    pool, stop = server.pool(size=1, timeout=1), threading.Event()

    def hog() -> None:
        while not stop.is_set():
            pool.run(lambda _: time.sleep(0.001))

    neighbours = [threading.Thread(target=hog) for _ in range(3)]
    for thread in neighbours:
        thread.start()
    started = time.monotonic()
    turns = [pool.run(number) for _ in range(20)]
    took = time.monotonic() - started
    stop.set()
    for thread in neighbours:
        thread.join()
    assert turns == [1] * 20
    assert took < 10


def test_a_failure_to_connect_gives_its_place_back(server: Server) -> None:
    pool = server.pool(size=1)
    server.away = True
    for _ in range(3):
        with pytest.raises(ConnectionError):
            pool.run(number)
    server.away = False
    assert pool.run(number) == 1


def test_an_error_gives_its_place_back(server: Server) -> None:
    pool = server.pool(size=1)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            pool.run(failing())
    assert pool.run(number) == 4


def test_clearing_closes_what_is_idle_and_nothing_else(server: Server) -> None:
    pool = server.pool()
    with lent(pool):
        pool.run(number)
        pool.clear()
        assert [connection.closed for connection in server.made] == [False, True]
    assert pool.run(number) == 1


def test_threads_never_share_a_connection(server: Server) -> None:
    pool, start, in_use = server.pool(size=4, timeout=20), threading.Barrier(16), set[int]()
    clashes: list[int] = []

    def converse(connection: Connection) -> None:
        if connection.number in in_use:
            clashes.append(connection.number)
        in_use.add(connection.number)
        os.sched_yield()
        in_use.discard(connection.number)

    def work() -> None:
        start.wait()
        for _ in range(200):
            pool.run(converse)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    assert len(server.made) <= 4


# --- time limits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [1, 4], ids=["alone", "with others who wait"])
def test_whatever_strikes_no_place_is_lost(server: Server, many: int) -> None:
    """A semaphore loses one within seconds: struck between its counting and our noting of it."""
    pool, begun = server.pool(size=1, timeout=5), set[int]()

    def converse(connection: Connection) -> None:
        assert not connection.closed, "lent although it was closed"
        assert connection.number not in begun, "left in doubt, and lent again"
        begun.add(connection.number)
        begun.discard(connection.number)

    targets = [Target(lambda: pool.run(converse)) for _ in range(many)]
    strike_at_random(targets, seconds=3)
    assert [target.failure for target in targets] == [None] * many
    assert min(target.felt for target in targets) > 10
    assert (pool._turns.taken, list(pool._turns.waiting)) == (set(), [])
    assert pool.run(lambda connection: connection.closed) is False


def test_a_place_is_free_while_the_error_that_struck_is_looked_at(server: Server) -> None:
    """Its traceback keeps frames alive, and with them whatever they hold; and now the failure must be stored."""
    pool = server.pool(size=1)

    try:
        pool.run(lambda _: strike(threading.get_ident()))
    except Struck:
        assert pool.run(number) == 2
    assert server.made[0].closed


def test_a_fork_that_was_struck_does_not_keep_its_place(server: Server) -> None:
    pool = server.pool(size=1)
    pool._close_before_fork()
    with pytest.raises(StoreUnavailable):
        pool.run(number)
    assert pool.run(number) == 1


# --- fork ----------------------------------------------------------------------------------------------------------


def in_a_child(check: Callable[[], bool]) -> bool:
    """Whether `check` holds in a forked child, which ends at once and without cleaning up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests do not matter to this child
        child = os.fork()
    if child == 0:
        held = False
        try:
            held = check()
        finally:
            os._exit(0 if held else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_leaves_its_parents_connections_alone(server: Server) -> None:
    pool = server.pool()
    pool.run(number)
    (idle,) = server.made

    def child() -> bool:
        own = pool.run(lambda connection: connection)
        pool.clear()
        return own is not idle and own.closed and not idle.closed

    assert in_a_child(child)
    assert pool.run(lambda connection: connection) is idle


def test_a_child_does_not_wait_for_what_its_parents_threads_hold(server: Server) -> None:
    pool = server.pool(size=1)
    with lent(pool):
        assert in_a_child(lambda: pool.run(number) == 2)


def test_what_is_lent_across_a_fork_does_not_come_back_to_the_child(server: Server) -> None:
    pool, reader_writer = server.pool(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = pool.run(lambda _: os.fork())  # in the middle of a conversation, which goes on in both
    if child == 0:
        try:
            os.write(reader_writer[1], b"%d" % pool.run(number))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader_writer[0], 10) == b"2"
    assert pool.run(number) == 1
    for end in reader_writer:
        os.close(end)


def test_what_is_not_inheritable_is_closed_before_a_fork(server: Server) -> None:
    pool = Pool(server.connect, server.close, size=1, timeout=5, inheritable=False)
    with lent(pool):
        forked = threading.Thread(target=lambda: children.append(in_a_child(lambda: server.made[0].closed)))
        children: list[bool] = []
        forked.start()
        wait_until(lambda: bool(pool._turns.waiting), "the fork waits for the one who converses")
        assert not server.made[0].closed
        assert children == []
    forked.join(20)
    assert children == [True]
    assert pool.run(number) == 2


# --- patience ------------------------------------------------------------------------------------------------------


@dataclass
class Attempts:
    """An operation that fails some times before it goes well, and remembers what it was asked."""

    failures: int
    error: Callable[[], Exception] = lambda: ConnectionError("away")
    calls: int = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error()
        return "answer"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited, without waiting."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


def transient(error: Exception) -> bool:
    return isinstance(error, ConnectionError)


def test_what_goes_well_is_asked_once(pauses: list[float]) -> None:
    operation = Attempts(failures=0)
    assert patiently(operation, transient, "claim") == "answer"
    assert (operation.calls, pauses) == (1, [])


@pytest.mark.parametrize("failures", range(1, TRIES))
def test_what_may_go_well_the_next_time_is_asked_again(pauses: list[float], failures: int) -> None:
    operation = Attempts(failures)
    assert patiently(operation, transient, "claim") == "answer"
    assert (operation.calls, len(pauses)) == (failures + 1, failures)


def test_patience_ends_and_names_the_verb_and_the_cause(pauses: list[float]) -> None:
    operation = Attempts(failures=99)
    with pytest.raises(StoreUnavailable, match="claim: away") as caught:
        patiently(operation, transient, "claim")
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert (operation.calls, len(pauses)) == (TRIES, TRIES - 1)


def test_what_will_not_go_well_is_raised_at_once(pauses: list[float]) -> None:
    operation = Attempts(failures=99, error=lambda: ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        patiently(operation, transient, "claim")
    assert (operation.calls, pauses) == (1, [])


def test_what_is_no_exception_is_never_held_up(pauses: list[float]) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        patiently(interrupted, lambda _: True, "claim")
    assert pauses == []


def test_each_error_is_shown_to_whoever_may_mend_it(pauses: list[float]) -> None:
    seen: list[Exception] = []

    def recover(error: Exception) -> bool:
        seen.append(error)
        return True

    errors = iter([OSError("first"), OSError("second")])
    patiently(Attempts(failures=2, error=lambda: next(errors)), recover, "claim")
    assert [str(error) for error in seen] == ["first", "second"]


def test_pauses_grow_and_are_drawn_from_nothing_up(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        bounds.append((low, high))
        return high

    monkeypatch.setattr(random, "uniform", draw)
    with pytest.raises(StoreUnavailable):
        patiently(Attempts(failures=99), transient, "claim")
    assert bounds == [(0, PAUSE * 2**attempt) for attempt in range(1, TRIES)]
    assert pauses == [high for _, high in bounds]


def test_two_callers_do_not_knock_in_step(pauses: list[float]) -> None:
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            patiently(Attempts(failures=99), transient, "claim")
    assert len(set(pauses)) > len(pauses) / 2


def test_the_longest_wait_is_far_below_a_reservations_life() -> None:
    longest_pauses = sum(PAUSE * 2**attempt for attempt in range(1, TRIES))
    to_connect = to_answer = to_get_a_connection = 1.0  # the default time-out of the stores that use it
    assert TRIES * (to_get_a_connection + to_connect + to_answer) + longest_pauses < RESERVATION / 2


def test_a_server_that_is_away_is_given_up_soon(server: Server) -> None:
    server.away = True
    pool = server.pool()

    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="away"):
        patiently(lambda: pool.run(number), transient, "claim")
    assert time.monotonic() - started < RESERVATION / 2
