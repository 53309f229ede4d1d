"""How long things live, by the store's clock, and how they are cleared away."""

# ruff: noqa: S101, S106  (a conformance suite asserts; the tokens are no secrets)
from __future__ import annotations

from collections.abc import Callable

import pytest

from task_contract.stores.base import Filter, Hold, LetterStats, Store
from task_contract.testing.acts import (
    KEEP,
    LEASE,
    TICK,
    beat,
    bury,
    claim,
    finish,
    ids,
    letter,
    read,
    record,
    replay,
    run,
    wait,
)
from task_contract.testing.base import Conformance
from task_contract.testing.clock import Clock

STEPS: dict[str, Callable[[Store, Hold], object]] = {
    "running": lambda _store, _hold: None,
    "waiting": lambda store, hold: wait(store, hold, keep=60),
    "done": lambda store, hold: finish(store, hold, keep=60),
    "dead": lambda store, hold: bury(store, hold, keep=60),
    "replayed": lambda store, hold: (bury(store, hold), replay(store, keep=60)),
}


class Lifetimes(Conformance):
    @pytest.mark.parametrize("state", sorted(STEPS))
    def test_lifetime_a_record_lives_for_its_keep(
        self, store: Store, clock: Clock, state: str
    ) -> None:  # DESIGN 3, D12
        STEPS[state](store, run(store, keep=60))
        clock.advance(60 - TICK)
        assert store.get("k") is not None
        clock.advance(TICK)
        assert store.get("k") is None

    @pytest.mark.parametrize("state", ["waiting", "done", "dead"])
    def test_lifetime_each_transition_starts_it_anew(self, store: Store, clock: Clock, state: str) -> None:  # DESIGN 3
        hold = run(store, keep=60)
        clock.advance(50)
        STEPS[state](store, hold)
        clock.advance(50)
        assert record(store).state == state

    def test_lifetime_heartbeats_keep_a_long_run_alive(self, store: Store, clock: Clock) -> None:  # DESIGN 3, C4
        hold = run(store, keep=60)
        for _ in range(10):
            clock.advance(LEASE - TICK)
            assert beat(store, hold) == "held"
        assert record(store).state == "running"

    @pytest.mark.parametrize("keep", [TICK, 60, KEEP * 14])
    def test_lifetime_a_dead_record_never_expires_before_its_letter(
        self, store: Store, clock: Clock, keep: float
    ) -> None:
        bury(store, run(store), keep=keep)  # A15
        dead, filed = record(store).expires_at, read(store).expires_at
        assert dead is not None
        assert filed is not None
        assert dead >= filed == clock.after(keep)

    def test_lifetime_a_letter_lives_for_its_keep(self, store: Store, clock: Clock) -> None:  # E4, C3
        store.put_letter(letter(), keep=60)
        clock.advance(60 - TICK)
        assert store.get_letter("L1") is not None
        clock.advance(TICK)
        assert store.get_letter("L1") is None
        assert store.letter_stats() == LetterStats(0, None, {})

    def test_lifetime_a_replay_does_not_shorten_the_letters_life(self, store: Store, clock: Clock) -> None:  # A15
        bury(store, run(store), keep=KEEP)
        replay(store, keep=60)
        assert read(store).expires_at == clock.after(KEEP)

    def test_lifetime_an_expired_letter_does_not_hinder_its_record(self, store: Store, clock: Clock) -> None:  # A15
        bury(store, run(store), keep=60)
        replay(store, keep=KEEP)
        clock.advance(60)
        bury(store, run(store, owner="o2"), "L2")
        assert ids(store) == ["L2"]

    def test_lifetime_an_expired_claim_is_a_fresh_start(
        self, store: Store, clock: Clock
    ) -> None:  # DESIGN 3, lifetimes
        bury(store, run(store), keep=60)
        clock.advance(60)
        assert claim(store, owner="o2").fence == 1
        assert (record(store).generation, record(store).letter_id) == (0, "")


class Expiry(Conformance):
    def test_expire_what_lives_is_left_alone(self, store: Store) -> None:  # DESIGN 3, lifetimes
        _fill(store)
        before = record(store, "running"), read(store, "L1")
        assert store.expire() == 0
        assert (record(store, "running"), read(store, "L1"), store.letter_stats().depth) == (*before, 2)
        assert store.reserve("r", token="t2", message_id="m2", ttl=30).outcome == "pending"

    def test_expire_what_has_expired_goes(self, store: Store, clock: Clock) -> None:  # DESIGN 3, E4
        _fill(store)
        clock.advance(60)
        assert _sweep(store) <= 6
        assert [store.get(key) for key in ("running", "done", "dead")] == [None] * 3
        assert (ids(store), ids(store, Filter(closed=True))) == ([], [])
        assert store.letter_stats() == LetterStats(0, None, {})
        assert store.reserve("r", token="t2", message_id="m2", ttl=30).outcome == "won"

    def test_expire_what_lives_longer_stays(self, store: Store, clock: Clock) -> None:  # DESIGN 3, lifetimes
        _fill(store)
        finish(store, run(store, "long"), b"[1]")
        store.put_letter(letter("L9", reason="late"), keep=KEEP)
        clock.advance(60)
        _sweep(store)
        assert record(store, "long").result == b"[1]"
        assert (ids(store), dict(store.letter_stats().reasons)) == (["L9"], {"late": 1})

    @pytest.mark.parametrize("limit", [1, 3])
    def test_expire_it_is_bounded(self, store: Store, clock: Clock, limit: int) -> None:  # base.Store.expire
        for n in range(5):
            finish(store, run(store, f"k{n}"), keep=60)
            store.put_letter(letter(f"L{n}"), keep=60)
            store.reserve(f"r{n}", token="t", message_id="m", ttl=30)
        clock.advance(60)
        _sweep(store, limit)
        assert store.expire() == 0

    def test_expire_nothing_at_all(self, store: Store) -> None:  # base.Store.expire
        assert store.expire() == 0

    def test_expire_slots_and_locks_are_cleared_with_their_record(self, store: Store, clock: Clock) -> None:  # D2
        _fill(store)
        clock.advance(60)
        _sweep(store)
        assert claim(store, "running", owner="o2").fence == 1

    def test_expire_it_may_be_used_after_close(self, store: Store) -> None:  # base.Store.close
        hold = run(store)
        store.close()
        store.ping()
        finish(store, hold)
        assert record(store).state == "done"


def _fill(store: Store) -> None:
    """Six things that live for at most a minute."""
    run(store, "running", keep=60)
    finish(store, run(store, "done"), keep=60)
    bury(store, run(store, "dead"), "L1", keep=60)
    store.put_letter(letter("L2"), keep=60)
    store.reserve("r", token="t1", message_id="m1", ttl=60)


def _sweep(store: Store, limit: int = 1000) -> int:
    """Expire until nothing is left; a server that forgets by itself may have left nothing to do."""
    total = 0
    while removed := store.expire(limit):
        assert 0 < removed <= limit
        total += removed
    return total
