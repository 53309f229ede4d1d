"""The suspect lock: nobody is buried for crashes who did not crash alone (DESIGN 3, rule 8)."""

# ruff: noqa: S101  (a conformance suite asserts)
from __future__ import annotations

import pytest

from task_contract.stores.base import Limits, Store
from task_contract.testing.acts import END, LEASE, TICK, beat, claim, crash, finish, record, run, wait
from task_contract.testing.base import Conformance
from task_contract.testing.clock import Clock

LIMITS = Limits(attempts=10, crashes=2)
SLOT = LIMITS._replace(slot="s", slots=1)


def accuse(store: Store, clock: Clock, *keys: str, limits: Limits = LIMITS) -> None:
    """Let these crash together, as the neighbours of one process do: the next run of each needs the lock."""
    for key in keys:
        run(store, key, owner=f"{key}-1", limits=limits)
    clock.advance(LEASE)


class Suspects(Conformance):
    def test_suspect_before_its_last_crash_a_record_holds_the_lock(self, store: Store, clock: Clock) -> None:  # rule 8
        accuse(store, clock, "k1")
        assert not record(store, "k1").suspect
        run(store, "k1", limits=LIMITS)
        assert record(store, "k1").suspect

    def test_suspect_one_suspect_at_a_time(self, store: Store, clock: Clock) -> None:  # rule 8
        accuse(store, clock, "k1", "k2")
        run(store, "k1", limits=LIMITS)
        answer = claim(store, "k2", limits=LIMITS)
        assert (answer.outcome, answer.reason) == ("busy", "suspect")
        assert answer.wait > 0

    def test_suspect_to_be_turned_away_changes_nothing(self, store: Store, clock: Clock) -> None:  # rule 8
        accuse(store, clock, "k1", "k2")
        run(store, "k1", limits=LIMITS)
        before = record(store, "k2")
        claim(store, "k2", limits=LIMITS)
        assert record(store, "k2") == before

    def test_suspect_turned_away_its_crash_is_counted_once(self, store: Store, clock: Clock) -> None:  # rule 8, D5
        accuse(store, clock, "k1", "k2")
        hold = run(store, "k1", limits=LIMITS)
        for n in range(3):
            claim(store, "k2", owner=f"o{n}", limits=LIMITS)
        finish(store, hold)
        answer = claim(store, "k2", limits=LIMITS)
        assert (answer.outcome, answer.fence, answer.attempt, answer.crashes) == ("won", 2, 2, 1)

    def test_suspect_innocent_neighbours_are_not_buried(self, store: Store, clock: Clock) -> None:  # rule 8, D14
        keys = ["poison", "a", "b"]
        accuse(store, clock, *keys)
        crash(store, clock, "poison", limits=LIMITS)
        answer = claim(store, "poison", owner="o2", limits=LIMITS)
        assert (answer.outcome, answer.reason) == ("exhausted", "crashes")
        for key in ("a", "b"):
            finish(store, run(store, key, limits=LIMITS))
        assert [record(store, key).state for key in keys] == ["running", "done", "done"]

    def test_suspect_crashing_in_company_proves_nothing(self, store: Store, clock: Clock) -> None:  # rule 8
        # These crashed three times, where two are permitted, but never alone: the limits were wider then.
        wide = LIMITS._replace(crashes=9)
        for n in range(3):
            for key in ("k1", "k2"):
                run(store, key, owner=f"{key}-{n}", limits=wide)
            clock.advance(LEASE)
        assert claim(store, "k1", limits=LIMITS).outcome == "won"
        assert record(store, "k1").suspect
        assert claim(store, "k2", limits=LIMITS).reason == "suspect"

    def test_suspect_others_run_beside_a_suspect(
        self, store: Store, clock: Clock
    ) -> None:  # rule 8, D14: it blocks nobody
        accuse(store, clock, "k1")
        run(store, "k1", limits=LIMITS)
        assert claim(store, "fresh", limits=LIMITS).outcome == "won"

    def test_suspect_its_own_repetition_is_not_turned_away(self, store: Store, clock: Clock) -> None:  # rule 4
        accuse(store, clock, "k1")
        first = claim(store, "k1", limits=LIMITS)
        assert claim(store, "k1", limits=LIMITS) == first

    def test_suspect_its_own_repetition_keeps_the_lock(self, store: Store, clock: Clock) -> None:  # rules 4 and 8
        accuse(store, clock, "k1", "k2")
        run(store, "k1", limits=LIMITS)
        clock.advance(LEASE)
        run(store, "k1", limits=LIMITS)
        clock.advance(LEASE - TICK)
        assert claim(store, "k2", limits=LIMITS).reason == "suspect"
        clock.advance(TICK)
        assert claim(store, "k2", limits=LIMITS).outcome == "won"

    @pytest.mark.parametrize("verb", sorted(END))
    def test_suspect_an_ending_frees_the_lock(self, store: Store, clock: Clock, verb: str) -> None:  # rule 8
        accuse(store, clock, "k1", "k2")
        END[verb](store, run(store, "k1", limits=LIMITS))
        assert not record(store, "k1").suspect
        assert claim(store, "k2", limits=LIMITS).outcome == "won"

    def test_suspect_expiry_frees_the_lock(self, store: Store, clock: Clock) -> None:  # rule 8, C4
        accuse(store, clock, "k1", "k2")
        run(store, "k1", limits=LIMITS)
        clock.advance(LEASE - TICK)
        assert claim(store, "k2", limits=LIMITS).reason == "suspect"
        clock.advance(TICK)
        assert claim(store, "k2", limits=LIMITS).outcome == "won"

    def test_suspect_heartbeats_keep_the_lock(
        self, store: Store, clock: Clock
    ) -> None:  # rule 8: "renewed with its lease"
        accuse(store, clock, "k1", "k2")
        hold = run(store, "k1", limits=LIMITS)
        for _ in range(3):
            clock.advance(LEASE - TICK)
            beat(store, hold)
        assert claim(store, "k2", limits=LIMITS).reason == "suspect"

    def test_suspect_what_only_waits_to_be_buried_holds_no_lock(self, store: Store, clock: Clock) -> None:  # rule 8
        accuse(store, clock, "k1", "k2")
        crash(store, clock, "k1", limits=LIMITS)
        assert claim(store, "k1", owner="o2", limits=LIMITS).outcome == "exhausted"
        assert not record(store, "k1").suspect
        assert claim(store, "k2", limits=LIMITS).outcome == "won"

    def test_suspect_waiting_work_needs_the_lock_too(self, store: Store) -> None:  # rule 8
        for key in ("k1", "k2"):
            wait(store, run(store, key, limits=LIMITS), ending="crashed")
        run(store, "k1", owner="o2", limits=LIMITS)
        assert claim(store, "k2", owner="o2", limits=LIMITS).reason == "suspect"

    def test_suspect_a_single_permitted_crash_needs_no_lock(self, store: Store) -> None:  # rule 8, crashes=1
        # Or every first run would need it, and the fleet would run one task at a time.
        once = Limits(crashes=1)
        assert [claim(store, key, limits=once).outcome for key in ("k1", "k2")] == ["won", "won"]
        assert not record(store, "k1").suspect

    def test_suspect_where_the_culprit_is_named_no_lock_is_needed(self, store: Store, clock: Clock) -> None:  # rule 8
        named = LIMITS._replace(suspects=False)
        accuse(store, clock, "k1", "k2", limits=named)
        assert [claim(store, key, limits=named).outcome for key in ("k1", "k2")] == ["won", "won"]
        assert not record(store, "k1").suspect

    def test_suspect_an_interrupted_suspect_is_not_buried(self, store: Store, clock: Clock) -> None:  # rule 8, DESIGN 3
        accuse(store, clock, "k1")
        beat(store, run(store, "k1", limits=LIMITS), draining=True)
        clock.advance(LEASE)
        assert claim(store, "k1", owner="o2", limits=LIMITS).outcome == "won"


class SuspectsWithSlots(Conformance):
    """The lock is taken together with a concurrency slot, or not at all (rule 8)."""

    def test_suspect_slot_without_a_slot_no_lock_is_taken(self, store: Store, clock: Clock) -> None:  # rule 8
        accuse(store, clock, "k1", "k2")
        run(store, "holder", limits=SLOT)
        assert claim(store, "k1", limits=SLOT).reason == "slots"
        assert not record(store, "k1").suspect
        assert claim(store, "k2", limits=LIMITS).outcome == "won"

    def test_suspect_slot_without_the_lock_no_slot_is_taken(self, store: Store, clock: Clock) -> None:  # rule 8
        accuse(store, clock, "k1", "k2")
        run(store, "k1", limits=LIMITS)
        assert claim(store, "k2", limits=SLOT).reason == "suspect"
        assert claim(store, "fresh", limits=SLOT).outcome == "won"

    def test_suspect_slot_both_are_taken_together(self, store: Store, clock: Clock) -> None:  # rule 8
        accuse(store, clock, "k1")
        run(store, "k1", limits=SLOT)
        assert (record(store, "k1").suspect, record(store, "k1").slot) == (True, "s")
        assert claim(store, "fresh", limits=SLOT).reason == "slots"
