"""What must be left behind or made anew when a process forks: locks, threads, connections."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def after_fork(renew: Callable[[], None]) -> None:
    """Call the bound method `renew` in every forked child, for as long as its object lives."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_while_alive(renew))


def around_fork(before: Callable[[], None], after: Callable[[], None]) -> None:
    """Call the bound methods in the parent, before and after each fork, for as long as their object lives."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_while_alive(before), after_in_parent=_while_alive(after))


def _while_alive(bound: Callable[[], None]) -> Callable[[], None]:
    method = weakref.WeakMethod(bound)

    def run() -> None:
        if (alive := method()) is not None:
            alive()

    return run
