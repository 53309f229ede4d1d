"""Looking at objects that may bite: nothing here raises, whatever a stranger's exception does when it is touched.

Only `Exception` is held back. A KeyboardInterrupt, a SystemExit or a worker's own interrupt may arrive at any line,
this one included, and is not ours to swallow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from itertools import islice
from typing import ParamSpec, TypeGuard, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_CHAIN = 20
"""Links of a `__cause__` chain that are looked at. Real ones have two or three; a longer one is a bug or an attack."""


def quiet(read: Callable[P, T | None]) -> Callable[P, T | None]:
    """What cannot be read is not there."""

    @wraps(read)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return read(*args, **kwargs)
        except Exception:  # noqa: BLE001  a stranger's property may raise anything
            return None

    return guarded


@quiet
def peek(thing: object, name: str) -> object:
    """The attribute, or None."""
    return getattr(thing, name, None)


@quiet
def item(thing: object, key: str) -> object:
    """The entry of a mapping, or None."""
    return thing[key] if thing is not None else None  # type: ignore[index]


@quiet
def called(thing: object) -> object:
    """The result of calling it without arguments; None for what is no function, a class included."""
    return thing() if callable(thing) and not isinstance(thing, type) else None


def ancestors(error: object) -> tuple[type, ...]:
    """The classes of an object, the most specific first, past any `__class__` or metaclass that lies about them."""
    return type.__dict__["__mro__"].__get__(type(error))  # type: ignore[no-any-return]


def is_exception(thing: object) -> TypeGuard[BaseException]:
    return BaseException in ancestors(thing)


def package_of(cls: type) -> str:
    """The top-level package a class comes from: `redis` for `redis.exceptions.ConnectionError`."""
    return str(peek(cls, "__module__")).partition(".")[0]


def name_of(cls: type) -> str:
    """The full name of a class, as a log or a dead letter shows it: `httpx.ReadTimeout`, `ValueError`."""
    module, name = peek(cls, "__module__"), str(peek(cls, "__qualname__"))
    return name if module in ("builtins", None) else f"{module}.{name}"


def message_of(error: BaseException, limit: int = 500) -> str:
    """The text of an error, short enough for a log line and a record."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  likewise a stranger's __str__
        return "<no text: str() of this error fails>"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def causes(error: BaseException) -> list[BaseException]:
    """The error and what it was raised `from`, outermost first; bounded, so that a circle ends, too.

    `__context__` is left out on purpose. Python sets it on whatever happens to be raised while another exception is
    handled: a KeyError in an `except` block would inherit the class of the timeout it failed to handle. `from` is
    what an author writes to say "because of".
    """
    chain = [error]
    while len(chain) < LONGEST_CHAIN:
        cause = peek(chain[-1], "__cause__")
        if not is_exception(cause):
            break
        chain.append(cause)
    return chain


def leaves(group: BaseException, limit: int = 50) -> Iterator[BaseException]:
    """The exceptions inside an ExceptionGroup and the groups inside it; bounded. None for anything else."""
    waiting, looked_at = [group], 0
    while waiting and looked_at < limit:
        looked_at += 1
        members = _members(waiting.pop(0))
        for member in islice(members, limit):
            if is_group(member):
                waiting.append(member)
            else:
                yield member


def is_group(error: BaseException) -> bool:
    # By name: Python 3.10 has no ExceptionGroup, and its backport lives in a package of its own.
    packages = ("builtins", "exceptiongroup")
    return any(cls.__name__ == "BaseExceptionGroup" and package_of(cls) in packages for cls in ancestors(error))


def _members(group: BaseException) -> tuple[BaseException, ...]:
    members = peek(group, "exceptions")
    return tuple(each for each in members if is_exception(each)) if isinstance(members, tuple) else ()
