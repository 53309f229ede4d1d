"""The way through execution: claim → run → complete, or → decide → retry, bury or defer.

`handle` does all of it for a message and a function and answers with a verdict to act on. Adapters whose framework
calls the function itself use the three steps, `begin`, `finish` and `fail`.
"""

from __future__ import annotations

import json
import logging
import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from task_contract import dead_letters, retry
from task_contract.envelope import Envelope
from task_contract.errors import (
    EnvelopeError,
    KeyDerivationError,
    LeaseLost,
    PayloadMismatch,
    SchemaTooNew,
    StoreUnavailable,
)
from task_contract.events import Event, EventName
from task_contract.keys import derive, payload_hash, store_key
from task_contract.peek import message_of, name_of
from task_contract.retry import Verdict
from task_contract.runs import Run
from task_contract.stores.base import Claim, DeadLetter, Hold, Limits, Work

if TYPE_CHECKING:
    from task_contract.contract import Contract
    from task_contract.policy import Policy

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Message:
    """A delivery, whatever framework or push source it came from."""

    envelope: Envelope
    message_id: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue: str = ""
    framework: str = ""
    #: The message as the broker had it, for the dead letter, or how to make it; made from the parts if left out.
    raw: bytes | Callable[[], bytes] = b""
    content_type: str = "application/json"
    details: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> bytes:
        if self.raw:
            return self.raw() if callable(self.raw) else self.raw
        parts = {"id": self.message_id, "contract": self.envelope.to_wire(payload=False)}
        return json.dumps({**parts, "args": self.args, "kwargs": dict(self.kwargs)}, default=repr).encode()


class Handled(NamedTuple):
    """What became of a delivery: the verdict to act on, and the result if the work is done."""

    verdict: Verdict
    result: Any = None
    has_result: bool = False
    #: Whether the function ran in this very delivery.
    ran: bool = False
    letter_id: str = ""


def handle(
    contract: Contract, message: Message, fn: Callable[..., T], policy: Policy, *, patience: float = 0.0
) -> Handled:
    """Run `fn` for this delivery, if it is to run. Raises `StoreUnavailable` when the store is away for `patience`
    seconds: then leave the message with the broker.
    """
    begun = begin(contract, message, fn, policy, patience=patience)
    if isinstance(begun, Handled):
        return begun
    try:
        with begun.active():
            result = fn(*begun.args, **begun.kwargs)
    except Exception as error:  # noqa: BLE001  (whatever a task raises is classified)
        return fail(contract, message, begun, error)
    except BaseException:
        interrupt(contract, message, begun)
        raise
    return finish(contract, message, begun, result)


def begin(
    contract: Contract, message: Message, fn: Callable[..., Any], policy: Policy, *, patience: float = 0.0
) -> Run | Handled:
    """Claim the work: a run to go on with, or what to do with the delivery instead."""
    try:
        message = _upgraded(contract, message, policy)
    except EnvelopeError as error:
        reason = "schema-too-new" if isinstance(error, SchemaTooNew) else "invalid"
        return put_aside(contract, message, reason, error)
    run = _prepare(message, fn, policy)
    since = time.monotonic()
    claim = _insist(lambda: _claim(contract, run), patience)
    hold = run.hold._replace(fence=claim.fence, attempt=claim.attempt)
    run.hold, run.crashes = hold, claim.crashes
    if claim.outcome != "won":
        return _turned_away(contract, message, run, claim)
    run.renewed(since)
    contract.leases.add(run)
    _emit(contract, "started", message, run)
    return run


def finish(contract: Contract, message: Message, run: Run, result: Any) -> Handled:
    """The function returned: keep its result, so that nobody runs it again."""
    contract.leases.remove(run)
    released = run.reservation if run.policy.dedup_until == "done" else ""
    stored = encode_result(result, contract.settings.max_result_bytes)
    try:
        _insist(
            lambda: contract.store.complete(run.hold, keep=run.policy.retain, result=stored, reservation=released),
            run.policy.lease,
        )
    except LeaseLost as error:
        return _too_late(contract, message, run, error, result)
    _emit(contract, "completed", message, run, outcome="acked")
    return Handled(retry.done(), result, has_result=True, ran=True)


def fail(contract: Contract, message: Message, run: Run, error: Exception, *, final: bool = False) -> Handled:
    """The function raised: try again later, or bury it. `final` if somebody else has decided that this was the end."""
    contract.leases.remove(run)
    if final:
        verdict = Verdict("dead", reason="failed", error_type=name_of(type(error)), error=message_of(error))
    else:
        settings = contract.settings
        verdict = retry.decide(error, run.attempt, run.policy, rules=contract.rules, max_delay=settings.max_delay)
    try:
        if verdict.action == "retry":
            return _retry(contract, message, run, verdict)
        if verdict.action == "dead":
            return _bury(contract, message, run, verdict, error)
    except LeaseLost as lost:
        return _too_late(contract, message, run, lost)
    return Handled(verdict, ran=True)


def interrupt(contract: Contract, message: Message, run: Run) -> None:
    """The process is being stopped in the middle: give the attempt back."""
    contract.leases.remove(run)
    settings = contract.settings
    try:
        contract.store.retry(
            run.hold,
            delay=0.0,
            keep=settings.message_retention,
            ending="interrupted",
            interruptions=settings.max_interruptions,
        )
    except (LeaseLost, StoreUnavailable) as error:
        log.warning("%s was interrupted and could not say so: %s", message.message_id, error)
    _emit(contract, "interrupted", message, run)


# --- before the run ------------------------------------------------------------------------------------------------


def _upgraded(contract: Contract, message: Message, policy: Policy) -> Message:
    if message.envelope.schema_version == policy.schema_version:
        return message
    payload: dict[str, Any] = {"args": list(message.args), "kwargs": dict(message.kwargs)}
    envelope, payload = contract.upgrades.upgrade(message.envelope, payload, policy.schema_version)
    try:
        return replace(message, envelope=envelope, args=tuple(payload["args"]), kwargs=dict(payload["kwargs"]))
    except (KeyError, TypeError, ValueError) as error:
        reason = f'an upgrade of {envelope.message_type!r} must return {{"args": […], "kwargs": {{…}}}}'
        raise EnvelopeError(reason, field="schema_version") from error


def _prepare(message: Message, fn: Callable[..., Any], policy: Policy) -> Run:
    envelope = message.envelope
    checked = "" if policy.on_mismatch == "reuse" else payload_hash(fn, message.args, message.kwargs)
    work = Work(
        message.message_id,
        envelope.message_type,
        envelope.idempotency_key,
        checked,
        envelope.correlation_id,
        envelope.causation_id or "",
        envelope.subject or "",
        dead_letters.worker_name(),
    )
    slot = envelope.message_type if policy.max_concurrency else ""
    key = store_key(envelope.message_type, envelope.idempotency_key)
    hold = Hold(key, secrets.token_urlsafe(12), 0, 0, work, slot)
    return Run(
        hold, envelope, policy, tuple(message.args), dict(message.kwargs), _reservation(message, fn, policy, key)
    )


def _reservation(message: Message, fn: Callable[..., Any], policy: Policy, run_key: str) -> str:
    """Where the enqueue's reservation is, to release it with the work."""
    if policy.dedup_key is None:
        return run_key
    try:
        return store_key(message.envelope.message_type, derive(policy.dedup_key, fn, message.args, message.kwargs))
    except KeyDerivationError:  # another version of the task sent it; its reservation ends by itself
        return ""


def _claim(contract: Contract, run: Run) -> Claim:
    policy, settings, hold = run.policy, contract.settings, run.hold
    limits = Limits(
        policy.attempts, policy.crashes, settings.max_interruptions, True, hold.slot, policy.max_concurrency or 0
    )
    return contract.store.claim(
        hold.key, hold.work, owner=hold.owner, lease=policy.lease, keep=settings.message_retention, limits=limits
    )


def _turned_away(contract: Contract, message: Message, run: Run, claim: Claim) -> Handled:
    if claim.outcome == "done":
        return _repeated(contract, message, run, claim)
    if claim.outcome == "dead":
        verdict = Verdict("dead", reason="already-dead", because="a copy of work that is dead under this message id")
        return Handled(verdict)
    if claim.outcome == "mismatch":
        text = f"the key {message.envelope.idempotency_key} is known with other arguments (message {claim.message_id})"
        return put_aside(contract, message, "payload-mismatch", PayloadMismatch(text))
    if claim.outcome == "exhausted":
        return _exhausted(contract, message, run, claim)
    verdict = retry.defer(claim.wait, claim.reason or claim.outcome)
    _emit(contract, "deferred", message, run, outcome="retried", reason=verdict.reason, delay=verdict.delay)
    return Handled(verdict)


def _repeated(contract: Contract, message: Message, run: Run, claim: Claim) -> Handled:
    _emit(contract, "repeated", message, run, outcome="acked")
    result = json.loads(claim.result) if claim.has_result else None
    return Handled(retry.done(), result, has_result=claim.has_result)


def _exhausted(contract: Contract, message: Message, run: Run, claim: Claim) -> Handled:
    crashed = claim.reason == "crashes"
    because = f"{claim.crashes} of its workers died" if crashed else f"{claim.attempt} attempts were made"
    verdict = Verdict("dead", reason="worker-killed" if crashed else "exhausted", because=because)
    try:
        return _bury(contract, message, run, verdict, None)
    except LeaseLost as lost:
        return _too_late(contract, message, run, lost)


def put_aside(contract: Contract, message: Message, reason: str, error: Exception) -> Handled:
    """A dead letter for a message that has no record, or no right to the one under its key."""
    letter = dead_letters.compose(message, reason, error, because=str(error))
    contract.store.put_letter(letter, keep=contract.settings.dlq_retention)
    verdict = Verdict("dead", reason=reason, because=str(error), error_type=letter.error_type, error=letter.error)
    _emit_dead(contract, message, verdict, letter, attempt=0)
    return Handled(verdict, letter_id=letter.id)


# --- after the run -------------------------------------------------------------------------------------------------


def _retry(contract: Contract, message: Message, run: Run, verdict: Verdict) -> Handled:
    error = f"{verdict.error_type}: {verdict.error}"[:500]
    keep = contract.settings.message_retention + verdict.delay
    _insist(lambda: contract.store.retry(run.hold, delay=verdict.delay, keep=keep, error=error), run.policy.lease)
    _emit(contract, "retried", message, run, verdict, outcome="retried")
    return Handled(verdict, ran=True)


def _bury(contract: Contract, message: Message, run: Run, verdict: Verdict, error: BaseException | None) -> Handled:
    letter = dead_letters.compose(
        message, verdict.reason, error, because=verdict.because, attempts=run.attempt, crashes=run.crashes
    )
    keep = contract.settings.dlq_retention
    letter_id = _insist(
        lambda: contract.store.bury(run.hold, letter, keep=keep, reservation=run.reservation), run.policy.lease
    )
    _emit_dead(contract, message, verdict, letter, attempt=run.attempt)
    return Handled(verdict, ran=error is not None, letter_id=letter_id)


def _too_late(contract: Contract, message: Message, run: Run, lost: LeaseLost, result: Any = None) -> Handled:
    """Another worker has the record. The delivery may be dropped only if the work is done."""
    if not run.lost:
        run.lost = True
        contract.lease_lost(run)
    if lost.state == "done":
        return Handled(retry.done(), result, has_result=result is not None, ran=True)
    verdict = retry.defer(run.policy.lease, "lease-lost", str(lost))
    _emit(contract, "deferred", message, run, verdict, outcome="retried")
    return Handled(verdict, ran=True)


def encode_result(result: Any, limit: int) -> bytes | None:
    """The result as JSON; None if it is too large or cannot be said in JSON, which never fails the task."""
    try:
        encoded = json.dumps(result, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return None
    return encoded if len(encoded) <= limit else None


def _insist(verb: Callable[[], T], patience: float) -> T:
    """Repeat a verb while the store is away, in place and with growing pauses, for `patience` seconds."""
    end = time.monotonic() + patience
    pause = 0.1
    while True:
        try:
            return verb()
        except StoreUnavailable:
            if time.monotonic() + pause > end:
                raise
        time.sleep(random.uniform(pause / 2, pause))  # noqa: S311  (jitter)
        pause = min(pause * 2, 5.0)


# --- telling -------------------------------------------------------------------------------------------------------


def _emit(
    contract: Contract, name: EventName, message: Message, run: Run, verdict: Verdict | None = None, **said: Any
) -> None:
    if verdict is not None:
        said = {**_of_verdict(verdict), **said}
    contract.emit(
        event_of(
            name, message, attempt=run.attempt, duration=time.monotonic() - run.started, source=contract.source, **said
        )
    )


def _emit_dead(contract: Contract, message: Message, verdict: Verdict, letter: DeadLetter, attempt: int) -> None:
    said = {**_of_verdict(verdict), "outcome": "dead-lettered", "letter_id": letter.id, "attempt": attempt}
    contract.emit(event_of("dead", message, source=contract.source, **said))
    contract.told_of(letter)


def _of_verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "reason": verdict.reason,
        "because": verdict.because,
        "delay": verdict.delay,
        "status": verdict.status,
        "error_type": verdict.error_type or "",
        "error": verdict.error or "",
    }


def event_of(name: EventName, message: Message, **said: Any) -> Event:
    envelope = message.envelope
    return Event(
        name,
        message_id=message.message_id,
        message_type=envelope.message_type,
        idempotency_key=envelope.idempotency_key,
        correlation_id=envelope.correlation_id,
        causation_id=envelope.causation_id or "",
        subject=envelope.subject or "",
        queue=message.queue,
        worker=dead_letters.worker_name(),
        **said,
    )
