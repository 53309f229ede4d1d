"""Every exception of the suite, in one tree.

Each takes its message first and everything else as an optional keyword, so that it survives pickling: a worker
that cannot unpickle an exception dies of it.
"""

from __future__ import annotations

from datetime import datetime, timedelta


class ContractError(Exception):
    """Whatever the suite raises on purpose."""


class ConfigurationError(ContractError, ValueError):
    """A policy, setting or URL that cannot work; raised where it is written, not where it bites."""


class EnvelopeError(ContractError, ValueError):
    """An envelope that cannot be read. `field` names the culprit."""

    def __init__(self, message: str = "", *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class SchemaTooNew(EnvelopeError):
    """The message was written by a newer version than this worker knows: deploy the worker, then replay."""


class KeyDerivationError(ContractError, ValueError):
    """No idempotency key could be made from the arguments of this call."""


class PayloadMismatch(ContractError):
    """The key is known, but with other arguments. Two different pieces of work share one idempotency key."""


class PayloadTooLarge(ContractError, ValueError):
    """The message exceeds the bound and there is no blob store to put the payload into."""


class DelayTooLong(ContractError, ValueError):
    """The delay exceeds the bound; schedule the work closer to its time instead."""


class AlreadyEnqueued(ContractError):
    """The work is enqueued already, and the policy asks to be told (`on_duplicate="raise"`)."""

    def __init__(self, message: str = "", *, existing_id: str | None = None, state: str | None = None) -> None:
        super().__init__(message)
        self.existing_id = existing_id
        self.state = state


class StoreUnavailable(ContractError):
    """The store did not answer in time, after the retries it was given. The driver's error is the cause."""


class StoreCorrupt(ContractError):
    """The store answered with something this version did not write."""


class LeaseLost(ContractError):
    """Another owner holds the record now. `state` is what the record says of the work."""

    def __init__(self, message: str = "", *, state: str | None = None) -> None:
        super().__init__(message)
        self.state = state


class InvalidTransition(ContractError):
    """The record is not in a state that allows this step."""

    def __init__(self, message: str = "", *, state: str | None = None) -> None:
        super().__init__(message)
        self.state = state


class RetryableError(ContractError):
    """Raise it in a task: try again, after `retry_after` (seconds, a timedelta or a point in time) if given."""

    def __init__(self, message: str = "", *, retry_after: float | timedelta | datetime | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NonRetryableError(ContractError):
    """Raise it in a task: this cannot succeed, so put it into the dead-letter queue now."""
