"""Settings: code over environment over default, each range checked, each finding with its fix."""

from __future__ import annotations

import os
import re
import warnings
from datetime import timedelta
from typing import Any

import pytest

from task_contract.durations import DAY, HOUR
from task_contract.errors import ConfigurationError
from task_contract.policy import Policy
from task_contract.settings import Settings, ttl_findings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TASK_CONTRACT_")]:
        monkeypatch.delenv(name)


def test_the_defaults() -> None:
    # C2, C3, A11, B4
    assert Settings.load().model_dump() == {
        "store": None,
        "source": None,
        "namespace": "task-contract",
        "fallback": "open",
        "message_retention": 7 * DAY,
        "dlq_retention": 14 * DAY,
        "max_delay": 12 * HOUR,
        "max_message_bytes": 131072,
        "max_result_bytes": 65536,
        "reservation_ttl": 30.0,
        "store_timeout": 1.0,
        "max_interruptions": 20,
        "strict": False,
        "adjust_settings": True,
    }


def test_code_wins_over_environment_wins_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    # C3
    monkeypatch.setenv("TASK_CONTRACT_MAX_DELAY", "2h")
    assert Settings.load(max_delay=timedelta(hours=1)).max_delay == HOUR
    assert Settings.load(max_delay=None).max_delay == 2 * HOUR
    assert Settings.load().max_delay == 2 * HOUR
    assert Settings().max_delay == 12 * HOUR


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("STORE", "redis://localhost/0", "redis://localhost/0"),
        ("SOURCE", "shop", "shop"),
        ("NAMESPACE", "shop.v2", "shop.v2"),
        ("FALLBACK", "closed", "closed"),
        ("MESSAGE_RETENTION", "3d", 3 * DAY),
        ("DLQ_RETENTION", "1209600", 14 * DAY),
        ("STORE_TIMEOUT", "500ms", 0.5),
        ("STORE_TIMEOUT", "1.5", 1.5),
        ("RESERVATION_TTL", "1m", 60.0),
        ("MAX_MESSAGE_BYTES", " 2048 ", 2048),
        ("MAX_RESULT_BYTES", "0", 0),
        ("STRICT", "1", True),
        ("STRICT", "Yes", True),
        ("STRICT", "true", True),
        ("ADJUST_SETTINGS", "0", False),
        ("ADJUST_SETTINGS", "no", False),
        ("ADJUST_SETTINGS", "FALSE", False),
        ("ADJUST_SETTINGS", "", True),
    ],
)
def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: Any) -> None:
    # C3
    monkeypatch.setenv(f"TASK_CONTRACT_{name}", text)
    assert getattr(Settings.load(), name.lower()) == value


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("MESSAGE_RETENTION", "20d", "1728000 is above"),
        ("MESSAGE_RETENTION", "soon", "'soon' is not a duration"),
        ("STRICT", "maybe", "'maybe' should be 1, true or yes"),
        ("MAX_INTERRUPTIONS", "1.5", "'1.5' should be a whole"),
        ("MAX_INTERRUPTIONS", "0", "should be greater"),
        ("FALLBACK", "ajar", "should be 'open' or 'closed', got 'ajar'"),
        ("MAX_DELAY", "8d", "8 days is above message_retention (7 days)"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str, says: str) -> None:
    # C3
    monkeypatch.setenv(f"TASK_CONTRACT_{name}", text)
    line = f"Settings.{name.lower()} (from TASK_CONTRACT_{name}): {says}"
    with pytest.raises(ConfigurationError, match=f"^{re.escape(line)}"):
        Settings.load()


def test_a_wrong_variable_does_not_matter_where_code_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # C3
    monkeypatch.setenv("TASK_CONTRACT_STRICT", "maybe")
    assert Settings.load(strict=True).strict
    monkeypatch.delenv("TASK_CONTRACT_STRICT")
    monkeypatch.setenv("TASK_CONTRACT_MAX_DELAY", "1h")
    with pytest.raises(ConfigurationError, match=r"^Settings\.max_delay: "):
        Settings.load(max_delay=-1)


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("TASK_CONTRACT_MESSAGE_RETENTON", "did you mean TASK_CONTRACT_MESSAGE_RETENTION?"),
        ("TASK_CONTRACT_STOER", "did you mean TASK_CONTRACT_STORE?"),
        ("TASK_CONTRACT_" + "Q" * 40, "known are TASK_CONTRACT_STORE"),
    ],
)
def test_an_unknown_variable_is_a_warning(monkeypatch: pytest.MonkeyPatch, variable: str, hint: str) -> None:
    # C3
    monkeypatch.setenv(variable, "1")
    with pytest.warns(UserWarning, match=rf"{variable} .*{re.escape(hint)}"):
        Settings.load()


def test_known_variables_are_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    # C3
    monkeypatch.setenv("TASK_CONTRACT_STORE", "memory://")
    monkeypatch.setenv("TASK_CONTRACT_SOURCE", "shop")
    monkeypatch.setenv("TASK_CONTRACT_TEST_REDIS_URL", "redis://")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Settings.load()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"message_retention": DAY - 1}, "Settings.message_retention: 86399 s is too short: at least 1 day"),
        ({"message_retention": 15 * DAY}, "Settings.message_retention: 1296000 is above the limit of 14 days"),
        ({"message_retention": 604_800_000}, "did you mean 604800?"),
        ({"dlq_retention": timedelta(days=15)}, "Settings.dlq_retention: 1296000 is above"),
        ({"dlq_retention": 5}, "Settings.dlq_retention: 5 s is too short"),
        (
            {"max_delay": 2 * DAY, "message_retention": DAY},
            "Settings.max_delay: 2 days is above message_retention (1 day)",
        ),
        ({"max_message_bytes": 1023}, "Settings.max_message_bytes: should be greater than or equal to 1024"),
        ({"max_result_bytes": -1}, "Settings.max_result_bytes: should be greater than or equal to 0"),
        ({"reservation_ttl": 4}, "Settings.reservation_ttl: 4 s is too short: at least 5 s"),
        ({"reservation_ttl": 301}, "Settings.reservation_ttl: 301 is above the limit of 5 min"),
        ({"store_timeout": 0.01}, "Settings.store_timeout: 0.01 s is too short"),
        ({"store_timeout": 31}, "Settings.store_timeout: 31 is above the limit of 30 s"),
        ({"store_timeout": 11}, "Settings.store_timeout: 3 tries of 11 s outlast reservation_ttl (30 s)"),
        ({"max_interruptions": 2**31}, "Settings.max_interruptions: should be less than or equal to 2147483647"),
        ({"max_delay": 0}, "Settings.max_delay: 0 s is too short: at least 1 s"),
        ({"max_interruptions": 0}, "Settings.max_interruptions: should be greater than or equal to 1"),
        ({"namespace": "a b"}, "Settings.namespace: should match pattern"),
        ({"namespace": ""}, "Settings.namespace: should match pattern"),
        ({"namespace": "x" * 65}, "Settings.namespace: should have at most 64 characters"),
        ({"fallback": "ajar"}, "Settings.fallback: should be 'open' or 'closed'"),
        ({"strict": "yes"}, "Settings.strict: should be a valid boolean"),
        ({"storr": "x"}, "Settings.storr: there is no such field; did you mean 'store'?"),
    ],
)
def test_ranges(fields: dict[str, Any], says: str) -> None:
    # C3, A11
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        Settings(**fields)


def test_a_password_is_not_shown() -> None:
    # C3: settings end up in logs
    assert "hunter2" not in repr(Settings(store="redis://:hunter2@host"))
    with pytest.raises(ConfigurationError) as caught:
        Settings(store=b"redis://:hunter2@host")  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
    for wrong in ("redis://:hunter2@host", {1: "redis://:hunter2@host"}):
        with pytest.raises(ConfigurationError, match="Settings: expected") as caught:
            Settings.model_validate(wrong)
        assert "hunter2" not in str(caught.value)


# --- A15 ---


def test_the_defaults_outlive_what_they_must() -> None:
    # A15
    assert ttl_findings(Settings(), Policy(), visibility_timeout=3600, longest_delay=12 * HOUR) == []
    assert ttl_findings(Settings(), Policy()) == []


SHORT = {"message_retention": DAY}
KEPT = "message_retention (1 day) is below"
LONG = {"attempts": 200, "backoff": {"kind": "fixed", "initial": 12 * HOUR}}


@pytest.mark.parametrize(
    ("settings", "policy", "known", "says"),
    [
        (
            {},
            {"retain": HOUR},
            {"visibility_timeout": 2 * HOUR},
            ["retain (1 h) is below the broker's visibility timeout (2 h)"],
        ),
        ({}, {"retain": HOUR}, {"visibility_timeout": HOUR}, []),
        ({}, {"retain": 60}, {}, ["retain (1 min) is below the time its retries can take (75 s)"]),
        ({}, {"retain": 75}, {}, []),
        ({}, {"retain": HOUR}, {"longest_delay": 3 * HOUR}, ["retain (1 h) is below the longest delay in use (3 h)"]),
        ({}, {"retain": 200 * DAY, **LONG}, {}, ["message_retention (7 days) is below the time its retries can take"]),
        (SHORT, {"retain": 9 * DAY}, {"longest_delay": 2 * DAY}, [f"{KEPT} the longest delay in use (2 days)"]),
        (SHORT, {"retain": 9 * DAY}, {"visibility_timeout": 2 * DAY}, [f"{KEPT} the broker's visibility timeout"]),
        ({"dlq_retention": DAY}, {}, {}, ["dlq_retention (1 day) is below message_retention (7 days)"]),
        ({"dlq_retention": 7 * DAY}, {}, {}, []),
        ({}, LONG, {}, ["retain (1 day) is below the time", "message_retention (7 days) is below the time"]),
    ],
)
def test_what_dies_too_early_is_found(
    settings: dict[str, Any], policy: dict[str, Any], known: dict[str, float], says: list[str]
) -> None:
    # A15
    found = ttl_findings(Settings(**settings), Policy(**policy), **known)
    assert len(found) == len(says)
    for finding, start in zip(found, says, strict=True):
        assert finding.startswith(start)
        assert re.search(r"(Set|Raise) \w+", finding)
