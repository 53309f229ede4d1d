"""Leases are kept by one thread, in one call per beat."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from task_contract import Contract, Policy
from task_contract.errors import StoreUnavailable
from task_contract.keys import store_key
from task_contract.running import Message, begin, finish
from task_contract.runs import Run
from task_contract.sending import Call, prepare
from task_contract.stores.base import Beat, BeatAnswer
from task_contract.stores.memory import MemoryStore

POLICY = Policy(key="order", lease=1)


def work(order: int) -> None:
    """Never called here."""


class Watched(MemoryStore):
    """Remembers the beats, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[list[Beat]] = []
        self.away = False

    def extend(self, beats: Sequence[Beat]) -> list[BeatAnswer]:
        self.beats.append(list(beats))
        if self.away:
            raise StoreUnavailable("away")
        return super().extend(beats)


@pytest.fixture
def store() -> Watched:
    return Watched()


@pytest.fixture
def contract(store: Watched) -> Contract:
    return Contract(store)


def start(contract: Contract, order: int) -> tuple[Message, Run]:
    prepared = prepare(contract, Call("work", POLICY, work, (order,)))
    message = Message(prepared.envelope, prepared.message_id, (order,))
    run = begin(contract, message, work, POLICY)
    assert isinstance(run, Run)
    return message, run


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited 30 s"
        time.sleep(0.01)


def test_a_lease_is_renewed_beyond_its_length(contract: Contract, store: Watched) -> None:  # C4
    message, run = start(contract, 1)
    claimed = run.deadline
    key = store_key("work", message.envelope.idempotency_key)
    first = store.get(key)
    assert first is not None
    until(lambda: run.deadline > claimed + POLICY.lease)
    held = store.get(key)
    assert held is not None
    assert (held.owner, held.crashes) == (first.owner, 0)
    assert finish(contract, message, run, None).verdict.action == "done"


def test_all_leases_of_a_process_travel_in_one_call(contract: Contract, store: Watched) -> None:  # one call a beat
    runs = [start(contract, order) for order in range(10)]
    until(lambda: store.beats and len(store.beats[-1]) == 10)
    threads = [thread for thread in threading.enumerate() if thread.name == "task-contract-leases"]
    assert len([thread for thread in threads if thread is contract.leases._thread]) == 1
    for message, run in runs:
        finish(contract, message, run, None)


def test_progress_and_signs_of_life_reach_the_record(contract: Contract, store: Watched) -> None:  # D11
    message, run = start(contract, 1)
    run.progress(-5)
    run.progress(41.6, "half of it")
    contract.leases.beat()
    found = store.get(run.hold.key)
    assert found is not None
    assert (found.progress, found.note) == (42, "half of it")
    assert found.beat_at is not None
    finish(contract, message, run, None)


def test_a_silent_run_shows_no_sign_of_life(contract: Contract, store: Watched) -> None:  # D11: stalled shows
    message, run = start(contract, 1)
    contract.leases.beat()
    found = store.get(run.hold.key)
    assert found is not None
    assert (found.beat_at, found.progress) == (None, -1)
    finish(contract, message, run, None)


def test_a_lost_lease_is_told(contract: Contract, store: Watched) -> None:  # D5
    told = []
    contract.subscribe(lambda event: told.append(event.name) if event.name == "lease_lost" else None)
    _, run = start(contract, 1)
    store._rows[run.hold.key].owner = "another"
    contract.leases.beat()
    assert (run.lost, told) == (True, ["lease_lost"])
    contract.leases.beat()
    assert told == ["lease_lost"], "told once"


def test_a_run_that_is_over_is_not_lost(contract: Contract, store: Watched) -> None:
    message, run = start(contract, 1)
    finish(contract, message, run, None)
    store._rows.clear()
    contract.leases.beat()
    assert run.lost is False


def test_a_store_that_is_away_does_not_end_the_keeping(contract: Contract, store: Watched) -> None:  # A13
    message, run = start(contract, 1)
    store.away = True
    contract.leases.beat()
    store.away = False
    before = run.deadline
    until(lambda: run.deadline > before)
    finish(contract, message, run, None)


def test_draining_makes_an_expired_lease_an_interruption(contract: Contract, store: Watched) -> None:  # DESIGN 3
    _, run = start(contract, 1)
    contract.leases.drain()
    found = store.get(run.hold.key)
    assert found is not None
    assert found.draining is True


def test_a_forked_child_keeps_no_lease_of_its_parent(contract: Contract, store: Watched) -> None:  # fork
    message, run = start(contract, 1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        keeper = contract.leases
        os.write(writer, b"clean" if not keeper._runs and keeper._thread is None else b"dirty")
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 10) == b"clean"
    os.close(reader)
    os.waitpid(child, 0)
    finish(contract, message, run, None)


def test_what_has_expired_is_removed_by_the_way(
    contract: Contract, store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:  # B7: cleanup by TTL
    monkeypatch.setattr(contract.leases, "_next_tidying", 0.0)
    tidied = threading.Event()
    monkeypatch.setattr(store, "expire", lambda limit=1000: tidied.set())
    message, run = start(contract, 1)
    assert tidied.wait(30)
    finish(contract, message, run, None)


# --- what a reviewer broke -------------------------------------------------------------------------------------------


def test_a_thread_that_cannot_start_fails_the_run_and_not_the_process(
    contract: Contract, store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:  # C4
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            start(contract, 1)
    assert contract.leases._runs == set()
    message, run = start(contract, 2)
    claimed = run.deadline
    until(lambda: run.deadline > claimed)
    finish(contract, message, run, None)


class Shutdown(BaseException):
    """What a framework throws at threads."""


def test_the_keeping_survives_whatever_a_listener_throws(contract: Contract, store: Watched) -> None:  # C4
    def throw(event: Any) -> None:
        if event.name == "lease_lost":
            raise Shutdown

    contract.subscribe(throw)
    _, lost = start(contract, 1)
    message, kept = start(contract, 2)
    store._rows[lost.hold.key].owner = "another"
    until(lambda: lost.lost)
    before = kept.deadline
    until(lambda: kept.deadline > before)
    finish(contract, message, kept, None)


def test_one_spoilt_beat_does_not_end_the_leases_of_its_neighbours(
    contract: Contract, store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:  # C4
    extend = store.extend

    def picky(beats: Sequence[Beat]) -> list[BeatAnswer]:
        if any(beat.note == "spoilt" for beat in beats):
            raise TypeError("cannot write this")
        return extend(beats)

    monkeypatch.setattr(store, "extend", picky)
    _, spoilt = start(contract, 1)
    message, healthy = start(contract, 2)
    spoilt.progress(50, "spoilt")
    before = healthy.deadline
    until(lambda: healthy.deadline > before)
    finish(contract, message, healthy, None)


def test_a_note_is_a_text_whatever_was_given(contract: Contract, store: Watched) -> None:  # D11
    message, run = start(contract, 1)
    run.progress(50, ["step"])  # type: ignore[arg-type]
    contract.leases.beat()
    found = store.get(run.hold.key)
    assert found is not None
    assert found.note == "['step']"
    finish(contract, message, run, None)


def test_tidying_goes_on_while_there_is_more(
    contract: Contract, store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:  # B7
    batches = [1000, 1000, 7]
    monkeypatch.setattr(store, "expire", lambda limit: batches.pop(0))
    monkeypatch.setattr(contract.leases, "_next_beat", float("inf"))
    contract.leases._tidy_up()
    assert batches == []
