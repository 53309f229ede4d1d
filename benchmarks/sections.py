"""The measurements, each a section of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import uuid4

from benchmarks import samples
from benchmarks.measure import Contestant, Outcome, contest, repeated
from benchmarks.redis_costs import finished_record_bytes, round_trips
from benchmarks.report import Report, rate
from benchmarks.samples import Job
from benchmarks.subjects import Subject, claim_and_complete, reserve_and_confirm
from task_contract.contract import Contract
from task_contract.policy import Policy
from task_contract.stores.base import Beat, Filter, Hold, Store
from task_contract.stores.redis import RedisStore
from tests.servers import PrivateRedis

#: Jobs per round: about 50 ms of work each.
SIZES = {"memory": 2000, "sqlite": 100, "redis": 500, "postgres": 100}
BEATS = (1, 100, 1000)
PAGE = 50
BYTES_WANTED = 700
RATIO_WANTED = 0.85
HELD_TO_IT = ("redis", "postgres")


@dataclass(frozen=True)
class Scale:
    """How long to measure."""

    rounds: int
    few: int
    many: int


FULL = Scale(rounds=25, few=1_000, many=20_000)
QUICK = Scale(rounds=5, few=100, many=500)


def execution(report: Report, subjects: Sequence[Subject], scale: Scale) -> None:
    report.section("claim + complete, pairs per second", "", "store", "bare", "store / bare (quartiles)")
    for subject in subjects:
        ways = {"store": claim_and_complete(subject.store), **subject.execution}
        outcome = contest(ways, rounds=scale.rounds, size=SIZES[subject.name])
        _compare(report, "execution", subject.name, outcome)


def enqueue(report: Report, subjects: Sequence[Subject], scale: Scale) -> None:
    report.section(
        "reserve + confirm, pairs per second (bare: one SET NX or INSERT, which one lost reply breaks)",
        "",
        "store",
        "bare",
        "store / bare (quartiles)",
    )
    for subject in subjects:
        ways = {"store": reserve_and_confirm(subject.store), **subject.enqueue}
        outcome = contest(ways, rounds=scale.rounds, size=SIZES[subject.name])
        _compare(report, "enqueue", subject.name, outcome)


def _compare(report: Report, section: str, name: str, outcome: Outcome) -> None:
    mine = outcome.rate("store")
    others = [other for other in outcome.rates if other != "store"]
    if not others:
        report.row(name, rate(mine), "no driver", section=section, store=name, rate=mine)
    for other in others:
        ratio, theirs = outcome.ratio("store", other), outcome.rate(other)
        label = name if other == "bare" else f"  {name}, {CONTEXT[other]}"
        verdict = _verdict(ratio.median) if section == "execution" and other == "bare" and name in HELD_TO_IT else ""
        report.row(
            label,
            rate(mine),
            rate(theirs),
            f"{ratio}{verdict}",
            section=section,
            store=name,
            to=other,
            rate=mine,
            bare=theirs,
            ratio=ratio._asdict(),
        )


def _verdict(ratio: float) -> str:
    return f"  wanted {RATIO_WANTED}: {'yes' if ratio >= RATIO_WANTED else 'NO'}"


#: What else the store is put beside.
CONTEXT = {
    "connection": "on a bare connection",
    "prepared": "bare with PREPARE",
    "floor": "floor: two writes",
}


def handling(report: Report, subjects: Sequence[Subject], scale: Scale) -> None:
    title = "contract.handle of a no-op, messages per second next to claim + complete alone"
    report.section(title, "", "handle", "pair alone", "added per message")
    for subject in subjects:
        ways = {"handle": _handle(subject.store), "pair": claim_and_complete(subject.store)}
        outcome = contest(ways, rounds=scale.rounds, size=SIZES[subject.name])
        added = outcome.micros("handle") - outcome.micros("pair")
        report.row(
            subject.name,
            rate(outcome.rate("handle")),
            rate(outcome.rate("pair")),
            f"{added:.0f} µs",
            section="handling",
            store=subject.name,
            rate=outcome.rate("handle"),
            bare=outcome.rate("pair"),
            ratio=outcome.ratio("handle", "pair")._asdict(),
        )


def _handle(store: Store) -> Contestant:
    contract, policy = Contract(store), Policy()

    def prepare(jobs: Sequence[Job]) -> Callable[[], None]:
        messages = [samples.message(job) for job in jobs]

        def run() -> None:
            for message in messages:
                contract.handle(message, samples.no_op, policy)

        return run

    return prepare


def heartbeats(report: Report, subjects: Sequence[Subject], scale: Scale) -> None:
    titles = (f"{leases} leases" if leases > 1 else "1 lease" for leases in BEATS)
    report.section("heartbeat: milliseconds per beat of so many leases", "", *titles)
    for subject in subjects:
        beats = [Beat(_held(subject.store, job), 3600.0) for job in samples.jobs(max(BEATS), uuid4().hex[:12])]
        times = [_milliseconds(subject.store, beats[:leases], scale) for leases in BEATS]
        measured = dict(zip(map(str, BEATS), times, strict=True))
        report.row(
            subject.name, *(f"{each:.2f}" for each in times), section="heartbeats", store=subject.name, **measured
        )


def _held(store: Store, job: Job) -> Hold:
    claim = store.claim(job.key, job.work, owner=job.owner, lease=3600.0, keep=samples.KEEP, limits=samples.LIMITS)
    return job.hold(claim.fence, claim.attempt)


def _milliseconds(store: Store, beats: Sequence[Beat], scale: Scale) -> float:
    outcome = contest({"beat": repeated(lambda: store.extend(beats), 1)}, rounds=scale.rounds, size=1)
    return outcome.micros("beat") / 1000


def dead_letters(report: Report, subjects: Sequence[Subject], scale: Scale) -> None:
    few, many = scale.few, scale.many
    columns = ("", f"{few:,}", f"{many:,}", f"time at {many:,} / {few:,}")
    report.section(f"dead letters: milliseconds with so many of them (a page of {PAGE}, and the statistics)", *columns)
    for subject in subjects:
        small, large = (_filled(subject.another(), size) for size in (few, many))
        for name, ask in QUESTIONS.items():
            outcome = _asked(ask, small, large, scale.rounds)
            few_ms, many_ms = outcome.micros("few") / 1000, outcome.micros("many") / 1000
            ratio = outcome.ratio("few", "many")
            report.row(
                f"{subject.name}, {name}",
                f"{few_ms:.2f}",
                f"{many_ms:.2f}",
                str(ratio),
                section="letters",
                store=subject.name,
                what=name,
                few=few_ms,
                many=many_ms,
                ratio=ratio._asdict(),
            )
        small.close()
        large.close()


def _asked(ask: Callable[[Store], object], small: Store, large: Store, rounds: int) -> Outcome:
    ways = {"few": repeated(lambda: ask(small), 5), "many": repeated(lambda: ask(large), 5)}
    return contest(ways, rounds=rounds, size=5)


QUESTIONS: dict[str, Callable[[Store], object]] = {
    "first page": lambda store: store.page_letters(Filter(), limit=PAGE),
    "page of one queue": lambda store: store.page_letters(Filter(queue="mail"), limit=PAGE),
    "queue and error": lambda store: store.page_letters(Filter(queue="mail", error_type="HTTPError"), limit=PAGE),
    "statistics": lambda store: store.letter_stats(),
}


def _filled(store: Store, size: int) -> Store:
    letters = samples.letters(size, uuid4().hex[:12])
    store.put_letter(letters[0], keep=samples.KEEP)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda letter: store.put_letter(letter, keep=samples.KEEP), letters[1:]))
    return store


def redis_costs(report: Report) -> None:
    with PrivateRedis() as server, server.client() as client:
        store = RedisStore(server.url, namespace="bench")
        report.section("Redis: bytes of one finished record with a result of 100 bytes (MEMORY USAGE)")
        for what, size in finished_record_bytes(store, client, "{bench}:").items():
            verdict = f"wanted at most {BYTES_WANTED}: {'yes' if size <= BYTES_WANTED else 'NO'}"
            report.row(what, str(size), verdict, section="memory", store="redis", what=what, bytes=size)
        report.section("Redis: what the server is sent per verb (MONITOR)")
        sent = round_trips(store, client)
        for commands, verbs in _grouped(sent).items():
            report.row(commands, f"{len(verbs)} verbs", ", ".join(verbs), section="round trips", **{commands: verbs})
        store.close()


def _grouped(sent: dict[str, list[str]]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for verb, commands in sent.items():
        if not verb.endswith(")"):
            text = " + ".join(f"{count} {command}" for command, count in Counter(commands).items())
            grouped.setdefault(text, []).append(verb)
    return grouped
