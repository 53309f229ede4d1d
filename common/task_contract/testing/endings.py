"""complete, retry, bury: how a run ends, also when the store has forgotten that it began."""

# ruff: noqa: S101  (a conformance suite asserts)
from __future__ import annotations

import pytest

from task_contract.errors import InvalidTransition, LeaseLost
from task_contract.stores.base import Hold, LetterStats, Limits, Store, Work
from task_contract.testing.acts import (
    END,
    KEEP,
    all_letters,
    beat,
    bury,
    claim,
    finish,
    letter,
    read,
    record,
    replay,
    run,
    wait,
)
from task_contract.testing.base import Conformance
from task_contract.testing.clock import Clock

FORGOTTEN = Hold("k", "o1", 7, 3, Work("m1", "shop.charge", "42", "h1", "job-1", "req-1", "inv-42", "w1"), "s")


class Completions(Conformance):
    def test_complete_running_becomes_done(self, store: Store, clock: Clock) -> None:  # D1
        hold = run(store)
        clock.advance(5)
        store.complete(hold, keep=600, result=b"[1]")
        found = record(store)
        assert (found.state, found.has_result, found.result) == ("done", True, b"[1]")
        assert (found.updated_at, found.expires_at) == (clock.today, clock.after(600))
        assert (found.lease_until, found.fence, found.attempts) == (None, 1, 1)

    def test_complete_it_is_forgotten_after_its_time(self, store: Store, clock: Clock) -> None:  # D1, D12
        store.complete(run(store), keep=600, result=b"[1]")
        clock.advance(599.999)
        assert claim(store, owner="o2").outcome == "done"
        clock.advance(0.001)
        assert store.get("k") is None
        assert claim(store, owner="o2").outcome == "won"

    def test_complete_a_drain_that_ended_well_is_over(self, store: Store) -> None:  # DESIGN 3
        hold = run(store)
        beat(store, hold, draining=True)
        finish(store, hold)
        assert not record(store).draining

    def test_complete_a_success_keeps_the_last_error(self, store: Store) -> None:  # A7
        wait(store, run(store), error="Timeout: slow")
        finish(store, run(store, owner="o2"))
        assert record(store).last_error == "Timeout: slow"

    @pytest.mark.parametrize("change", [{"owner": "o2"}, {"fence": 2}, {"fence": 0}])
    def test_complete_only_the_owner_with_its_fence(self, store: Store, change: dict[str, object]) -> None:  # D5
        hold = run(store)
        before = record(store)
        with pytest.raises(LeaseLost):
            finish(store, hold._replace(**change))  # type: ignore[arg-type]  # parametrized
        assert record(store) == before


class CompletedReplays(Conformance):
    def test_complete_a_replay_that_nobody_marked_is_closed(self, store: Store, clock: Clock) -> None:  # D7
        # The operator was killed after the publish: the letter of work that is done must not look unfinished.
        bury(store, run(store), reason="old")
        replay(store)
        clock.advance(5)
        finish(store, run(store, owner="o2"))
        found = read(store)
        assert (found.state, found.closed_at, found.closed_by, found.closed_reason) == (
            "replayed",
            clock.today,
            "ann",
            "fixed",
        )
        assert (all_letters(store), store.letter_stats()) == ([], LetterStats(0, None, {}))
        assert store.mark_replayed("L1")
        with pytest.raises(InvalidTransition):
            replay(store)

    def test_complete_a_letter_closed_otherwise_stays_as_it_is(self, store: Store) -> None:  # E4
        bury(store, run(store))
        replay(store)
        hold = run(store, owner="o2")
        store.discard_letter("L1", by="bob", reason="useless")
        before = read(store)
        finish(store, hold)
        assert read(store) == before

    def test_complete_a_marked_replay_stays_as_it_is(self, store: Store, clock: Clock) -> None:  # D7
        bury(store, run(store))
        replay(store)
        store.mark_replayed("L1")
        before = read(store)
        clock.advance(5)
        finish(store, run(store, owner="o2"))
        assert read(store) == before

    def test_complete_a_refused_completion_closes_nothing(self, store: Store) -> None:  # D5
        bury(store, run(store))
        replay(store)
        hold = run(store, owner="o2")
        with pytest.raises(LeaseLost):
            finish(store, hold._replace(fence=99))
        assert read(store).state == "replaying"

    def test_complete_other_letters_are_left_alone(self, store: Store) -> None:  # D7
        bury(store, run(store, "other"), "L2")
        replay(store, "L2")
        finish(store, run(store))
        assert read(store, "L2").state == "replaying"


class Retries(Conformance):
    def test_retry_running_becomes_waiting(self, store: Store, clock: Clock) -> None:  # D4
        hold = run(store)
        clock.advance(5)
        store.retry(hold, delay=60, keep=600, error="Timeout: slow")
        found = record(store)
        assert (found.state, found.last_error, found.attempts, found.crashes) == ("waiting", "Timeout: slow", 1, 0)
        assert (found.not_before, found.lease_until) == (clock.after(60), None)
        assert (found.updated_at, found.expires_at) == (clock.today, clock.after(600))

    def test_retry_at_once(self, store: Store) -> None:  # D4
        wait(store, run(store), 0)
        assert claim(store, owner="o2").outcome == "won"

    def test_retry_parts_of_a_second_count(self, store: Store, clock: Clock) -> None:  # C5
        wait(store, run(store), 1.234)
        assert record(store).not_before == clock.after(1.234)

    def test_retry_an_error_is_kept_until_there_is_a_new_one(self, store: Store) -> None:  # A7
        wait(store, run(store), error="first")
        wait(store, run(store, owner="o2"), error="")
        assert record(store).last_error == "first"
        wait(store, run(store, owner="o3"), error="second")
        assert record(store).last_error == "second"

    def test_retry_a_crash_is_counted(self, store: Store) -> None:  # rule 8, WorkerLostError
        wait(store, run(store), ending="crashed")
        assert (record(store).attempts, record(store).crashes) == (1, 1)

    @pytest.mark.parametrize("change", [{"owner": "o2"}, {"fence": 2}])
    def test_retry_only_the_owner_with_its_fence(self, store: Store, change: dict[str, object]) -> None:  # D5
        hold = run(store)
        before = record(store)
        with pytest.raises(LeaseLost):
            wait(store, hold._replace(**change))  # type: ignore[arg-type]  # parametrized
        assert record(store) == before


class Burials(Conformance):
    def test_bury_running_becomes_dead(self, store: Store, clock: Clock) -> None:  # DESIGN 3, running → dead
        hold = run(store)
        clock.advance(5)
        assert bury(store, hold, keep=600, error_type="ValueError", error="no such invoice") == "L1"
        found = record(store)
        assert (found.state, found.letter_id, found.generation) == ("dead", "L1", 1)
        assert (found.last_error, found.lease_until) == ("ValueError: no such invoice", None)
        assert (found.updated_at, found.expires_at) == (clock.today, clock.after(600))

    def test_bury_the_letter_comes_with_it(self, store: Store, clock: Clock) -> None:  # E3, A12
        hold = run(store)
        clock.advance(5)
        bury(store, hold, keep=600)
        found = read(store)
        assert (found.state, found.store_key, found.generation, found.replays) == ("open", "k", 1, 0)
        assert (found.failed_at, found.expires_at) == (clock.today, clock.after(600))
        assert (found.closed_at, found.closed_by, found.closed_reason) == (None, "", "")

    def test_bury_without_an_error_the_last_one_is_kept(self, store: Store) -> None:  # A7
        wait(store, run(store), error="Timeout: slow")
        bury(store, run(store, owner="o2"))
        assert record(store).last_error == "Timeout: slow"

    @pytest.mark.parametrize("change", [{"owner": "o2"}, {"fence": 2}])
    def test_bury_only_the_owner_with_its_fence(self, store: Store, change: dict[str, object]) -> None:  # D5
        hold = run(store)
        before = record(store)
        with pytest.raises(LeaseLost):
            bury(store, hold._replace(**change))  # type: ignore[arg-type]  # parametrized
        assert record(store) == before
        assert all_letters(store) == []

    def test_bury_buried_again_it_continues_its_story(self, store: Store) -> None:  # D7
        bury(store, run(store))
        replay(store)
        store.mark_replayed("L1")
        bury(store, run(store, owner="o2"), "L2")
        assert (record(store).generation, record(store).replays, record(store).letter_id) == (2, 1, "L2")
        assert (read(store, "L2").generation, read(store, "L2").replays) == (2, 1)
        assert read(store, "L1").state == "replayed"

    def test_bury_buried_again_before_the_replay_was_marked(self, store: Store, clock: Clock) -> None:  # D7
        # The worker was faster than the operator's second step: the old letter is closed with the new one's writing.
        bury(store, run(store))
        replay(store)
        clock.advance(5)
        bury(store, run(store, owner="o2"), "L2")
        old = read(store, "L1")
        assert (old.state, old.closed_at, old.closed_by, old.closed_reason) == (
            "replayed",
            clock.today,
            "ann",
            "fixed",
        )
        assert store.mark_replayed("L1")
        assert [found.id for found in all_letters(store)] == ["L2"]

    def test_bury_replays_are_counted_across_failures(self, store: Store) -> None:  # D7
        bury(store, run(store), "L0")
        for n in range(3):
            replay(store, f"L{n}")
            bury(store, run(store, owner=f"again-{n}"), f"L{n + 1}")
        assert [read(store, f"L{n}").replays for n in range(4)] == [0, 1, 2, 3]
        assert [read(store, f"L{n}").generation for n in range(4)] == [1, 2, 3, 4]

    def test_bury_a_failure_to_bury_writes_no_letter(self, store: Store) -> None:  # DESIGN 3: with it, never apart
        hold = run(store)
        finish(store, hold)
        with pytest.raises(InvalidTransition):
            bury(store, hold)
        assert store.get_letter("L1") is None


class Forgotten(Conformance):
    """A record that went missing while its work ran (a flush, a failover) is written as its run ended (DESIGN 3)."""

    def test_forgotten_completed(self, store: Store, clock: Clock) -> None:  # DESIGN 3, running → done
        finish(store, FORGOTTEN, b"[1]")
        found = record(store)
        assert (found.state, found.result, found.owner, found.fence, found.attempts) == ("done", b"[1]", "o1", 7, 3)
        assert (found.created_at, found.started_at) == (clock.today, clock.today)
        assert claim(store, owner="o2").outcome == "done"

    def test_forgotten_with_all_that_is_known_of_the_work(self, store: Store) -> None:  # A7
        finish(store, FORGOTTEN)
        found = record(store)
        assert {name: getattr(found, name) for name in Work._fields} == FORGOTTEN.work._asdict()

    def test_forgotten_to_be_retried(self, store: Store, clock: Clock) -> None:  # DESIGN 3
        wait(store, FORGOTTEN, 60, error="Timeout: slow")
        found = record(store)
        assert (found.state, found.not_before, found.fence, found.attempts) == ("waiting", clock.after(60), 7, 3)
        assert claim(store, owner="o2").outcome == "early"

    def test_forgotten_interrupted(self, store: Store) -> None:  # base.Store.retry
        wait(store, FORGOTTEN, ending="interrupted")
        assert (record(store).attempts, record(store).interruptions) == (2, 1)

    def test_forgotten_buried(self, store: Store) -> None:  # DESIGN 3
        bury(store, FORGOTTEN)
        found = record(store)
        assert (found.state, found.letter_id, found.generation, found.fence) == ("dead", "L1", 1, 7)
        assert (read(store).generation, read(store).store_key) == (1, "k")

    @pytest.mark.parametrize("verb", ["complete", "retry", "bury"])
    def test_forgotten_expired_counts_as_missing(self, store: Store, clock: Clock, verb: str) -> None:  # DESIGN 3
        hold = run(store, keep=60)
        clock.advance(60)
        END[verb](store, hold)
        assert record(store).created_at == clock.today

    def test_forgotten_the_fence_goes_on_from_there(self, store: Store) -> None:  # D5
        wait(store, FORGOTTEN)
        assert claim(store, owner="o2").fence == 8

    def test_forgotten_it_holds_no_slot(self, store: Store) -> None:  # D2
        wait(store, FORGOTTEN)
        assert record(store).slot == ""
        assert claim(store, "other", limits=Limits(slot="s", slots=1)).outcome == "won"

    def test_forgotten_whoever_began_anew_keeps_it(self, store: Store) -> None:  # D5
        run(store, owner="o2")
        with pytest.raises(LeaseLost):
            finish(store, FORGOTTEN)
        assert record(store).owner == "o2"

    def test_forgotten_its_letter_may_have_outlived_it(self, store: Store) -> None:  # A15
        store.put_letter(letter("loose"), keep=KEEP)
        bury(store, FORGOTTEN)
        assert {found.id for found in all_letters(store)} == {"loose", "L1"}
