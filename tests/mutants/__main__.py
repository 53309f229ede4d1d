"""Break a copy of the package, run the tests against it, and see whether they notice.

`python -m tests.mutants [word …]`; words pick mutants by name. Nothing in the working tree is touched.

A mutant is killed if a test fails on it that passes on the unbroken copy. One that breaks everything proves nothing, so
some test must pass on it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.mutants.catalogue import MUTANTS, Mutant
from tests.servers import Servers

ROOT = Path(__file__).parents[2]
STORES = Path("task_contract", "stores")
AT_ONCE = 3
#: A mutant may loop for ever: that is a failure like any other, and noticed by pytest's own timeout before this.
SECONDS = 240
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
PASSED = re.compile(r"(\d+) passed")


class Verdict(NamedTuple):
    mutant: Mutant
    fate: str
    killer: str
    seconds: float


def main(words: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if all(word.lower() in mutant.title.lower() for word in words)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, servers() as where:
        bench = Bench(Path(folder), where)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            verdicts = list(pool.map(bench.judge, chosen))
        innocent = bench.passes_unbroken(sorted({verdict.killer for verdict in verdicts if verdict.killer}))
    report(verdicts)
    if not innocent:
        say("Some of these tests fail without a mutant as well: make the suite green first.")
    return 0 if verdicts and innocent and all(verdict.fate == "killed" for verdict in verdicts) else 1


@contextmanager
def servers() -> Iterator[dict[str, str]]:
    """One set of servers for all runs."""
    known = Servers()
    try:
        yield {"TEST_REDIS_URL": known.redis().url, "TEST_POSTGRES_URL": known.postgres().url}
    finally:
        known.close()


class Bench:
    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder, self._environment = folder, environment

    def judge(self, mutant: Mutant) -> Verdict:
        began = time.monotonic()
        package = self._copy(f"mutant-{MUTANTS.index(mutant)}")
        break_it(package / STORES, mutant)
        for tests in tests_for(mutant):
            said = self._pytest(package, [*tests, "--maxfail=1"])
            killers = FAILED.findall(said)
            if killers:
                fate = "killed" if PASSED.search(said) else "broken: no test passes on it"
                return Verdict(mutant, fate, killers[0], time.monotonic() - began)
            if not PASSED.search(said):
                return Verdict(mutant, f"no test ran: {said[-300:]}", "", time.monotonic() - began)
        return Verdict(mutant, "SURVIVED", "", time.monotonic() - began)

    def passes_unbroken(self, tests: list[str]) -> bool:
        said = self._pytest(self._copy("unbroken"), tests) if tests else ""
        return not FAILED.search(said) and bool(PASSED.search(said)) is bool(tests)

    def _copy(self, name: str) -> Path:
        package = self._folder / name
        shutil.copytree(ROOT / "common", package, ignore=shutil.ignore_patterns("__pycache__"))
        return package

    def _pytest(self, package: Path, arguments: list[str]) -> str:
        path = os.pathsep.join([str(package), str(ROOT)])
        environment = {**os.environ, **self._environment, "PYTHONPATH": path, "TASK_CONTRACT_MODEL": "quick"}
        quiet = ["-p", "no:cacheprovider", "-q", "--tb=no", "-rfE", "--timeout=60", "--color=no"]
        command = [sys.executable, "-B", "-c", RUN, str(package), *quiet, *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return done.stdout + done.stderr


#: Refuse to test anything but the copy.
RUN = """
import sys, pytest, task_contract
assert task_contract.__file__.startswith(sys.argv[1]), task_contract.__file__
sys.exit(pytest.main(sys.argv[2:]))
"""


def tests_for(mutant: Mutant) -> list[list[str]]:
    """The tests of its store, those that notice most in the shortest time first."""
    suite = {"redis": "TestRedis", "memory": "TestMemory", "postgres": "TestPostgres"}[mutant.kind]
    conformance = ["tests/stores/test_conformance.py::" + suite]
    others = [[f"tests/stores/test_{name}.py", "-k", mutant.kind] for name in ("model", "races", "kill")]
    if mutant.kind == "memory":
        return [conformance, *others[:2]]
    return [others.pop(), conformance, *others] if mutant.by_real_clock else [conformance, *others]


def break_it(stores: Path, mutant: Mutant) -> None:
    for edit in mutant.edits:
        file = stores / edit.file
        text = file.read_text("utf-8")
        found = text.count(edit.old)
        if found != 1:
            raise SystemExit(f"{mutant.title}: {edit.file} has {found} places like this, not one:\n{edit.old}")
        file.write_text(text.replace(edit.old, edit.new), "utf-8")


def report(verdicts: list[Verdict]) -> None:
    width = max((len(verdict.mutant.title) for verdict in verdicts), default=0)
    for mutant, fate, killer, seconds in verdicts:
        say(f"{mutant.title:<{width}}  {fate:<8}  {seconds:5.1f} s  {killer.rpartition('::')[2]}")
    killed = sum(verdict.fate == "killed" for verdict in verdicts)
    say(f"{killed} of {len(verdicts)} mutants killed")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
