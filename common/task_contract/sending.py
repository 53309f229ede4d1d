"""The way through an enqueue: envelope → key → limits → reserve → [the framework publishes] → confirm or release."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from task_contract import keys
from task_contract.durations import HOUR, human
from task_contract.envelope import Envelope, new_envelope, new_id
from task_contract.errors import (
    AlreadyEnqueued,
    DelayTooLong,
    KeyDerivationError,
    PayloadMismatch,
    PayloadTooLarge,
    StoreUnavailable,
)
from task_contract.events import Event
from task_contract.stores.base import Reservation

if TYPE_CHECKING:
    from task_contract.contract import Contract
    from task_contract.policy import Policy

log = logging.getLogger(__name__)

#: A pending reservation may be a producer between its reserve and its publish: it gets this long to confirm, seconds.
PENDING_PATIENCE = 0.1
PENDING_POLL = 0.02


@dataclass(frozen=True)
class Call:
    """What somebody asked to be enqueued."""

    name: str
    policy: Policy
    #: The task's function, for its signature; None where the caller knows only a name.
    fn: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    message_id: str = ""
    delay: float = 0.0
    idempotency_key: str | None = None
    subject: str | None = None
    #: Bytes of the message as the framework will send it; measured as JSON if left out.
    size: int | None = None
    #: Whether the bounds of delay and size hold for it.
    bounded: bool = True
    #: Whether a duplicate is to be suppressed. A member of a canvas is reserved, but published whatever the answer.
    binding: bool = True


class Prepared(NamedTuple):
    """A message that is ready to be published, or the one that is there already."""

    envelope: Envelope
    message_id: str
    #: The reservation of a message that is not to be published again.
    duplicate: Reservation | None = None
    # What confirm and release need.
    token: str = ""
    place: str = ""
    record_key: str = ""
    payload_hash: str = ""
    window: float = 0.0
    until_done: bool = False


def prepare(contract: Contract, call: Call) -> Prepared:
    """Everything before the publish. If `duplicate` is set there is nothing to publish.

    Raises for a delay or a size beyond the bounds, a key that cannot be derived, a payload that does not belong to
    its key, and, if the policy asks for it, for a duplicate.
    """
    message_id = call.message_id or new_id()
    envelope = envelope_for(contract, call, message_id)
    if call.bounded:
        _check_delay(contract, call)
        _check_size(contract, call, envelope)
    prepared = Prepared(envelope, message_id, window=_window(call))
    return _reserve(contract, call, prepared) if prepared.window else prepared


def confirm(contract: Contract, prepared: Prepared) -> None:
    """The message was sent: from now on a repeat is a duplicate, for the window."""
    if prepared.token:
        _tolerantly(
            contract,
            lambda: contract.store.confirm(
                prepared.place,
                token=prepared.token,
                message_id=prepared.message_id,
                ttl=prepared.window,
                payload_hash=prepared.payload_hash,
                record_key=prepared.record_key,
                until_done=prepared.until_done,
            ),
            fallback="open",
        )
    contract.emit(_event("enqueued", contract, prepared))


def release(contract: Contract, prepared: Prepared) -> None:
    """Nothing was sent, for certain: the next enqueue need not wait. After an ambiguous failure do not call it."""
    if prepared.token:
        _tolerantly(contract, lambda: contract.store.release(prepared.place, token=prepared.token), fallback="open")


def _window(call: Call) -> float:
    """How long a repeat is a duplicate, counted from when the work may start; 0 is never."""
    policy = call.policy
    # A key that comes with the call declares one as much as a policy does.
    declared = call.idempotency_key is not None and policy.dedup_window is None
    window = HOUR if declared else policy.window
    return window + max(0.0, call.delay) if window else 0.0


def _check_delay(contract: Contract, call: Call) -> None:
    longest = contract.settings.max_delay
    if call.delay > longest:
        raise DelayTooLong(
            f"{call.name}: a delay of {human(call.delay)} is above max_delay ({human(longest)}); "
            "schedule it closer to its time, or raise max_delay"
        )


def _check_size(contract: Contract, call: Call, envelope: Envelope) -> None:
    limit = contract.settings.max_message_bytes
    size = call.size if call.size is not None else _measure(call, envelope)
    if size > limit:
        raise PayloadTooLarge(
            f"{call.name}: the message has {size} bytes, above max_message_bytes ({limit}); "
            "send a reference to the data instead"
        )


def _measure(call: Call, envelope: Envelope) -> int:
    wire = {"contract": envelope.to_wire(payload=False), "args": call.args, "kwargs": dict(call.kwargs)}
    return len(json.dumps(wire, default=str).encode())


def envelope_for(contract: Contract, call: Call, message_id: str) -> Envelope:
    """The envelope of a call: its key and subject by the policy, correlation and causation from where it is made."""
    policy = call.policy
    key = None if call.idempotency_key is None else keys.explicit(call.idempotency_key)
    if key is None and policy.key is not None:
        key = keys.derive(policy.key, _function(call), call.args, call.kwargs)
    if key is None and policy.dedup_key is not None:
        # Whoever takes this enqueue over must arrive at the same key.
        key = message_id
    subject = call.subject
    if subject is None and policy.subject is not None:
        subject = keys.derive(policy.subject, _function(call), call.args, call.kwargs)
    return new_envelope(
        policy.message_type or call.name,
        idempotency_key=key,
        schema_version=policy.schema_version,
        subject=subject,
        source=contract.source,
        payload_inline={"args": list(call.args), "kwargs": dict(call.kwargs)},
    )


def _function(call: Call) -> Callable[..., Any]:
    if call.fn is None:
        raise KeyDerivationError(
            f"{call.name} is sent by name, so its arguments cannot be bound: pass idempotency_key= with the call"
        )
    return call.fn


def _reserve(contract: Contract, call: Call, prepared: Prepared) -> Prepared:
    policy, envelope = call.policy, prepared.envelope
    record_key = place = keys.store_key(envelope.message_type, envelope.idempotency_key)
    compared = policy.on_mismatch == "raise"
    if policy.dedup_key is not None:
        # Coalescing: other arguments under one enqueue key are what was asked for.
        place = keys.store_key(
            envelope.message_type, keys.derive(policy.dedup_key, _function(call), call.args, call.kwargs)
        )
        compared = False
    prepared = prepared._replace(
        token=secrets.token_urlsafe(12),
        place=place,
        record_key=record_key,
        payload_hash=keys.payload_hash(call.fn, call.args, call.kwargs) if compared else "",
        until_done=policy.dedup_until == "done",
    )
    answer = _tolerantly(contract, lambda: _ask(contract, prepared))
    if answer is None:
        contract.emit(_event("unguarded", contract, prepared))
        return prepared._replace(token="")
    return _answered(contract, call, prepared, answer)


def _ask(contract: Contract, prepared: Prepared) -> Reservation:
    """Reserve; a pending reservation is given a moment, then taken over under the message id it has."""
    answer = _reserve_once(contract, prepared)
    end = time.monotonic() + PENDING_PATIENCE
    while answer.outcome == "pending":
        late = time.monotonic() >= end
        time.sleep(0 if late else PENDING_POLL)
        answer = _reserve_once(contract, prepared, take_over=answer.token if late else "")
    return answer


def _reserve_once(contract: Contract, prepared: Prepared, take_over: str = "") -> Reservation:
    return contract.store.reserve(
        prepared.place,
        token=prepared.token,
        message_id=prepared.message_id,
        ttl=contract.settings.reservation_ttl,
        payload_hash=prepared.payload_hash,
        record_key=prepared.record_key,
        take_over=take_over,
    )


def _answered(contract: Contract, call: Call, prepared: Prepared, answer: Reservation) -> Prepared:
    key = prepared.envelope.idempotency_key
    if not call.binding:
        return prepared if answer.outcome == "won" else prepared._replace(token="")
    if answer.outcome == "mismatch":
        raise PayloadMismatch(
            f"{call.name}: the key {key} is taken by message {answer.message_id} with other arguments; "
            'make the key tell them apart, or set on_mismatch="reuse" if they are the same work'
        )
    if answer.outcome == "won":
        return prepared if answer.message_id == prepared.message_id else _taken_over(call, prepared, answer.message_id)
    contract.emit(_event("deduplicated", contract, prepared._replace(message_id=answer.message_id)))
    if call.policy.on_duplicate == "raise":
        raise AlreadyEnqueued(
            f"{call.name}: {key} is enqueued already as {answer.message_id} ({answer.state})",
            existing_id=answer.message_id,
            state=answer.state,
        )
    return prepared._replace(message_id=answer.message_id, duplicate=answer, token="")


def _taken_over(call: Call, prepared: Prepared, message_id: str) -> Prepared:
    """Another producer's message, which it may have sent: under its id, and so under the key that was minted for it."""
    prepared = prepared._replace(message_id=message_id)
    if call.idempotency_key is not None or call.policy.key is not None:
        return prepared
    envelope = prepared.envelope.model_copy(update={"idempotency_key": message_id})
    return prepared._replace(envelope=envelope, record_key=keys.store_key(envelope.message_type, message_id))


def _tolerantly(contract: Contract, verb: Callable[[], Any], fallback: str = "") -> Any:
    """Ask the store, behind the breaker. None if it is away and the contract is open; raises if it is closed."""
    breaker, fallback = contract.breaker, fallback or contract.settings.fallback
    try:
        breaker.check()
        answer = verb()
    except StoreUnavailable as error:
        breaker.failed()
        if fallback == "closed":
            raise
        log.warning("the store is away, enqueueing without deduplication: %s", error)
        return None
    breaker.succeeded()
    return answer


class Breaker:
    """After a failure, does not even ask for a while: a web request must not wait for three time-outs each."""

    def __init__(self, pause: float = 5.0) -> None:
        self._pause, self._closed_until = pause, 0.0

    def check(self) -> None:
        if time.monotonic() < self._closed_until:
            raise StoreUnavailable("the store did not answer a moment ago; not asking again yet")

    def failed(self) -> None:
        if time.monotonic() >= self._closed_until:
            self._closed_until = time.monotonic() + self._pause

    def succeeded(self) -> None:
        self._closed_until = 0.0


def _event(name: Any, contract: Contract, prepared: Prepared) -> Event:
    envelope = prepared.envelope
    return Event(
        name,
        message_id=prepared.message_id,
        message_type=envelope.message_type,
        idempotency_key=envelope.idempotency_key,
        correlation_id=envelope.correlation_id,
        causation_id=envelope.causation_id or "",
        subject=envelope.subject or "",
        source=contract.source,
    )
