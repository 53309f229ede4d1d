"""Many ask at once, one wins: threads on one store object, and processes that share nothing but the store."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from task_contract.stores.base import Limits, Store, Work
from tests.stores.opening import Address

THREADS, THREAD_KEYS = 20, 20
PROCESSES, PROCESS_KEYS = 8, 50
#: Far longer than the race: no lease and no reservation runs out during it.
LONG = 600.0


class Answers(NamedTuple):
    """What one racer was told, by key: (outcome, whose it is)."""

    reserved: dict[str, tuple[str, str]]
    claimed: dict[str, tuple[str, int]]
    slot: str


def race(store: Store, name: str, keys: list[str], ready: Callable[[], object]) -> Answers:
    """Everybody comes to each key at the same time."""
    reserved: dict[str, tuple[str, str]] = {}
    claimed: dict[str, tuple[str, int]] = {}
    for key in keys:
        ready()
        place = store.reserve(key, token=name, message_id=f"m-{name}", ttl=LONG)
        reserved[key] = (place.outcome, place.token)
        ready()
        run = store.claim(key, Work(f"m-{name}"), owner=name, lease=LONG, keep=LONG, limits=Limits())
        claimed[key] = (run.outcome, run.fence)
    ready()
    three = Limits(slot="three", slots=3)
    slot = store.claim(f"slot-{name}", Work("m"), owner=name, lease=LONG, keep=LONG, limits=three)
    return Answers(reserved, claimed, slot.outcome)


def check(store: Store, answers: dict[str, Answers], keys: list[str]) -> None:
    for key in keys:
        holders = [name for name, each in answers.items() if each.reserved[key][0] == "won"]
        assert len(holders) == 1, f"{key} was reserved by {holders}"
        assert {each.reserved[key] for each in answers.values()} == {("won", holders[0]), ("pending", holders[0])}
        runners = [name for name, each in answers.items() if each.claimed[key][0] == "won"]
        assert len(runners) == 1, f"{key} was claimed by {runners}"
        assert {each.claimed[key] for each in answers.values()} == {("won", 1), ("busy", 1)}
        record = store.get(key)
        assert record is not None
        assert (record.owner, record.attempts, record.fence) == (runners[0], 1, 1)
    assert [each.slot for each in answers.values()].count("won") == 3  # D2


def test_threads(anywhere: Address) -> None:  # B1, D5, D2
    keys = [f"k{n}" for n in range(THREAD_KEYS)]
    barrier = threading.Barrier(THREADS)
    names = [f"t{n}" for n in range(THREADS)]
    with anywhere.opened() as store, ThreadPoolExecutor(THREADS) as pool:
        store.ping()
        futures = {name: pool.submit(race, store, name, keys, lambda: barrier.wait(60)) for name in names}
        check(store, {name: future.result(90) for name, future in futures.items()}, keys)


def test_processes(shared: Address) -> None:  # B1, D5, D2
    keys = [f"k{n}" for n in range(PROCESS_KEYS)]
    names = [f"p{n}" for n in range(PROCESSES)]
    context = multiprocessing.get_context("spawn")
    meeting = context.Barrier(PROCESSES)
    with ProcessPoolExecutor(PROCESSES, mp_context=context, initializer=_meet_at, initargs=(meeting,)) as pool:
        futures = {name: pool.submit(_race_in_process, shared, name, keys) for name in names}
        answers = {name: future.result(90) for name, future in futures.items()}
    with shared.opened() as store:
        check(store, answers, keys)


def test_take_overs(anywhere: Address) -> None:  # D5: an expired lease goes to one of many, with one crash counted
    barrier = threading.Barrier(THREADS)
    with anywhere.opened() as store, ThreadPoolExecutor(THREADS) as pool:
        hours = iter([1.0])
        store.now = lambda: 2e9 + next(hours, 3600.0)
        store.claim("k", Work("m"), owner="dead", lease=30, keep=86_400, limits=Limits())

        def take(name: str) -> str:
            barrier.wait(60)
            return store.claim("k", Work("m"), owner=name, lease=LONG, keep=86_400, limits=Limits()).outcome

        outcomes = list(pool.map(take, [f"t{n}" for n in range(THREADS)], timeout=90))
        record = store.get("k")
    assert sorted(outcomes) == ["busy"] * (THREADS - 1) + ["won"]
    assert record is not None
    assert (record.fence, record.attempts, record.crashes) == (2, 2, 1)


def test_migrations_start_together(shared: Address) -> None:  # issue 2: idempotent under concurrent start
    barrier = threading.Barrier(PROCESSES)

    def start(_: int) -> None:
        with shared.opened() as store:
            barrier.wait(60)
            store.ping()
            assert store.get("k") is None

    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(start, range(PROCESSES), timeout=90))


_meeting: Any = None


def _meet_at(barrier: Any) -> None:
    global _meeting  # noqa: PLW0603  (a barrier can be handed to a process only when it starts)
    _meeting = barrier


def _race_in_process(address: Address, name: str, keys: list[str]) -> Answers:
    with address.opened() as store:
        return race(store, name, keys, lambda: _meeting.wait(60))


@pytest.fixture(autouse=True)
def _no_stragglers() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()
