"""The demo as a user runs it: a subprocess, its exit code, its summary, and what it leaves behind (nothing)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

ROOT = Path(__file__).parents[2]
SECONDS = 150  # it takes 20; a busy machine may take its time
ACCEPTED, SENT_AGAIN, REDELIVERED = 247, 90, 40

pytestmark = pytest.mark.timeout(2 * SECONDS + 60)


@contextmanager
def demo(folder: Path, *options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """In a process group and a temporary folder of its own; afterwards both must be empty."""
    running = subprocess.Popen(
        [sys.executable, "-m", "examples.demo", *options],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield running
        running.wait(SECONDS)
        assert_group_is_empty(running.pid)
    finally:
        end_group(running)
    assert list(folder.iterdir()) == []


def assert_group_is_empty(group: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


def end_group(running: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.communicate()


def story_of(folder: Path, *options: str, **environment: str) -> tuple[int, str]:
    with demo(folder, *options, **environment) as running:
        story, _ = running.communicate(timeout=SECONDS)
    return running.returncode, story


def summary(story: str) -> dict[str, dict[str, float]]:
    """The last table, by store: `summary(story)["Redis"]["lost"]`."""
    head, *lines = story.partition("\nSummary\n")[2].splitlines()
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines if re.fullmatch(r" {5}.*\d", line)]
    return {store: {row[0]: float(row[column]) for row in rows} for column, store in enumerate(head.split(), start=1)}


def test_the_demo_keeps_its_promises_twice_in_a_row(tmp_path: Path, redis_url: str) -> None:
    # `redis_url` is not used, but where there is no Redis at all there is only half a story to check.
    for _ in range(2):
        code, story = story_of(tmp_path)
        assert code == 0, story
        assert "  NO " not in story
        assert "\x1b" not in story, "no colour where nobody looks"
        found = summary(story)
        assert list(found) == ["SQLite", "Redis"], story
        for counts in found.values():
            assert_promises(counts)
        assert_story(story, times=len(found))


def assert_promises(counts: dict[str, float]) -> None:
    # C1: a repeated send is answered with the first one's id. A5, D1: a copy past that gets the first result.
    assert counts["enqueued"] == ACCEPTED
    assert counts["deduplicated at the enqueue"] <= SENT_AGAIN
    assert counts["deduplicated at the enqueue"] + counts["absorbed at the claim"] >= SENT_AGAIN + REDELIVERED
    assert counts["effects doubled"] == 0
    # A9: nothing is acknowledged before it is durable.
    assert counts["lost"] == 0
    assert counts["charged without being done"] == 0
    # D4, E6: 6 orders cut off twice and 6 told 503 once.
    assert counts["retried"] == 18
    # A12, A14, E6, D14: a bug, a bad order, a refused card and the poison; D7: one is replayed.
    assert (counts["dead"], counts["replayed"], counts["dead in the end"]) == (4, 1, 3)
    # D5: one worker killed in the middle. D14: the poison takes three.
    assert counts["killed workers"] == 4


def assert_story(story: str, times: int) -> None:
    for line in (
        r"ok 200 orders, 200 charges: each exactly once",  # D1, C1
        r"ok nobody came back before Retry-After",  # A13, E6
        r"non-retryable +KeyError: 'CHF' +swiss-1:charge +1",  # E3, E6
        r"non-retryable +ValueError: an order of -5 cents +negative-1:charge +1",  # A14
        r"non-retryable +HTTPError: .*402.* +refused-1:charge +1",  # E6
        r"ok it ran once more, under its own id, and was charged",  # D7
        r"ok a second click is refused: it is replayed already",  # D3
        r"the heartbeat holds the lease, so the copy waits",  # C4
        r"ok worker \d+ took over and finished after .* s: attempt \d, fence \d",  # D5
        r"worker-killed +3 of its workers died +poison-1:invoice +3",  # D14
        r"ok its 30 neighbours all finished, once each",  # D14
    ):
        assert len(re.findall(line, story)) == times, f"{line}\n{story}"


def test_the_demo_fails_when_a_promise_is_broken(tmp_path: Path) -> None:
    """A worker that forgets what it has done: the demo must notice, or its green light is worth nothing."""
    sabotage, files = tmp_path / "sabotage", tmp_path / "files"
    sabotage.mkdir()
    files.mkdir()
    (sabotage / "sitecustomize.py").write_text(
        "from task_contract.stores.sqlite import SQLiteStore\nSQLiteStore.complete = lambda *args, **kwargs: None\n"
    )
    path = os.pathsep.join(filter(None, [str(sabotage), str(ROOT / "common"), os.environ.get("PYTHONPATH")]))
    code, story = story_of(files, "--store", "sqlite", PYTHONPATH=path)
    assert code == 1, story
    assert "Broken promises:" in story
    counts = summary(story)["SQLite"]
    assert counts["effects doubled"] > 0
    assert counts["lost"] > 0


@pytest.mark.parametrize(
    ("store", "how", "stop"),
    [("redis", signal.SIGINT, os.killpg), ("sqlite", signal.SIGTERM, os.kill)],
    ids=["Ctrl-C goes to all processes", "SIGTERM to one"],
)
def test_the_demo_can_be_stopped(
    tmp_path: Path, redis_url: str, store: str, how: signal.Signals, stop: Callable[[int, int], None]
) -> None:
    with demo(tmp_path, "--store", store) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if "waits for the bank" in line:  # the hardest moment: a worker hangs in a task
                break
        stop(running.pid, how)
        said, _ = running.communicate(timeout=SECONDS)
    assert running.returncode == 128 + how
    assert "Traceback" not in said


def test_somebody_elses_redis_is_left_as_it_was(tmp_path: Path, redis_url: str) -> None:
    code, story = story_of(tmp_path, "--store", "redis", "--redis", redis_url)
    assert code == 0, story
    namespace = re.search(r"under the namespace (demo-\w+)", story)
    assert namespace is not None, story
    assert urlsplit(redis_url).hostname in story
    with redis.Redis.from_url(redis_url) as client:
        assert list(client.scan_iter(match=f"*{namespace[1]}*")) == []
