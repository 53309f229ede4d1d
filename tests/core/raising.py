"""Exceptions as they come out of real code."""

from __future__ import annotations

from collections.abc import Callable


def caught(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except Exception as error:  # noqa: BLE001  whatever the client raises is what the test is about
        close = getattr(error, "close", None)
        if callable(close):  # urllib's HTTPError is an open response
            close()
        return error
    raise AssertionError("nothing was raised")


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The error as `raise error from cause` leaves it."""
    try:
        raise error from cause
    except BaseException as same:  # noqa: BLE001  see above
        return same
