"""`kill -9` of a process that holds a claim, by the real clock of each store that processes can share."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest

from task_contract.errors import LeaseLost
from task_contract.stores.base import Beat, Claim, DeadLetter, Hold, Limits, Store, Work
from tests.stores.opening import Address

LEASE = 1.0
#: A test that waits for a lease waits for the answer, not for a time; this is when it gives up.
PATIENCE = 30.0
WORK = Work("m1", payload_hash="h1")


def hold_for_ever(address: Address, limits: Limits, said: Connection) -> None:
    """Claim, tell the parent, and hang as code does that will never return."""
    store = address.open()
    claim = store.claim("k", WORK, owner="victim", lease=LEASE, keep=600, limits=limits)
    said.send((os.getpid(), claim))
    said.recv()


@contextmanager
def victim(address: Address, limits: Limits) -> Iterator[tuple[int, Claim]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold_for_ever, args=(address, limits, theirs), daemon=True)
    process.start()
    try:
        assert ours.poll(PATIENCE), "the victim did not start"
        yield ours.recv()
    finally:
        process.kill()
        process.join(PATIENCE)
        ours.close()
        theirs.close()


def claim_until(store: Store, outcome: str, key: str = "k", limits: Limits | None = None) -> Claim:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        claim = store.claim(key, WORK, owner="heir", lease=600, keep=600, limits=limits or Limits())
        if claim.outcome == outcome:
            return claim
        assert claim.outcome == "busy", claim
        time.sleep(min(claim.wait, 0.05))
    raise AssertionError(f"no {outcome} within {PATIENCE} s")


def test_a_killed_owner_is_replaced(shared: Address) -> None:  # D5, C4, D14
    with shared.opened() as store, victim(shared, Limits()) as (pid, first):
        assert (first.outcome, first.fence) == ("won", 1)
        os.kill(pid, signal.SIGKILL)
        heir = claim_until(store, "won")
        assert (heir.fence, heir.attempt, heir.crashes) == (2, 2, 1)
        late = Hold("k", "victim", first.fence, first.attempt, WORK)
        _is_refused(store, late)
        store.complete(Hold("k", "heir", heir.fence, heir.attempt, WORK), keep=600, result=b"[2]")
        with pytest.raises(LeaseLost) as caught:
            store.complete(late, keep=600, result=b"[1]")
        assert caught.value.state == "done"
        record = store.get("k")
        assert record is not None
        assert (record.state, record.result, record.crashes) == ("done", b"[2]", 1)


def _is_refused(store: Store, late: Hold) -> None:
    with pytest.raises(LeaseLost):
        store.complete(late, keep=600, result=b"[1]")
    with pytest.raises(LeaseLost):
        store.retry(late, delay=0, keep=600)
    with pytest.raises(LeaseLost):
        store.bury(late, DeadLetter(id="L1", reason="failed", message=b""), keep=600)
    assert store.extend([Beat(late, 600)]) == ["lost"]
    assert store.get_letter("L1") is None


@pytest.mark.parametrize("kind", ["redis", "postgres"])
@pytest.mark.parametrize("skew", [-86_400, 86_400])
def test_a_client_with_a_wrong_clock(
    kind: str, skew: int, address_of: Callable[[str], Address], monkeypatch: pytest.MonkeyPatch
) -> None:  # D15: the store's clock counts, whatever a client believes
    with address_of(kind).opened() as store:
        _set_clock(monkeypatch, skew)
        first = store.claim("k", WORK, owner="o1", lease=600, keep=7200, limits=Limits())
        reserved = store.reserve("r", token="t1", message_id="m1", ttl=600)
        _set_clock(monkeypatch, -skew)
        again = store.claim("k", WORK, owner="o2", lease=600, keep=7200, limits=Limits())
        second = store.reserve("r", token="t2", message_id="m2", ttl=600)
        record = store.get("k")
    assert (first.outcome, again.outcome) == ("won", "busy")
    assert 0 < again.wait <= 600
    assert (reserved.outcome, second.outcome) == ("won", "pending")
    assert record is not None
    assert record.created_at is not None
    assert abs(record.created_at.timestamp() - time.time() - skew) < 3600


def _set_clock(monkeypatch: pytest.MonkeyPatch, skew: int) -> None:
    monkeypatch.undo()
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + skew)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + skew * 10**9)


def test_a_killed_owners_slot_is_free_again(shared: Address) -> None:  # D2, C4
    one = Limits(slot="s", slots=1)
    with shared.opened() as store, victim(shared, one) as (pid, first):
        assert first.outcome == "won"
        os.kill(pid, signal.SIGKILL)
        assert claim_until(store, "won", key="other", limits=one).fence == 1


def test_the_last_permitted_crash_is_handed_out_to_be_buried(shared: Address) -> None:  # D14, rule 8
    once = Limits(crashes=1)
    with shared.opened() as store, victim(shared, once) as (pid, _):
        os.kill(pid, signal.SIGKILL)
        answer = claim_until(store, "exhausted", limits=once)
        assert (answer.reason, answer.fence, answer.attempt) == ("crashes", 2, 1)
