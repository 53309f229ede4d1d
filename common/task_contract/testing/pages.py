"""Pages of dead letters: order, filters, and paging that holds while the queue moves."""

# ruff: noqa: S101  (a conformance suite asserts)
from __future__ import annotations

from itertools import combinations

import pytest

from task_contract.stores.base import FACETS, Filter, Store
from task_contract.testing.acts import KEEP, TICK, bury, discard, ids, letter, only, replay, run
from task_contract.testing.base import Conformance
from task_contract.testing.clock import Clock


def fill(store: Store, clock: Clock, count: int, step: float = 1.0) -> list[str]:
    """Letters, one after the other; their ids, newest first."""
    names = [f"L{n:03}" for n in range(count)]
    for name in names:
        store.put_letter(letter(name), keep=KEEP)
        clock.advance(step)
    return names[::-1]


class Pages(Conformance):
    def test_page_nothing_is_an_empty_page(self, store: Store) -> None:  # E4
        page = store.page_letters(Filter())
        assert (page.letters, page.cursor) == ((), "")

    def test_page_newest_first(self, store: Store, clock: Clock) -> None:  # E4
        names = fill(store, clock, 5)
        assert ids(store) == names

    @pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 8])
    def test_page_page_by_page_it_is_the_same(self, store: Store, clock: Clock, limit: int) -> None:  # E4
        assert fill(store, clock, 7) == ids(store, limit=limit)

    @pytest.mark.parametrize("limit", [1, 2, 3, 10])
    def test_page_ties_are_neither_lost_nor_doubled(self, store: Store, limit: int) -> None:  # E4
        for name in ["b", "A", "ab", "a", "Z", "10", "9", "é", "a-b"]:
            store.put_letter(letter(name), keep=KEEP)
        found = ids(store, limit=limit)
        assert sorted(found) == sorted(["b", "A", "ab", "a", "Z", "10", "9", "é", "a-b"])
        assert found == ids(store)

    def test_page_a_cursor_stands_while_letters_come(self, store: Store, clock: Clock) -> None:  # E4
        names = fill(store, clock, 6)
        page = store.page_letters(Filter(), limit=3)
        store.put_letter(letter("new"), keep=KEEP)
        rest = _follow(store, page.cursor)
        assert [*(found.id for found in page.letters), *rest] == names

    def test_page_a_cursor_stands_while_letters_go(self, store: Store, clock: Clock) -> None:  # E4
        names = fill(store, clock, 6)
        page = store.page_letters(Filter(), limit=3)
        for name in names[:3]:
            discard(store, name)
        assert _follow(store, page.cursor) == names[3:]

    @pytest.mark.parametrize("cursor", ["x", "-", "12", "12-", "-L1", "a-L1", "-5-L1", "1.5-L1", "\x00"])
    def test_page_a_made_up_cursor_is_refused(self, store: Store, cursor: str) -> None:  # DESIGN 9
        with pytest.raises(ValueError, match="cursor"):
            store.page_letters(Filter(), cursor=cursor)

    @pytest.mark.parametrize("limit", [0, -1])
    def test_page_a_page_without_room_is_refused(self, store: Store, clock: Clock, limit: int) -> None:  # E4
        fill(store, clock, 2)
        with pytest.raises(ValueError, match=f"limit must be 1 or more, not {limit}"):
            store.page_letters(Filter(), limit=limit)

    def test_page_large_letters_are_all_found(self, store: Store, clock: Clock) -> None:  # E4: a page may be short
        for n in range(6):
            store.put_letter(letter(f"L{n}", queue="xy"[n % 2], traceback="x" * 900_000), keep=KEEP)
            clock.advance(1)
        assert ids(store) == [f"L{n}" for n in (5, 4, 3, 2, 1, 0)]
        assert ids(store, Filter(queue="x", reason="failed")) == ["L4", "L2", "L0"]

    def test_page_letter_ids_with_a_hyphen(self, store: Store) -> None:  # a cursor has one of its own
        names = [f"a-b-{n}" for n in range(4)]
        for name in names:
            store.put_letter(letter(name), keep=KEEP)
        assert sorted(ids(store, limit=1)) == names

    def test_page_expired_letters_are_gone(self, store: Store, clock: Clock) -> None:  # E4, retention
        store.put_letter(letter("short"), keep=60)
        store.put_letter(letter("long"), keep=KEEP)
        clock.advance(60 - TICK)
        assert sorted(ids(store)) == ["long", "short"]
        clock.advance(TICK)
        assert ids(store, limit=1) == ["long"]


def _follow(store: Store, cursor: str) -> list[str]:
    found: list[str] = []
    while cursor:
        page = store.page_letters(Filter(), limit=3, cursor=cursor)
        found.extend(letter.id for letter in page.letters)
        cursor = page.cursor
    return found


class Filters(Conformance):
    @pytest.mark.parametrize("facet", FACETS)
    def test_filter_by_one_facet(self, store: Store, clock: Clock, facet: str) -> None:  # DESIGN 8
        for n, value in enumerate(["x", "y", "x", "", "xy"]):
            store.put_letter(letter(f"L{n}", **{facet: value}), keep=KEEP)
            clock.advance(1)
        assert ids(store, only(**{facet: "x"})) == ["L2", "L0"]
        assert ids(store, only(**{facet: "x"}), limit=1) == ["L2", "L0"]
        assert ids(store, only(**{facet: "nobody"})) == []

    @pytest.mark.parametrize(("one", "two"), list(combinations(FACETS, 2)))
    def test_filter_by_two_facets(self, store: Store, clock: Clock, one: str, two: str) -> None:  # DESIGN 8
        pairs = [("x", "x"), ("x", "y"), ("y", "x"), ("y", "y"), ("x", "x")]
        for n, (first, second) in enumerate(pairs):
            store.put_letter(letter(f"L{n}", **{one: first, two: second}), keep=KEEP)
            clock.advance(1)
        where = only(**{one: "x", two: "x"})
        assert ids(store, where) == ids(store, where, limit=1) == ["L4", "L0"]

    def test_filter_by_all_facets(self, store: Store) -> None:  # DESIGN 8
        full = {facet: facet.upper() for facet in FACETS}
        store.put_letter(letter("L0", **full), keep=KEEP)
        for n, facet in enumerate(FACETS, 1):
            store.put_letter(letter(f"L{n}", **{**full, facet: "other"}), keep=KEEP)
        assert ids(store, only(**full)) == ["L0"]

    def test_filter_the_values_of_two_facets_do_not_meet(self, store: Store) -> None:  # DESIGN 8
        store.put_letter(letter("L1", queue="x"), keep=KEEP)
        store.put_letter(letter("L2", subject="x"), keep=KEEP)
        assert ids(store, Filter(queue="x")) == ["L1"]

    def test_filter_since_and_until(self, store: Store, clock: Clock) -> None:  # DESIGN 8
        began = clock.today
        fill(store, clock, 5)
        second, fourth = clock.after(-4), clock.after(-2)
        assert ids(store, Filter(since=second)) == ["L004", "L003", "L002", "L001"]
        assert ids(store, Filter(until=fourth)) == ["L002", "L001", "L000"]
        assert ids(store, Filter(since=second, until=fourth)) == ["L002", "L001"]
        assert ids(store, Filter(until=began)) == []
        assert ids(store, Filter(since=clock.today)) == []

    @pytest.mark.parametrize("limit", [1, 2])
    def test_filter_since_and_until_page_by_page(self, store: Store, clock: Clock, limit: int) -> None:  # DESIGN 8
        fill(store, clock, 7)
        where = Filter(since=clock.after(-6), until=clock.after(-2))
        assert ids(store, where, limit=limit) == ["L004", "L003", "L002", "L001"]

    def test_filter_time_and_facet(self, store: Store, clock: Clock) -> None:  # DESIGN 8
        for n in range(6):
            store.put_letter(letter(f"L{n}", queue="q" if n % 2 else "p"), keep=KEEP)
            clock.advance(1)
        where = Filter(queue="q", since=clock.after(-4))
        assert ids(store, where) == ids(store, where, limit=1) == ["L5", "L3"]

    def test_filter_open_or_closed(self, store: Store, clock: Clock) -> None:  # base.Filter
        _one_of_each(store, clock)
        assert ids(store) == ["replaying", "open"]
        assert ids(store, Filter(closed=True), limit=1) == ["superseded", "discarded", "replayed"]

    def test_filter_closed_by_facet(self, store: Store, clock: Clock) -> None:  # base.Filter
        _one_of_each(store, clock)
        assert ids(store, Filter(closed=True, queue="replayed")) == ["replayed"]
        assert ids(store, Filter(queue="replayed")) == []
        assert ids(store, Filter(closed=True, queue="open")) == []

    def test_filter_buried_work_is_found_by_its_facets(self, store: Store) -> None:  # DESIGN 8
        for facet in FACETS:
            store.bury(run(store, facet), letter(facet, **{facet: "x"}), keep=KEEP)
        assert [ids(store, only(**{facet: "x"})) for facet in FACETS] == [[facet] for facet in FACETS]


def _one_of_each(store: Store, clock: Clock) -> None:
    for name in ["open", "replaying", "replayed", "discarded", "superseded"]:
        bury(store, run(store, name), name, queue=name)
        clock.advance(1)
    for name in ["replaying", "replayed"]:
        replay(store, name)
    store.mark_replayed("replayed")
    discard(store, "discarded")
    run(store, "superseded", owner="o2", message_id="m2")
