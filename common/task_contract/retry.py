"""What to do after a failed attempt: `decide` returns a `Verdict`, a value; the adapter acts on it."""

from __future__ import annotations

import random as _random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from task_contract.classify import Classification, Rule, classify
from task_contract.durations import HOUR, human
from task_contract.peek import message_of, name_of

if TYPE_CHECKING:
    from task_contract.policy import Policy

Action: TypeAlias = Literal["done", "retry", "dead", "defer"]

MAX_DELAY = 12 * HOUR
"""The longest wait for a Retry-After (A11)."""

RATE_LIMITED_DELAY = 1.0
"""The shortest wait after a 429 (A13): full jitter may say 0, and that would be a hot loop."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens to a message now, and what a log line (A16, E8) says of it.

    `reason` is a code: `transient`, `rate-limited`, `unclassified`, `exhausted`, `non-retryable`, or what a caller of
    `defer` gives. `because` is the sentence for people.
    """

    action: Action
    delay: float = 0.0
    reason: str = ""
    because: str = ""
    status: int | None = None
    error_type: str | None = None
    error: str | None = None


def done() -> Verdict:
    return Verdict("done")


def defer(delay: float, reason: str, because: str = "") -> Verdict:
    """Not now, and no attempt is charged: somebody else has the key, or there is no slot."""
    return Verdict("defer", delay=delay, reason=reason, because=because)


def decide(
    error: BaseException,
    attempt: int,
    policy: Policy,
    *,
    rules: Iterable[Rule] = (),
    now: float | None = None,
    random: Callable[[], float] = _random.random,
    max_delay: float = MAX_DELAY,
) -> Verdict:
    """Retry or dead, after this attempt (the first is 1) ended in this error."""
    backoff = min(policy.backoff.delay(attempt, random), max_delay)
    found = classify(error, policy, rules, now=now)
    if found.kind == "permanent":
        return _verdict("dead", error, "non-retryable", found)
    if found.kind == "unclassified" and policy.unclassified == "dead":
        return _verdict("dead", error, "unclassified", found)
    if attempt >= policy.attempts:
        return _verdict("dead", error, "exhausted", found, note=f"; attempt {attempt} of {policy.attempts} failed")
    delay, note = _wait(found, backoff, max_delay)
    return _verdict("retry", error, _reason(found), found, delay=delay, note=note)


def _wait(found: Classification, backoff: float, max_delay: float) -> tuple[float, str]:
    """What the task itself asked for; else the longer of the backoff and what the other side asked for.

    A Retry-After beyond `max_delay` is tried at `max_delay`, and the verdict says so. Refusing it, as A11 does with a
    delay that the user wrote, would bury work because of a number that a stranger sent.
    """
    shortest = RATE_LIMITED_DELAY if found.rate_limited else 0.0
    asked = found.retry_after or 0.0
    note = f"; Retry-After of {human(asked)} cut to {human(max_delay)}" if asked > max_delay else ""
    wait = max(asked, shortest) if found.exact else max(backoff, asked, shortest)
    return min(wait, max_delay), note


def _reason(found: Classification) -> str:
    if found.kind == "unclassified":
        return "unclassified"
    return "rate-limited" if found.rate_limited else "transient"


def _verdict(
    action: Action, error: BaseException, reason: str, found: Classification, *, delay: float = 0.0, note: str = ""
) -> Verdict:
    return Verdict(
        action,
        delay=delay,
        reason=reason,
        because=found.because + note,
        status=found.status,
        error_type=name_of(type(error)),
        error=message_of(error),
    )
