"""Every publish of the app passes here: envelope, deduplication, and copies of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple

from celery import Celery
from celery.exceptions import OperationalError
from celery.signals import task_postrun
from celery.utils.time import maybe_make_aware
from kombu.utils import json

from celery_contract.attachment import Attachment, Terms, registry, terms_of
from task_contract import DeadLetter
from task_contract.errors import ContractError
from task_contract.keys import child_key
from task_contract.sending import Call, Prepared, confirm, prepare, release

HEADER = "contract"
#: Suppressing a message with one of these would break the canvas it belongs to.
CANVAS = ("group_id", "chord", "chain", "link", "link_error", "retries", "reply_to", "replaced_task_nesting")

#: The envelope of the message whose copy is being sent: a retry, a deferral, a replay. No public parameter sets it.
_copied: ContextVar[dict[str, Any] | None] = ContextVar("celery_contract_copied", default=None)
#: The key of work that is complete, and how many messages have been sent because of that.
_completed: ContextVar[list[Any] | None] = ContextVar("celery_contract_completed", default=None)


@contextmanager
def copying(wire: dict[str, Any]) -> Iterator[None]:
    """What is sent inside is a copy of this message: the same work, never a duplicate."""
    before = _copied.set(wire)
    try:
        yield
    finally:
        _copied.reset(before)


def completed(key: str | None) -> None:
    """What is sent from now on continues the work of this key, until its task is over."""
    _completed.set(None if key is None else [key, 0])


def _is_over(**_: Any) -> None:
    # What runs here next is other work, not even ours perhaps: it must not get a key derived from this one.
    completed(None)


task_postrun.connect(_is_over, weak=False, dispatch_uid="celery_contract")


class Asked(NamedTuple):
    """A call of `send_task`."""

    name: str
    args: Any
    kwargs: Any
    rest: tuple[Any, ...]
    options: dict[str, Any]


class Publisher:
    """Stands in for `app.send_task`."""

    def __init__(self, app: Celery, attachment: Attachment) -> None:
        self._app, self._attachment = app, attachment

    def __call__(self, name: str, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        own = {option: options.pop(option, None) for option in ("idempotency_key", "subject")}
        asked = Asked(name, args, kwargs, rest, options)
        wire = _copied.get()
        if wire is not None:
            return self._send(asked, wire)
        task = options.get("task_type") or registry(self._app).get(name)
        terms = None if name.startswith("celery.") else terms_of(self._attachment, task)
        if terms is None:
            return self._send(asked)
        return self._publish(terms, self._call(terms, task, asked, **own), asked)

    def _call(self, terms: Terms, task: Any, asked: Asked, *, idempotency_key: Any, subject: Any) -> Call:
        if idempotency_key is None and terms.policy.key is None:
            idempotency_key = _continued_key(asked.name)
        return Call(
            asked.name,
            terms.policy,
            task.run if task is not None else None,
            tuple(asked.args or ()),
            dict(asked.kwargs or {}),
            message_id=asked.options.get("task_id") or "",
            delay=self._delay(asked.options),
            idempotency_key=idempotency_key,
            subject=subject,
            bounded=terms.steered,
            binding=not any(asked.options.get(part) for part in CANVAS),
        )

    def _delay(self, options: dict[str, Any]) -> float:
        if options.get("countdown"):
            return float(options["countdown"])
        eta = options.get("eta")
        if not isinstance(eta, datetime):
            return 0.0
        aware = maybe_make_aware(eta, self._app.timezone)
        return max(0.0, float((aware - self._app.now()).total_seconds()))

    def _publish(self, terms: Terms, call: Call, asked: Asked) -> Any:
        prepared = prepare(terms.contract, call)
        if prepared.duplicate is not None:
            return self._existing(prepared, asked.options)
        asked.options["task_id"] = prepared.message_id
        try:
            result = self._send(asked, prepared.envelope.to_wire(payload=False))
        except Exception as error:
            if _surely_unsent(error):
                release(terms.contract, prepared)
            raise
        confirm(terms.contract, prepared)
        result.duplicate = False
        return result

    def _send(self, asked: Asked, wire: dict[str, Any] | None = None) -> Any:
        options = asked.options
        if wire is not None:
            # Copied, never changed in place: beat hands out the same headers for every tick.
            options["headers"] = {**(options.get("headers") or {}), HEADER: wire}
        return self._attachment.send_task(asked.name, asked.args, asked.kwargs, *asked.rest, **options)

    def _existing(self, prepared: Prepared, options: dict[str, Any]) -> Any:
        result = (options.get("result_cls") or self._app.AsyncResult)(prepared.message_id)
        result.duplicate = True
        parent = self._app.current_worker_task
        if parent and options.get("add_to_parent", True):
            parent.add_trail(result)
        return result


def _continued_key(name: str) -> str | None:
    """Derived, not minted: a finished duplicate dispatches again, and that must be recognised."""
    state = _completed.get()
    if state is None:
        return None
    state[1] += 1
    return child_key(state[0], f"{name}.{state[1]}")


def _surely_unsent(error: Exception) -> bool:
    """A connection that broke may have carried the message; whatever else went wrong did so before it was sent."""
    if isinstance(error, OperationalError):
        return isinstance(error.__cause__, ConnectionRefusedError)
    return not isinstance(error, (OSError, TimeoutError))


def republish(app: Celery, letter: DeadLetter) -> None:
    """Send a dead letter's message again, under its own id, to a task that is registered here."""
    data: dict[str, Any] = json.loads(letter.message)  # type: ignore[no-untyped-call]
    if data["task"] not in app.tasks:
        raise ContractError(f"{data['task']} is not registered in this app: replay it where it is")
    with copying(data["contract"]):
        app.send_task(data["task"], data["args"], data["kwargs"], **data["options"])
