"""Execution: what happens around a task's code. `ContractTask` is the base class, `Contracted` the mixin behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, cast

from celery import Task
from celery.exceptions import Ignore, OperationalError, Reject, Retry
from kombu.utils import json

from celery_contract import publisher
from celery_contract.attachment import Attachment, Terms, attachment_of, terms_of
from task_contract import Backoff, Policy
from task_contract.envelope import Envelope
from task_contract.errors import ContractError, EnvelopeError, LeaseLost, StoreUnavailable
from task_contract.peek import message_of
from task_contract.running import Handled, Message, begin, fail, finish, interrupt, put_aside
from task_contract.runs import Run, current_run
from task_contract.sending import Call, envelope_for

log = logging.getLogger(__name__)

DEFERRALS = "contract_deferrals"
#: A deferral waits no longer than this, and never as long as the visibility timeout: the broker would deliver a copy.
LONGEST_DEFERRAL = 60.0
#: How long a steered task waits for the store before its message goes back to the broker.
PATIENCE = 30.0
UNBOUNDED = 2**31 - 1


class Contracted:
    """Mixed into the class of every task that a contract covers. It stands in front of the user's classes, so it has
    no attributes of its own: they would hide the user's.
    """

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        terms = _terms(self)
        if terms is None or self.request.called_directly:
            return super().__call__(*args, **kwargs)  # type: ignore[misc]  # the user's class comes next
        return _execute(self, terms, _body(self), args, kwargs)

    def retry(self: Any, *args: Any, **options: Any) -> Any:
        """As ever; but the record waits with the work, and a retry that cannot be published is not lost."""
        run = _run_of(self)
        if run is None:
            return super().retry(*args, **options)  # type: ignore[misc]
        with publisher.copying(run.envelope.to_wire(payload=False)):
            try:
                return super().retry(*args, **options)  # type: ignore[misc]
            except Reject as rejected:
                raise Reject(rejected.reason, requeue=True) from rejected


class ContractTask(Contracted, Task):  # type: ignore[misc]  # Celery has no types
    """The base class for a task that a contract steers, in an app that need not have one otherwise."""

    abstract = True
    #: Steered even without a policy of its own.
    steered = True

    @classmethod
    def on_bound(cls, app: Any) -> None:
        from celery_contract.install import attach

        super().on_bound(app)
        if attachment_of(app) is None:
            attach(app, everything=False)


# --- adoption ---------------------------------------------------------------------------------------------------------


def adopt(task: Any, attachment: Attachment) -> None:
    """Mix `Contracted` into the class of this task, whatever its base, and make a steered one safe to be killed."""
    terms = terms_of(attachment, task)
    if terms is None:
        return
    cls = type(task)
    if not issubclass(cls, Contracted):
        task.__class__ = type(cls.__name__, (Contracted, cls), {"__module__": cls.__module__, "_adopted_from": cls})
    task.__trace__ = None
    if terms.steered and terms.contract.settings.adjust_settings:
        _make_safe(task)


def release(task: Any) -> None:
    """Undo `adopt`."""
    original = type(task).__dict__.get("_adopted_from")
    if original is not None:
        app = task.app
        task.__class__ = original
        task.__trace__ = None
        original.bind(app)  # it was the mixed class that the app bound


def _make_safe(task: Any) -> None:
    changed = [name for name in ("acks_late", "reject_on_worker_lost") if _is_unset(task, name)]
    for name in changed:
        setattr(type(task), name, True)
    if changed:
        log.info("%s is steered by a contract: %s turned on", task.name, " and ".join(changed))


def _is_unset(task: Any, name: str) -> bool:
    """Neither the task nor the configuration says anything: what binding took over from the defaults does not count."""
    own = any(name in cls.__dict__ and cls.__dict__[name] is not None for cls in type(task).__mro__[:-1])
    said = own and not type(task).__bound__
    return not said and not task.app.conf[f"task_{name}"]


# --- execution --------------------------------------------------------------------------------------------------------


def _terms(task: Any) -> Terms | None:
    attachment = attachment_of(task.app)
    return None if attachment is None else terms_of(attachment, task)


def _body(task: Any) -> Callable[..., Any]:
    """The next `__call__` of the user's own classes, or `run`: Celery's own would push a second request."""
    for cls in type(task).__mro__:
        own = cls.__dict__.get("__call__")
        if own is not None and cls is not Contracted:
            return cast("Callable[..., Any]", task.run if cls is Task else own.__get__(task))
    raise AssertionError("a task has a __call__")


def _execute(task: Any, terms: Terms, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    publisher.completed(None)
    if task.request.is_eager:
        terms = terms._replace(policy=_without_waiting(terms.policy))
    try:
        message = _message(task, terms, args, kwargs)
    except EnvelopeError as error:
        with _else_back_to_the_broker():
            put_aside(terms.contract, _unread_message(task, terms, args, kwargs), "invalid", error)
        raise
    begun = _begin(task, terms, message)
    if begun is None:
        return body(*args, **kwargs)
    if isinstance(begun, Handled):
        return _answer(task, message, begun)
    return _run(task, terms, body, message, begun)


@cache
def _without_waiting(policy: Policy) -> Policy:
    """Eager mode repeats at once, so the record must not ask it to wait."""
    return policy.model_copy(update={"backoff": Backoff(kind="fixed", initial=0, max=0, jitter="none")})


@contextmanager
def _else_back_to_the_broker() -> Iterator[None]:
    """If store or broker go away in the middle of our own doing, the delivery is not acknowledged."""
    try:
        yield
    except (StoreUnavailable, OperationalError) as error:
        raise Reject(error, requeue=True) from error


def _begin(task: Any, terms: Terms, message: Message) -> Run | Handled | None:
    """None to run without a claim: a watched task does not depend on the store."""
    try:
        return begin(terms.contract, message, task.run, terms.policy, patience=PATIENCE if terms.steered else 0.0)
    except StoreUnavailable as error:
        if not terms.steered:
            log.warning("%s[%s] runs without a claim: %s", task.name, message.message_id, error)
            return None
        raise Reject(error, requeue=True) from error


def _run(task: Any, terms: Terms, body: Callable[..., Any], message: Message, run: Run) -> Any:
    contract = terms.contract
    try:
        with run.active():
            result = body(*run.args, **run.kwargs)
    except Retry as retry:
        _wait(terms, run, retry)
        raise
    except Ignore:
        finish(contract, message, run, None)
        raise
    except Reject as rejected:
        if not rejected.requeue:
            return _perform(task, message, run, fail(contract, message, run, rejected), rejected)
        interrupt(contract, message, run)
        raise
    except MemoryError as error:
        # Celery stops the worker at a MemoryError and the broker delivers the message to the next one.
        return _failed(task, terms, message, run, ContractError(f"the task ran out of memory: {error}"))
    except Exception as error:  # noqa: BLE001  (whatever a task raises is classified)
        return _failed(task, terms, message, run, error)
    except BaseException:
        interrupt(contract, message, run)
        raise
    with _else_back_to_the_broker():
        handled = finish(contract, message, run, result)
    if handled.verdict.action == "defer":
        return _answer(task, message, handled)
    publisher.completed(message.envelope.idempotency_key)
    return result


def _failed(task: Any, terms: Terms, message: Message, run: Run, error: Exception) -> Any:
    with _else_back_to_the_broker():
        handled = fail(terms.contract, message, run, error, final=not terms.steered)
    return _perform(task, message, run, handled, error)


def _perform(task: Any, message: Message, run: Run, handled: Handled, error: Exception) -> Any:
    """Do what the verdict says, in Celery's words."""
    if handled.verdict.action == "retry":
        with run.active():
            return task.retry(exc=error, countdown=handled.verdict.delay, max_retries=UNBOUNDED)
    if handled.verdict.action == "dead":
        raise error
    return _answer(task, message, handled)


def _answer(task: Any, message: Message, handled: Handled) -> Any:
    """A delivery that is not to run."""
    verdict = handled.verdict
    if verdict.action == "done":
        publisher.completed(message.envelope.idempotency_key)
        return handled.result if handled.has_result else _from_backend(task, message)
    if verdict.action == "dead":
        if verdict.reason == "already-dead":
            raise Ignore(verdict.because)
        raise ContractError(f"{verdict.reason}: {verdict.because}")
    with _else_back_to_the_broker():
        _defer(task, message, verdict.delay)
    raise Ignore(f"deferred: {verdict.reason}")


def _from_backend(task: Any, message: Message) -> Any:
    """A result that was too large for the record may be in the result backend."""
    found = task.AsyncResult(message.message_id)
    return found.result if not task.ignore_result and found.successful() else None


def _wait(terms: Terms, run: Run, retry: Retry) -> None:
    """The task asked for its own retry: the record waits with the message that was just published."""
    contract = terms.contract
    contract.leases.remove(run)
    delay = float(retry.when) if isinstance(retry.when, (int, float)) else 0.0
    keep = contract.settings.message_retention + delay
    try:
        contract.store.retry(run.hold, delay=delay, keep=keep, error=message_of(retry.exc) if retry.exc else "")
    except (LeaseLost, StoreUnavailable) as error:
        # The copy is on its way, and finds the record running until its lease ends.
        log.warning("%r waits for its retry, and the record does not know: %s", run.hold.work.message_id, error)


def _defer(task: Any, message: Message, delay: float) -> None:
    """Publish a delayed copy; the delivery at hand may then be dropped."""
    request = task.request
    count = int((request.headers or {}).get(DEFERRALS, 0)) + 1
    options = task.app.conf.broker_transport_options or {}
    longest = min(LONGEST_DEFERRAL, float(options.get("visibility_timeout", 3600)) / 2)
    copy = task.signature_from_request(
        request, message.args, dict(message.kwargs), countdown=min(delay, longest, 2.0**count), retries=request.retries
    )
    copy.options["headers"] = {**(copy.options.get("headers") or {}), DEFERRALS: count}
    with publisher.copying(message.envelope.to_wire(payload=False)):
        copy.apply_async()


def _run_of(task: Any) -> Run | None:
    try:
        run = current_run()
    except ContractError:
        return None
    return run if run.hold.work.message_id == task.request.id else None


# --- the message ------------------------------------------------------------------------------------------------------


def _message(task: Any, terms: Terms, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Message:
    wire = (task.request.headers or {}).get(publisher.HEADER)
    if wire is None:
        return _unread_message(task, terms, args, kwargs)
    return _delivery(task, Envelope.from_wire(wire), args, kwargs)


def _unread_message(task: Any, terms: Terms, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Message:
    """A delivery without an envelope (an older producer, eager mode), or with one that cannot be read."""
    request = task.request
    log.debug("%s[%s] came without an envelope", task.name, request.id)
    nesting = request.replaced_task_nesting
    key = f"{request.id}.{nesting}" if nesting else request.id
    declared = terms.policy.key is not None
    call = Call(task.name, terms.policy, task.run, args, kwargs, idempotency_key=None if declared else key)
    return _delivery(task, envelope_for(terms.contract, call, request.id), args, kwargs)


def _delivery(task: Any, envelope: Envelope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Message:
    request = task.request
    delivery = request.delivery_info or {}
    return Message(
        envelope,
        request.id,
        args,
        kwargs,
        queue=delivery.get("routing_key") or "",
        framework="celery",
        raw=partial(_raw, task, envelope, args, kwargs),
        details={"root_id": request.root_id, "parent_id": request.parent_id, "retries": request.retries},
    )


def _raw(task: Any, envelope: Envelope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """What a replay needs, as the dead letter keeps it."""
    options = task.signature_from_request(task.request, args, kwargs, retries=0).options
    kept = {name: value for name, value in options.items() if value is not None and name not in ("headers", "expires")}
    body = {
        "task": task.name,
        "contract": envelope.to_wire(payload=False),
        "args": args,
        "kwargs": kwargs,
        "options": kept,
    }
    return str(json.dumps(body, default=repr)).encode()  # type: ignore[no-untyped-call]
