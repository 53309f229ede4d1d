"""Every verb in every state: only valid transitions happen (D3), and each may be repeated (DESIGN 3, rule 4)."""

# ruff: noqa: S101  (a conformance suite asserts)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from task_contract.errors import InvalidTransition, LeaseLost
from task_contract.stores.base import Hold, Store
from task_contract.testing.acts import (
    all_letters,
    beat,
    bury,
    claim,
    discard,
    exhaust,
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

VERBS: dict[str, Callable[[Store, Hold], Any]] = {
    "complete": finish,
    "retry": lambda store, hold: wait(store, hold, 5),
    "bury": lambda store, hold: bury(store, hold, "L9"),
}
REFUSALS: dict[str, Any] = {"lost": LeaseLost, "invalid": InvalidTransition}
ENDS = {"complete": "done", "retry": "waiting", "bury": "dead"}


def _running(store: Store) -> Hold:
    return run(store)


def _waiting(store: Store) -> Hold:
    wait(store, hold := run(store), 5)
    return hold


def _done(store: Store) -> Hold:
    finish(store, hold := run(store))
    return hold


def _dead(store: Store) -> Hold:
    bury(store, hold := run(store), "L9")
    return hold


def _replayed(store: Store) -> Hold:
    hold = _dead(store)
    replay(store, "L9")
    return hold


def _taken_while_waiting(store: Store) -> Hold:
    wait(store, hold := run(store))
    run(store, owner="o2")
    return hold


STATES: dict[str, Callable[[Store], Hold]] = {
    "running": _running,
    "exhausted": exhaust,
    "waiting": _waiting,
    "done": _done,
    "dead": _dead,
    "replayed": _replayed,
    "anothers": _taken_while_waiting,
}

#: What the owner's verb does in each state: it works, it was done before, or it is refused.
TABLE: list[tuple[str, str, str]] = [
    ("running", "complete", "ok"),
    ("running", "retry", "ok"),
    ("running", "bury", "ok"),
    ("exhausted", "complete", "invalid"),
    ("exhausted", "retry", "invalid"),
    ("exhausted", "bury", "ok"),
    ("waiting", "complete", "invalid"),
    ("waiting", "retry", "again"),
    ("waiting", "bury", "invalid"),
    ("done", "complete", "again"),
    ("done", "retry", "invalid"),
    ("done", "bury", "invalid"),
    ("dead", "complete", "invalid"),
    ("dead", "retry", "invalid"),
    ("dead", "bury", "again"),
    ("replayed", "complete", "lost"),
    ("replayed", "retry", "lost"),
    ("replayed", "bury", "lost"),
    ("anothers", "complete", "lost"),
    ("anothers", "retry", "lost"),
    ("anothers", "bury", "lost"),
]

CLAIMS = [
    ("running", "busy"),
    ("exhausted", "busy"),
    ("waiting", "early"),
    ("done", "done"),
    ("dead", "dead"),
    ("replayed", "won"),
    ("anothers", "busy"),
]


class Transitions(Conformance):
    @pytest.mark.parametrize(("state", "verb", "answer"), TABLE)
    def test_transition_an_ending(self, store: Store, clock: Clock, state: str, verb: str, answer: str) -> None:  # D3
        hold = STATES[state](store)
        before, letters = record(store), ids(store)
        clock.advance(1)
        if answer in ("ok", "again"):
            VERBS[verb](store, hold)
            assert record(store).state == ENDS[verb]
        else:
            with pytest.raises(REFUSALS[answer]) as caught:
                VERBS[verb](store, hold)
            assert caught.value.state == before.state
        if answer != "ok":
            assert (record(store), ids(store)) == (before, letters)

    @pytest.mark.parametrize(("state", "answer"), CLAIMS)
    def test_transition_a_claim_by_another_copy(self, store: Store, state: str, answer: str) -> None:  # D3, D5
        STATES[state](store)
        before = record(store)
        assert claim(store, owner="o9").outcome == answer
        if answer != "won":
            assert record(store) == before

    @pytest.mark.parametrize(
        ("state", "answer"),
        [(state, "lost" if state in ("replayed", "anothers") else "held") for state in STATES],
    )
    def test_transition_a_heartbeat(self, store: Store, clock: Clock, state: str, answer: str) -> None:  # D3
        hold = STATES[state](store)
        before = record(store)
        clock.advance(1)
        assert beat(store, hold) == answer
        if before.state != "running" or answer == "lost":
            assert record(store) == before

    @pytest.mark.parametrize("verb", sorted(VERBS))
    @pytest.mark.parametrize("state", sorted(STATES))
    def test_transition_a_stranger_ends_nothing(self, store: Store, state: str, verb: str) -> None:  # D3, D5
        hold = STATES[state](store)._replace(owner="stranger")
        before, letters = record(store), ids(store)
        with pytest.raises(LeaseLost):
            VERBS[verb](store, hold)
        assert (record(store), ids(store)) == (before, letters)


class Repetitions(Conformance):
    """redis-py repeats a command whose reply was lost; so may anybody (rule 4)."""

    def test_repeated_complete(self, store: Store, clock: Clock) -> None:  # rule 4
        hold = run(store)
        finish(store, hold, b"[1]")
        before = record(store)
        clock.advance(1)
        finish(store, hold, b"[2]")
        assert record(store) == before

    @pytest.mark.parametrize("ending", ["failed", "interrupted", "crashed"])
    def test_repeated_retry(self, store: Store, clock: Clock, ending: str) -> None:  # rule 4
        hold = run(store)
        wait(store, hold, 5, ending=ending)
        before = record(store)
        clock.advance(1)
        wait(store, hold, 5, ending=ending)
        assert record(store) == before

    def test_repeated_bury(self, store: Store, clock: Clock) -> None:  # rule 4
        hold = run(store)
        assert bury(store, hold) == "L1"
        before = record(store), read(store)
        clock.advance(1)
        assert bury(store, hold) == "L1"
        assert (record(store), read(store)) == before

    def test_repeated_bury_under_a_new_letter_id(
        self, store: Store
    ) -> None:  # rule 4: one letter, whatever its writer repeats
        hold = run(store)
        bury(store, hold, "L1")
        assert bury(store, hold, "L2") == "L1"
        assert ids(store) == ["L1"]

    def test_repeated_endings_of_a_forgotten_record(self, store: Store) -> None:  # rule 4, DESIGN 3
        hold = run(store)._replace(key="gone", fence=5)
        finish(store, hold, b"[1]")
        before = record(store, "gone")
        finish(store, hold, b"[2]")
        assert record(store, "gone") == before

    def test_repeated_replay(self, store: Store) -> None:  # rule 4: a killed replay can be repeated
        bury(store, run(store))
        first = replay(store)
        before = record(store)
        assert replay(store) == first
        assert record(store) == before

    def test_repeated_mark_replayed(self, store: Store, clock: Clock) -> None:  # rule 4
        bury(store, run(store))
        replay(store)
        assert store.mark_replayed("L1")
        before = read(store)
        clock.advance(1)
        assert store.mark_replayed("L1")
        assert read(store) == before

    def test_repeated_discard(self, store: Store, clock: Clock) -> None:  # base.Store.discard_letter
        bury(store, run(store))
        assert discard(store)
        before = read(store)
        clock.advance(1)
        assert not discard(store)
        assert read(store) == before

    def test_repeated_put_letter(self, store: Store, clock: Clock) -> None:  # rule 4
        assert store.put_letter(letter(error="first"), keep=60) == "L1"
        clock.advance(1)
        assert store.put_letter(letter(error="second"), keep=90) == "L1"
        assert (read(store).error, len(all_letters(store))) == ("first", 1)
        assert read(store).failed_at == clock.after(-1)
