"""What must be made anew in a forked child: locks, threads, connections."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def after_fork(renew: Callable[[], None]) -> None:
    """Call the bound method `renew` in every forked child, for as long as its object lives."""
    method = weakref.WeakMethod(renew)

    def run() -> None:
        if (alive := method()) is not None:
            alive()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=run)
