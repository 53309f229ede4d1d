"""Dead letters: written once, read whole, closed for good."""

# ruff: noqa: S101  (a conformance suite asserts)
from __future__ import annotations

import pytest

from task_contract.errors import InvalidTransition
from task_contract.stores.base import DeadLetter, Filter, LetterStats, Store
from task_contract.testing.acts import KEEP, bury, claim, discard, ids, letter, read, record, replay, run
from task_contract.testing.base import Conformance
from task_contract.testing.clock import Clock

FULL = DeadLetter(
    id="L1",
    reason="permanent",
    message=b'{"args": [1]}',
    message_type="shop.charge",
    key="42",
    message_id="m1",
    correlation_id="job-1",
    causation_id="request-1",
    subject="invoice-42",
    queue="payments",
    error_type="ValueError",
    error="no such invoice",
    traceback="Traceback …",
    attempts=3,
    crashes=1,
    worker="host-1:77",
    group="ValueError@charge",
    framework="celery",
    content_type="application/json",
    enqueued_at="2026-01-01T00:00:00Z",
    details={"history": [{"attempt": 1, "error": None}], "version": "1.0"},
)
TEXTS = {name: value for name, value in vars(FULL).items() if value}


class Letters(Conformance):
    def test_letter_a_loose_letter_is_kept_whole(self, store: Store, clock: Clock) -> None:  # E3
        assert store.put_letter(FULL, keep=60) == "L1"
        found = read(store)
        assert {name: getattr(found, name) for name in TEXTS} == TEXTS
        assert (found.store_key, found.generation, found.replays, found.state) == ("", 0, 0, "open")
        assert (found.failed_at, found.expires_at) == (clock.today, clock.after(60))

    def test_letter_a_buried_one_is_kept_whole(self, store: Store) -> None:  # E3
        store.bury(run(store), FULL, keep=60)
        found = read(store)
        assert {name: getattr(found, name) for name in TEXTS} == TEXTS

    @pytest.mark.parametrize("closed", [False, True])
    def test_letter_an_expired_one_does_not_keep_its_id(self, store: Store, clock: Clock, closed: bool) -> None:
        # E4, retention: nobody has swept it away yet
        store.put_letter(letter(error="old", reason="old", queue="old"), keep=60)
        if closed:
            discard(store)
        clock.advance(60)
        assert store.put_letter(letter(error="new", reason="new", queue="new"), keep=60) == "L1"
        found = read(store)
        assert (found.error, found.state, found.failed_at, found.closed_by) == ("new", "open", clock.today, "")
        assert (ids(store), ids(store, Filter(queue="new")), ids(store, Filter(queue="old"))) == (["L1"], ["L1"], [])
        assert ids(store, Filter(closed=True)) == []
        assert store.letter_stats() == LetterStats(1, clock.today, {"new": 1})
        store.expire()
        assert read(store) == found

    def test_letter_one_that_is_closed_keeps_its_id(self, store: Store) -> None:  # rule 4
        store.put_letter(letter(error="old"), keep=60)
        discard(store)
        before = read(store)
        store.put_letter(letter(error="new"), keep=60)
        assert read(store) == before

    def test_letter_a_burial_is_not_hindered_by_a_loose_one(self, store: Store) -> None:  # DESIGN 3: with it
        store.put_letter(letter(reason="old", queue="old"), keep=KEEP)
        bury(store, run(store), reason="new", queue="new")
        assert (read(store).reason, read(store).store_key, read(store).generation) == ("new", "k", 1)
        assert (ids(store), ids(store, Filter(queue="old"))) == (["L1"], [])
        assert dict(store.letter_stats().reasons) == {"new": 1}

    def test_letter_there_may_be_none(self, store: Store) -> None:  # base.Store.get_letter
        assert store.get_letter("L1") is None

    def test_letter_a_loose_letter_makes_no_record(self, store: Store) -> None:  # base.Store.put_letter
        store.put_letter(FULL, keep=60)
        assert store.get("42") is None
        assert store.get("") is None

    def test_letter_a_page_has_them_whole(self, store: Store) -> None:  # E4, inspect
        store.put_letter(FULL, keep=60)
        bury(store, run(store), "L2")
        assert {found.id: found for found in store.page_letters(Filter()).letters} == {
            "L1": read(store, "L1"),
            "L2": read(store, "L2"),
        }


class Statistics(Conformance):
    def test_stats_nothing_is_wrong(self, store: Store) -> None:  # D10
        assert store.letter_stats() == LetterStats(0, None, {})

    def test_stats_depth_age_and_reasons(self, store: Store, clock: Clock) -> None:  # D10
        first = clock.today
        for n, reason in enumerate(["failed", "crashes", "failed"]):
            store.put_letter(letter(f"L{n}", reason=reason), keep=KEEP)
            clock.advance(60)
        found = store.letter_stats()
        assert (found.depth, found.oldest_at, dict(found.reasons)) == (3, first, {"failed": 2, "crashes": 1})

    def test_stats_buried_work_counts(self, store: Store) -> None:  # D10
        bury(store, run(store), reason="attempts")
        assert (store.letter_stats().depth, dict(store.letter_stats().reasons)) == (1, {"attempts": 1})

    def test_stats_written_twice_it_counts_once(self, store: Store) -> None:  # D10, rule 4
        hold = run(store)
        bury(store, hold)
        bury(store, hold)
        for _ in range(2):
            store.put_letter(letter("L2"), keep=KEEP)
        assert (store.letter_stats().depth, dict(store.letter_stats().reasons)) == (2, {"failed": 2})

    def test_stats_a_begun_replay_still_counts(self, store: Store) -> None:  # base.Filter
        bury(store, run(store))
        replay(store)
        assert store.letter_stats().depth == 1

    @pytest.mark.parametrize("how", ["discarded", "replayed", "superseded", "buried again", "expired"])
    def test_stats_what_is_closed_does_not_count(self, store: Store, clock: Clock, how: str) -> None:  # D10
        bury(store, run(store), keep=60, reason="old")
        clock.advance(10)
        newer = clock.today
        store.put_letter(letter("L2", reason="new"), keep=KEEP)
        _close(store, clock, how)
        found = store.letter_stats()
        assert (found.depth, found.oldest_at, dict(found.reasons)) == (1, newer, {"new": 1})


def _close(store: Store, clock: Clock, how: str) -> None:
    """Close the letter L1 in one of the ways there are."""
    if how == "discarded":
        discard(store)
    elif how == "superseded":
        run(store, owner="o2", message_id="m2")
    elif how == "expired":
        clock.advance(50)
    else:
        replay(store)
        if how == "replayed":
            store.mark_replayed("L1")
        else:
            bury(store, run(store, owner="o2"), "L3", reason="again")
            discard(store, "L3")


class Discards(Conformance):
    def test_discard_it_is_terminal(self, store: Store, clock: Clock) -> None:  # A12, E4
        bury(store, run(store))
        clock.advance(5)
        assert discard(store)
        found = read(store)
        assert (found.state, found.closed_by, found.closed_reason, found.closed_at) == (
            "discarded",
            "ann",
            "useless",
            clock.today,
        )
        with pytest.raises(InvalidTransition) as caught:
            replay(store)
        assert caught.value.state == "discarded"

    def test_discard_the_letter_is_kept_until_its_time(
        self, store: Store, clock: Clock
    ) -> None:  # E4, retention by TTL
        bury(store, run(store), keep=60)
        discard(store)
        clock.advance(59.999)
        assert read(store).state == "discarded"
        clock.advance(0.001)
        assert store.get_letter("L1") is None

    def test_discard_the_record_stays_dead(self, store: Store) -> None:  # E4
        bury(store, run(store))
        before = record(store)
        discard(store)
        assert record(store) == before
        assert claim(store, owner="o2").outcome == "dead"

    def test_discard_a_begun_replay_may_be_given_up(self, store: Store) -> None:  # base.Filter: it is still open
        bury(store, run(store))
        replay(store)
        assert discard(store)
        assert not store.mark_replayed("L1")
        assert read(store).state == "discarded"

    def test_discard_a_loose_letter(self, store: Store) -> None:  # A12
        store.put_letter(FULL, keep=60)
        assert discard(store)
        assert ids(store) == []
        assert ids(store, Filter(closed=True)) == ["L1"]

    def test_discard_an_unknown_letter(self, store: Store) -> None:  # D3
        with pytest.raises(InvalidTransition):
            discard(store, "nobody")

    def test_discard_an_expired_letter(self, store: Store, clock: Clock) -> None:  # D3
        store.put_letter(letter(), keep=60)
        clock.advance(60)
        with pytest.raises(InvalidTransition):
            discard(store)

    @pytest.mark.parametrize("how", ["replayed", "superseded"])
    def test_discard_a_letter_closed_otherwise(self, store: Store, clock: Clock, how: str) -> None:  # D3
        bury(store, run(store))
        _close(store, clock, how)
        before = read(store)
        with pytest.raises(InvalidTransition) as caught:
            discard(store)
        assert (caught.value.state, read(store)) == (how, before)
