"""One frozen event per transition. Logs, signals, hooks, metrics and Sentry listen; nothing else calls them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

log = logging.getLogger("task_contract")

EventName = Literal[
    "enqueued",
    "deduplicated",
    "unguarded",
    "started",
    "completed",
    "repeated",
    "retried",
    "deferred",
    "interrupted",
    "dead",
    "stale",
    "lease_lost",
]


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a message, and all that a log line about it must hold (A16)."""

    name: EventName
    message_id: str = ""
    message_type: str = ""
    idempotency_key: str = ""
    correlation_id: str = ""
    causation_id: str = ""
    subject: str = ""
    source: str = ""
    queue: str = ""
    worker: str = ""
    attempt: int = 0
    #: For the broker: "acked", "retried" or "dead-lettered"; empty where nothing was delivered.
    outcome: str = ""
    reason: str = ""
    because: str = ""
    delay: float = 0.0
    duration: float = 0.0
    error_type: str = ""
    error: str = ""
    status: int | None = None
    letter_id: str = ""


Listener = Callable[[Event], None]

_LEVELS: dict[str, int] = {
    "retried": logging.WARNING,
    "unguarded": logging.WARNING,
    "lease_lost": logging.WARNING,
    "dead": logging.ERROR,
    "started": logging.DEBUG,
    "enqueued": logging.DEBUG,
}
_FIELDS = tuple(name for name in Event.__slots__ if name != "name")


def write_log(event: Event) -> None:
    """The default listener: one line with the fields in it, and the same fields on the log record."""
    level = _LEVELS.get(event.name, logging.INFO)
    if not log.isEnabledFor(level):
        return
    said = {name: value for name in _FIELDS if (value := getattr(event, name)) not in ("", 0, 0.0, None)}
    text = " ".join(f"{name}={_shown(value)}" for name, value in said.items())
    log.log(level, "%s %s", event.name, text, extra={"contract": {"event": event.name, **said}})


def _shown(value: object) -> str:
    # Escaped: a message's own text must not be able to forge a second log line.
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return text if text.isascii() and text.isprintable() and " " not in text else repr(text)


class Listeners:
    """Who is told. A listener that fails is logged; it cannot harm the work it hears of."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = (write_log,)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of every event; the function that comes back unsubscribes it."""
        self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

        return unsubscribe

    def emit(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # noqa: PERF203  (each listener on its own)
                log.exception("a listener failed on the event %s", event.name)
