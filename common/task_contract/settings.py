"""Settings of a whole Contract: given in code, else in `TASK_CONTRACT_*`, else the default."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from task_contract.durations import DAY, HOUR, Duration, between, human, parse
from task_contract.errors import ConfigurationError
from task_contract.policy import MOST, Checked, Policy

PREFIX = "TASK_CONTRACT_"
# The test harness names its servers with these; they are nobody's misspelt setting.
_RESERVED = (PREFIX + "TEST_",)
_STORE_TRIES = 3


class Settings(Checked):
    """What holds for all tasks of one Contract."""

    store: str | None = Field(default=None, repr=False)  # the URL may hold a password
    source: str | None = Field(default=None, min_length=1, max_length=255)
    namespace: str = Field(default="task-contract", pattern=r"^[A-Za-z0-9_.-]+$", max_length=64)
    fallback: Literal["open", "closed"] = "open"
    message_retention: Annotated[Duration, between(DAY, 14 * DAY)] = 7 * DAY
    dlq_retention: Annotated[Duration, between(DAY, 14 * DAY)] = 14 * DAY
    # Not 0: it would cut every Retry-After down to a hot loop.
    max_delay: Annotated[Duration, between(1, 14 * DAY)] = 12 * HOUR
    max_message_bytes: int = Field(default=128 * 1024, ge=1024)
    max_result_bytes: int = Field(default=64 * 1024, ge=0)
    reservation_ttl: Annotated[Duration, between(5, 300)] = 30.0
    store_timeout: Annotated[Duration, between(0.05, 30)] = 1.0
    max_interruptions: int = Field(default=20, ge=1, le=MOST)
    strict: bool = False
    adjust_settings: bool = True

    @classmethod
    def load(cls, **explicit: Any) -> Self:
        """Explicit values first, then the environment, then the defaults. None counts as not given."""
        given = {name: value for name, value in explicit.items() if value is not None}
        _warn_of_unknown(os.environ)
        found = {name: os.environ[_variable(name)] for name in cls.model_fields if os.environ.get(_variable(name))}
        origins = {name: _variable(name) for name in found if name not in given}
        try:
            return cls(**{name: _from_text(name, found[name]) for name in origins}, **given)
        except ConfigurationError as error:
            lines = [_with_origin(line, origins) for line in str(error).splitlines()]
            raise ConfigurationError("\n".join(lines)) from None

    @model_validator(mode="after")
    def _delay_within_retention(self) -> Self:
        if self.max_delay > self.message_retention:
            raise ConfigurationError(
                f"Settings.max_delay: {human(self.max_delay)} is above message_retention "
                f"({human(self.message_retention)}), so a delayed message could be dropped before its time; "
                "lower max_delay or raise message_retention"
            )
        return self

    @model_validator(mode="after")
    def _timeout_within_reservation(self) -> Self:
        # Else a producer could still be waiting for the store when its own reservation is up, and another takes over.
        if self.store_timeout * _STORE_TRIES > self.reservation_ttl:
            raise ConfigurationError(
                f"Settings.store_timeout: {_STORE_TRIES} tries of {human(self.store_timeout)} outlast reservation_ttl "
                f"({human(self.reservation_ttl)}); lower store_timeout or raise reservation_ttl"
            )
        return self


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _from_text(name: str, text: str) -> Any:
    read = _READERS.get(Settings.model_fields[name].annotation)
    try:
        return text if read is None else read(text.strip())
    except ConfigurationError as error:
        raise ConfigurationError(f"Settings.{name}: {error}") from None


def _boolean(text: str) -> bool:
    if text.lower() in ("1", "true", "yes"):
        return True
    if text.lower() in ("0", "false", "no"):
        return False
    raise ConfigurationError(f"{text!r} should be 1, true or yes, or 0, false or no")


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
        raise ConfigurationError(f"{text!r} should be a whole number")
    return int(text)


_READERS: dict[Any, Callable[[str], Any]] = {bool: _boolean, int: _whole, float: parse}


def _with_origin(line: str, origins: Mapping[str, str]) -> str:
    match = re.match(r"Settings\.(\w+): ", line)
    if match is None or match[1] not in origins:
        return line
    return f"Settings.{match[1]} (from {origins[match[1]]}): {line[match.end() :]}"


def _warn_of_unknown(environ: Mapping[str, str]) -> None:
    known = [_variable(name) for name in Settings.model_fields]
    for variable in environ:
        if variable.startswith(PREFIX) and variable not in known and not variable.startswith(_RESERVED):
            hint = _closest(variable, known)
            warnings.warn(f"{variable} is no setting of task-contract and has no effect; {hint}", stacklevel=3)


def _closest(variable: str, known: list[str]) -> str:
    import difflib  # only needed to word a warning

    found = difflib.get_close_matches(variable, known, n=1)
    return f"did you mean {found[0]}?" if found else f"known are {', '.join(known)}"


def ttl_findings(
    settings: Settings,
    policy: Policy,
    *,
    visibility_timeout: float | None = None,
    longest_delay: float | None = None,
) -> list[str]:
    """Where a record would be gone while its message can still come back (A15); empty if all is well."""
    return [
        *_retain_findings(policy, visibility_timeout, longest_delay),
        *_retention_findings(settings, policy, visibility_timeout, longest_delay),
        *_dead_letter_findings(settings),
    ]


def _retain_findings(policy: Policy, visibility_timeout: float | None, longest_delay: float | None) -> list[str]:
    reasons = (
        ("the broker's visibility timeout", visibility_timeout),
        ("the time its retries can take", policy.horizon()),
        ("the longest delay in use", longest_delay),
    )
    return [
        f"retain ({human(policy.retain)}) is below {what} ({human(least)}): a copy that arrives later finds no record "
        f"and runs again. Set retain to at least {human(least)}."
        for what, least in reasons
        if least is not None and policy.retain < least
    ]


def _retention_findings(
    settings: Settings, policy: Policy, visibility_timeout: float | None, longest_delay: float | None
) -> list[str]:
    kept = settings.message_retention
    reasons = (
        ("the broker's visibility timeout", visibility_timeout, "lower the visibility timeout"),
        ("the time its retries can take", policy.horizon(), "lower attempts or backoff.max"),
        ("the longest delay in use", longest_delay, "schedule the work closer to its time"),
    )
    return [
        f"message_retention ({human(kept)}) is below {what} ({human(least)}): the record of unfinished work would "
        f"expire before its message comes back. Raise message_retention (at most 14 days) or {fix}."
        for what, least, fix in reasons
        if least is not None and kept < least
    ]


def _dead_letter_findings(settings: Settings) -> list[str]:
    dead, kept = settings.dlq_retention, settings.message_retention
    if dead >= kept:
        return []
    finding = (
        f"dlq_retention ({human(dead)}) is below message_retention ({human(kept)}): a dead letter and its record would "
        "be gone while a copy of the message can still arrive and run again. "
        f"Set dlq_retention to at least {human(kept)}."
    )
    return [finding]
