"""What happens after a failed attempt: the verdicts (A11, A13, C5, D4, E6, E8)."""

from __future__ import annotations

import dataclasses
import pickle
import random
from datetime import datetime, timedelta, timezone
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from task_contract import errors, retry
from task_contract.classify import Rules
from task_contract.policy import Backoff, Policy
from task_contract.retry import MAX_DELAY, Verdict, decide

NOW = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)
PLAIN = Policy(backoff=Backoff(initial=5, max=300, jitter="none"))
HOUR = 3600.0


class ShopError(Exception):
    pass


def response_error(status: int, retry_after: str | None = None) -> httpx.HTTPStatusError:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    response = httpx.Response(status, headers=headers, request=httpx.Request("GET", "http://x"))
    return httpx.HTTPStatusError(f"status {status}", request=response.request, response=response)


@pytest.mark.parametrize(
    ("error", "action", "reason", "status"),
    [
        (TimeoutError(), "retry", "transient", None),
        (response_error(503), "retry", "transient", 503),
        (response_error(429), "retry", "rate-limited", 429),
        (response_error(404), "dead", "non-retryable", 404),
        (ValueError(), "dead", "non-retryable", None),
        (errors.RetryableError(), "retry", "transient", None),
        (errors.NonRetryableError(), "dead", "non-retryable", None),
        (ShopError(), "retry", "unclassified", None),
        # Never a dead letter: the work is in another worker's hands, which the store says when it is asked to wait.
        (errors.LeaseLost(), "retry", "transient", None),
    ],
    ids=repr,
)
def test_action_and_reason(error: BaseException, action: str, reason: str, status: int | None) -> None:  # E6, A14, A16
    verdict = decide(error, 1, PLAIN)
    assert (verdict.action, verdict.reason, verdict.status) == (action, reason, status)
    assert (verdict.delay == 0) == (action == "dead")


def wrapped(outer: Exception, cause: Exception) -> Exception:
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("attempt", "attempts", "error", "action", "reason"),
    [
        (1, 3, TimeoutError(), "retry", "transient"),
        (2, 3, TimeoutError(), "retry", "transient"),
        (3, 3, TimeoutError(), "dead", "exhausted"),
        (4, 3, TimeoutError(), "dead", "exhausted"),
        (1, 1, TimeoutError(), "dead", "exhausted"),
        (3, 3, response_error(429, "5"), "dead", "exhausted"),
        (3, 3, errors.RetryableError(retry_after=5), "dead", "exhausted"),
        (3, 3, ShopError(), "dead", "exhausted"),
        # Permanent is the better news of the two for whoever reads the dead letter.
        (3, 3, ValueError(), "dead", "non-retryable"),
    ],
)
def test_attempts_are_bounded(
    attempt: int, attempts: int, error: BaseException, action: str, reason: str
) -> None:  # D4
    verdict = decide(error, attempt, Policy(attempts=attempts))
    assert (verdict.action, verdict.reason) == (action, reason)


@pytest.mark.parametrize(
    ("unclassified", "attempt", "action", "reason"),
    [("retry", 1, "retry", "unclassified"), ("retry", 5, "dead", "exhausted"), ("dead", 1, "dead", "unclassified")],
)
def test_unclassified_is_the_policys(unclassified: Any, attempt: int, action: str, reason: str) -> None:  # E6
    verdict = decide(ShopError(), attempt, Policy(unclassified=unclassified))
    assert (verdict.action, verdict.reason) == (action, reason)


def test_unclassified_dead_leaves_the_transient_alone() -> None:  # E6
    assert decide(TimeoutError(), 1, Policy(unclassified="dead")).action == "retry"


@pytest.mark.parametrize(("attempt", "delay"), [(1, 5.0), (2, 10.0), (3, 20.0), (4, 40.0), (7, 300.0), (60, 300.0)])
def test_backoff_is_exponential(attempt: int, delay: float) -> None:  # C5, D4
    policy = Policy(attempts=100, backoff=Backoff(initial=5, max=300, jitter="none"))
    assert decide(TimeoutError(), attempt, policy).delay == delay


@pytest.mark.parametrize(("draw", "delay"), [(0.0, 0.0), (0.25, 2.5), (0.999, 9.99)])
def test_full_jitter(draw: float, delay: float) -> None:  # C5, D4
    assert decide(TimeoutError(), 2, Policy(), random=lambda: draw).delay == pytest.approx(delay)


@pytest.mark.parametrize(
    ("error", "delay"),
    [
        (response_error(503, "120"), 120.0),
        (response_error(503, "2"), 5.0),  # the backoff is longer
        (response_error(503, "900"), 900.0),  # beyond the backoff's own max
        (response_error(503, "Tue, 01 Jan 2030 12:05:00 GMT"), 300.0),
        (response_error(503, "Tue, 01 Jan 2030 11:00:00 GMT"), 5.0),
        (response_error(503, "garbage"), 5.0),
        (response_error(503, "-60"), 5.0),
        (errors.RetryableError(retry_after=60), 60.0),
        (errors.RetryableError(retry_after=2), 2.0),  # the task's own word is exact
        (wrapped(ShopError(), errors.RetryableError(retry_after=0)), 0.0),
        (wrapped(errors.RetryableError(), response_error(503, "2")), 5.0),
        (errors.RetryableError(retry_after=timedelta(minutes=2)), 120.0),
        (errors.RetryableError(retry_after=NOW + timedelta(minutes=3)), 180.0),
        (errors.RetryableError(retry_after=float("nan")), 5.0),
        (errors.RetryableError(), 5.0),
    ],
)
def test_retry_after_is_honoured(error: BaseException, delay: float) -> None:  # A13
    assert decide(error, 1, PLAIN, now=NOW.timestamp()).delay == delay


@pytest.mark.parametrize(
    ("asked", "max_delay", "delay", "says"),
    [
        (12 * HOUR, MAX_DELAY, 12 * HOUR, None),
        (24 * HOUR, MAX_DELAY, 12 * HOUR, "Retry-After of 1 day cut to 12 h"),
        (1e15, MAX_DELAY, 12 * HOUR, "cut to 12 h"),
        (60, 30.0, 30.0, "Retry-After of 1 min cut to 30 s"),
        (0, 3.0, 0.0, None),
    ],
)
def test_longest_wait_is_bounded_and_said(
    asked: float, max_delay: float, delay: float, says: str | None
) -> None:  # A11
    verdict = decide(errors.RetryableError(retry_after=asked), 1, PLAIN, max_delay=max_delay)
    assert (verdict.action, verdict.delay) == ("retry", delay)
    assert says in verdict.because if says else "cut" not in verdict.because


def test_backoff_is_bounded_as_well() -> None:  # A11
    assert decide(TimeoutError(), 1, PLAIN, max_delay=3.0).delay == 3.0


def test_rate_limited_is_never_a_hot_loop() -> None:  # A13
    for error in (response_error(429), response_error(429, "0")):
        assert decide(error, 1, Policy(), random=lambda: 0.0).delay == 1.0
    assert decide(response_error(503), 1, Policy(), random=lambda: 0.0).delay == 0.0


def test_policy_and_rules_are_heard() -> None:  # E6
    rules = Rules()
    rules.add(ShopError, "permanent")
    assert decide(ShopError(), 1, Policy(), rules=rules).action == "dead"
    assert decide(ShopError(), 1, Policy(retry_on=(ShopError,)), rules=rules).action == "retry"
    assert decide(TimeoutError(), 1, Policy(dead_on=(TimeoutError,))).action == "dead"


def test_verdict_tells_what_a_log_needs() -> None:  # E8, A16
    verdict = decide(response_error(503), 5, Policy(attempts=5))
    assert verdict == Verdict(
        "dead",
        reason="exhausted",
        because="httpx.HTTPStatusError with status 503; attempt 5 of 5 failed",
        status=503,
        error_type="httpx.HTTPStatusError",
        error="status 503",
    )
    assert decide(ShopError("sold out"), 1, Policy()).error_type == f"{__name__}.ShopError"


def test_error_text_is_short_and_never_fails() -> None:  # E8
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    long = decide(ShopError("x" * 100_000), 1, Policy()).error
    assert long is not None
    assert (len(long), long[-1]) == (500, "…")
    assert decide(Unprintable(), 1, Policy()).error == "<no text: str() of this error fails>"


def test_verdict_is_a_value() -> None:  # D4
    verdict = retry.defer(3.0, "busy", "another worker has it")
    assert verdict == Verdict("defer", delay=3.0, reason="busy", because="another worker has it")
    assert retry.done() == Verdict("done")
    assert pickle.loads(pickle.dumps(verdict)) == verdict
    assert len({verdict, retry.done(), retry.done()}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.delay = 0.0  # type: ignore[misc]


@settings(deadline=None)
@given(
    st.sampled_from([TimeoutError(), ShopError(), response_error(429, "7"), errors.RetryableError(retry_after=1e9)]),
    st.integers(1, 1000),
    st.integers(1, 1000),
    st.integers(),
)
def test_decide_is_pure_and_bounded(error: BaseException, attempt: int, attempts: int, seed: int) -> None:  # D4, C5
    policy = Policy(attempts=attempts)
    first, second = (decide(error, attempt, policy, now=0.0, random=random.Random(seed).random) for _ in range(2))
    assert first == second
    assert 0.0 <= first.delay <= MAX_DELAY
    assert (first.action == "retry") == (attempt < attempts)
