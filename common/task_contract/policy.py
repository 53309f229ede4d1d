"""What a task promises: its key, its limits and what happens when it fails."""

from __future__ import annotations

import math
import random as _random
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from typing_extensions import Self

from task_contract import keys
from task_contract.durations import DAY, HOUR, Duration, between, human
from task_contract.errors import ConfigurationError
from task_contract.keys import KeySpec

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    Seconds = float | int | timedelta
    Errors = type[BaseException] | tuple[type[BaseException], ...] | list[type[BaseException]]

#: The largest number that every store can count to.
MOST = 2**31 - 1

_MESSAGE_TYPE = re.compile(r"[^\s\x00-\x1f\x7f-\x9f]{1,200}")


class Checked(BaseModel):
    """Frozen, closed and strict. What does not fit raises a ConfigurationError with one line per problem."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    # Hidden from type checkers, so that they see the fields (or a typed signature) and not `**data`.
    if not TYPE_CHECKING:

        def __init__(self, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise ConfigurationError(explain(type(self), error)) from None

    @classmethod
    def model_validate(cls, obj: Any, **_options: Any) -> Self:
        """Like pydantic's, with our error; the options would only weaken the checks and are not honoured."""
        if isinstance(obj, cls):
            return obj
        if not isinstance(obj, Mapping) or not all(isinstance(name, str) for name in obj):
            # A field that is kept out of the repr may be in this one.
            secret = not all(field.repr for field in cls.model_fields.values())
            shown = f"a value of type {type(obj).__name__}" if secret else repr(obj)[:80]
            raise ConfigurationError(f"{cls.__name__}: expected a {cls.__name__} or a dict of its fields, got {shown}")
        return cls(**obj)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:  # noqa: ARG002 (pydantic's signature)
        """A copy with these changes, checked like a new one (pydantic's own takes any value unseen)."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **(update or {})})


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """One readable line per problem."""
    return "\n".join(_line(model, problem) for problem in error.errors(include_url=False))


def _line(model: type[BaseModel], problem: ErrorDetails) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    cause = problem.get("ctx", {}).get("error")
    if problem["type"] == "extra_forbidden":
        return f"{model.__name__}.{name}: there is no such field{_closest(name, model)}"
    if cause is None:
        return f"{model.__name__}.{name}: {_plain_words(problem['msg'])}, got {_shown(model, name, problem['input'])}"
    # A rule over several fields, or a nested model, has named its field already.
    return f"{model.__name__}.{name}: {cause}" if name and not _names_field(str(cause)) else str(cause)


def _shown(model: type[BaseModel], name: str, value: object) -> str:
    field = model.model_fields.get(name)
    # What is kept out of the repr (a URL with its password) is kept out of errors as well.
    return repr(value)[:80] if field is None or field.repr else f"a value of type {type(value).__name__}"


def _plain_words(message: str) -> str:
    message = re.sub(r"^(Input|String|Value) should", "should", message)
    return message[:1].lower() + message[1:]


def _names_field(text: str) -> bool:
    return re.match(r"[A-Z]\w*\.\w+: ", text) is not None


def _closest(name: str, model: type[BaseModel]) -> str:
    import difflib  # only needed to word an error

    found = difflib.get_close_matches(name, model.model_fields, n=1)
    return f"; did you mean {found[0]!r}?" if found else f"; the fields are {', '.join(model.model_fields)}"


class Backoff(Checked):
    """How long to wait before the next attempt (C5)."""

    kind: Literal["exponential", "fixed"] = "exponential"
    initial: Annotated[Duration, between(0, 12 * HOUR)] = 5.0
    max: Annotated[Duration, between(0, 12 * HOUR)] = 300.0
    jitter: Literal["full", "none"] = "full"

    if TYPE_CHECKING:  # durations are taken in two forms and kept in one, which a field's type cannot say

        def __init__(
            self,
            *,
            kind: Literal["exponential", "fixed"] = ...,
            initial: Seconds = ...,
            max: Seconds = ...,  # noqa: A002 (the name of C5)
            jitter: Literal["full", "none"] = ...,
        ) -> None: ...

    @model_validator(mode="after")
    def _initial_below_max(self) -> Self:
        # A fixed delay has no use for the default of `max`; only a max that was written down is held against it.
        bounded = self.kind == "exponential" or "max" in self.model_fields_set
        if bounded and self.initial > self.max:
            raise ConfigurationError(
                f"Backoff.initial: {human(self.initial)} is above max ({human(self.max)}); raise max or lower initial"
            )
        return self

    def delay(self, attempt: int, random: Callable[[], float] = _random.random) -> float:
        """Seconds to wait after this attempt (the first is 1) has failed."""
        longest = self.ceiling(attempt)
        return longest * random() if self.jitter == "full" else longest

    def ceiling(self, attempt: int) -> float:
        """The delay before jitter: `min(initial · 2^(attempt-1), max)`, or `initial` where it is fixed."""
        if type(attempt) is not int or attempt < 1:
            raise ValueError(f"attempt must be an int of at least 1 (the first attempt is 1), got {attempt!r}")
        if self.kind == "fixed":
            return self.initial
        try:
            return min(math.ldexp(self.initial, attempt - 1), self.max)
        except OverflowError:
            return self.max


def _spec(value: object) -> KeySpec | None:
    return None if value is None else keys.check_syntax(value)


def _message_type(value: object) -> str | None:
    if value is None or (isinstance(value, str) and _MESSAGE_TYPE.fullmatch(value)):
        return value
    raise ConfigurationError(
        f"{repr(value)[:80]} should be a name such as 'file.process.request': 1 to 200 characters, no spaces"
    )


def _backoff(value: object) -> object:
    return Backoff.model_validate(value)


def _error_types(value: object) -> tuple[type[BaseException], ...]:
    found = tuple(value) if isinstance(value, (tuple, list, set, frozenset)) else (value,)
    for item in found:
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise ConfigurationError(f"{repr(item)[:80]} is not an exception type; give the class, or a tuple of them")
    return found


class Policy(Checked):
    """The contract of one task. Durations are seconds or a timedelta; everything has a default."""

    key: Annotated[KeySpec | None, PlainValidator(_spec)] = None
    dedup_key: Annotated[KeySpec | None, PlainValidator(_spec)] = None
    dedup_window: Annotated[Duration, between(0, 31 * DAY)] | None = None
    dedup_until: Literal["window", "done"] = "window"
    on_duplicate: Literal["return", "raise"] = "return"
    on_mismatch: Literal["raise", "reuse"] = "raise"
    message_type: Annotated[str | None, PlainValidator(_message_type)] = None
    schema_version: int = Field(default=1, ge=1)
    subject: Annotated[KeySpec | None, PlainValidator(_spec)] = None
    retain: Annotated[Duration, between(0.001, 366 * DAY)] = DAY
    # A heartbeat renews the lease however long the work takes, so a long one only delays the take-over.
    lease: Annotated[Duration, between(1, HOUR)] = 30.0
    attempts: int = Field(default=5, ge=1, le=MOST)
    crashes: int = Field(default=3, ge=1, le=MOST)
    backoff: Annotated[Backoff, BeforeValidator(_backoff)] = Backoff()
    retry_on: Annotated[tuple[type[BaseException], ...], PlainValidator(_error_types)] = ()
    dead_on: Annotated[tuple[type[BaseException], ...], PlainValidator(_error_types)] = ()
    unclassified: Literal["retry", "dead"] = "retry"
    max_concurrency: int | None = Field(default=None, ge=1, le=100)

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            key: KeySpec | None = ...,
            dedup_key: KeySpec | None = ...,
            dedup_window: Seconds | None = ...,
            dedup_until: Literal["window", "done"] = ...,
            on_duplicate: Literal["return", "raise"] = ...,
            on_mismatch: Literal["raise", "reuse"] = ...,
            message_type: str | None = ...,
            schema_version: int = ...,
            subject: KeySpec | None = ...,
            retain: Seconds = ...,
            lease: Seconds = ...,
            attempts: int = ...,
            crashes: int = ...,
            backoff: Backoff | Mapping[str, Any] = ...,
            retry_on: Errors = ...,
            dead_on: Errors = ...,
            unclassified: Literal["retry", "dead"] = ...,
            max_concurrency: int | None = ...,
        ) -> None: ...

    @model_validator(mode="after")
    def _one_class_per_error(self) -> Self:
        both = [error.__name__ for error in self.retry_on if error in self.dead_on]
        if both:
            raise ConfigurationError(f"Policy.dead_on: {', '.join(both)} stands in retry_on too; keep it in one")
        return self

    @property
    def window(self) -> float:
        """Seconds for which a repeated enqueue is answered with the first one; 0 is off."""
        if self.dedup_window is not None:
            return self.dedup_window
        return 0.0 if self.key is None and self.dedup_key is None else HOUR

    def horizon(self) -> float:
        """The longest the waiting between all attempts can take, in seconds (A15)."""
        total = 0.0
        for attempt in range(1, self.attempts):
            step = self.backoff.ceiling(attempt)
            # Once the ladder is level it stays level: a million attempts cost no more than a dozen.
            if step == self.backoff.ceiling(attempt + 1):
                return total + step * (self.attempts - attempt)
            total += step
        return total
