"""reserve, confirm, release, free: at most one enqueue per key within its window."""

# ruff: noqa: S101, S105, S106, S107  (a conformance suite asserts; the tokens are no secrets)
from __future__ import annotations

from typing import Any

import pytest

from task_contract.stores.base import Reservation, Store
from task_contract.testing.acts import TICK, bury, exhaust, finish, letter, record, run, wait
from task_contract.testing.base import Conformance
from task_contract.testing.clock import Clock

PENDING = 30.0
WINDOW = 3600.0


def reserve(store: Store, token: str = "t1", message_id: str = "m1", **options: Any) -> Reservation:
    return store.reserve("r", **{"token": token, "message_id": message_id, "ttl": PENDING, **options})


def confirm(store: Store, token: str = "t1", message_id: str = "m1", **options: Any) -> bool:
    return store.confirm("r", **{"token": token, "message_id": message_id, "ttl": WINDOW, **options})


def enqueue(store: Store, token: str = "t1", message_id: str = "m1", **options: Any) -> None:
    assert reserve(store, token, message_id, **options).outcome == "won"
    assert confirm(store, token, message_id, **options)


def drive(store: Store, state: str, **work: str) -> None:
    """A record in this state."""
    hold = run(store, **work)
    if state == "waiting":
        wait(store, hold, 60)
    elif state == "done":
        finish(store, hold)
    elif state == "dead":
        bury(store, hold)
    assert record(store).state == state


class Reservations(Conformance):
    def test_reserve_the_first_wins(self, store: Store) -> None:  # B1
        assert reserve(store) == Reservation("won", "m1", "t1", reserve(store).state)

    def test_reserve_pending_is_not_acceptance(self, store: Store) -> None:  # DESIGN 3, enqueue
        reserve(store)
        assert reserve(store, "t2", "m2") == Reservation("pending", "m1", "t1", "pending")

    def test_reserve_the_second_is_told_the_first_ones_id(self, store: Store) -> None:  # B1, C1
        enqueue(store)
        assert reserve(store, "t2", "m2") == Reservation("duplicate", "m1", "t1", "enqueued")

    @pytest.mark.parametrize("state", ["running", "waiting", "done", "dead"])
    def test_reserve_a_duplicate_is_told_the_state_of_the_work(self, store: Store, state: str) -> None:  # C1
        enqueue(store)
        drive(store, state)
        assert reserve(store, "t2", "m2", record_key="k") == Reservation("duplicate", "m1", "t1", state)

    @pytest.mark.parametrize("state", ["running", "waiting", "done", "dead"])
    def test_reserve_a_pending_one_is_told_the_state_of_the_work(self, store: Store, state: str) -> None:  # DESIGN 3
        reserve(store)
        drive(store, state)
        assert reserve(store, "t2", "m2", record_key="k") == Reservation("pending", "m1", "t1", state)

    @pytest.mark.parametrize("state", ["running", "waiting", "done", "dead"])
    def test_reserve_without_a_reservation_an_enqueue_goes_on(self, store: Store, state: str) -> None:
        # DESIGN 3, "what an enqueue meets": the worker defers it, returns the result, or starts a new generation.
        drive(store, state)
        answer = reserve(store, "t2", "m2", record_key="k")
        assert (answer.outcome, answer.message_id, answer.token) == ("won", "m2", "t2")

    def test_reserve_ones_own_reservation_is_no_duplicate(self, store: Store) -> None:  # DESIGN 3, rule 4
        assert reserve(store) == reserve(store)
        assert reserve(store).outcome == "won"

    def test_reserve_ones_own_confirmed_reservation_is_no_duplicate(self, store: Store) -> None:  # DESIGN 3, rule 4
        enqueue(store)
        assert (reserve(store).outcome, reserve(store).message_id) == ("won", "m1")

    def test_reserve_a_late_repetition_does_not_undo_the_confirmation(
        self, store: Store, clock: Clock
    ) -> None:  # rule 4
        enqueue(store)
        reserve(store)
        assert reserve(store, "t2", "m2").outcome == "duplicate"
        clock.advance(WINDOW - TICK)
        assert reserve(store, "t2", "m2").outcome == "duplicate"

    def test_reserve_keys_do_not_meet(self, store: Store) -> None:  # B1
        reserve(store)
        other = store.reserve("r2", token="t2", message_id="m2", ttl=PENDING)
        assert (other.outcome, other.message_id) == ("won", "m2")

    def test_reserve_reservations_and_records_do_not_meet(self, store: Store) -> None:  # B5
        run(store, "r")
        assert reserve(store).outcome == "won"
        assert record(store, "r").state == "running"
        assert store.release("r", token="t1")
        assert record(store, "r").state == "running"

    def test_reserve_a_reservation_makes_no_record(self, store: Store) -> None:  # B5
        enqueue(store, record_key="k")
        assert store.get("k") is None
        assert store.get("r") is None


class ReservationLifetimes(Conformance):
    def test_reservation_a_pending_one_ends_with_its_time(
        self, store: Store, clock: Clock
    ) -> None:  # DESIGN 3, enqueue
        reserve(store)
        clock.advance(PENDING - TICK)
        assert reserve(store, "t2", "m2").outcome == "pending"
        clock.advance(TICK)
        assert (reserve(store, "t2", "m2").outcome, reserve(store, "t2", "m2").message_id) == ("won", "m2")

    def test_reservation_a_confirmed_one_lasts_for_the_window(self, store: Store, clock: Clock) -> None:  # B1, B7
        enqueue(store)
        clock.advance(WINDOW - TICK)
        assert reserve(store, "t2", "m2").outcome == "duplicate"
        clock.advance(TICK)
        assert reserve(store, "t2", "m2").outcome == "won"

    def test_reservation_success_does_not_end_it(self, store: Store) -> None:  # B7
        enqueue(store)
        finish(store, run(store))
        assert reserve(store, "t2", "m2").outcome == "duplicate"

    def test_reservation_a_repetition_renews_the_pending_time(self, store: Store, clock: Clock) -> None:  # rule 4
        reserve(store)
        clock.advance(PENDING - TICK)
        reserve(store)
        clock.advance(PENDING - TICK)
        assert reserve(store, "t2", "m2").outcome == "pending"

    def test_reservation_an_expired_one_cannot_be_released(self, store: Store, clock: Clock) -> None:  # B7
        reserve(store)
        clock.advance(PENDING)
        assert not store.release("r", token="t1")


class Confirmations(Conformance):
    def test_confirm_it_may_be_repeated(self, store: Store) -> None:  # rule 4
        reserve(store)
        assert confirm(store)
        assert confirm(store)
        assert reserve(store, "t2", "m2") == Reservation("duplicate", "m1", "t1", "enqueued")

    def test_confirm_a_reservation_that_is_gone_is_written(
        self, store: Store, clock: Clock
    ) -> None:  # DESIGN 3, enqueue
        reserve(store)
        clock.advance(PENDING)
        assert confirm(store)
        assert reserve(store, "t2", "m2") == Reservation("duplicate", "m1", "t1", "enqueued")

    def test_confirm_a_reservation_that_never_was_is_written(self, store: Store) -> None:  # DESIGN 3, enqueue
        assert confirm(store)
        assert reserve(store, "t2", "m2") == Reservation("duplicate", "m1", "t1", "enqueued")

    @pytest.mark.parametrize("confirmed", [False, True])
    def test_confirm_anothers_is_left_alone(
        self, store: Store, clock: Clock, confirmed: bool
    ) -> None:  # DESIGN 3, enqueue
        reserve(store)
        clock.advance(PENDING)
        reserve(store, "t2", "m2")
        if confirmed:
            confirm(store, "t2", "m2")
        assert not confirm(store)
        answer = reserve(store, "t3", "m3")
        assert (answer.outcome, answer.message_id, answer.token) == (
            "duplicate" if confirmed else "pending",
            "m2",
            "t2",
        )

    def test_confirm_work_that_died_meanwhile_is_not_reserved_again(self, store: Store) -> None:  # base.Store.confirm
        reserve(store)
        store.bury(run(store), letter(), keep=WINDOW, reservation="r")
        assert not confirm(store, record_key="k")
        assert reserve(store, "t2", "m2", record_key="k").outcome == "won"

    def test_confirm_until_done_work_that_is_done_meanwhile_is_not_reserved_again(self, store: Store) -> None:
        # B7, a policy may choose: the worker was faster, and what is enqueued now is new work
        reserve(store)
        store.complete(run(store), keep=WINDOW, result=None, reservation="r")
        assert not confirm(store, record_key="k", until_done=True)
        assert reserve(store, "t2", "m2", record_key="k").outcome == "won"

    def test_confirm_until_done_of_a_reservation_that_stands(self, store: Store) -> None:  # B7
        reserve(store)
        finish(store, run(store))
        assert confirm(store, record_key="k", until_done=True)
        assert reserve(store, "t2", "m2", record_key="k").outcome == "duplicate"

    def test_confirm_until_done_work_of_an_older_message_is_no_obstacle(self, store: Store) -> None:  # B7
        finish(store, run(store, message_id="m0"))
        assert confirm(store, record_key="k", until_done=True)
        assert reserve(store, "t2", "m2", record_key="k").outcome == "duplicate"

    @pytest.mark.parametrize("state", ["running", "waiting"])
    def test_confirm_until_done_unfinished_work_is_no_obstacle(self, store: Store, state: str) -> None:  # B7
        drive(store, state)
        assert confirm(store, record_key="k", until_done=True)
        assert reserve(store, "t2", "m2", record_key="k").outcome == "duplicate"

    def test_confirm_until_done_dead_work_is_not_reserved_again_either(self, store: Store) -> None:  # B7
        drive(store, "dead")
        assert not confirm(store, record_key="k", until_done=True)

    def test_confirm_dead_work_of_an_older_message_is_no_obstacle(self, store: Store) -> None:  # base.Store.confirm
        bury(store, run(store, message_id="m0"))
        assert confirm(store, record_key="k")
        assert reserve(store, "t2", "m2", record_key="k") == Reservation("duplicate", "m1", "t1", "dead")

    @pytest.mark.parametrize("state", ["running", "waiting", "done"])
    def test_confirm_a_worker_that_was_faster_is_no_obstacle(
        self, store: Store, state: str
    ) -> None:  # DESIGN 3, enqueue
        reserve(store)
        drive(store, state)
        assert confirm(store, record_key="k")
        assert reserve(store, "t2", "m2", record_key="k").outcome == "duplicate"


class TakeOversOfReservations(Conformance):
    def test_reserve_take_over_a_pending_one_is_taken_over_under_its_message_id(
        self, store: Store
    ) -> None:  # DESIGN 3, enqueue
        reserve(store)
        answer = reserve(store, "t2", "m2", take_over="t1")
        assert (answer.outcome, answer.message_id, answer.token) == ("won", "m1", "t2")

    def test_reserve_take_over_it_may_be_repeated(self, store: Store) -> None:  # rule 4
        reserve(store)
        first = reserve(store, "t2", "m2", take_over="t1")
        assert reserve(store, "t2", "m2", take_over="t1") == first
        assert reserve(store, "t3", "m3").token == "t2"

    def test_reserve_take_over_whoever_lost_it_can_neither_confirm_nor_release(
        self, store: Store
    ) -> None:  # DESIGN 3, enqueue
        reserve(store)
        reserve(store, "t2", "m2", take_over="t1")
        assert not confirm(store)
        assert not store.release("r", token="t1")
        assert reserve(store, "t3", "m3") == Reservation("pending", "m1", "t2", "pending")

    def test_reserve_take_over_the_new_holder_confirms(self, store: Store) -> None:  # DESIGN 3, enqueue
        reserve(store)
        reserve(store, "t2", "m2", take_over="t1")
        assert confirm(store, "t2", "m1")
        assert reserve(store, "t3", "m3") == Reservation("duplicate", "m1", "t2", "enqueued")

    def test_reserve_take_over_only_one_of_two_takes_it(self, store: Store) -> None:  # DESIGN 3, enqueue
        reserve(store)
        reserve(store, "t2", "m2", take_over="t1")
        assert reserve(store, "t3", "m3", take_over="t1") == Reservation("pending", "m1", "t2", "pending")

    def test_reserve_take_over_it_starts_the_pending_time_anew(
        self, store: Store, clock: Clock
    ) -> None:  # DESIGN 3, enqueue
        reserve(store)
        clock.advance(PENDING - TICK)
        reserve(store, "t2", "m2", take_over="t1")
        clock.advance(PENDING - TICK)
        assert reserve(store, "t3", "m3").outcome == "pending"

    def test_reserve_take_over_a_confirmed_one_is_not_taken(self, store: Store) -> None:  # C1
        enqueue(store)
        assert reserve(store, "t2", "m2", take_over="t1") == Reservation("duplicate", "m1", "t1", "enqueued")

    def test_reserve_take_over_one_that_is_gone_is_simply_won(self, store: Store) -> None:  # DESIGN 3, enqueue
        answer = reserve(store, "t2", "m2", take_over="t1")
        assert (answer.outcome, answer.message_id) == ("won", "m2")


class Releases(Conformance):
    def test_release_ones_own_pending_one_is_released(self, store: Store) -> None:  # DESIGN 3, enqueue
        reserve(store)
        assert store.release("r", token="t1")
        assert reserve(store, "t2", "m2").outcome == "won"

    def test_release_anothers_stays(self, store: Store) -> None:  # STYLE: no unlocking by a plain delete
        reserve(store)
        assert not store.release("r", token="t2")
        assert reserve(store, "t3", "m3").token == "t1"

    def test_release_a_confirmed_one_stays(self, store: Store) -> None:  # B7
        enqueue(store)
        assert not store.release("r", token="t1")
        assert reserve(store, "t2", "m2").outcome == "duplicate"

    def test_release_a_repetition_spares_the_next_holder(self, store: Store) -> None:  # rule 4
        reserve(store)
        store.release("r", token="t1")
        reserve(store, "t2", "m2")
        assert not store.release("r", token="t1")
        assert reserve(store, "t3", "m3").token == "t2"

    def test_release_there_may_be_none(self, store: Store) -> None:  # base.Store.release
        assert not store.release("r", token="t1")

    def test_release_burying_releases_the_reservation(self, store: Store) -> None:  # DESIGN 3, running → dead
        enqueue(store)
        store.bury(run(store), letter(), keep=WINDOW, reservation="r")
        assert reserve(store, "t2", "m2", record_key="k").outcome == "won"

    def test_release_burying_what_has_no_attempt_left_releases_it_too(self, store: Store) -> None:  # DESIGN 3
        enqueue(store)
        store.bury(exhaust(store), letter(), keep=WINDOW, reservation="r")
        assert reserve(store, "t2", "m2", record_key="k").outcome == "won"

    def test_release_completing_releases_the_reservation_if_asked(
        self, store: Store
    ) -> None:  # B7, a policy may choose
        enqueue(store)
        store.complete(run(store), keep=WINDOW, result=None, reservation="r")
        assert reserve(store, "t2", "m2", record_key="k").outcome == "won"

    @pytest.mark.parametrize("verb", ["complete", "bury"])
    def test_release_an_ending_spares_another_messages_reservation(self, store: Store, verb: str) -> None:  # B1
        enqueue(store, "t2", "m2")
        hold = run(store)
        if verb == "bury":
            store.bury(hold, letter(), keep=WINDOW, reservation="r")
        else:
            store.complete(hold, keep=WINDOW, result=None, reservation="r")
        assert reserve(store, "t3", "m3").message_id == "m2"


class Frees(Conformance):
    """A message that ended without a record of its own gives its reservation up (B7)."""

    @pytest.mark.parametrize("confirmed", [False, True])
    def test_free_ones_own_is_freed(self, store: Store, confirmed: bool) -> None:  # B7
        enqueue(store) if confirmed else reserve(store)
        assert store.free("r", message_id="m1")
        assert reserve(store, "t2", "m2").outcome == "won"

    @pytest.mark.parametrize("confirmed", [False, True])
    def test_free_another_messages_stays(self, store: Store, confirmed: bool) -> None:  # B1
        enqueue(store) if confirmed else reserve(store)
        assert not store.free("r", message_id="m2")
        assert (reserve(store, "t3", "m3").message_id, reserve(store, "t3", "m3").token) == ("m1", "t1")

    def test_free_one_that_was_taken_over_keeps_its_message(self, store: Store) -> None:  # DESIGN 3, enqueue
        reserve(store)
        reserve(store, "t2", "m2", take_over="t1")
        assert not store.free("r", message_id="m2")
        assert store.free("r", message_id="m1")

    def test_free_a_repetition_spares_the_next_holder(self, store: Store) -> None:  # rule 4
        enqueue(store)
        store.free("r", message_id="m1")
        reserve(store, "t2", "m2")
        assert not store.free("r", message_id="m1")
        assert reserve(store, "t3", "m3").token == "t2"

    def test_free_there_may_be_none(self, store: Store) -> None:  # base.Store.free
        assert not store.free("r", message_id="m1")

    def test_free_an_expired_one_is_none(self, store: Store, clock: Clock) -> None:  # base.Store.free
        reserve(store)
        clock.advance(PENDING)
        assert not store.free("r", message_id="m1")

    def test_free_records_are_left_alone(self, store: Store) -> None:  # B5
        run(store, "r")
        assert not store.free("r", message_id="m1")
        assert record(store, "r").state == "running"

    def test_free_keys_do_not_meet(self, store: Store) -> None:  # B1
        enqueue(store)
        assert not store.free("other", message_id="m1")
        assert reserve(store, "t2", "m2").outcome == "duplicate"


class Mismatches(Conformance):
    """The same key with other arguments is another piece of work by mistake (DESIGN 3, rule 6)."""

    def test_reserve_mismatch_a_pending_one_with_another_payload(self, store: Store) -> None:  # rule 6
        reserve(store, payload_hash="h1")
        answer = reserve(store, "t2", "m2", payload_hash="h2")
        assert (answer.outcome, answer.message_id, answer.state) == ("mismatch", "m1", "pending")

    def test_reserve_mismatch_a_confirmed_one_with_another_payload(self, store: Store) -> None:  # rule 6
        enqueue(store, payload_hash="h1")
        answer = reserve(store, "t2", "m2", payload_hash="h2")
        assert (answer.outcome, answer.message_id, answer.state) == ("mismatch", "m1", "enqueued")

    def test_reserve_mismatch_it_changes_nothing(self, store: Store) -> None:  # rule 6
        enqueue(store, payload_hash="h1")
        reserve(store, "t2", "m2", payload_hash="h2")
        assert reserve(store, "t3", "m3", payload_hash="h1") == Reservation("duplicate", "m1", "t1", "enqueued")

    def test_reserve_mismatch_no_take_over_for_another_payload(self, store: Store) -> None:  # rule 6
        reserve(store, payload_hash="h1")
        assert reserve(store, "t2", "m2", payload_hash="h2", take_over="t1").outcome == "mismatch"
        assert reserve(store, "t3", "m3", payload_hash="h1").token == "t1"

    def test_reserve_mismatch_the_confirmation_keeps_the_payload(self, store: Store) -> None:  # rule 6
        confirm(store, payload_hash="h1")
        assert reserve(store, "t2", "m2", payload_hash="h2").outcome == "mismatch"

    @pytest.mark.parametrize(("first", "second"), [("h1", "h1"), ("h1", ""), ("", "h2"), ("", "")])
    def test_reserve_mismatch_equal_or_unknown_payloads_do_not_differ(
        self, store: Store, first: str, second: str
    ) -> None:  # rule 6
        enqueue(store, payload_hash=first)
        assert reserve(store, "t2", "m2", payload_hash=second).outcome == "duplicate"

    @pytest.mark.parametrize("state", ["running", "waiting", "done"])
    def test_reserve_mismatch_a_record_with_another_payload(self, store: Store, state: str) -> None:  # rule 6
        drive(store, state, payload_hash="h1")
        answer = reserve(store, "t2", "m2", payload_hash="h2", record_key="k")
        assert (answer.outcome, answer.message_id, answer.state) == ("mismatch", "m1", state)
        assert reserve(store, "t3", "m3", payload_hash="h1", record_key="k").outcome == "won"

    def test_reserve_mismatch_dead_work_may_come_again_with_other_arguments(
        self, store: Store
    ) -> None:  # DESIGN 3, new generation
        drive(store, "dead", payload_hash="h1")
        assert reserve(store, "t2", "m2", payload_hash="h2", record_key="k").outcome == "won"

    def test_reserve_mismatch_a_record_of_another_key_does_not_matter(self, store: Store) -> None:  # rule 6
        drive(store, "running", payload_hash="h1")
        assert reserve(store, "t2", "m2", payload_hash="h2", record_key="other").outcome == "won"
