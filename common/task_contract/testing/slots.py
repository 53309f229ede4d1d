"""Slots: `max_concurrency` across the whole fleet (D2)."""

# ruff: noqa: S101  (a conformance suite asserts)
from __future__ import annotations

import pytest

from task_contract.errors import LeaseLost
from task_contract.stores.base import Limits, Store
from task_contract.testing.acts import END, LEASE, TICK, beat, bury, claim, crash, finish, read, record, run, wait
from task_contract.testing.base import Conformance
from task_contract.testing.clock import Clock

ONE = Limits(attempts=10, slot="s", slots=1)
TWO = ONE._replace(slots=2)


class Slots(Conformance):
    def test_slot_the_cap_holds(self, store: Store) -> None:  # D2
        assert [claim(store, f"k{n}", limits=TWO).outcome for n in range(4)] == ["won", "won", "busy", "busy"]

    def test_slot_whoever_has_no_slot_is_told_why(self, store: Store) -> None:  # D2
        run(store, "k1", limits=ONE)
        answer = claim(store, "k2", limits=ONE)
        assert (answer.outcome, answer.reason) == ("busy", "slots")
        assert answer.wait > 0

    def test_slot_fresh_work_without_a_slot_leaves_no_trace(self, store: Store) -> None:  # D2
        run(store, "k1", limits=ONE)
        claim(store, "k2", limits=ONE)
        assert store.get("k2") is None

    def test_slot_waiting_work_without_a_slot_burns_no_attempt(self, store: Store) -> None:  # D2
        wait(store, run(store, "k2", limits=ONE))
        run(store, "k1", limits=ONE)
        before = record(store, "k2")
        assert claim(store, "k2", owner="o2", limits=ONE).reason == "slots"
        assert record(store, "k2") == before

    def test_slot_a_take_over_without_a_slot_changes_nothing(self, store: Store, clock: Clock) -> None:  # D2, D5
        crash(store, clock, "k1", limits=ONE)
        hold = run(store, "k2", limits=ONE)
        before = record(store, "k1")
        assert claim(store, "k1", owner="o2", limits=ONE).reason == "slots"
        assert record(store, "k1") == before
        finish(store, hold)
        assert claim(store, "k1", owner="o2", limits=ONE).crashes == 1

    def test_slot_a_new_generation_without_a_slot_changes_nothing(self, store: Store) -> None:  # D2
        bury(store, run(store, "k1", limits=ONE))
        run(store, "k2", limits=ONE)
        before = record(store, "k1")
        assert claim(store, "k1", owner="o2", message_id="m2", limits=ONE).reason == "slots"
        assert (record(store, "k1"), read(store).state) == (before, "open")

    def test_slot_ones_own_repetition_keeps_the_slot(self, store: Store, clock: Clock) -> None:  # D2, rule 4
        run(store, "k1", limits=ONE)
        clock.advance(LEASE)
        run(store, "k1", limits=ONE)
        clock.advance(LEASE - TICK)
        assert claim(store, "k2", limits=ONE).reason == "slots"
        clock.advance(TICK)
        assert claim(store, "k2", limits=ONE).outcome == "won"

    def test_slot_the_record_names_its_slot(self, store: Store) -> None:  # A7
        run(store, limits=ONE)
        assert record(store).slot == "s"

    def test_slot_slots_do_not_meet(self, store: Store) -> None:  # D2
        run(store, "k1", limits=ONE)
        assert claim(store, "k2", limits=ONE._replace(slot="other")).outcome == "won"
        assert claim(store, "k3").outcome == "won"

    def test_slot_without_a_name_there_is_no_bound(self, store: Store) -> None:  # base.Limits.slot
        assert [claim(store, f"k{n}", limits=Limits(slots=1)).outcome for n in range(3)] == ["won"] * 3

    def test_slot_ones_own_claim_may_be_repeated(self, store: Store) -> None:  # rule 4
        first = claim(store, "k1", limits=TWO)
        assert [claim(store, "k1", limits=TWO) for _ in range(3)] == [first] * 3
        assert [claim(store, key, limits=TWO).outcome for key in ("k2", "k3")] == ["won", "busy"]

    @pytest.mark.parametrize("verb", ["complete", "retry", "bury"])
    def test_slot_an_ending_frees_the_slot(self, store: Store, verb: str) -> None:  # D2
        hold = run(store, "k1", limits=ONE)
        END[verb](store, hold)
        assert record(store, "k1").slot == ""
        assert claim(store, "k2", limits=ONE).outcome == "won"
        assert claim(store, "k3", limits=ONE).outcome == "busy"

    def test_slot_a_repeated_ending_frees_it_once(self, store: Store) -> None:  # rule 4
        hold = run(store, "k1", limits=ONE)
        finish(store, hold)
        run(store, "k2", limits=ONE)
        finish(store, hold)
        assert claim(store, "k3", limits=ONE).outcome == "busy"

    def test_slot_expiry_frees_the_slot(self, store: Store, clock: Clock) -> None:  # D2, C4
        run(store, "k1", limits=ONE)
        clock.advance(LEASE - TICK)
        assert claim(store, "k2", limits=ONE).outcome == "busy"
        clock.advance(TICK)
        assert claim(store, "k2", limits=ONE).outcome == "won"

    def test_slot_heartbeats_keep_the_slot(self, store: Store, clock: Clock) -> None:  # D2, C4
        hold = run(store, "k1", limits=ONE)
        for _ in range(3):
            clock.advance(LEASE - TICK)
            assert beat(store, hold) == "held"
        assert claim(store, "k2", limits=ONE).outcome == "busy"

    def test_slot_a_late_heartbeat_takes_its_slot_back(self, store: Store, clock: Clock) -> None:  # D2
        hold = crash(store, clock, "k1", limits=ONE)
        assert beat(store, hold) == "held"
        assert claim(store, "k2", limits=ONE).outcome == "busy"

    def test_slot_a_take_over_takes_its_predecessors_place(self, store: Store, clock: Clock) -> None:  # D2
        crash(store, clock, "k1", limits=ONE)
        assert claim(store, "k1", owner="o2", limits=ONE).outcome == "won"
        assert claim(store, "k2", limits=ONE).outcome == "busy"

    def test_slot_a_late_owner_does_not_free_its_successors_slot(self, store: Store, clock: Clock) -> None:  # D2, D5
        late = crash(store, clock, "k1", limits=ONE)
        run(store, "k1", owner="o2", limits=ONE)
        assert beat(store, late) == "lost"
        for end in END.values():
            with pytest.raises(LeaseLost):
                end(store, late)
        assert claim(store, "k2", limits=ONE).outcome == "busy"

    def test_slot_a_larger_cap_counts_at_once(self, store: Store) -> None:  # D2
        run(store, "k1", limits=ONE)
        assert claim(store, "k2", limits=TWO).outcome == "won"
        assert claim(store, "k3", limits=ONE).outcome == "busy"
