"""Work of a realistic size: the ids, names and results of an ordinary task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from task_contract.envelope import Envelope, new_envelope
from task_contract.keys import store_key
from task_contract.running import Message
from task_contract.stores.base import DeadLetter, Hold, Limits, Work

MESSAGE_TYPE = "shop.billing.charge.order"  # 25 characters
LEASE, KEEP, RETAIN, RESERVED, WINDOW = 30.0, 86_400.0 * 8, 86_400.0, 30.0, 3_600.0
LIMITS = Limits()
RESULT = b'{"charged":true,"cents":1999,"receipt":"' + b"r" * 58 + b'"}'  # 100 bytes


class Job(NamedTuple):
    """One piece of work, as a worker and its producer know it."""

    key: str
    work: Work
    owner: str
    token: str

    def hold(self, fence: int = 1, attempt: int = 1) -> Hold:
        return Hold(self.key, self.owner, fence, attempt, self.work)


def job(number: int, series: str) -> Job:
    message_id = f"{series}{number:x}".rjust(32, "0")
    readable = f"customer-{number:08d}:invoice-{number:08d}:{series}"[:40]
    work = Work(
        message_id=message_id,
        message_type=MESSAGE_TYPE,
        key=readable,
        payload_hash="p" * 22,
        correlation_id=message_id[::-1],
        subject=f"inv-{number:08d}",
        worker="worker-7f9c:12345",
    )
    return Job(store_key(MESSAGE_TYPE, f"{readable}{message_id}"), work, message_id[-16:], message_id[:16])


def jobs(size: int, series: str) -> list[Job]:
    return [job(number, series) for number in range(size)]


def message(one: Job) -> Message:
    """The delivery that brings this job to a worker."""
    return Message(_envelope(one), one.work.message_id, args=(1,), queue="celery")


def _envelope(one: Job) -> Envelope:
    return new_envelope(
        message_type=MESSAGE_TYPE,
        idempotency_key=one.work.message_id,
        correlation_id=one.work.correlation_id,
        subject=one.work.subject,
    )


def no_op(value: int) -> int:
    return value


def letters(size: int, series: str) -> Sequence[DeadLetter]:
    return [letter(number, series) for number in range(size)]


def letter(number: int, series: str) -> DeadLetter:
    work = job(number, series).work
    error = ("ValueError", "TimeoutError", "KeyError", "HTTPError")[number % 4]
    return DeadLetter(
        id=work.message_id,
        reason=("exhausted", "permanent", "worker-killed")[number % 3],
        message=b'{"args":[1],"kwargs":{}}' * 10,
        message_type=MESSAGE_TYPE,
        key=work.key,
        message_id=work.message_id,
        correlation_id=work.correlation_id,
        subject=work.subject,
        queue=("celery", "mail")[number % 2],
        error_type=error,
        error="it did not work",
        traceback="Traceback (most recent call last):\n" * 10,
        group=f"{error}-{number % 10}",
    )
