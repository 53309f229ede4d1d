"""The envelope: whole on the wire, strict when read, and never guessed at."""

from __future__ import annotations

import contextvars
import json
import pickle
import re
import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from task_contract import keys
from task_contract.envelope import (
    Context,
    Envelope,
    Upgrades,
    context,
    current_envelope,
    inherit,
    new_envelope,
    new_id,
    use,
)
from task_contract.errors import ConfigurationError, ContractError, EnvelopeError, SchemaTooNew

# A fresh machine builds Unicode tables during the first draw, and a busy one is slow: neither is a failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WIRE: dict[str, Any] = {
    "v": 1,
    "schema_version": 2,
    "message_type": "file.process.request",
    "correlation_id": "job-1",
    "causation_id": "req-9",
    "idempotency_key": "file:7",
    "subject": "file-7",
    "created_at": "2030-01-31T12:00:00.000001Z",
    "payload_inline": {"args": [1], "kwargs": {}},
    "sequence": 4,
    "traceparent": TRACE,
    "source": "shop",
}
REQUIRED = ("v", "schema_version", "message_type", "correlation_id", "idempotency_key", "created_at")
LEAST = {name: WIRE[name] for name in REQUIRED}


def wire(**changes: Any) -> dict[str, Any]:
    return {**WIRE, **changes}


def test_what_goes_out_comes_back() -> None:
    # A1
    envelope = Envelope.from_wire(WIRE)
    assert json.loads(json.dumps(envelope.to_wire())) == WIRE
    assert Envelope.from_wire(json.loads(json.dumps(envelope.to_wire()))) == envelope
    assert envelope.created_at == datetime(2030, 1, 31, 12, 0, 0, 1, tzinfo=timezone.utc)
    assert pickle.loads(pickle.dumps(envelope)) == envelope


def test_empty_fields_stay_off_the_wire() -> None:
    # A1
    envelope = Envelope.from_wire(LEAST)
    assert envelope.to_wire() == LEAST
    assert (envelope.subject, envelope.payload_inline, envelope.sequence) == (None, None, None)


def test_the_frameworks_body_is_the_payload() -> None:
    # A1
    body = {"args": [5], "kwargs": {}}
    assert "payload_inline" not in Envelope.from_wire(WIRE).to_wire(payload=False)
    assert Envelope.from_wire(LEAST, payload=body).payload_inline == body
    assert Envelope.from_wire(WIRE, payload=body).payload_inline == WIRE["payload_inline"]


def test_a_reference_travels_and_wins_over_the_body() -> None:
    # A1, A3, E10
    envelope = Envelope.from_wire({**LEAST, "payload_ref": "s3://b/k"}, payload={"args": []})
    assert envelope.payload_inline is None
    assert envelope.to_wire(payload=False)["payload_ref"] == "s3://b/k"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2030-01-31T12:00:00Z", datetime(2030, 1, 31, 12, tzinfo=timezone.utc)),
        ("2030-01-31T14:00:00+02:00", datetime(2030, 1, 31, 12, tzinfo=timezone.utc)),
        ("2030-01-31T12:00:00.123456789Z", datetime(2030, 1, 31, 12, 0, 0, 123456, tzinfo=timezone.utc)),
    ],
)
def test_times_of_other_producers_become_utc(text: str, moment: datetime) -> None:
    # A1
    envelope = Envelope.from_wire(wire(created_at=text))
    assert envelope.created_at == moment
    assert envelope.created_at.utcoffset() == timedelta(0)
    assert envelope.to_wire()["created_at"].endswith("Z")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema_version", 0),
        ("schema_version", True),
        ("schema_version", "1"),
        ("schema_version", 1.0),
        ("message_type", ""),
        ("message_type", "two words"),
        ("message_type", "new\nline"),
        ("message_type", "x" * 201),
        ("message_type", None),
        ("correlation_id", ""),
        ("correlation_id", 7),
        ("correlation_id", "a\x00b"),
        ("correlation_id", "x" * 256),
        ("causation_id", "forged\nlog line"),
        ("idempotency_key", ""),
        ("idempotency_key", ["a"]),
        ("idempotency_key", "\u2028"),
        ("idempotency_key", "\ud800"),
        ("subject", "x" * 257),
        ("subject", ""),
        ("created_at", "2030-01-31T12:00:00"),
        ("created_at", "2030-01-31"),
        ("created_at", "1700000000"),
        ("created_at", 1700000000),
        ("created_at", "yesTerday"),
        ("created_at", "0001-01-01T00:00:00+10:00"),
        ("created_at", None),
        ("payload_ref", ""),
        ("payload_inline", [1]),
        ("payload_inline", {1: 2}),
        ("sequence", -1),
        ("sequence", True),
        ("source", ""),
    ],
)
def test_a_wrong_value_names_its_field(field: str, value: Any) -> None:
    # A1, A14
    with pytest.raises(EnvelopeError, match=f"'{field}'") as caught:
        Envelope.from_wire(wire(**{field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize("field", REQUIRED[1:])
def test_a_missing_field_is_named(field: str) -> None:
    # A1
    with pytest.raises(EnvelopeError, match=f"'{field}' is missing") as caught:
        Envelope.from_wire({name: value for name, value in WIRE.items() if name != field})
    assert caught.value.field == field


@pytest.mark.parametrize("data", [None, "text", 5, [], [("v", 1)], b"{}"])
def test_what_is_no_object_is_refused(data: object) -> None:
    # A1
    with pytest.raises(EnvelopeError, match="an envelope is an object"):
        Envelope.from_wire(data)


@pytest.mark.parametrize("version", [None, 0, -1, "1", True, 1.0, {}])
def test_the_wire_version_is_a_number(version: object) -> None:
    # A2
    with pytest.raises(EnvelopeError, match="'v' should be") as caught:
        Envelope.from_wire(wire(v=version))
    assert caught.value.field == "v"
    assert not isinstance(caught.value, SchemaTooNew)


def test_a_newer_wire_version_is_its_own_error() -> None:
    # A2
    with pytest.raises(SchemaTooNew, match="wire version 2, this worker knows up to 1"):
        Envelope.from_wire({"v": 2, "whatever": "it means"})


@pytest.mark.parametrize("name", ["extra", "subjekt", "v2", "model_config"])
def test_an_unknown_field_is_named(name: str) -> None:
    # A1
    with pytest.raises(EnvelopeError, match=f"'{name}' is unknown") as caught:
        Envelope.from_wire(wire(**{name: 1}))
    assert caught.value.field == name


def test_payload_and_reference_exclude_each_other() -> None:
    # A1
    with pytest.raises(EnvelopeError, match="exclude each other"):
        Envelope.from_wire(wire(payload_ref="s3://b/k"))


def test_hostile_values_are_escaped_and_cut() -> None:
    # A14
    for value in ("\x1b[31m" + "x" * 10_000_000, ["y" * 1000] * 1000, 10**5000):
        with pytest.raises(EnvelopeError) as caught:
            Envelope.from_wire(wire(idempotency_key=value))
        assert len(str(caught.value)) < 400
        assert str(caught.value).isprintable()
    with pytest.raises(EnvelopeError) as caught:
        Envelope.from_wire(wire(**{"\n" + "z" * 10_000: 1}))
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@patient
@given(st.dictionaries(st.sampled_from([*WIRE, "other"]), st.none() | st.integers() | st.text() | st.lists(st.none())))
def test_only_our_errors_come_out(changes: dict[str, Any]) -> None:
    # A14: whatever arrives, a worker can bury it
    try:
        envelope = Envelope.from_wire(wire(**changes))
    except EnvelopeError:
        return
    assert Envelope.from_wire(json.loads(json.dumps(envelope.to_wire()))) == envelope


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (TRACE, True),
        (TRACE.replace("00-", "01-", 1) + "-more", True),
        ("ff" + TRACE[2:], False),
        (TRACE.upper(), False),
        ("00-" + "0" * 32 + "-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01", False),
        ("garbage", False),
        (TRACE + "\n", False),
        (7, False),
        ("", False),
    ],
)
def test_a_broken_trace_is_dropped(value: Any, kept: bool) -> None:
    # A1: `traceparent` travels along when it is one
    assert Envelope.from_wire(wire(traceparent=value)).traceparent == (value if kept else None)


def test_an_envelope_is_frozen() -> None:
    # A1
    with pytest.raises(ValidationError, match="frozen"):
        Envelope.from_wire(WIRE).subject = "other"


# --- new ones ---


def test_a_new_envelope() -> None:
    # A1
    before = datetime.now(timezone.utc)
    envelope = new_envelope("shop.mail", subject="s", payload_inline={"args": []})
    assert before <= envelope.created_at <= datetime.now(timezone.utc)
    assert envelope.schema_version == 1
    assert re.fullmatch("[0-9a-f]{32}", envelope.idempotency_key)
    assert envelope.correlation_id != envelope.idempotency_key
    assert Envelope.from_wire(envelope.to_wire()) == envelope


def test_a_new_envelope_raises_our_error() -> None:
    # A1
    with pytest.raises(EnvelopeError, match="'subject' should be a text of 1 to 256"):
        new_envelope("shop.mail", subject="x" * 257)
    with pytest.raises(EnvelopeError, match="'idempotency_key'"):
        new_envelope("shop.mail", idempotency_key="")


def test_ids_are_not_repeated() -> None:
    # A6
    assert len({new_id() for _ in range(1000)}) == 1000


@patient
@given(st.text(min_size=1, max_size=300))
def test_every_key_fits_the_envelope(text: str) -> None:
    # A6
    key = keys.derive("{x}:y", lambda x: None, (text,), {})
    assert new_envelope("t", idempotency_key=key).idempotency_key == key
    if text.strip() and text.isprintable():
        explicit = keys.explicit(text)
        assert new_envelope("t", idempotency_key=explicit).idempotency_key == explicit


# --- context ---


def test_outside_of_a_task_each_message_is_a_job_of_its_own() -> None:
    # A1
    assert inherit().causation_id is None
    assert inherit().correlation_id != inherit().correlation_id


def test_a_child_inherits_the_job_and_names_its_parent() -> None:
    # A1
    with use(Envelope.from_wire(WIRE)):
        child = new_envelope("shop.child")
    assert (child.correlation_id, child.causation_id) == ("job-1", "file:7")
    assert inherit().causation_id is None


def test_an_explicit_context_wins_field_by_field() -> None:
    # A1
    with use(Envelope.from_wire(WIRE)):
        with context(correlation_id="other"):
            assert inherit() == Context("other", "file:7")
        with context(causation_id="request-1"):
            assert inherit() == Context("job-1", "request-1")
        with context("c", "d"), context():
            assert inherit() == Context("c", "d")
        assert inherit() == Context("job-1", "file:7")


def test_a_context_mints_one_correlation_for_its_block() -> None:
    # A1
    with context(causation_id="request-1") as chosen:
        assert new_envelope("a").correlation_id == new_envelope("b").correlation_id == chosen.correlation_id
        assert new_envelope("a").causation_id == "request-1"


def test_a_task_run_inside_a_context_is_the_cause_of_its_children() -> None:
    # A1: eager tasks run inside the producer's block
    with context("outer", "request-1"), use(Envelope.from_wire(WIRE)):
        assert inherit() == Context("job-1", "file:7")


@pytest.mark.parametrize("wrong", ["", "a\nb", 7, "x" * 256])
def test_a_context_refuses_what_no_envelope_would_take(wrong: Any) -> None:
    # A1
    for name in ("correlation_id", "causation_id"):
        with pytest.raises(EnvelopeError, match=name), context(**{name: wrong}):
            pass


def test_the_current_envelope() -> None:
    # A7
    envelope = Envelope.from_wire(WIRE)
    with use(envelope):
        assert current_envelope() is current_envelope(None) is envelope
        inner = new_envelope("inner")
        with use(inner):
            assert current_envelope() is inner
        assert current_envelope() is envelope
    assert current_envelope(None) is None
    with pytest.raises(ContractError, match="no task is running"):
        current_envelope()


def test_the_envelope_is_put_back_after_an_error() -> None:
    # A7
    with pytest.raises(LookupError), use(Envelope.from_wire(WIRE)):
        raise LookupError
    assert current_envelope(None) is None
    assert inherit().causation_id is None


def test_other_threads_and_contexts_are_not_touched() -> None:
    # A7
    seen: list[Any] = []
    with use(Envelope.from_wire(WIRE)):
        copied = contextvars.copy_context()
        thread = threading.Thread(target=lambda: seen.append(current_envelope(None)))
        thread.start()
        thread.join()
    assert seen == [None]
    assert copied.run(current_envelope).idempotency_key == "file:7"


# --- upgrades ---

PAYLOAD = {"args": [1], "kwargs": {"a": 1}}


def rename(payload: dict[str, Any]) -> dict[str, Any]:
    payload["kwargs"]["b"] = payload["kwargs"].pop("a")
    return payload


def add(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "args": [*payload["args"], "new"]}


def test_an_older_version_is_lifted_step_by_step() -> None:
    # A2
    upgrades = Upgrades()
    upgrades.register("file.process.request", 2)(rename)
    upgrades.register("file.process.request", 3)(add)
    original = {"args": [1], "kwargs": {"a": 1}}
    envelope, payload = upgrades.upgrade(Envelope.from_wire(wire(payload_inline=original)), original, 4)
    assert payload == envelope.payload_inline == {"args": [1, "new"], "kwargs": {"b": 1}}
    assert envelope.schema_version == 4
    assert original == PAYLOAD
    assert (envelope.idempotency_key, envelope.created_at) == ("file:7", Envelope.from_wire(WIRE).created_at)


def test_the_same_version_is_left_alone() -> None:
    # A2
    envelope = Envelope.from_wire(WIRE)
    assert Upgrades().upgrade(envelope, PAYLOAD, 2) == (envelope, PAYLOAD)


def test_a_newer_version_is_not_guessed_at() -> None:
    # A2
    with pytest.raises(SchemaTooNew, match=r"'file.process.request' arrived in schema version 2.* up to 1"):
        Upgrades().upgrade(Envelope.from_wire(WIRE), PAYLOAD, 1)


def test_a_missing_step_is_named_before_any_runs() -> None:
    # A2
    ran: list[Any] = []
    upgrades = Upgrades()

    @upgrades.register("file.process.request", 2)
    def first(payload: dict[str, Any]) -> dict[str, Any]:
        ran.append(payload)
        return payload

    with pytest.raises(EnvelopeError, match="no upgrade from schema version 3 to 4") as caught:
        upgrades.upgrade(Envelope.from_wire(WIRE), PAYLOAD, 4)
    assert not isinstance(caught.value, SchemaTooNew)
    assert ran == []


def test_a_step_that_raises_is_the_cause() -> None:
    # A2
    upgrades = Upgrades()
    upgrades.register("file.process.request", 2)(rename)
    with pytest.raises(EnvelopeError, match=r"from schema version 2 to 3 failed with KeyError") as caught:
        upgrades.upgrade(Envelope.from_wire(WIRE), {"args": [], "kwargs": {}}, 3)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_step_that_returns_nothing_is_refused() -> None:
    # A2
    upgrades = Upgrades()
    upgrades.register("file.process.request", 2)(lambda payload: None)  # type: ignore[type-var]
    with pytest.raises(EnvelopeError, match="returned None; return the payload"):
        upgrades.upgrade(Envelope.from_wire(WIRE), PAYLOAD, 3)


def test_one_step_per_version() -> None:
    # A2
    upgrades = Upgrades()
    assert upgrades.register("a", 1)(rename) is rename
    upgrades.register("a", 1)(rename)
    upgrades.register("b", 1)(add)
    with pytest.raises(ConfigurationError, match="an upgrade from version 1 already"):
        upgrades.register("a", 1)(add)
    with pytest.raises(ConfigurationError, match="from_version"):
        upgrades.register("a", 0)
