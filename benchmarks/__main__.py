"""`python -m benchmarks`: the stores next to their bare drivers. `docs/benchmarks.md` says what each line means."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from benchmarks import sections
from benchmarks.report import Report, machine
from benchmarks.subjects import SUBJECTS, Subject
from tests.servers import NoServer, Servers


def main() -> None:
    options = _parser().parse_args()
    scale = sections.QUICK if options.quick else sections.FULL
    report, servers = Report(), Servers()
    with ExitStack() as stack:
        stack.callback(servers.close)
        subjects = _subjects(stack, servers, options.store or list(SUBJECTS))
        facts = {subject.name: subject.version for subject in subjects if subject.version}
        print(", ".join(f"{name} {value}" for name, value in machine().items()))
        print(f"{', '.join(facts.values())}; servers: {servers.summary() or 'none needed'}")
        _measure(report, subjects, scale)
        if options.json:
            report.save(options.json, **facts)


def _measure(report: Report, subjects: list[Subject], scale: sections.Scale) -> None:
    for section in (sections.execution, sections.enqueue, sections.handling, sections.heartbeats):
        section(report, subjects, scale)
    if any(subject.name == "redis" for subject in subjects):
        sections.redis_costs(report)
    sections.dead_letters(report, subjects, scale)


def _subjects(stack: ExitStack, servers: Servers, names: list[str]) -> list[Subject]:
    found = (_subject(stack, servers, name) for name in names)
    return [subject for subject in found if subject is not None]


def _subject(stack: ExitStack, servers: Servers, name: str) -> Subject | None:
    try:
        subject = stack.enter_context(SUBJECTS[name](servers))
    except NoServer as reason:
        print(f"without {name}: {reason}")
        return None
    stack.callback(subject.store.close)
    return subject


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ten seconds instead of two minutes; wider spreads")
    parser.add_argument("--store", action="append", choices=list(SUBJECTS), help="only this one; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    return parser


if __name__ == "__main__":
    main()
