"""Replay: by an operator only, by generation, repeatable after a kill (D7)."""

# ruff: noqa: S101  (a conformance suite asserts)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from task_contract.errors import InvalidTransition, LeaseLost
from task_contract.stores.base import Claim, Limits, Store
from task_contract.testing.acts import (
    KEEP,
    bury,
    claim,
    crash,
    discard,
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


class Replays(Conformance):
    def test_replay_dead_becomes_waiting(self, store: Store, clock: Clock) -> None:  # DESIGN 3, dead → waiting
        crash(store, clock)
        wait(store, run(store, owner="o2"), ending="interrupted")
        bury(store, run(store, owner="o3"))
        clock.advance(5)
        replay(store, keep=600)
        found = record(store)
        assert (found.state, found.not_before, found.replays, found.owner) == ("waiting", None, 1, "")
        assert (found.attempts, found.crashes, found.interruptions) == (0, 0, 0)
        assert (found.fence, found.generation, found.letter_id) == (3, 1, "L1")
        assert (found.updated_at, found.expires_at) == (clock.today, clock.after(600))

    def test_replay_the_caller_gets_the_letter_to_publish(self, store: Store) -> None:  # D7
        bury(store, run(store), message=b"original")
        found = replay(store)
        assert (found.message, found.id, found.state) == (b"original", "L1", "replaying")
        assert found == read(store)

    def test_replay_who_did_it_and_why_is_recorded(self, store: Store) -> None:  # D7
        bury(store, run(store))
        replay(store)
        assert (read(store).closed_by, read(store).closed_reason, read(store).closed_at) == ("ann", "fixed", None)

    def test_replay_the_original_id_runs_again(self, store: Store) -> None:  # D7
        bury(store, run(store))
        replay(store)
        assert claim(store, owner="o2") == Claim("won", fence=2, attempt=1, message_id="m1")

    def test_replay_attempts_are_permitted_again(self, store: Store) -> None:  # D7
        limits = Limits(attempts=1)
        bury(store, run(store, limits=limits))
        replay(store)
        assert claim(store, owner="o2", limits=limits).outcome == "won"

    def test_replay_marked_it_is_closed(self, store: Store, clock: Clock) -> None:  # D7
        bury(store, run(store))
        replay(store)
        clock.advance(5)
        assert store.mark_replayed("L1")
        found = read(store)
        assert (found.state, found.closed_at, found.closed_by, found.closed_reason) == (
            "replayed",
            clock.today,
            "ann",
            "fixed",
        )
        assert ids(store) == []

    def test_replay_unmarked_it_is_still_open(
        self, store: Store
    ) -> None:  # base.Filter: the operator was killed in between
        bury(store, run(store))
        replay(store)
        assert ids(store) == ["L1"]

    def test_replay_a_killed_replay_can_be_repeated(self, store: Store, clock: Clock) -> None:  # DESIGN 3
        bury(store, run(store))
        replay(store)
        clock.advance(5)
        assert replay(store).state == "replaying"
        assert (record(store).replays, record(store).state) == (1, "waiting")

    def test_replay_by_another_operator(self, store: Store) -> None:  # D7
        bury(store, run(store))
        replay(store)
        found = store.replay_letter("L1", by="bob", reason="again", keep=KEEP)
        assert (found.closed_by, found.closed_reason) == ("bob", "again")

    def test_replay_it_can_be_repeated_while_the_replay_waits_to_be_retried(self, store: Store) -> None:
        # DESIGN 3: allowed from dead or waiting at the same generation
        bury(store, run(store))
        replay(store)
        wait(store, run(store, owner="o2"), 60)
        replay(store)
        assert (record(store).attempts, record(store).not_before) == (0, None)
        assert claim(store, owner="o3").outcome == "won"

    def test_replay_a_late_step_of_the_former_owner_is_refused(self, store: Store) -> None:  # D5
        bury(store, hold := run(store))
        replay(store)
        with pytest.raises(LeaseLost):
            finish(store, hold)
        assert record(store).state == "waiting"

    def test_replay_a_record_that_is_gone_is_written_from_the_letter(self, store: Store, clock: Clock) -> None:  # A15
        work: dict[str, Any] = {
            "message_type": "shop.charge",
            "key": "42",
            "message_id": "m1",
            "correlation_id": "job-1",
            "causation_id": "req-1",
            "subject": "inv-42",
        }
        bury(store, run(store), **work)
        replay(store, keep=60)
        clock.advance(60)
        assert store.get("k") is None
        replay(store)
        found = record(store)
        assert {name: getattr(found, name) for name in work} == work
        assert (found.state, found.generation, found.replays, found.letter_id) == ("waiting", 1, 1, "L1")
        assert (found.attempts, found.created_at) == (0, clock.today)

    def test_replay_such_a_record_goes_on(self, store: Store, clock: Clock) -> None:  # A15, D7
        bury(store, run(store), message_id="m1")
        replay(store, keep=60)
        clock.advance(60)
        replay(store)
        bury(store, run(store, owner="o2"), "L2")
        assert (read(store, "L1").state, read(store, "L2").generation, read(store, "L2").replays) == ("replayed", 2, 1)


class RefusedReplays(Conformance):
    def test_refused_replay_an_unknown_letter(self, store: Store) -> None:  # D3
        with pytest.raises(InvalidTransition):
            replay(store, "nobody")

    def test_refused_replay_an_expired_letter(self, store: Store, clock: Clock) -> None:  # D3
        bury(store, run(store), keep=60)
        clock.advance(60)
        with pytest.raises(InvalidTransition):
            replay(store)
        assert store.get("k") is None

    @pytest.mark.parametrize("state", ["replayed", "discarded", "superseded"])
    def test_refused_replay_a_closed_letter(self, store: Store, state: str) -> None:  # D3
        bury(store, run(store))
        CLOSE[state](store)
        before = record(store), read(store)
        with pytest.raises(InvalidTransition) as caught:
            replay(store)
        assert caught.value.state == state
        assert (record(store), read(store)) == before

    @pytest.mark.parametrize(("state", "named"), [("running", "running"), ("done", "replayed")])
    def test_refused_replay_work_that_moved_on(self, store: Store, state: str, named: str) -> None:
        # DESIGN 3, compare-and-set; what is done has closed its letter
        bury(store, run(store))
        replay(store)
        hold = run(store, owner="o2")
        if state == "done":
            finish(store, hold)
        before = record(store), read(store)
        with pytest.raises(InvalidTransition) as caught:
            replay(store)
        assert caught.value.state == named
        assert (record(store), read(store)) == before

    @pytest.mark.parametrize("state", ["dead", "waiting"])
    def test_refused_replay_an_older_generation(
        self, store: Store, clock: Clock, state: str
    ) -> None:  # DESIGN 3, compare-and-set
        # The record was lost and written anew, so the old letter is still open; its generation says that it is stale.
        bury(store, run(store, message_id="m0"), "L0")
        replay(store, "L0", keep=60)
        clock.advance(60)
        hold = run(store, owner="o1", message_id="m1")
        bury(store, hold, "L1")
        bury(store, run(store, owner="o2", message_id="m2"), "L2")
        if state == "waiting":
            replay(store, "L2")
        before = record(store), read(store, "L0")
        with pytest.raises(InvalidTransition) as caught:
            replay(store, "L0")
        assert caught.value.state == state
        assert (record(store), read(store, "L0")) == before

    def test_refused_replay_unmarked_and_buried_again(self, store: Store) -> None:  # DESIGN 3, compare-and-set
        bury(store, run(store))
        replay(store)
        bury(store, run(store, owner="o2"), "L2")
        with pytest.raises(InvalidTransition) as caught:
            replay(store, "L1")
        assert (caught.value.state, record(store).state) == ("replayed", "dead")


CLOSE: dict[str, Callable[[Store], object]] = {
    "replayed": lambda store: (replay(store), store.mark_replayed("L1")),
    "discarded": discard,
    "superseded": lambda store: run(store, owner="o2", message_id="m2"),
}


class Marks(Conformance):
    @pytest.mark.parametrize("state", ["open", "discarded", "superseded", "unknown", "expired"])
    def test_mark_only_what_is_being_replayed(self, store: Store, clock: Clock, state: str) -> None:  # DESIGN 3
        bury(store, run(store), keep=60)
        if state in CLOSE:
            CLOSE[state](store)
        if state == "expired":
            replay(store)
            clock.advance(60)
        assert not store.mark_replayed("nobody" if state == "unknown" else "L1")
        if state in CLOSE:
            assert read(store).state == state

    def test_mark_it_leaves_the_next_generation_alone(self, store: Store) -> None:  # DESIGN 3: "only if … unchanged"
        bury(store, run(store))
        replay(store)
        bury(store, run(store, owner="o2"), "L2")
        store.mark_replayed("L1")
        assert (read(store, "L2").state, record(store).state) == ("open", "dead")


class LooseReplays(Conformance):
    """A letter without a record (undecodable, unknown task, mismatch) is replayed without one."""

    def test_loose_replay_it_makes_no_record(self, store: Store) -> None:  # base.Store.put_letter
        store.put_letter(letter(key="42", message=b"raw"), keep=KEEP)
        found = replay(store)
        assert (found.state, found.message) == ("replaying", b"raw")
        assert store.get("42") is None
        assert store.get("") is None

    def test_loose_replay_it_can_be_repeated_and_marked(self, store: Store) -> None:  # D7
        store.put_letter(letter(), keep=KEEP)
        assert replay(store) == replay(store)
        assert store.mark_replayed("L1")
        with pytest.raises(InvalidTransition):
            replay(store)

    def test_loose_replay_it_touches_no_record(self, store: Store) -> None:  # D3
        bury(store, run(store), "L1")
        store.put_letter(letter("loose", key="k"), keep=KEEP)
        before = record(store)
        replay(store, "loose")
        assert record(store) == before
