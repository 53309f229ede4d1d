"""Durations, one way for all of us: a `timedelta` or seconds come in, float seconds are kept."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from task_contract.errors import ConfigurationError

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0

_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": MINUTE, "h": HOUR, "d": DAY}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)\s*", re.IGNORECASE | re.ASCII)


def seconds(value: float | int | timedelta) -> float:
    """The duration in seconds; a bool, a text or an infinite one is refused."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    # bool is an int to Python, but `lease=True` is a slip of the keyboard and not one second.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigurationError(f"{value!r} is not a duration: give seconds as a number, or a timedelta")
    return _finite(value)


def _finite(value: float | int) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ConfigurationError("a duration must be a finite number of seconds")
    return number


def parse(text: str) -> float:
    """The seconds in a text such as `30`, `1.5`, `500ms`, `15m`, `12h` or `7d` (environment variables)."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{text!r} is not a duration: write seconds (30) or add a unit (500ms, 15m, 12h, 7d)")
    return _finite(float(match[1]) * _UNITS[match[2].lower()])


def human(value: float) -> str:
    """A duration as people say it: `45 s`, `12 h`, `14 days`."""
    for size, unit in ((DAY, "day"), (HOUR, "h"), (MINUTE, "min")):
        if value >= size and value % size == 0:
            amount = int(value // size)
            return f"{amount} {unit}s" if unit == "day" and amount != 1 else f"{amount} {unit}"
    return f"{value:.15g} s"


def between(low: float, high: float) -> AfterValidator:
    """A pydantic validator: the duration lies in this range, and milliseconds are recognised as such."""

    def check(value: float) -> float:
        if value < low:
            raise ConfigurationError(f"{human(value)} is too short: at least {human(low)}")
        if value > high:
            hint = _did_you_mean(value, low, high)
            raise ConfigurationError(f"{value:.15g} is above the limit of {human(high)}; {hint}")
        return value

    return AfterValidator(check)


def _did_you_mean(value: float, low: float, high: float) -> str:
    guess = value / 1000
    question = f": did you mean {guess:.15g}?" if low <= guess <= high else ""
    return f"durations are in seconds, not milliseconds{question}"


Duration = Annotated[float, BeforeValidator(seconds)]
"""A pydantic field type: takes seconds or a timedelta, holds float seconds."""
