"""The way through execution: claim → run → complete, or → decide → retry, bury or defer.

`handle` does all of it for a message and a function and answers with a verdict to act on. Adapters whose framework
calls the function itself use the three steps, `begin`, `finish` and `fail`.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from task_contract import dead_letters, retry
from task_contract.envelope import Envelope
from task_contract.errors import (
    ConfigurationError,
    EnvelopeError,
    LeaseLost,
    NonRetryableError,
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
#: How many claims without an answer a process remembers.
UNANSWERED_KEPT = 1000
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
    #: Whether the payload was lifted from an older schema version on its way here.
    upgraded: bool = False

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
    contract: Contract, message: Message, fn: Callable[..., T], policy: Policy, *, patience: float | None = None
) -> Handled:
    """Run `fn` for this delivery, if it is to run. Raises `StoreUnavailable` when the store is away for `patience`
    seconds (by default the length of a lease): then leave the message with the broker.
    """
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        raise ConfigurationError(f"{fn} would only be created, not run: hand over a function that runs it to its end")
    begun = begin(contract, message, fn, policy, patience=patience)
    if isinstance(begun, Handled):
        return begun
    try:
        with begun.active():
            result = _returned(fn(*begun.args, **begun.kwargs))
    except Exception as error:  # noqa: BLE001  (whatever a task raises is classified)
        return fail(contract, message, begun, error)
    except BaseException:
        interrupt(contract, message, begun)
        raise
    return finish(contract, message, begun, result)


def begin(
    contract: Contract, message: Message, fn: Callable[..., Any], policy: Policy, *, patience: float | None = None
) -> Run | Handled:
    """Claim the work: a run to go on with, or what to do with the delivery instead."""
    try:
        message = _upgraded(contract, message, policy)
    except EnvelopeError as error:
        reason = "schema-too-new" if isinstance(error, SchemaTooNew) else "invalid"
        return put_aside(contract, message, reason, error)
    run = _prepare(contract, message, fn, policy)
    claim = _claim(contract, run, policy.lease if patience is None else patience)
    if claim.outcome != "won":
        return _turned_away(contract, message, run, claim)
    try:
        contract.leases.add(run)
        _emit(contract, "started", message, run)
    except BaseException:
        # A shutdown or a time limit may arrive at any line: a claim that nobody works on must not be kept alive.
        interrupt(contract, message, run)
        raise
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
        return _too_late(contract, message, run, error)
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
    if run.pid != os.getpid():
        return  # a child that the task forked: its parent goes on with the work
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
    except Exception as error:  # noqa: BLE001  (the interruption itself must get through)
        log.warning("%r was interrupted and could not say so: %s", message.message_id, error)
    _emit(contract, "interrupted", message, run)


# --- before the run ------------------------------------------------------------------------------------------------


def _upgraded(contract: Contract, message: Message, policy: Policy) -> Message:
    if message.envelope.schema_version == policy.schema_version:
        return message
    payload: dict[str, Any] = {"args": list(message.args), "kwargs": dict(message.kwargs)}
    envelope, payload = contract.upgrades.upgrade(message.envelope, payload, policy.schema_version)
    try:
        args, kwargs = tuple(payload["args"]), dict(payload["kwargs"])
    except (KeyError, TypeError, ValueError) as error:
        reason = f'an upgrade of {envelope.message_type!r} must return {{"args": […], "kwargs": {{…}}}}'
        raise EnvelopeError(reason, field="schema_version") from error
    return replace(message, envelope=envelope, args=args, kwargs=kwargs, upgraded=True)


def _prepare(contract: Contract, message: Message, fn: Callable[..., Any], policy: Policy) -> Run:
    envelope = message.envelope
    # What was upgraded is not what was sent, so it cannot be compared with it.
    compared = policy.on_mismatch == "raise" and not message.upgraded
    checked = payload_hash(fn, message.args, message.kwargs) if compared else ""
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
    owner = contract.unanswered.get((key, message.message_id)) or secrets.token_urlsafe(12)
    hold = Hold(key, owner, 0, 0, work, slot)
    return Run(
        hold, envelope, policy, tuple(message.args), dict(message.kwargs), _reservation(message, fn, policy, key)
    )


def _reservation(message: Message, fn: Callable[..., Any], policy: Policy, run_key: str) -> str:
    """Where the enqueue's reservation is, to release it with the work."""
    if policy.dedup_key is None:
        return run_key
    try:
        return store_key(message.envelope.message_type, derive(policy.dedup_key, fn, message.args, message.kwargs))
    except Exception:  # noqa: BLE001  (another version of the task sent it; its reservation ends by itself)
        return ""


def _claim(contract: Contract, run: Run, patience: float) -> Claim:
    """Ask for the work. A claim without an answer may have been won: its owner is remembered for the next delivery."""
    owners, delivery = contract.unanswered, (run.hold.key, run.hold.work.message_id)
    try:
        claim = _insist(lambda: _claim_once(contract, run), patience)
    except StoreUnavailable:
        owners[delivery] = run.hold.owner
        while len(owners) > UNANSWERED_KEPT:
            owners.pop(next(iter(owners)), None)
        raise
    owners.pop(delivery, None)
    run.hold = run.hold._replace(fence=claim.fence, attempt=claim.attempt)
    run.crashes = claim.crashes
    return claim


def _claim_once(contract: Contract, run: Run) -> Claim:
    policy, settings, hold = run.policy, contract.settings, run.hold
    run.renewed(time.monotonic())
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
        _emit(contract, "stale", message, run, verdict, outcome="acked")
        return Handled(verdict)
    if claim.outcome == "mismatch":
        text = f"the key {message.envelope.idempotency_key} is known with other arguments (message {claim.message_id})"
        return put_aside(contract, message, "payload-mismatch", PayloadMismatch(text))
    if claim.outcome == "exhausted":
        return _exhausted(contract, message, run, claim)
    verdict = retry.defer(claim.wait, claim.reason or claim.outcome)
    _emit(contract, "deferred", message, run, outcome="retried", reason=verdict.reason, delay=verdict.delay)
    return Handled(verdict)


def _free(contract: Contract, message: Message, reservation: str) -> None:
    """The message ends here without ending the work of a record: its enqueue may be repeated."""
    try:
        contract.store.free(reservation, message_id=message.message_id)
    except StoreUnavailable as error:
        log.warning("the reservation of %r stays until it ends by itself: %s", message.message_id, error)


def _repeated(contract: Contract, message: Message, run: Run, claim: Claim) -> Handled:
    if run.policy.dedup_until == "done":
        _free(contract, message, run.reservation)
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
    letter_id = dead_letters.letter_id_of(message.message_id, reason)
    letter = dead_letters.compose(message, reason, error, because=str(error), letter_id=letter_id)
    contract.store.put_letter(letter, keep=contract.settings.dlq_retention)
    _free(contract, message, store_key(message.envelope.message_type, message.envelope.idempotency_key))
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


def _too_late(contract: Contract, message: Message, run: Run, lost: LeaseLost) -> Handled:
    """Another worker has the record. The delivery may be dropped only if the work is done."""
    if not run.lost:
        run.lost = True
        contract.lease_lost(run)
    if lost.state == "done":
        return _first_result(contract, run)
    verdict = retry.defer(run.policy.lease, "lease-lost", str(lost))
    _emit(contract, "deferred", message, run, verdict, outcome="retried")
    return Handled(verdict, ran=True)


def _first_result(contract: Contract, run: Run) -> Handled:
    """What the work resulted in, from whoever was first."""
    record = contract.store.get(run.hold.key)
    if record is None or not record.has_result:
        return Handled(retry.done(), ran=True)
    return Handled(retry.done(), json.loads(record.result), has_result=True, ran=True)


def _returned(result: T) -> T:
    """A coroutine or a generator is work that has not been done."""
    if inspect.isawaitable(result) or inspect.isgenerator(result):
        close = getattr(result, "close", None)
        if close is not None:
            close()
        raise NonRetryableError(f"the task returned {type(result).__name__}, which nobody runs: return a value")
    return result


def encode_result(result: Any, limit: int) -> bytes | None:
    """The result as JSON; None if it is too large or cannot be said in JSON, which never fails the task."""
    try:
        encoded = json.dumps(result, separators=(",", ":"), allow_nan=False).encode()
    except Exception:  # noqa: BLE001  (the effect has happened: nothing about its result may make it happen again)
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
