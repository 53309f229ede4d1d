"""Connections that are shared, lost, forked; and patience that ends."""

from __future__ import annotations

import os
import random
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from task_contract.errors import StoreUnavailable
from task_contract.stores.pool import PAUSE, TRIES, Pool, patiently

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
    for _ in range(5):
        with pool.borrow() as connection:
            assert connection.number == 1


def test_the_last_one_given_back_is_the_first_one_lent(server: Server) -> None:
    pool = server.pool()
    with pool.borrow() as first, pool.borrow() as second:
        assert (first.number, second.number) == (1, 2)
    with pool.borrow() as again:
        assert again is first  # the outer one came back last
    assert len(server.made) == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_a_connection_that_something_went_wrong_on_is_not_used_again(
    server: Server, error: type[BaseException]
) -> None:
    pool = server.pool()

    def converse() -> None:
        with pool.borrow():
            raise error

    with pytest.raises(error):
        converse()
    assert server.made[0].closed
    with pool.borrow() as connection:
        assert (connection.number, connection.closed) == (2, False)


def test_no_more_than_its_size_are_lent_and_the_error_says_what_to_raise(server: Server) -> None:
    pool = server.pool(size=2)
    with pool.borrow(), pool.borrow(), pytest.raises(StoreUnavailable, match="all 2 connections") as caught:  # noqa: SIM117  (the third is the point)
        with pool.borrow():
            pass
    assert "max_connections" in str(caught.value)
    with pool.borrow(), pool.borrow():
        assert len(server.made) == 2


def test_whoever_finds_none_free_gets_the_next_one_given_back(server: Server) -> None:
    pool, got = server.pool(size=1, timeout=20), threading.Event()

    def second() -> None:
        with pool.borrow():
            got.set()

    thread = threading.Thread(target=second)
    with pool.borrow():
        thread.start()
        assert not got.is_set()
    thread.join(20)
    assert got.is_set()
    assert len(server.made) == 1


def test_a_failure_to_connect_gives_its_place_back(server: Server) -> None:
    pool = server.pool(size=1)
    server.away = True
    for _ in range(3):
        with pytest.raises(ConnectionError), pool.borrow():
            pass
    server.away = False
    with pool.borrow() as connection:
        assert connection.number == 1


def test_an_error_gives_its_place_back(server: Server) -> None:
    pool = server.pool(size=1)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"), pool.borrow():
            raise ValueError("no")
    with pool.borrow() as connection:
        assert connection.number == 4


def test_clearing_closes_what_is_idle_and_nothing_else(server: Server) -> None:
    pool = server.pool()
    with pool.borrow() as busy:
        with pool.borrow():
            pass
        pool.clear()
        assert [connection.closed for connection in server.made] == [False, True]
    with pool.borrow() as connection:
        assert connection is busy


def test_threads_never_share_a_connection(server: Server) -> None:
    pool, start, lent = server.pool(size=4, timeout=20), threading.Barrier(16), set[int]()
    clashes: list[int] = []

    def work() -> None:
        start.wait()
        for _ in range(200):
            with pool.borrow() as connection:
                if connection.number in lent:
                    clashes.append(connection.number)
                lent.add(connection.number)
                os.sched_yield()
                lent.discard(connection.number)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    assert len(server.made) <= 4


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
    with pool.borrow() as idle:
        pass

    def child() -> bool:
        with pool.borrow() as own:
            pass
        pool.clear()
        return own is not idle and own.closed and not idle.closed

    assert in_a_child(child)
    with pool.borrow() as connection:
        assert connection is idle


def test_a_child_does_not_wait_for_what_its_parents_threads_hold(server: Server) -> None:
    pool = server.pool(size=1)

    def child() -> bool:
        with pool.borrow() as own:
            return own.number == 2

    with pool.borrow():
        assert in_a_child(child)


def test_what_is_lent_across_a_fork_does_not_come_back_to_the_child(server: Server) -> None:
    pool = server.pool()

    def child() -> bool:
        borrowed.__exit__(None, None, None)
        with pool.borrow() as own:
            return own.number == 2

    borrowed = pool.borrow()
    borrowed.__enter__()
    assert in_a_child(child)
    borrowed.__exit__(None, None, None)
    with pool.borrow() as connection:
        assert connection.number == 1


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

    def converse() -> int:
        with pool.borrow() as connection:
            return connection.number

    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="away"):
        patiently(converse, transient, "claim")
    assert time.monotonic() - started < RESERVATION / 2
