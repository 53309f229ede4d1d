"""Policy and Backoff: what is written wrong is refused where it is written."""

from __future__ import annotations

import pickle
import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from task_contract import durations
from task_contract.errors import ConfigurationError
from task_contract.policy import Backoff, Policy

# A fresh machine builds Unicode tables during the first draw, and a busy one is slow: neither is a failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SECONDS = "durations are in seconds, not milliseconds: did you mean"


def test_the_defaults_are_those_of_the_design() -> None:
    # C3, C5, D12, B1
    assert Policy().model_dump() == {
        "key": None,
        "dedup_key": None,
        "dedup_window": None,
        "dedup_until": "window",
        "on_duplicate": "return",
        "on_mismatch": "raise",
        "message_type": None,
        "schema_version": 1,
        "subject": None,
        "retain": 86400.0,
        "lease": 30.0,
        "attempts": 5,
        "crashes": 3,
        "backoff": {"kind": "exponential", "initial": 5.0, "max": 300.0, "jitter": "full"},
        "retry_on": (),
        "dead_on": (),
        "unclassified": "retry",
        "max_concurrency": None,
    }


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({}, 0),
        ({"key": "x"}, 3600),
        ({"dedup_key": "x"}, 3600),
        ({"key": "x", "dedup_window": 0}, 0),
        ({"dedup_window": timedelta(minutes=5)}, 300),
    ],
)
def test_the_window(fields: dict[str, Any], window: float) -> None:
    # B1
    assert Policy(**fields).window == window


@pytest.mark.parametrize(
    ("fields", "name", "kept"),
    [
        ({"lease": timedelta(minutes=1)}, "lease", 60.0),
        ({"lease": 1}, "lease", 1.0),
        ({"lease": 3600}, "lease", 3600.0),
        ({"retain": timedelta(days=2)}, "retain", 172800.0),
        ({"attempts": 1}, "attempts", 1),
        ({"attempts": 2, "crashes": 9}, "crashes", 9),
        ({"max_concurrency": 1}, "max_concurrency", 1),
        ({"max_concurrency": 100}, "max_concurrency", 100),
        ({"key": ["a", "b"]}, "key", ("a", "b")),
        ({"subject": "{a.b}"}, "subject", "{a.b}"),
        ({"key": len}, "key", len),
        ({"retry_on": ValueError}, "retry_on", (ValueError,)),
        ({"retry_on": [ValueError, OSError]}, "retry_on", (ValueError, OSError)),
        ({"dead_on": (KeyboardInterrupt,)}, "dead_on", (KeyboardInterrupt,)),
        ({"retry_on": OSError, "dead_on": TimeoutError}, "dead_on", (TimeoutError,)),
        ({"backoff": {"kind": "fixed", "initial": 3}}, "backoff", Backoff(kind="fixed", initial=3)),
        ({"message_type": "file.process.request"}, "message_type", "file.process.request"),
    ],
)
def test_what_is_taken(fields: dict[str, Any], name: str, kept: Any) -> None:
    # C3
    assert getattr(Policy(**fields), name) == kept


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"lease": 30000}, f"Policy.lease: 30000 is above the limit of 1 h; {SECONDS} 30?"),
        ({"lease": 0.5}, "Policy.lease: 0.5 s is too short: at least 1 s"),
        ({"lease": True}, "Policy.lease: True is not a duration"),
        ({"lease": "30"}, "Policy.lease: '30' is not a duration"),
        ({"lease": None}, "Policy.lease: None is not a duration"),
        ({"lease": float("nan")}, "Policy.lease: a duration must be a finite number"),
        ({"lease": 10**400}, "Policy.lease: a duration must be a finite number"),
        ({"retain": 0}, "Policy.retain: 0 s is too short"),
        ({"retain": timedelta(days=-1)}, "Policy.retain: -86400 s is too short"),
        ({"retain": 86_400_000}, f"Policy.retain: 86400000 is above the limit of 366 days; {SECONDS} 86400?"),
        ({"dedup_window": -1}, "Policy.dedup_window: -1 s is too short"),
        ({"dedup_window": 3_600_000}, "did you mean 3600?"),
        ({"attempts": 0}, "Policy.attempts: should be greater than or equal to 1, got 0"),
        ({"attempts": True}, "Policy.attempts: should be a valid integer, got True"),
        ({"attempts": "5"}, "Policy.attempts: should be a valid integer, got '5'"),
        ({"attempts": 2**31}, "Policy.attempts: should be less than or equal to 2147483647"),
        ({"crashes": 2**31}, "Policy.crashes: should be less than or equal to 2147483647"),
        ({"crashes": 0}, "Policy.crashes: should be greater than or equal to 1"),
        ({"schema_version": 0}, "Policy.schema_version: should be greater than or equal to 1"),
        ({"max_concurrency": 0}, "Policy.max_concurrency: should be greater than or equal to 1"),
        ({"max_concurrency": 101}, "Policy.max_concurrency: should be less than or equal to 100"),
        ({"on_duplicate": "retrun"}, "Policy.on_duplicate: should be 'return' or 'raise', got 'retrun'"),
        ({"on_mismatch": "ignore"}, "Policy.on_mismatch: should be 'raise' or 'reuse'"),
        ({"unclassified": "drop"}, "Policy.unclassified: should be 'retry' or 'dead'"),
        ({"dedup_until": "later"}, "Policy.dedup_until: should be 'window' or 'done'"),
        ({"message_type": "two words"}, "Policy.message_type: 'two words' should be a name"),
        ({"message_type": ""}, "Policy.message_type: '' should be a name"),
        ({"message_type": "x" * 201}, "1 to 200 characters"),
        ({"key": "{a"}, "Policy.key: '{a' is no template: expected '}' before end of string; every '{' needs its '}'"),
        ({"dedup_key": "{a}{b}"}, "Policy.dedup_key: '{a}{b}': nothing keeps {a} and {b} apart"),
        ({"subject": 7}, "Policy.subject: 7 should be an argument name"),
        ({"retry_on": "ValueError"}, "Policy.retry_on: 'ValueError' is not an exception type"),
        ({"dead_on": [ValueError, int]}, "Policy.dead_on: <class 'int'> is not an exception type"),
        ({"retry_on": OSError, "dead_on": [OSError]}, "Policy.dead_on: OSError stands in retry_on too"),
        ({"leese": 30}, "Policy.leese: there is no such field; did you mean 'lease'?"),
        ({"zzz": 30}, "Policy.zzz: there is no such field; the fields are key,"),
        ({"backoff": {"initial": 600}}, "Backoff.initial: 10 min is above max (5 min)"),
        ({"backoff": {"intial": 6}}, "Backoff.intial: there is no such field; did you mean 'initial'?"),
        ({"backoff": 5}, "Policy.backoff: Backoff: expected a Backoff or a dict of its fields, got 5"),
    ],
)
def test_what_is_refused_says_why(fields: dict[str, Any], says: str) -> None:
    # C3: all ranges validated with messages a user understands
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        Policy(**fields)


def test_each_problem_has_one_line() -> None:
    # C3
    with pytest.raises(ConfigurationError) as caught:
        Policy(lease=0, attempts=0, backoff={"initial": -1, "max": -1})
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "Policy.lease",
        "Policy.attempts",
        "Backoff.initial",
        "Backoff.max",
    ]


def test_validating_and_copying_raise_our_error() -> None:
    # C3
    policy = Policy(key="x", lease=10)
    assert Policy.model_validate({"lease": 10, "key": "x"}) == policy
    assert Policy.model_validate(policy) is policy
    assert policy.model_copy(update={"attempts": 2}) == Policy(key="x", lease=10, attempts=2)
    for wrong in ({"lease": 0}, {1: 2}, "lease=1", None):
        with pytest.raises(ConfigurationError, match="Policy"):
            Policy.model_validate(wrong)
    with pytest.raises(ConfigurationError, match=r"Policy\.lease"):
        policy.model_copy(update={"lease": 0})


def test_a_policy_is_frozen_and_picklable() -> None:
    # C3
    policy = Policy(key=("a", "b"), retry_on=OSError, backoff={"initial": 1})
    assert pickle.loads(pickle.dumps(policy)) == policy
    with pytest.raises(ValueError, match="frozen"):
        policy.lease = 3


# --- backoff ---


@pytest.mark.parametrize(
    ("fields", "delays"),
    [
        ({}, [5, 10, 20, 40, 80, 160, 300, 300]),
        ({"initial": 1, "max": 3}, [1, 2, 3, 3]),
        ({"initial": 0}, [0, 0, 0]),
        ({"initial": timedelta(seconds=2), "max": timedelta(seconds=5)}, [2, 4, 5]),
        ({"kind": "fixed"}, [5, 5, 5]),
        ({"kind": "fixed", "initial": 600}, [600, 600]),
    ],
)
def test_the_ladder(fields: dict[str, Any], delays: list[float]) -> None:
    # C5
    backoff = Backoff(jitter="none", **fields)
    assert [backoff.delay(attempt) for attempt in range(1, len(delays) + 1)] == delays


def test_full_jitter_spans_everything_from_zero() -> None:
    # C5
    backoff = Backoff()
    shares = iter((0.0, 0.25, 1.0))
    assert [backoff.delay(3, random=lambda: next(shares)) for _ in range(3)] == [0, 5, 20]
    drawn = [backoff.delay(3) for _ in range(500)]
    assert 0 <= min(drawn) < 4
    assert 16 < max(drawn) <= 20


@patient
@given(st.integers(min_value=1), st.floats(0, 43200), st.floats(0, 43200))
def test_no_attempt_overflows(attempt: int, one: float, other: float) -> None:
    # C5
    backoff = Backoff(initial=min(one, other), max=max(one, other), jitter="none")
    assert backoff.initial <= backoff.delay(attempt) <= backoff.max


@pytest.mark.parametrize("attempt", [10**6, 10**30])
def test_a_huge_attempt_waits_for_max(attempt: int) -> None:
    # C5
    assert Backoff(jitter="none").delay(attempt) == 300


@pytest.mark.parametrize("attempt", [0, -1, True, 1.0, "1", None])
def test_an_attempt_is_counted_from_one(attempt: Any) -> None:
    # C5
    with pytest.raises(ValueError, match="the first attempt is 1"):
        Backoff().delay(attempt)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"initial": 10, "max": 5}, "Backoff.initial: 10 s is above max (5 s); raise max or lower initial"),
        ({"kind": "fixed", "initial": 10, "max": 5}, "Backoff.initial: 10 s is above max (5 s)"),
        ({"max": 300_000}, f"Backoff.max: 300000 is above the limit of 12 h; {SECONDS} 300?"),
        ({"initial": -1}, "Backoff.initial: -1 s is too short"),
        ({"kind": "linear"}, "Backoff.kind: should be 'exponential' or 'fixed', got 'linear'"),
        ({"jitter": True}, "Backoff.jitter: should be 'full' or 'none', got True"),
    ],
)
def test_a_backoff_that_cannot_work(fields: dict[str, Any], says: str) -> None:
    # C5
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        Backoff(**fields)


@pytest.mark.parametrize(
    ("fields", "horizon"),
    [
        ({"attempts": 1}, 0),
        ({"attempts": 2}, 5),
        ({}, 5 + 10 + 20 + 40),
        ({"attempts": 9}, 5 + 10 + 20 + 40 + 80 + 160 + 300 + 300),
        ({"attempts": 4, "backoff": {"kind": "fixed", "initial": 7}}, 21),
        ({"attempts": 2**31 - 1, "backoff": {"initial": 0}}, 0),
        ({"attempts": 2**31 - 1, "backoff": {"initial": 1, "max": 1}}, 2**31 - 2),
    ],
)
def test_the_horizon_is_the_whole_ladder(fields: dict[str, Any], horizon: float) -> None:
    # A15
    assert Policy(**fields).horizon() == horizon


# --- durations ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30", 30),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("30s", 30),
        ("15m", 900),
        ("12h", 43200),
        ("7d", 604800),
        (" 7 D ", 604800),
    ],
)
def test_a_duration_as_text(text: str, value: float) -> None:
    # C3
    assert durations.parse(text) == value


@pytest.mark.parametrize("text", ["", "abc", "-1", "1e3", "nan", "inf", "1 2", "5y", "9" * 400])
def test_a_text_that_is_no_duration(text: str) -> None:
    # C3
    with pytest.raises(ConfigurationError, match="duration"):
        durations.parse(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.5, "0.5 s"),
        (59, "59 s"),
        (60, "1 min"),
        (90, "90 s"),
        (43200, "12 h"),
        (86400, "1 day"),
        (1209600, "14 days"),
    ],
)
def test_a_duration_for_people(value: float, text: str) -> None:
    # C3
    assert durations.human(value) == text
