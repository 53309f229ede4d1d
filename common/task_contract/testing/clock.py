"""A clock that stands still until it is told to move."""

from __future__ import annotations

from datetime import datetime, timezone

#: Far enough in the future that no server drops, by its own clock, what the injected one still keeps.
START_MS = 2_000_000_000_000


class Clock:
    """Seconds since the epoch, counted in whole milliseconds so that a test can hit a boundary exactly."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self.ms = start_ms

    def __call__(self) -> float:
        return self.ms / 1000

    def advance(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)

    def after(self, seconds: float) -> datetime:
        """The moment so many seconds from now."""
        return datetime.fromtimestamp((self.ms + round(seconds * 1000)) / 1000, timezone.utc)

    @property
    def today(self) -> datetime:
        return self.after(0)
