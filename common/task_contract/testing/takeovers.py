"""A lease that ran out: taken over by the store's clock, counted as a crash or as an interruption."""

# ruff: noqa: S101  (a conformance suite asserts)
from __future__ import annotations

import pytest

from task_contract.errors import LeaseLost
from task_contract.stores.base import Claim, Limits, Store
from task_contract.testing.acts import (
    END,
    KEEP,
    LEASE,
    NO_LIMITS,
    TICK,
    beat,
    claim,
    crash,
    finish,
    record,
    run,
    wait,
)
from task_contract.testing.base import Conformance
from task_contract.testing.clock import Clock


def interrupt(store: Store, clock: Clock, owner: str, limits: Limits) -> None:
    """Run, say that the worker is shutting down, and fall silent."""
    beat(store, run(store, owner=owner, limits=limits), draining=True)
    clock.advance(LEASE)


class TakeOvers(Conformance):
    def test_take_over_not_one_tick_before_the_lease_ends(self, store: Store, clock: Clock) -> None:  # C4, D15
        run(store)
        clock.advance(LEASE - TICK)
        answer = claim(store, owner="o2")
        assert (answer.outcome, answer.wait) == ("busy", TICK)

    def test_take_over_a_dead_workers_claim_is_taken_over(self, store: Store, clock: Clock) -> None:  # D5, C4
        crash(store, clock)
        assert claim(store, owner="o2") == Claim("won", fence=2, attempt=2, crashes=1, message_id="m1")
        found = record(store)
        assert (found.owner, found.fence, found.attempts, found.crashes) == ("o2", 2, 2, 1)
        assert (found.lease_until, found.started_at, found.updated_at) == (
            clock.after(LEASE),
            clock.today,
            clock.today,
        )

    def test_take_over_another_message_of_the_key_takes_over(self, store: Store, clock: Clock) -> None:  # D5
        crash(store, clock)
        assert claim(store, owner="o2", message_id="m2").message_id == "m2"

    def test_take_over_only_one_takes_over(self, store: Store, clock: Clock) -> None:  # D5
        crash(store, clock)
        run(store, owner="o2")
        assert claim(store, owner="o3").outcome == "busy"

    @pytest.mark.parametrize("verb", sorted(END))
    def test_take_over_the_late_owner_is_refused(self, store: Store, clock: Clock, verb: str) -> None:  # D5, rule 3
        late = crash(store, clock)
        run(store, owner="o2")
        before = record(store)
        with pytest.raises(LeaseLost) as caught:
            END[verb](store, late)
        assert caught.value.state == "running"
        assert record(store) == before
        assert store.get_letter("L1") is None

    @pytest.mark.parametrize("verb", sorted(END))
    def test_take_over_the_late_owner_learns_that_the_work_is_done(self, store: Store, clock: Clock, verb: str) -> None:
        # rule 3: it may ack only because the record is done
        late = crash(store, clock)
        finish(store, run(store, owner="o2"), b"[2]")
        with pytest.raises(LeaseLost) as caught:
            END[verb](store, late)
        assert caught.value.state == "done"
        assert record(store).result == b"[2]"

    def test_take_over_the_same_owner_with_an_old_fence_is_refused(self, store: Store, clock: Clock) -> None:  # D5
        # The fence decides, not only the name: this owner ran again after somebody else did.
        late = crash(store, clock, limits=NO_LIMITS)
        crash(store, clock, owner="o2", limits=NO_LIMITS)
        run(store, owner="o1", limits=NO_LIMITS)
        with pytest.raises(LeaseLost):
            finish(store, late)
        assert beat(store, late) == "lost"

    def test_take_over_the_late_owners_heartbeat_is_refused(self, store: Store, clock: Clock) -> None:  # C4
        late = crash(store, clock)
        run(store, owner="o2")
        before = record(store)
        assert beat(store, late, progress=99) == "lost"
        assert record(store) == before

    @pytest.mark.parametrize(("verb", "state"), [("complete", "done"), ("retry", "waiting"), ("bury", "dead")])
    def test_take_over_a_late_owner_ends_its_run_if_nobody_took_over(
        self, store: Store, clock: Clock, verb: str, state: str
    ) -> None:  # DESIGN 3, running → done
        late = crash(store, clock)
        clock.advance(60)
        END[verb](store, late)
        assert (record(store).state, record(store).crashes) == (state, 0)

    def test_take_over_a_late_heartbeat_saves_the_lease_if_nobody_took_over(
        self, store: Store, clock: Clock
    ) -> None:  # C4
        late = crash(store, clock)
        assert beat(store, late) == "held"
        assert claim(store, owner="o2").outcome == "busy"

    def test_take_over_each_crash_is_counted_once(self, store: Store, clock: Clock) -> None:  # D5
        for n in range(1, 4):
            crash(store, clock, owner=f"o{n}", limits=NO_LIMITS)
        answer = claim(store, owner="o4", limits=NO_LIMITS)
        assert (answer.fence, answer.attempt, answer.crashes) == (4, 4, 3)

    def test_take_over_a_record_that_outlived_its_keep_is_fresh(
        self, store: Store, clock: Clock
    ) -> None:  # DESIGN 3, lifetimes
        run(store)
        clock.advance(KEEP)
        assert claim(store, owner="o2") == Claim("won", fence=1, attempt=1, message_id="m1")


class Crashes(Conformance):
    """Bounds on what takes its worker down (D14). The suspect lock has its own file."""

    def test_crashes_the_last_permitted_crash_exhausts(self, store: Store, clock: Clock) -> None:  # D14, rule 8
        limits = Limits(attempts=10, crashes=2)
        crash(store, clock, owner="o1", limits=limits)
        crash(store, clock, owner="o2", limits=limits)
        answer = claim(store, owner="o3", limits=limits)
        assert answer == Claim("exhausted", fence=3, attempt=2, crashes=2, reason="crashes", message_id="m1")
        assert (record(store).crashes, record(store).attempts, record(store).exhausted) == (2, 2, True)

    def test_crashes_a_burier_that_died_adds_no_crash(self, store: Store, clock: Clock) -> None:  # DESIGN 3
        limits = Limits(attempts=10, crashes=1)
        crash(store, clock, limits=limits)
        assert claim(store, owner="o2", limits=limits).outcome == "exhausted"
        clock.advance(LEASE)
        answer = claim(store, owner="o3", limits=limits)
        assert (answer.outcome, answer.fence, answer.crashes, answer.attempt) == ("exhausted", 3, 1, 1)

    def test_crashes_a_crash_can_be_the_last_attempt(self, store: Store, clock: Clock) -> None:  # D4
        limits = Limits(attempts=1, crashes=3)
        crash(store, clock, limits=limits)
        answer = claim(store, owner="o2", limits=limits)
        assert answer == Claim("exhausted", fence=2, attempt=1, crashes=1, reason="attempts", message_id="m1")

    def test_crashes_one_permitted_crash_needs_no_proof(self, store: Store, clock: Clock) -> None:  # rule 8, crashes=1
        limits = Limits(crashes=1)
        crash(store, clock, limits=limits)
        answer = claim(store, owner="o2", limits=limits)
        assert (answer.outcome, answer.reason) == ("exhausted", "crashes")

    def test_crashes_a_named_culprit_needs_no_proof(
        self, store: Store, clock: Clock
    ) -> None:  # rule 8, WorkerLostError
        limits = Limits(attempts=10, crashes=2, suspects=False)
        crash(store, clock, owner="o1", limits=limits)
        crash(store, clock, owner="o2", limits=limits)
        answer = claim(store, owner="o3", limits=limits)
        assert (answer.outcome, answer.reason) == ("exhausted", "crashes")

    def test_crashes_failures_are_no_crashes(self, store: Store) -> None:  # D4
        limits = Limits(attempts=10, crashes=2)
        for n in range(4):
            wait(store, run(store, owner=f"o{n}", limits=limits))
        assert claim(store, owner="last", limits=limits) == Claim("won", fence=5, attempt=5, message_id="m1")


class Interruptions(Conformance):
    """A lease whose heartbeat said `draining` was interrupted, not crashed; that is bounded too (DESIGN 3)."""

    def test_interruption_the_attempt_is_given_back(self, store: Store, clock: Clock) -> None:  # DESIGN 3, take-over
        interrupt(store, clock, "o1", Limits())
        assert claim(store, owner="o2") == Claim("won", fence=2, attempt=1, message_id="m1")
        found = record(store)
        assert (found.interruptions, found.crashes, found.attempts, found.draining) == (1, 0, 1, False)

    def test_interruption_it_does_not_exhaust_the_attempts(
        self, store: Store, clock: Clock
    ) -> None:  # DESIGN 3, take-over
        interrupt(store, clock, "o1", Limits(attempts=1))
        assert claim(store, owner="o2", limits=Limits(attempts=1)).outcome == "won"

    def test_interruption_it_is_bounded(self, store: Store, clock: Clock) -> None:  # DESIGN 3: "itself bounded"
        limits = Limits(interruptions=2)
        for n in range(3):
            interrupt(store, clock, f"o{n}", limits)
        answer = claim(store, owner="last", limits=limits)
        assert (answer.outcome, answer.attempt, answer.crashes) == ("won", 2, 1)
        assert record(store).interruptions == 2

    def test_interruption_a_worker_that_goes_on_may_still_crash(
        self, store: Store, clock: Clock
    ) -> None:  # DESIGN 3, take-over
        hold = run(store)
        beat(store, hold, draining=True)
        beat(store, hold, draining=False)
        clock.advance(LEASE)
        assert claim(store, owner="o2").crashes == 1

    def test_interruption_told_by_the_worker_itself(self, store: Store) -> None:  # base.Store.retry
        wait(store, run(store), ending="interrupted")
        found = record(store)
        assert (found.attempts, found.crashes, found.interruptions) == (0, 0, 1)

    def test_interruption_told_by_the_worker_itself_it_is_bounded_too(self, store: Store) -> None:  # base.Store.retry
        for n in range(3):
            wait(store, run(store, owner=f"o{n}"), ending="interrupted", interruptions=2)
        found = record(store)
        assert (found.attempts, found.crashes, found.interruptions) == (1, 0, 2)
