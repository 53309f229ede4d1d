"""A server process of our own: started in a session of its own, stopped for certain, its log kept for the error."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

START_SECONDS = 60.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02
HIGHEST_PORT = 65535

_given: set[int] = set()


class NoServer(Exception):
    """A server that a test needs cannot be had on this machine; the message says why."""


def free_port(*, companion: int = 0) -> int:
    """A port nobody listens on and nobody was given before; the port `companion` numbers above it is free as well."""
    for _ in range(1000):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in _given and (not companion or is_free(port + companion)):
            _given.update({port, port + companion})
            return port
    raise NoServer("no free port on this machine")


def is_free(port: int) -> bool:
    if port > HIGHEST_PORT or port in _given:
        return False
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds:.0f} s still not: {what}")
        time.sleep(POLL_SECONDS)


def accepts_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


class Folder:
    """A folder for a server's data, removed with it. `user` owns it if given."""

    def __init__(self, kind: str, *, user: str | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"task-contract-{kind}-"))
        if user is not None:
            shutil.chown(self.path, user)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class Process:
    """A command that runs until it is stopped. A new session keeps a Ctrl-C away from it: the run stops it in order."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.command = [str(part) for part in command]
        self.folder = folder
        self.environment = {**os.environ, **(environment or {})}
        self.user = user
        self.stop_signal = stop_signal
        self.log = folder / f"{Path(self.command[0]).name}.log"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "the server was not started"
        return self._child.pid

    def start(self, ready: Callable[[], bool]) -> None:
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=self.user,
                extra_groups=[] if self.user else None,
            )
        try:
            wait_until(lambda: self.exited() or ready(), f"{self.command[0]} answers")
        except BaseException:
            self.kill()
            raise
        if self.exited():
            raise NoServer(f"{self.command[0]} ended at once:\n{self.log.read_text(errors='replace')[-2000:]}")

    def exited(self) -> bool:
        return self._child is None or self._child.poll() is not None

    def stop(self) -> None:
        if self._child is None or self.exited():
            return
        self._child.send_signal(self.stop_signal)
        try:
            self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, as a power cut would: no shutdown, no goodbye."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
