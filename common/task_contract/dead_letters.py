"""Dead letters: how one is written, and what an operator can do with it."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import secrets
import socket
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING

from task_contract.errors import ContractError
from task_contract.peek import message_of, name_of, peek
from task_contract.stores.base import DeadLetter, Filter, LetterStats, Page

if TYPE_CHECKING:
    from task_contract.contract import Contract
    from task_contract.running import Message

#: A letter must be readable; a traceback of a million frames is not.
MAX_ERROR, MAX_TRACEBACK = 10_000, 50_000

Publisher = Callable[[DeadLetter], None]


def compose(
    message: Message,
    reason: str,
    error: BaseException | None = None,
    *,
    because: str = "",
    attempts: int = 0,
    crashes: int = 0,
    letter_id: str = "",
) -> DeadLetter:
    """The dead letter for a message, with everything known of its failure (E3)."""
    envelope = message.envelope
    return DeadLetter(
        id=letter_id or new_letter_id(),
        reason=reason,
        message=_body(message),
        message_type=envelope.message_type,
        key=envelope.idempotency_key,
        message_id=message.message_id,
        correlation_id=envelope.correlation_id,
        causation_id=envelope.causation_id or "",
        subject=envelope.subject or "",
        queue=message.queue,
        error_type=name_of(type(error)) if error else "",
        error=message_of(error, MAX_ERROR) if error else because[:MAX_ERROR],
        traceback=_traceback(error),
        attempts=attempts,
        crashes=crashes,
        worker=worker_name(),
        group=fingerprint(error, envelope.message_type, reason),
        framework=message.framework,
        content_type=message.content_type,
        enqueued_at=envelope.created_at.isoformat(),
        details={"because": because, "python": sys.version.split()[0], **message.details},
    )


def _body(message: Message) -> bytes:
    """Nothing about a message may keep it from being buried."""
    try:
        return message.body()
    except Exception as error:  # noqa: BLE001  (a hostile argument's repr, a depth, a key that JSON has not)
        told = f"the message could not be written down: {name_of(type(error))}: {message_of(error)}"
        return json.dumps({"id": message.message_id, "unreadable": told}).encode()


def letter_id_of(message_id: str, reason: str) -> str:
    """The id of a letter without a record: the same at each delivery of the message, so that there is one letter."""
    return hashlib.sha256(f"{reason}|{message_id}".encode("utf-8", "surrogatepass")).hexdigest()[:24]


def new_letter_id() -> str:
    """Unique, and roughly in the order of time."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"


def worker_name() -> str:
    return f"{_host()}:{os.getpid()}"


@cache
def _host() -> str:
    return socket.gethostname()


def _traceback(error: BaseException | None) -> str:
    if error is None:
        return ""
    try:
        text = "".join(traceback.format_exception(type(error), error, _trace(error), limit=-100))
    except Exception:  # noqa: BLE001  (an exception that bites when it is looked at)
        text = "".join(traceback.format_tb(_trace(error), limit=-100)) + name_of(type(error))
    return text if len(text) <= MAX_TRACEBACK else f"{text[: MAX_TRACEBACK // 2]}\n…\n{text[-MAX_TRACEBACK // 2 :]}"


def _trace(error: BaseException) -> TracebackType | None:
    found = peek(error, "__traceback__")
    return found if isinstance(found, TracebackType) else None


def fingerprint(error: BaseException | None, message_type: str, reason: str) -> str:
    """One for each kind of failure: type, innermost frame of the user's own code, message type. No line numbers."""
    what = f"{name_of(type(error))}@{_innermost(_trace(error))}" if error else reason
    return hashlib.sha256(f"{what}|{message_type}".encode("utf-8", "replace")).hexdigest()[:12]


def _innermost(trace: TracebackType | None) -> str:
    frames = [frame for frame in _frames(trace) if not _is_library(frame[0])] or list(_frames(trace))
    return f"{frames[-1][1]}.{frames[-1][2]}" if frames else ""


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, str, str]]:
    while trace is not None:
        code = trace.tb_frame.f_code
        name = getattr(code, "co_qualname", code.co_name)  # since 3.11
        yield code.co_filename, trace.tb_frame.f_globals.get("__name__", ""), name
        trace = trace.tb_next


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths["stdlib"], paths["purelib"], paths["platlib"], os.path.dirname(__file__)})


def _is_library(filename: str) -> bool:
    return filename.startswith((*_library_folders(), "<frozen"))


class DeadLetters:
    """`contract.dead_letters`: inspect, replay, discard."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract

    def page(
        self,
        *,
        limit: int = 50,
        cursor: str = "",
        closed: bool = False,
        since: datetime | None = None,
        until: datetime | None = None,
        **facets: str,
    ) -> Page:
        """Newest first; filters are `message_type`, `queue`, `error_type`, `group`, `reason`, `correlation_id`, …"""
        where = Filter(closed=closed, since=since, until=until, **facets)
        return self._contract.store.page_letters(where, limit=limit, cursor=cursor)

    def get(self, letter_id: str) -> DeadLetter | None:
        return self._contract.store.get_letter(letter_id)

    def stats(self) -> LetterStats:
        return self._contract.store.letter_stats()

    def replay(self, letter_id: str, *, by: str = "", reason: str = "") -> DeadLetter:
        """Send the message again, under its own id and key. Repeatable: at worst two copies exist, and one runs."""
        contract = self._contract
        if contract.publisher is None:
            raise ContractError("nothing to publish with: replay through the app that the message belongs to")
        letter = contract.store.replay_letter(
            letter_id, by=by or _operator(), reason=reason, keep=contract.settings.message_retention
        )
        contract.publisher(letter)
        contract.store.mark_replayed(letter_id)
        return letter

    def discard(self, letter_id: str, *, by: str = "", reason: str = "") -> bool:
        """Mark it terminal; it stays readable until its retention ends. False if it was discarded before."""
        return self._contract.store.discard_letter(letter_id, by=by or _operator(), reason=reason)


def _operator() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user in a container
        return f"uid {os.getuid()}"
