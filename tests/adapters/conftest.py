"""A real Celery worker process for a test, on each broker."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
#: Redis gives the messages of a dead worker back after the timeout, when somebody looks: every second here.
QUICK_REDIS = {"visibility_timeout": 3, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
MODULE = "tests.adapters.celery_shop"


def until(look: Callable[[], T], seconds: float = 60) -> T:
    """Wait for a state: what `look` returns once it is true."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"waited {seconds} s"
        time.sleep(0.05)
    return found


class Shop:
    """The app as this process sees it, and its workers."""

    def __init__(self, module: ModuleType, environment: dict[str, str], folder: Path) -> None:
        self.app, self.tasks, self.contract = module.app, module, module.contract
        self.marks: Callable[[], list[str]] = module.marks
        self._environment, self._folder = environment, folder
        self._workers: list[subprocess.Popen[bytes]] = []

    def worker(self, *options: str) -> subprocess.Popen[bytes]:
        """Start one and wait until it is ready."""
        log = self._folder / f"worker-{len(self._workers)}.log"
        command = [sys.executable, "-m", "celery", "-A", MODULE, "worker", "-l", "INFO", "-E"]
        name = f"--hostname=w{len(self._workers)}@{self._folder.name}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, name, *(options or ("-c", "2"))],
                cwd=ROOT,
                env=self._environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._workers.append(process)
        until(lambda: " ready." in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        return process

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self._folder.glob("worker-*.log")))

    def count(self, mark: str) -> int:
        return sum(1 for found in self.marks() if found == mark or found.startswith(f"{mark} "))

    def close(self) -> None:
        for process in self._workers:
            kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """The worker and its children, as when a machine goes down."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shop(request: pytest.FixtureRequest, broker: str, namespace: str, redis_url: str, tmp_path: Path) -> Iterator[Shop]:
    on_redis = broker == "redis"
    queue = namespace if on_redis else request.getfixturevalue("queue_name")("shop")
    settings: dict[str, Any] = {
        "namespace": namespace,
        "redis": redis_url,
        "broker": redis_url if on_redis else request.getfixturevalue("rabbitmq_url"),
        "queue": queue,
        "transport": {**QUICK_REDIS, "global_keyprefix": f"{namespace}:"} if on_redis else {},
        "install": True,
    }
    environment = {**os.environ, "CELERY_SHOP": json.dumps(settings), "PYTHONPATH": str(ROOT)}
    os.environ["CELERY_SHOP"] = environment["CELERY_SHOP"]
    sys.modules.pop(MODULE, None)
    found = Shop(importlib.import_module(MODULE), environment, tmp_path)
    yield found
    found.close()
    found.app.close()
    found.contract.close()
    del os.environ["CELERY_SHOP"]
