"""claim: one worker at a time, the attempt counted before the code runs."""

# ruff: noqa: S101  (a conformance suite asserts)
from __future__ import annotations

from dataclasses import replace

import pytest

from task_contract.stores.base import FORMER, SEEN_IDS, Claim, Hold, Limits, Store
from task_contract.testing.acts import (
    KEEP,
    LEASE,
    NO_LIMITS,
    TICK,
    beat,
    bury,
    claim,
    exhaust,
    finish,
    held,
    letter,
    read,
    record,
    replay,
    run,
    wait,
)
from task_contract.testing.base import Conformance
from task_contract.testing.clock import Clock


class Claims(Conformance):
    def test_claim_the_first_wins(self, store: Store) -> None:  # D5, none → running
        assert claim(store) == Claim("won", fence=1, attempt=1, message_id="m1")

    def test_claim_the_attempt_is_counted_before_the_code_runs(self, store: Store) -> None:  # D5, rule 8
        run(store)
        assert record(store).attempts == 1

    def test_claim_the_record_says_all_of_it(self, store: Store, clock: Clock) -> None:  # A7
        work = {
            "message_type": "shop.charge",
            "key": "42:charge",
            "payload_hash": "h1",
            "correlation_id": "job-1",
            "causation_id": "request-1",
            "subject": "invoice-42",
            "worker": "host-1:77",
        }
        run(store, **work)
        found = record(store)
        assert {name: getattr(found, name) for name in work} == work
        assert (found.state, found.owner, found.message_id, found.fence) == ("running", "o1", "m1", 1)
        assert (found.created_at, found.started_at, found.updated_at) == (clock.today,) * 3
        assert (found.lease_until, found.expires_at) == (clock.after(LEASE), clock.after(KEEP))
        assert (found.not_before, found.beat_at, found.progress, found.note) == (None, None, -1, "")
        assert (found.attempts, found.crashes, found.interruptions, found.generation, found.replays) == (1, 0, 0, 0, 0)
        assert (found.exhausted, found.suspect, found.draining, found.has_result) == (False,) * 4
        assert (found.result, found.last_error, found.slot, found.letter_id, found.seen_ids) == (b"", "", "", "", "")

    @pytest.mark.parametrize("later", [0, LEASE / 2, LEASE - TICK, LEASE, 3 * LEASE])
    def test_claim_ones_own_claim_may_be_repeated(self, store: Store, clock: Clock, later: float) -> None:
        # rule 4: the same answer, and a whole lease for the run that begins only now
        first = claim(store)
        before = record(store)
        clock.advance(later)
        assert claim(store) == first
        assert record(store) == replace(before, lease_until=clock.after(LEASE))

    def test_claim_a_repeated_claim_keeps_others_out(self, store: Store, clock: Clock) -> None:  # rule 4, D5
        run(store)
        clock.advance(LEASE)
        run(store)
        clock.advance(LEASE - TICK)
        assert claim(store, owner="o2").outcome == "busy"
        clock.advance(TICK)
        assert claim(store, owner="o2", limits=NO_LIMITS).crashes == 1

    def test_claim_a_repeated_claim_keeps_what_the_run_said(self, store: Store, clock: Clock) -> None:  # rule 4, D11
        beat(store, run(store), progress=50, note="half", silent_for=0, draining=True)
        before = record(store)
        clock.advance(LEASE)
        claim(store)
        assert record(store) == replace(before, lease_until=clock.after(LEASE))

    def test_claim_a_repeated_claim_outlives_its_keep(self, store: Store, clock: Clock) -> None:  # C4
        first = claim(store, keep=60)
        clock.advance(60 - TICK)
        assert claim(store, keep=60) == first
        assert record(store).expires_at == record(store).lease_until == clock.after(LEASE)

    def test_claim_a_claim_that_was_taken_over_is_not_repeated(self, store: Store, clock: Clock) -> None:  # D5
        run(store)
        clock.advance(LEASE)
        run(store, owner="o2")
        assert claim(store).outcome == "busy"

    def test_claim_another_has_to_wait_for_the_lease(self, store: Store, clock: Clock) -> None:  # D5, rule 1
        run(store)
        before = record(store)
        clock.advance(10)
        answer = claim(store, owner="o2", message_id="m2")
        assert (answer.outcome, answer.reason, answer.wait) == ("busy", "running", LEASE - 10)
        assert record(store) == before

    def test_claim_the_same_message_delivered_twice_has_to_wait(self, store: Store) -> None:  # D5: a token per delivery
        run(store)
        assert claim(store, owner="o2", message_id="m1").outcome == "busy"

    def test_claim_keys_do_not_meet(self, store: Store) -> None:  # D5
        run(store, "k1")
        assert claim(store, "k2", owner="o2").outcome == "won"

    def test_claim_a_record_that_expired_is_forgotten(self, store: Store, clock: Clock) -> None:  # DESIGN 3, lifetimes
        finish(store, run(store), keep=60)
        clock.advance(60)
        assert claim(store, owner="o2", message_id="m2") == Claim("won", fence=1, attempt=1, message_id="m2")


class ClaimsOfWaitingWork(Conformance):
    def test_waiting_an_early_copy_has_to_wait(
        self, store: Store, clock: Clock
    ) -> None:  # rule 1: or Retry-After is bypassed
        wait(store, run(store), 60)
        before = record(store)
        clock.advance(20)
        answer = claim(store, owner="o2")
        assert (answer.outcome, answer.wait) == ("early", 40.0)
        assert record(store) == before

    def test_waiting_one_tick_early_is_early(self, store: Store, clock: Clock) -> None:  # rule 1
        wait(store, run(store), 60)
        clock.advance(60 - TICK)
        assert (claim(store, owner="o2").outcome, claim(store, owner="o2").wait) == ("early", TICK)

    def test_waiting_when_it_is_due_it_runs(self, store: Store, clock: Clock) -> None:  # waiting → running
        wait(store, run(store), 60)
        clock.advance(60)
        assert claim(store, owner="o2") == Claim("won", fence=2, attempt=2, message_id="m1")
        found = record(store)
        assert (found.state, found.owner, found.not_before) == ("running", "o2", None)
        assert (found.started_at, found.lease_until) == (clock.today, clock.after(LEASE))

    def test_waiting_the_record_keeps_its_beginning(self, store: Store, clock: Clock) -> None:  # A7
        began = clock.today
        wait(store, run(store, worker="w1"), error="Timeout: slow")
        clock.advance(5)
        run(store, owner="o2", worker="w2")
        found = record(store)
        assert (found.created_at, found.worker, found.last_error) == (began, "w2", "Timeout: slow")

    def test_waiting_the_running_copys_message_id_is_taken(self, store: Store) -> None:  # A7
        wait(store, run(store))
        assert claim(store, owner="o2", message_id="m2").message_id == "m2"
        assert record(store).message_id == "m2"

    def test_waiting_what_the_last_run_said_is_wiped(self, store: Store) -> None:  # D11
        hold = run(store)
        beat(store, hold, progress=50, note="half", silent_for=0, draining=True)
        wait(store, hold)
        run(store, owner="o2")
        found = record(store)
        assert (found.progress, found.note, found.beat_at, found.draining) == (-1, "", None, False)

    def test_waiting_a_crash_told_by_the_framework_is_kept(self, store: Store) -> None:  # rule 8
        wait(store, run(store), ending="crashed")
        assert claim(store, owner="o2") == Claim("won", fence=2, attempt=2, crashes=1, message_id="m1")

    @pytest.mark.parametrize("suspects", [True, False])
    @pytest.mark.parametrize("crashes", [1, 2, 3])
    def test_waiting_a_culprit_that_was_named_runs_no_more(self, store: Store, crashes: int, suspects: bool) -> None:
        # rule 8, WorkerLostError: who names it needs no proof
        limits = Limits(attempts=10, crashes=crashes, suspects=suspects)
        for n in range(crashes):
            wait(store, run(store, owner=f"o{n}", limits=limits), ending="crashed")
        answer = claim(store, owner="last", limits=limits)
        assert answer == Claim(
            "exhausted", fence=crashes + 1, attempt=crashes, crashes=crashes, reason="crashes", message_id="m1"
        )
        bury(store, held(answer, owner="last"))
        assert (record(store).state, record(store).crashes) == ("dead", crashes)

    def test_waiting_a_culprit_waits_until_it_is_due(self, store: Store) -> None:  # rule 1
        wait(store, run(store), 60, ending="crashed")
        assert claim(store, owner="o2", limits=Limits(crashes=1)).outcome == "early"


class ClaimsOfFinishedWork(Conformance):
    @pytest.mark.parametrize("message_id", ["m1", "m2"])
    def test_finished_done_work_returns_its_result(self, store: Store, message_id: str) -> None:  # A5, D1, rule 2
        finish(store, run(store), b"[1]")
        before = record(store)
        answer = claim(store, owner="o2", message_id=message_id)
        assert answer == Claim("done", fence=1, attempt=1, message_id="m1", has_result=True, result=b"[1]")
        assert record(store) == before

    def test_finished_the_owner_itself_is_told_that_it_is_done(self, store: Store) -> None:  # rule 4
        finish(store, run(store), b"[1]")
        assert (claim(store).outcome, claim(store).result) == ("done", b"[1]")

    def test_finished_done_without_a_result_says_so(self, store: Store) -> None:  # DESIGN 2, results
        finish(store, run(store), None)
        answer = claim(store, owner="o2")
        assert (answer.outcome, answer.has_result, answer.result) == ("done", False, b"")

    def test_finished_a_stale_copy_of_dead_work_is_told(self, store: Store) -> None:  # DESIGN 3, dead → running
        bury(store, run(store))
        before = record(store)
        assert claim(store, owner="o2") == Claim("dead", fence=1, attempt=1, message_id="m1")
        assert record(store) == before

    def test_finished_a_copy_that_ran_before_is_stale_too(self, store: Store) -> None:  # DESIGN 3, dead → running
        copies = [f"m{n}" for n in range(SEEN_IDS + 1)]
        for copy in copies[:-1]:
            wait(store, run(store, owner=copy, message_id=copy))
        bury(store, run(store, owner="last", message_id=copies[-1]))
        assert [claim(store, owner="o2", message_id=copy).outcome for copy in copies] == ["dead"] * len(copies)

    @pytest.mark.parametrize("space", [" ", "\t", "\n", ",", "\x00", "\u2003"])
    def test_finished_a_stale_copy_is_known_by_its_whole_id(
        self, store: Store, space: str
    ) -> None:  # DESIGN 3, dead → running
        wait(store, run(store, message_id=f"a{space}b"))
        bury(store, run(store, owner="o2", message_id="c"))
        assert claim(store, owner="o3", message_id=f"a{space}b").outcome == "dead"
        assert claim(store, owner="o4", message_id="b").outcome == "won"

    def test_finished_a_fresh_message_starts_a_new_generation(self, store: Store, clock: Clock) -> None:
        # DESIGN 3, dead → running
        wait(store, run(store), ending="crashed")
        bury(store, run(store, owner="o2"))
        clock.advance(60)
        assert claim(store, owner="o3", message_id="m2") == Claim("won", fence=3, attempt=1, message_id="m2")
        found = record(store)
        assert (found.generation, found.replays, found.letter_id) == (2, 0, "")
        assert (found.attempts, found.crashes, found.created_at) == (1, 0, clock.today)
        assert (found.last_error, found.seen_ids) == ("", f"{FORMER}m1")

    def test_finished_its_old_letter_is_superseded(
        self, store: Store, clock: Clock
    ) -> None:  # DESIGN 3, dead → running
        bury(store, run(store))
        clock.advance(60)
        run(store, owner="o2", message_id="m2")
        found = read(store)
        assert (found.state, found.closed_at) == ("superseded", clock.today)

    def test_finished_a_closed_letter_is_not_superseded(self, store: Store) -> None:  # DESIGN 3, dead → running
        bury(store, run(store))
        store.discard_letter("L1", by="ann", reason="useless")
        run(store, owner="o2", message_id="m2")
        assert read(store).state == "discarded"

    def test_finished_the_new_generation_has_its_own_letter(self, store: Store) -> None:  # DESIGN 3, dead → running
        bury(store, run(store))
        bury(store, run(store, owner="o2", message_id="m2"), "L2")
        assert (read(store, "L1").generation, read(store, "L2").generation) == (1, 3)
        assert (read(store, "L1").state, read(store, "L2").state) == ("superseded", "open")

    def test_finished_a_copy_from_an_older_generation_is_stale(self, store: Store) -> None:  # DESIGN 3, dead → running
        # It would run again, and supersede the letter of newer work.
        ids = [f"m{n}" for n in range(SEEN_IDS + 1)]
        for message_id in ids:
            bury(store, run(store, owner=message_id, message_id=message_id), f"L-{message_id}")
        before = record(store)
        answers = [claim(store, owner="late", message_id=message_id).outcome for message_id in ids]
        assert answers == ["dead"] * len(ids)
        assert record(store) == before
        assert read(store, f"L-{ids[-1]}").state == "open"

    def test_finished_ids_of_all_generations_are_remembered_together(self, store: Store) -> None:  # bounded: SEEN_IDS
        bury(store, run(store, message_id="old"))
        copies = [f"m{n}" for n in range(SEEN_IDS)]
        for copy in copies:
            wait(store, run(store, owner=copy, message_id=copy))
        bury(store, run(store, owner="last", message_id=copies[-1]), "L2")
        assert claim(store, owner="late", message_id="old").outcome == "dead"
        replay(store, "L2")
        bury(store, run(store, owner="once more", message_id="another"), "L3")
        assert [claim(store, owner="o", message_id=copy).outcome for copy in copies] == ["dead"] * SEEN_IDS
        assert claim(store, owner="late", message_id="old").outcome == "won"

    @pytest.mark.parametrize("space", [" ", "%", "%-", "%20"])
    def test_finished_a_former_copy_is_known_by_its_whole_id(self, store: Store, space: str) -> None:
        # DESIGN 3, dead → running
        bury(store, run(store, message_id=f"{space}b"))
        bury(store, run(store, owner="o2", message_id="c"), "L2")
        assert claim(store, owner="o3", message_id=f"{space}b").outcome == "dead"
        assert claim(store, owner="o4", message_id="b").outcome == "won"

    def test_finished_replayed_work_runs_under_its_old_id(self, store: Store) -> None:  # D7, dead → waiting → running
        bury(store, run(store))
        replay(store)
        assert claim(store, owner="o2") == Claim("won", fence=2, attempt=1, message_id="m1")


class ClaimMismatches(Conformance):
    @pytest.mark.parametrize("state", ["running", "waiting", "done"])
    def test_claim_mismatch_other_arguments_are_refused(self, store: Store, state: str) -> None:  # rule 6
        _drive(store, run(store, payload_hash="h1"), state)
        before = record(store)
        answer = claim(store, owner="o2", message_id="m2", payload_hash="h2")
        assert (answer.outcome, answer.message_id, answer.result) == ("mismatch", "m1", b"")
        assert record(store) == before

    @pytest.mark.parametrize(
        ("state", "answer"), [("running", "busy"), ("waiting", "won"), ("done", "done"), ("dead", "dead")]
    )
    @pytest.mark.parametrize("message_id", ["m0", "m1"])
    def test_claim_mismatch_a_message_that_ran_has_no_other_arguments(
        self, store: Store, message_id: str, state: str, answer: str
    ) -> None:  # rule 6: a deploy that renames a parameter must not bury what waits
        wait(store, run(store, owner="o0", message_id="m0", payload_hash="h1"))
        _drive(store, run(store, payload_hash="h1"), state)
        assert claim(store, owner="o2", message_id=message_id, payload_hash="h2").outcome == answer

    def test_claim_mismatch_ones_own_claim_by_renamed_arguments(self, store: Store) -> None:  # rules 4 and 6
        first = claim(store, payload_hash="h1")
        assert claim(store, payload_hash="h2") == first

    @pytest.mark.parametrize("state", ["running", "waiting", "done"])
    def test_claim_mismatch_a_message_of_an_older_generation_may_differ(self, store: Store, state: str) -> None:
        # rule 6: it ran, but with the arguments of then; to let it in would lose the work of this generation
        bury(store, run(store, payload_hash="h1"))
        _drive(store, run(store, owner="o2", message_id="m2", payload_hash="h2"), state)
        assert claim(store, owner="o3", message_id="m1", payload_hash="h1").outcome == "mismatch"

    def test_claim_mismatch_a_dead_message_of_an_older_generation_is_stale(self, store: Store) -> None:  # rule 6
        bury(store, run(store, payload_hash="h1"))
        bury(store, run(store, owner="o2", message_id="m2", payload_hash="h2"), "L2")
        assert claim(store, owner="o3", message_id="m1", payload_hash="h1").outcome == "dead"

    @pytest.mark.parametrize(("first", "second"), [("h1", "h1"), ("h1", ""), ("", "h2"), ("", "")])
    def test_claim_mismatch_equal_or_unknown_payloads_do_not_differ(
        self, store: Store, first: str, second: str
    ) -> None:  # rule 6
        finish(store, run(store, payload_hash=first))
        assert claim(store, owner="o2", message_id="m2", payload_hash=second).outcome == "done"

    def test_claim_mismatch_a_payload_learnt_later_counts(self, store: Store) -> None:  # rule 6
        wait(store, run(store))
        wait(store, run(store, owner="o2", payload_hash="h1"))
        assert claim(store, owner="o3", message_id="m3", payload_hash="h2").outcome == "mismatch"

    def test_claim_mismatch_a_payload_is_not_forgotten(self, store: Store) -> None:  # rule 6
        wait(store, run(store, payload_hash="h1"))
        wait(store, run(store, owner="o2"))
        assert claim(store, owner="o3", message_id="m3", payload_hash="h2").outcome == "mismatch"

    def test_claim_mismatch_a_new_generation_may_differ(self, store: Store) -> None:  # DESIGN 3, dead → running
        bury(store, run(store, payload_hash="h1"))
        assert claim(store, owner="o2", message_id="m2", payload_hash="h2").outcome == "won"
        assert record(store).payload_hash == "h2"


def _drive(store: Store, hold: Hold, state: str) -> None:
    if state == "waiting":
        wait(store, hold)
    elif state == "done":
        finish(store, hold)
    elif state == "dead":
        bury(store, hold)


class Exhaustion(Conformance):
    def test_exhausted_no_attempt_is_left(self, store: Store, clock: Clock) -> None:  # D4, expired and exhausted
        wait(store, run(store))
        clock.advance(1)
        answer = claim(store, owner="o2", limits=Limits(attempts=1))
        assert answer == Claim("exhausted", fence=2, attempt=1, reason="attempts", message_id="m1")
        found = record(store)
        assert (found.state, found.exhausted, found.owner, found.attempts) == ("running", True, "o2", 1)
        assert (found.lease_until, found.expires_at, found.updated_at) == (
            clock.after(LEASE),
            clock.after(KEEP),
            clock.today,
        )

    def test_exhausted_it_waits_until_it_is_due(self, store: Store) -> None:  # rule 1
        wait(store, run(store), 60)
        assert claim(store, owner="o2", limits=Limits(attempts=1)).outcome == "early"

    def test_exhausted_the_last_permitted_attempt_is_permitted(self, store: Store) -> None:  # D4
        wait(store, run(store))
        assert claim(store, owner="o2", limits=Limits(attempts=2)).outcome == "won"

    @pytest.mark.parametrize("later", [0, LEASE - TICK, LEASE, 3 * LEASE])
    def test_exhausted_it_may_be_repeated(self, store: Store, clock: Clock, later: float) -> None:  # rule 4
        wait(store, run(store))
        first = claim(store, owner="o2", limits=Limits(attempts=1))
        before = record(store)
        clock.advance(later)
        assert claim(store, owner="o2", limits=Limits(attempts=1)) == first
        assert record(store) == replace(before, lease_until=clock.after(LEASE))

    def test_exhausted_crashes_count_before_attempts(self, store: Store) -> None:  # base.Claim.reason
        wait(store, run(store), ending="crashed")
        assert claim(store, owner="o2", limits=Limits(attempts=1, crashes=1)).reason == "crashes"
        assert claim(store, owner="o2", limits=Limits(attempts=1, crashes=2)).reason == "attempts"

    def test_exhausted_one_buries_at_a_time(self, store: Store) -> None:  # D5
        exhaust(store)
        answer = claim(store, owner="o3", limits=Limits(attempts=1))
        assert (answer.outcome, answer.reason) == ("busy", "running")

    def test_exhausted_a_burier_that_died_is_replaced_without_a_crash(
        self, store: Store, clock: Clock
    ) -> None:  # DESIGN 3
        exhaust(store)
        clock.advance(LEASE)
        answer = claim(store, owner="o3", limits=Limits(attempts=1))
        assert answer == Claim("exhausted", fence=3, attempt=1, reason="attempts", message_id="m1")

    def test_exhausted_generous_new_limits_do_not_revive_it(self, store: Store, clock: Clock) -> None:  # DESIGN 3
        exhaust(store)
        clock.advance(LEASE)
        assert claim(store, owner="o3", limits=NO_LIMITS).outcome == "exhausted"

    def test_exhausted_it_is_buried(self, store: Store) -> None:  # D4
        bury(store, exhaust(store))
        found = record(store)
        assert (found.state, found.exhausted, found.letter_id) == ("dead", False, "L1")

    def test_exhausted_it_takes_no_slot(self, store: Store) -> None:  # D2: nothing runs
        slot = Limits(attempts=1, slot="s", slots=1)
        wait(store, run(store, "k1", limits=slot))
        assert claim(store, "k1", owner="o2", limits=slot).outcome == "exhausted"
        assert record(store, "k1").slot == ""
        assert claim(store, "k2", owner="o3", limits=slot).outcome == "won"

    def test_exhausted_it_needs_no_slot(self, store: Store) -> None:  # D2: nothing runs
        slot = Limits(attempts=1, slot="s", slots=1)
        wait(store, run(store, "k1", limits=slot))
        run(store, "k2", limits=slot)
        assert claim(store, "k1", owner="o2", limits=slot).outcome == "exhausted"

    def test_exhausted_dead_letters_of_it_are_complete(self, store: Store) -> None:  # E3
        hold = exhaust(store)
        store.bury(hold, letter(attempts=hold.attempt, reason="attempts"), keep=KEEP)
        assert (read(store).attempts, read(store).generation, read(store).store_key) == (1, 1, "k")

    def test_exhausted_a_hold_of_it_is_not_the_former_owners(self, store: Store) -> None:  # D5
        former = run(store)
        wait(store, former)
        answer = claim(store, owner="o2", limits=Limits(attempts=1))
        assert held(answer, owner="o2").fence > former.fence
