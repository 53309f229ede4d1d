"""Contests: several ways to do the same jobs, timed in turns so that a busy machine is busy for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

from benchmarks.samples import Job, jobs

#: Gets its jobs ready, and gives back what is to be timed.
Contestant = Callable[[Sequence[Job]], Callable[[], object]]


class Ratio(NamedTuple):
    """The median of a ratio over all rounds, and the quartiles on either side of it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} … {self.high:.2f})"


@dataclass(frozen=True)
class Outcome:
    """Jobs per second of every contestant, by round."""

    rates: Mapping[str, Sequence[float]]

    def rate(self, name: str) -> float:
        return statistics.median(self.rates[name])

    def micros(self, name: str) -> float:
        return 1e6 / self.rate(name)

    def ratio(self, name: str, to: str) -> Ratio:
        """Of the speeds, round by round: the two ran next to each other."""
        each = [mine / theirs for mine, theirs in zip(self.rates[name], self.rates[to], strict=True)]
        low, median, high = statistics.quantiles(each, n=4, method="inclusive")
        return Ratio(median, low, high)


def contest(contestants: Mapping[str, Contestant], *, rounds: int, size: int) -> Outcome:
    """Every contestant does `size` jobs of its own in each round; the first round is a rehearsal."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, prepare in contestants.items():
            rate = size / timed(prepare(jobs(size, uuid4().hex[:12])))
            if number:
                rates[name].append(rate)
    return Outcome(rates)


def timed(run: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def repeated(run: Callable[[], object], times: int) -> Contestant:
    """A contestant that needs no jobs: it does the same thing `times` times, whatever the size."""

    def again() -> None:
        for _ in range(times):
            run()

    return lambda _jobs: again
