"""The framework-neutral way through an enqueue."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from task_contract import AlreadyEnqueued, Contract, PayloadMismatch, Policy
from task_contract.errors import DelayTooLong, KeyDerivationError, PayloadTooLarge, StoreUnavailable
from task_contract.sending import Breaker, Call, confirm, prepare, release
from task_contract.stores.memory import MemoryStore
from tests.core.conftest import Bench

POLICY = Policy(key="order", subject="{order}")


def charge(order: int, cents: int = 0) -> None:
    """Never called: an enqueue only looks at the signature."""


def call(*args: Any, policy: Policy = POLICY, **options: Any) -> Call:
    return Call("charge", policy, options.pop("fn", charge), args, **options)


def test_a_repeat_is_answered_with_the_first_ones_id(bench: Bench) -> None:  # B1 C1
    first = bench.send(charge, POLICY, 1)
    second = bench.send(charge, POLICY, order=1)
    assert second.duplicate is not None
    assert (second.message_id, second.duplicate.state) == (first.message_id, "enqueued")
    assert bench.names() == ["enqueued", "deduplicated"]
    assert bench.send(charge, POLICY, 2).duplicate is None


def test_the_window_ends_and_counts_the_delay(bench: Bench) -> None:  # B1
    prepared = prepare(bench.contract, call(1, delay=600.0))
    confirm(bench.contract, prepared)
    bench.time += 3600 + 599
    assert prepare(bench.contract, call(1)).duplicate is not None
    bench.time += 1
    assert prepare(bench.contract, call(1)).duplicate is None


def test_a_refused_publish_gives_the_place_back(bench: Bench) -> None:  # DESIGN 3, enqueue
    prepared = prepare(bench.contract, call(1))
    release(bench.contract, prepared)
    again = prepare(bench.contract, call(1))
    assert (again.duplicate, again.message_id != prepared.message_id) == (None, True)


def test_a_producer_that_died_before_its_publish_is_healed_under_its_message_id(bench: Bench) -> None:  # DESIGN 3
    bench.store.now = None
    died = prepare(bench.contract, call(1))
    healed = prepare(bench.contract, call(1))
    assert (healed.duplicate, healed.message_id) == (None, died.message_id)
    assert healed.token != died.token
    confirm(bench.contract, healed)
    release(bench.contract, died)
    assert prepare(bench.contract, call(1)).duplicate is not None, "the late producer cannot release another's place"


def test_a_pending_reservation_that_is_confirmed_meanwhile_is_a_duplicate(bench: Bench) -> None:  # DESIGN 3
    first = prepare(bench.contract, call(1))
    threading.Timer(0.03, confirm, (bench.contract, first)).start()
    second = prepare(bench.contract, call(1))
    assert second.message_id == first.message_id


def test_raising_on_a_duplicate_names_the_message_and_its_state(bench: Bench) -> None:  # C1
    policy = Policy(key="order", on_duplicate="raise")
    first = bench.send(charge, policy, 1)
    with pytest.raises(AlreadyEnqueued) as caught:
        bench.send(charge, policy, 1)
    assert (caught.value.existing_id, caught.value.state) == (first.message_id, "enqueued")


def test_other_arguments_under_one_key_are_refused_at_the_call(bench: Bench) -> None:  # rule 6
    bench.send(charge, POLICY, 1, cents=5)
    with pytest.raises(PayloadMismatch, match="on_mismatch"):
        bench.send(charge, POLICY, 1, cents=6)
    reuse = Policy(key="order", on_mismatch="reuse")
    assert bench.send(charge, reuse, 1, cents=7).duplicate is not None


def test_an_enqueue_key_of_its_own_coalesces_whatever_the_arguments(bench: Bench) -> None:  # DESIGN 2, dedup_key
    policy = Policy(dedup_key="order", dedup_window=10)
    first, second = bench.send(charge, policy, 1, cents=5), bench.send(charge, policy, 1, cents=6)
    assert second.duplicate is not None
    assert first.envelope.idempotency_key != second.envelope.idempotency_key, "each would be work of its own"
    bench.time += 10
    assert bench.send(charge, policy, 1, cents=6).duplicate is None


def test_without_a_key_nothing_is_reserved_and_each_message_is_its_own_work(bench: Bench) -> None:  # A6
    first, second = bench.send(charge, Policy(), 1), bench.send(charge, Policy(), 1)
    assert (first.token, second.duplicate) == ("", None)
    assert first.envelope.idempotency_key != second.envelope.idempotency_key


def test_a_key_given_with_the_call_counts_as_declared(bench: Bench) -> None:  # A6 B1
    options: dict[str, Any] = {"policy": Policy(), "idempotency_key": "inv-7", "subject": "7"}
    prepared = prepare(bench.contract, call(1, **options))
    confirm(bench.contract, prepared)
    assert (prepared.envelope.idempotency_key, prepared.envelope.subject) == ("inv-7", "7")
    assert prepare(bench.contract, call(1, **options)).duplicate is not None
    off = {**options, "policy": Policy(dedup_window=0)}
    assert prepare(bench.contract, call(1, **off)).duplicate is None


def test_a_task_known_only_by_name_needs_its_key_with_the_call(bench: Bench) -> None:  # A6
    with pytest.raises(KeyDerivationError, match="idempotency_key="):
        prepare(bench.contract, call(1, fn=None))
    policy = Policy(key="order")
    assert prepare(bench.contract, call(1, fn=None, policy=policy, idempotency_key="1")).envelope.idempotency_key == "1"


def test_the_envelope_is_whole(bench: Bench) -> None:  # A1
    with bench.contract.context(correlation_id="job-7", causation_id="request-3"):
        envelope = bench.send(charge, POLICY, 1).envelope
    assert (envelope.message_type, envelope.schema_version, envelope.source) == ("charge", 1, "shop")
    assert (envelope.correlation_id, envelope.causation_id) == ("job-7", "request-3")
    assert (envelope.idempotency_key, envelope.subject) == ("1", "1")
    assert envelope.payload_inline == {"args": [1], "kwargs": {}}


def test_a_delay_beyond_the_bound_is_an_error(bench: Bench) -> None:  # A11
    prepare(bench.contract, call(1, delay=12 * 3600.0))
    with pytest.raises(DelayTooLong, match="max_delay"):
        prepare(bench.contract, call(2, delay=12 * 3600.0 + 1))


def test_a_message_beyond_the_bound_is_an_error_and_reserves_nothing(bench: Bench) -> None:  # A3 C2
    with pytest.raises(PayloadTooLarge, match="max_message_bytes"):
        prepare(bench.contract, call("x" * 131_072))
    with pytest.raises(PayloadTooLarge):
        prepare(bench.contract, call(1, size=131_073))
    assert prepare(bench.contract, call(1)).duplicate is None


def test_bad_input_reserves_nothing(bench: Bench) -> None:  # A6
    with pytest.raises(KeyDerivationError):
        prepare(bench.contract, call(object()))
    assert bench.events == []


class Absent(MemoryStore):
    """A store that is away, and counts who asks."""

    asked = 0

    def reserve(self, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        raise StoreUnavailable("away")


def test_an_open_contract_sends_without_the_store(caplog: pytest.LogCaptureFixture) -> None:  # B4
    store = Absent()
    contract = Contract(store)
    events: list[str] = []
    contract.subscribe(lambda event: events.append(event.name))
    prepared = prepare(contract, call(1))
    assert (prepared.duplicate, prepared.token) == (None, "")
    confirm(contract, prepared)
    assert events == ["unguarded", "enqueued"]
    assert "without deduplication" in caplog.text


def test_a_closed_contract_raises_at_the_call() -> None:  # B4
    with pytest.raises(StoreUnavailable):
        prepare(Contract(Absent(), fallback="closed"), call(1))


def test_behind_the_breaker_a_store_that_is_away_is_not_asked_each_time() -> None:  # rule 9
    store = Absent()
    contract = Contract(store)
    for order in range(5):
        prepare(contract, call(order))
    assert store.asked == 1


def test_the_breaker_tries_again_and_closes(monkeypatch: pytest.MonkeyPatch) -> None:  # rule 9
    now = 1000.0
    monkeypatch.setattr("task_contract.sending.time.monotonic", lambda: now)
    breaker = Breaker(pause=5.0)
    breaker.check()
    breaker.failed()
    with pytest.raises(StoreUnavailable):
        breaker.check()
    now += 5
    breaker.check()
    breaker.succeeded()
    breaker.check()


def test_a_reservation_of_dead_work_does_not_outlive_it(bench: Bench) -> None:  # DESIGN 3: bury releases
    prepared = prepare(bench.contract, call(1))

    def broken(order: int, cents: int = 0) -> None:
        raise KeyError(order)

    from task_contract.running import Message

    bench.contract.handle(Message(prepared.envelope, prepared.message_id, (1,)), broken, POLICY)
    confirm(bench.contract, prepared)  # the producer was slower than the worker
    assert prepare(bench.contract, call(1)).duplicate is None


# --- what a reviewer broke -------------------------------------------------------------------------------------------


def test_taking_over_without_a_key_arrives_at_the_same_work(bench: Bench) -> None:  # DESIGN 3, healing
    bench.store.now = None
    policy = Policy(dedup_key="order", dedup_window=10)
    slow = prepare(bench.contract, call(1, policy=policy))
    healed = prepare(bench.contract, call(1, policy=policy))
    assert healed.message_id == slow.message_id
    assert healed.envelope.idempotency_key == slow.envelope.idempotency_key, "two copies of one message, one work"


def test_a_worker_faster_than_the_confirmation_does_not_block_the_next(bench: Bench) -> None:  # B7
    from task_contract.running import Message

    policy = Policy(key="order", dedup_until="done")
    prepared = prepare(bench.contract, call(1, policy=policy))
    bench.contract.handle(Message(prepared.envelope, prepared.message_id, (1,)), charge, policy)
    confirm(bench.contract, prepared)
    assert prepare(bench.contract, call(1, policy=policy)).duplicate is None


def test_a_past_time_is_no_delay(bench: Bench) -> None:  # B1
    confirm(bench.contract, prepare(bench.contract, call(1, delay=-7200.0)))
    assert prepare(bench.contract, call(1)).duplicate is not None


class Leaving(MemoryStore):
    """Answers the reservation, then is away."""

    def confirm(self, *args: Any, **kwargs: Any) -> bool:
        raise StoreUnavailable("away")

    def release(self, *args: Any, **kwargs: Any) -> bool:
        raise StoreUnavailable("away")


def test_what_is_sent_is_sent_whatever_the_store_says_afterwards() -> None:  # B4
    contract = Contract(Leaving(), fallback="closed")
    confirm(contract, prepare(contract, call(1)))
    contract = Contract(Leaving(), fallback="closed")
    release(contract, prepare(contract, call(1)))
