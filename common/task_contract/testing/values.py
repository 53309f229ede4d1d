"""What goes in comes out: falsy results, binary results, and text that somebody chose to be difficult."""

# ruff: noqa: S101, S106  (a conformance suite asserts; the tokens are no secrets)
from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from task_contract.stores.base import FACETS, DeadLetter, Limits, Reservation, Store, Work
from task_contract.testing.acts import (
    KEEP,
    beat,
    bury,
    claim,
    finish,
    ids,
    letter,
    only,
    read,
    record,
    replay,
    run,
    wait,
)
from task_contract.testing.base import Conformance

RESULTS: dict[str, bytes] = {
    "zero": b"0",
    "false": b"false",
    "null": b"null",
    "empty string": b'""',
    "no bytes": b"",
    "all bytes": bytes(range(256)),
    "NULs": b"\x00\x00",
    "not UTF-8": b"\xff\xfe\x80",
    "64 KB": b"x" * 65_536,
    "separators": b"\r\n|,:;\t\x1f",
}

HOSTILE: dict[str, str] = {
    "NUL": "a\x00b",
    "emoji": "👩‍👩‍👧 ✓",
    "quotes": 'it\'s "quoted" `so`',
    "SQL": "'; DROP TABLE records; --",
    "percent": "100 % %s %(x)s %%",
    "braces": "{x} {{y}} {",
    "newlines": "a\nb\r\nc\u2028d",
    "backslashes": "a\\b\\0\\x00\\",
    "controls": "\x01\x02\x1f\x7f",
    "separators": "a|b,c:d;e\tf g=h&i",
    "a number": "007",
    "64 KB": "é" * 32_768,
}
hostile = pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in HOSTILE.items()])


#: Texts of a dead letter that the store writes, and its id.
OURS = {"id", "store_key", "closed_by", "closed_reason"}


class Results(Conformance):
    @pytest.mark.parametrize("result", [pytest.param(data, id=name) for name, data in RESULTS.items()])
    def test_result_a_result_is_a_result(self, store: Store, result: bytes) -> None:  # rule 7
        finish(store, run(store), result)
        answer = claim(store, owner="o2")
        assert (answer.outcome, answer.has_result, answer.result) == ("done", True, result)
        assert (record(store).has_result, record(store).result) == (True, result)

    def test_result_no_result_is_none(self, store: Store) -> None:  # DESIGN 2, results
        finish(store, run(store), None)
        assert (record(store).has_result, record(store).result) == (False, b"")


class HostileText(Conformance):
    @hostile
    def test_hostile_in_a_record(self, store: Store, text: str) -> None:  # DESIGN 9
        work: dict[str, Any] = dict.fromkeys(Work._fields, text)
        assert claim(store, text, owner=text, limits=Limits(slot=text, slots=1), **work).outcome == "won"
        found = record(store, text)
        assert {name: getattr(found, name) for name in (*work, "owner", "slot")} == {
            **work,
            "owner": text,
            "slot": text,
        }
        assert claim(store, "k2", limits=Limits(slot=text, slots=1)).reason == "slots"

    @hostile
    def test_hostile_through_a_run(self, store: Store, text: str) -> None:  # DESIGN 9
        hold = run(store, text, owner=text, message_id=text)
        assert beat(store, hold, progress=1, note=text) == "held"
        wait(store, hold, error=text)
        found = record(store, text)
        assert (found.note, found.last_error) == (text, text)
        finish(store, run(store, text, owner=text + "2", message_id=text))
        assert claim(store, text, owner=text + "3").outcome == "done"

    @hostile
    def test_hostile_in_a_reservation(self, store: Store, text: str) -> None:  # DESIGN 9
        place: dict[str, Any] = {"token": text, "message_id": text, "ttl": 30, "payload_hash": text}
        assert store.reserve(text, **place).outcome == "won"
        assert store.reserve(text, **place).outcome == "won"
        assert store.confirm(text, **place)
        other = store.reserve(text, token="t2", message_id="m2", ttl=30, payload_hash=text)
        assert other == Reservation("duplicate", text, text, "enqueued")
        assert store.reserve(text, token="t2", message_id="m2", ttl=30, payload_hash="x").outcome == "mismatch"
        assert not store.free(text, message_id=text + "x")
        assert store.free(text, message_id=text)

    @hostile
    def test_hostile_in_a_dead_letter(self, store: Store, text: str) -> None:  # DESIGN 9, E3
        texts = [field.name for field in fields(DeadLetter) if field.type == "str" and field.name not in OURS]
        filled: dict[str, Any] = {**dict.fromkeys(texts, text), "details": {text: [text]}, "message": text.encode()}
        bury(store, run(store, text, message_id=text), **filled)
        found = read(store)
        assert {name: getattr(found, name) for name in filled} == filled
        assert (found.store_key, record(store, text).last_error) == (text, found.summary())

    @hostile
    @pytest.mark.parametrize("facet", FACETS)
    def test_hostile_as_a_facet(self, store: Store, facet: str, text: str) -> None:  # DESIGN 9
        store.put_letter(letter("L1", **{facet: text}), keep=KEEP)
        store.put_letter(letter("L2", **{facet: "other"}), keep=KEEP)
        store.put_letter(letter("L3", **{facet: text + "x"}), keep=KEEP)
        assert ids(store, only(**{facet: text})) == ["L1"]

    @hostile
    def test_hostile_in_an_operators_words(self, store: Store, text: str) -> None:  # D7, DESIGN 9
        bury(store, run(store))
        assert store.replay_letter("L1", by=text, reason=text, keep=KEEP).closed_by == text
        assert (read(store).closed_by, read(store).closed_reason) == (text, text)
        store.discard_letter("L1", by=text + "2", reason=text + "2")
        assert (read(store).closed_by, read(store).closed_reason) == (text + "2", text + "2")

    @hostile
    def test_hostile_in_the_statistics(self, store: Store, text: str) -> None:  # D10
        store.put_letter(letter("L1", reason=text), keep=KEEP)
        assert dict(store.letter_stats().reasons) == {text: 1}

    def test_hostile_a_message_is_bytes(self, store: Store) -> None:  # E3: the whole original message
        body = bytes(range(256)) * 64
        store.put_letter(letter(message=body), keep=KEEP)
        bury(store, run(store), "L2", message=body)
        assert (read(store).message, read(store, "L2").message) == (body, body)
        assert replay(store, "L2").message == body

    def test_hostile_keys_that_look_alike_are_not_one(self, store: Store) -> None:  # STYLE: string-joined keys
        keys = ["a:b", "a", "b", "a*", "a?", "A", "a ", " a", "[a]", "{a}", "a}", "é", "e\u0301"]
        for key in keys:
            run(store, key, message_id=f"m-{key}")
        assert [record(store, key).message_id for key in keys] == [f"m-{key}" for key in keys]
