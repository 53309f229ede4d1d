"""extend: many leases in one round trip, and what the running code says of itself."""

# ruff: noqa: S101  (a conformance suite asserts)
from __future__ import annotations

import pytest

from task_contract.stores.base import Beat, Store
from task_contract.testing.acts import END, KEEP, LEASE, TICK, beat, claim, crash, finish, record, run, wait
from task_contract.testing.base import Conformance
from task_contract.testing.clock import Clock


class Heartbeats(Conformance):
    def test_heartbeat_it_renews_the_lease(self, store: Store, clock: Clock) -> None:  # C4
        hold = run(store)
        clock.advance(LEASE - TICK)
        assert beat(store, hold) == "held"
        assert record(store).lease_until == clock.after(LEASE)
        clock.advance(LEASE - TICK)
        assert claim(store, owner="o2").outcome == "busy"

    def test_heartbeat_it_changes_nothing_else(self, store: Store, clock: Clock) -> None:  # D3
        hold = run(store)
        before = vars(record(store)) | {"lease_until": clock.after(LEASE + 10)}
        clock.advance(10)
        beat(store, hold)
        assert vars(record(store)) == before

    def test_heartbeat_it_may_ask_for_another_length(self, store: Store, clock: Clock) -> None:  # C4
        hold = run(store)
        beat(store, hold, lease=5)
        assert record(store).lease_until == clock.after(5)

    def test_heartbeat_the_record_lives_as_long_as_its_lease(
        self, store: Store, clock: Clock
    ) -> None:  # DESIGN 3, lifetimes
        hold = run(store, keep=LEASE + 1)
        clock.advance(LEASE)
        beat(store, hold)
        assert record(store).expires_at == clock.after(LEASE)

    def test_heartbeat_it_does_not_shorten_the_records_life(
        self, store: Store, clock: Clock
    ) -> None:  # DESIGN 3, lifetimes
        hold = run(store)
        beat(store, hold)
        assert record(store).expires_at == clock.after(KEEP)

    def test_heartbeat_another_owner_cannot(self, store: Store) -> None:  # DESIGN 3, heartbeat
        hold = run(store)
        before = record(store)
        assert beat(store, hold._replace(owner="o2"), lease=99) == "lost"
        assert beat(store, hold._replace(fence=2), lease=99) == "lost"
        assert record(store) == before

    def test_heartbeat_a_missing_record_is_missing(self, store: Store) -> None:  # base.BeatAnswer
        assert beat(store, run(store)._replace(key="other")) == "missing"
        assert store.get("other") is None

    def test_heartbeat_an_expired_record_is_missing(self, store: Store, clock: Clock) -> None:  # base.BeatAnswer
        hold = run(store, keep=60)
        clock.advance(60)
        assert beat(store, hold) == "missing"

    def test_heartbeat_many_at_once_with_an_answer_for_each(
        self, store: Store, clock: Clock
    ) -> None:  # issue 2: one call
        holds = [run(store, f"k{n}") for n in range(50)]
        holds[10] = holds[10]._replace(owner="other")
        holds[20] = holds[20]._replace(key="none")
        clock.advance(10)
        answers = store.extend([Beat(hold, LEASE) for hold in holds])
        assert answers[10] == "lost"
        assert answers[20] == "missing"
        assert [a for n, a in enumerate(answers) if n not in (10, 20)] == ["held"] * 48
        renewed = {record(store, hold.key).lease_until for n, hold in enumerate(holds) if n not in (10, 20)}
        assert renewed == {clock.after(LEASE)}

    def test_heartbeat_none_at_all(self, store: Store) -> None:  # base.Store.extend
        assert store.extend([]) == []

    @pytest.mark.parametrize("verb", sorted(END))
    def test_heartbeat_after_ones_own_ending_it_changes_nothing(
        self, store: Store, clock: Clock, verb: str
    ) -> None:  # D3
        hold = run(store)
        END[verb](store, hold)
        before = record(store)
        clock.advance(1)
        assert beat(store, hold, progress=5) == "held"
        assert record(store) == before

    def test_heartbeat_after_a_retry_the_next_owner_has_it(self, store: Store) -> None:  # DESIGN 3, heartbeat
        hold = run(store)
        wait(store, hold)
        run(store, owner="o2")
        assert beat(store, hold) == "lost"


class Progress(Conformance):
    def test_progress_progress_and_note(self, store: Store) -> None:  # D11
        hold = run(store)
        beat(store, hold, progress=40, note="40 of 100 pages")
        assert (record(store).progress, record(store).note) == (40, "40 of 100 pages")

    @pytest.mark.parametrize("progress", [0, 100])
    def test_progress_the_ends_of_the_scale(self, store: Store, progress: int) -> None:  # D11
        hold = run(store)
        beat(store, hold, progress=progress)
        assert record(store).progress == progress

    def test_progress_silence_keeps_what_was_said(self, store: Store) -> None:  # D11
        hold = run(store)
        beat(store, hold, progress=40, note="half", silent_for=0)
        before = record(store)
        beat(store, hold)
        assert record(store) == before

    def test_progress_a_note_may_be_taken_back(self, store: Store) -> None:  # D11
        hold = run(store)
        beat(store, hold, progress=40, note="half")
        beat(store, hold, progress=41)
        assert (record(store).progress, record(store).note) == (41, "")

    def test_progress_a_sign_of_life_apart_from_the_lease(self, store: Store, clock: Clock) -> None:  # D11
        hold = run(store)
        clock.advance(20)
        beat(store, hold, silent_for=12.5)
        assert record(store).beat_at == clock.after(-12.5)

    def test_progress_a_stalled_task_keeps_its_lease_and_shows(self, store: Store, clock: Clock) -> None:  # D11
        hold = run(store)
        beat(store, hold, silent_for=0)
        stalled = clock.today
        clock.advance(20)
        beat(store, hold, silent_for=20)
        assert (record(store).beat_at, record(store).lease_until) == (stalled, clock.after(LEASE))

    def test_progress_draining_shows(self, store: Store) -> None:  # DESIGN 3, take-over
        hold = run(store)
        beat(store, hold, draining=True)
        assert record(store).draining
        beat(store, hold)
        assert not record(store).draining

    def test_progress_the_last_word_survives_the_end(self, store: Store) -> None:  # D11
        hold = run(store)
        beat(store, hold, progress=100, note="all pages", silent_for=0)
        finish(store, hold)
        assert (record(store).progress, record(store).note) == (100, "all pages")

    def test_progress_a_take_over_starts_in_silence(self, store: Store, clock: Clock) -> None:  # D11
        hold = run(store)
        beat(store, hold, progress=40, note="half", silent_for=0)
        clock.advance(LEASE)
        crash(store, clock, owner="o2")
        assert (record(store).progress, record(store).note, record(store).beat_at) == (-1, "", None)
