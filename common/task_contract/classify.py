"""Is it worth another try? `classify` answers for any exception; `Rules` are the user's own answers (E6).

The first of these that speaks settles it:
 1. a RetryableError or NonRetryableError, as it is or anywhere in the `__cause__` chain, the outermost first;
 2. the policy's `dead_on` and `retry_on`, the class closest to the error's own first;
 3. registered rules, in the order of registration;
 4. the status on the exception: HTTP, gRPC, AWS;
 5. what is known of its class by name;
 6. the same, from 2 on, for what it was raised `from`.
What remains is unclassified, and the policy says what that means.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

from task_contract import known_errors, upstream
from task_contract.errors import ConfigurationError, NonRetryableError, RetryableError
from task_contract.peek import ancestors, causes, is_group, leaves, name_of, peek
from task_contract.upstream import Kind

if TYPE_CHECKING:
    from task_contract.policy import Policy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Classification:
    """What is thought of an error. `status` and `retry_after` are the other side's words, where it had any."""

    kind: Kind
    status: int | None = None
    retry_after: float | None = None
    because: str = ""
    rate_limited: bool = False
    #: The task itself said how long to wait; no backoff lengthens it.
    exact: bool = False


Settled: TypeAlias = Literal["transient", "permanent"]
Rule: TypeAlias = Callable[[BaseException], Classification | Settled | None]
Match: TypeAlias = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]
RetryAfter: TypeAlias = Callable[[BaseException], float | timedelta | datetime | str | None]


class Rules:
    """The user's own knowledge of errors; the first rule with an answer settles it."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []

    def add(self, match: Match, kind: Settled, *, retry_after: RetryAfter | None = None) -> None:
        """Errors of this type (or types, or for which this function is true) are of this kind.

        `retry_after` gets the error and returns what a RetryableError takes, or the text of a header.
        """
        if kind not in ("transient", "permanent"):
            raise ConfigurationError(f'a rule says "transient" or "permanent", not {kind!r}')
        matches = _matcher(match)

        def rule(error: BaseException) -> Classification | None:
            if not matches(error):
                return None
            wanted = retry_after(error) if retry_after is not None else None
            return Classification(kind, retry_after=upstream.seconds_until(wanted, time.time()))

        self._rules.append(rule)

    def rule(self, function: Rule) -> Rule:
        """A decorator: this function gets each error and returns "transient", "permanent", a Classification or None."""
        if not callable(function):
            raise ConfigurationError(f"a rule is a function that takes the error, got {function!r}")
        self._rules.append(function)
        return function

    def __iter__(self) -> Iterator[Rule]:
        # A copy: a rule that is registered while an error is classified waits for the next error.
        return iter(tuple(self._rules))


def classify(
    error: BaseException, policy: Policy | None = None, rules: Iterable[Rule] = (), *, now: float | None = None
) -> Classification:
    """Transient, permanent or unclassified, and why. Never raises, whatever the exception does when it is looked at.

    `now` is a Unix time, for a Retry-After that is a date; left out, the clock is read.
    """
    try:
        return _classify(error, policy, tuple(rules), time.time() if now is None else now)
    except Exception:
        logger.warning("An error of class %s could not be classified", name_of(type(error)), exc_info=True)
        return Classification("unclassified", because="it could not be looked at")


def _classify(error: BaseException, policy: Policy | None, rules: tuple[Rule, ...], now: float) -> Classification:
    chain = causes(error)
    found = _marked(chain, now) or _first_settled(chain, policy, rules, now)
    return _with_answers(found or Classification("unclassified", because=_nobody_knows(error)), chain, now)


def _marked(chain: list[BaseException], now: float) -> Classification | None:
    """The two exceptions that are raised to say it. Inside another one's cause they still say it."""
    for error in chain:
        if NonRetryableError in ancestors(error):
            return Classification("permanent", because=f"{name_of(type(error))} was raised")
        if RetryableError in ancestors(error):
            wait = upstream.seconds_until(peek(error, "retry_after"), now)
            because = f"{name_of(type(error))} was raised"
            return Classification("transient", retry_after=wait, because=because, exact=wait is not None)
    return None


def _first_settled(
    chain: list[BaseException], policy: Policy | None, rules: tuple[Rule, ...], now: float
) -> Classification | None:
    for error in chain:
        found = (
            _by_policy(error, policy)
            or _by_rules(error, rules)
            or _by_members(error, policy, rules, now)
            or _by_answer(error)
            or _by_name(error)
        )
        if found is not None and found.kind != "unclassified":
            return found
    return None


def _by_policy(error: BaseException, policy: Policy | None) -> Classification | None:
    if policy is None:
        return None
    for cls in ancestors(error):
        if cls in policy.dead_on:
            return Classification("permanent", because=f"the policy's dead_on names {name_of(cls)}")
        if cls in policy.retry_on:
            return Classification("transient", because=f"the policy's retry_on names {name_of(cls)}")
    return None


def _by_rules(error: BaseException, rules: tuple[Rule, ...]) -> Classification | None:
    for rule in rules:
        answer = _ask(rule, error)
        if answer is not None:
            return answer if answer.because else replace(answer, because=f"a rule for {name_of(type(error))}")
    return None


def _ask(rule: Rule, error: BaseException) -> Classification | None:
    """A rule that fails must not decide over the work, nor take the worker down."""
    try:
        answer = rule(error)
    except Exception:
        logger.exception("The rule %r failed on an error of class %s; skipped", rule, name_of(type(error)))
        return None
    if answer is None or isinstance(answer, Classification):
        return answer
    if answer in ("transient", "permanent"):
        return Classification(answer)
    logger.error('The rule %r returned %r instead of "transient", "permanent" or None; skipped', rule, answer)
    return None


def _by_members(
    error: BaseException, policy: Policy | None, rules: tuple[Rule, ...], now: float
) -> Classification | None:
    """A group cannot succeed if one of its members cannot; otherwise the member that asks for most time is heard."""
    if not is_group(error):
        return None
    members = [_classify_member(member, policy, rules, now) for member in leaves(error)]
    permanent = next((member for member in members if member.kind == "permanent"), None)
    transient = [member for member in members if member.kind == "transient"]
    if permanent is not None or not transient:
        return permanent
    return max(transient, key=lambda member: member.retry_after or 0.0)


def _classify_member(
    error: BaseException, policy: Policy | None, rules: tuple[Rule, ...], now: float
) -> Classification:
    # A group inside a member's cause is left alone: one level is what TaskGroup makes, more would be without a bound.
    chain = [link for link in causes(error) if not is_group(link)]
    found = _marked(chain, now) or _first_settled(chain, policy, rules, now)
    return _with_answers(found or Classification("unclassified"), chain, now)


def _by_answer(error: BaseException) -> Classification | None:
    judged = upstream.judge_answer(error)
    return Classification(judged[0], because=f"{name_of(type(error))} with {judged[1]}") if judged else None


def _by_name(error: BaseException) -> Classification | None:
    judged = known_errors.judge_name(error)
    if judged is None:
        return None
    own_name = name_of(type(error))
    return Classification(judged[0], because=own_name if judged[1] == own_name else f"{own_name}: {judged[1]}")


def _with_answers(found: Classification, chain: list[BaseException], now: float) -> Classification:
    """The status and the Retry-After may stand on another link than the one that settled the class:
    `raise RetryableError("busy") from response_error` waits as long as the response asked for."""
    statuses = [found.status, *map(upstream.status_of, chain)]
    waits = [found.retry_after, *(upstream.retry_after_of(error, now) for error in chain)]
    return replace(
        found,
        status=next((status for status in statuses if status is not None), None),
        retry_after=next((wait for wait in waits if wait is not None), None),
        rate_limited=found.rate_limited or any(upstream.is_rate_limited(error) for error in chain),
    )


def _nobody_knows(error: BaseException) -> str:
    return f"nothing is known of {name_of(type(error))}"


def _matcher(match: Match) -> Callable[[BaseException], bool]:
    types = match if isinstance(match, tuple) else (match,)
    if types and all(isinstance(each, type) and issubclass(each, BaseException) for each in types):
        return lambda error: any(each in ancestors(error) for each in types)
    if callable(match) and not isinstance(match, type):
        return match
    raise ConfigurationError(f"a rule matches an exception type, a tuple of them or a function, got {match!r}")
