"""Connections: opened when first needed, never shared with a forked child, usable from threads and greenlets."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from task_contract.errors import ContractError
from task_contract.stores import open_store
from task_contract.stores.base import Hold, Limits, Store, Work
from tests.stores.opening import Address

ROOT = Path(__file__).parents[2]
#: Python 3.12 and later warn of what this file is about.
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def use(store: Store, key: str) -> None:
    """Claim and complete, as one worker would."""
    work = Work(f"m-{key}")
    claim = store.claim(key, work, owner=key, lease=600, keep=600, limits=Limits())
    assert (claim.outcome, claim.attempt) == ("won", 1), claim
    store.complete(Hold(key, key, claim.fence, claim.attempt, work), keep=600, result=key.encode())
    again = store.claim(key, work, owner="other", lease=600, keep=600, limits=Limits())
    assert (again.outcome, again.result) == ("done", key.encode()), again


def connection_of(store: Any) -> Any:
    """The identity of the connection the store uses now, as the server sees it where there is one."""
    if hasattr(store, "command"):
        return store.command("CLIENT", "ID")
    if type(store).__name__ == "PostgresStore":
        return store._query("SELECT pg_backend_pid()", ())[0][0]
    return f"{os.getpid()}:{store._pool.run(id)}"  # a closed one's id is free to be used again


def in_child(work: Callable[[], Any], meanwhile: Callable[[], object] = lambda: None) -> Any:
    """What `work` returns in a forked child, by way of JSON; its traceback fails the test."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _report(work, writer)
    os.close(writer)
    meanwhile()
    with os.fdopen(reader, "rb") as report:
        said = report.read()
    os.waitpid(pid, 0)
    answer = json.loads(said or b'{"error": "the child died without a word"}')
    assert "error" not in answer, answer["error"]
    return answer["value"]


def _report(work: Callable[[], Any], writer: int) -> None:
    try:
        said = {"value": work()}
    except BaseException:  # noqa: BLE001  (whatever it is, the parent must hear of it)
        said = {"error": traceback.format_exc()}
    os.write(writer, json.dumps(said).encode())
    os._exit(0)


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel", "postgresql"])
def test_nothing_is_connected_before_it_is_used(scheme: str) -> None:  # issue 2: opened lazily
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        path = "/mymaster/0" if "sentinel" in scheme else "" if "cluster" in scheme else "/0"
        store = open_store(f"{scheme}://user@127.0.0.1:{closed.getsockname()[1]}{path}", timeout=0.2)
        with pytest.raises(ContractError):
            store.ping()
        store.close()


def test_no_file_is_made_before_it_is_used(tmp_path: Path) -> None:  # issue 2: opened lazily
    store = open_store(f"sqlite:///{tmp_path / 'later' / 'store.db'}")
    assert not list(tmp_path.iterdir())
    store.ping()
    assert (tmp_path / "later" / "store.db").exists()
    store.close()


def goes_on(store: Store, kind: str, connection: Any) -> bool:
    """Whether the parent has the connection it had before it forked."""
    return kind == "sqlite" or connection_of(store) == connection  # SQLite's is closed before a fork


@forks
def test_a_child_has_its_own_connection(shared: Address) -> None:  # issue 2: never shares its parent's socket
    with shared.opened() as store:
        use(store, "before")
        parents = connection_of(store)
        inherited = list(store._pool._idle)  # type: ignore[attr-defined]
        assert inherited

        def child() -> list[Any]:
            use(store, "child")
            return [connection_of(store), any(each is old for each in store._pool._idle for old in inherited)]  # type: ignore[attr-defined]

        childs, shares = in_child(child)
        assert not shares
        assert childs != parents
        assert goes_on(store, shared.kind, parents)
        use(store, "after")
        record = store.get("child")
        assert record is not None
        assert record.state == "done"


@forks
def test_a_child_of_a_child_has_its_own_too(shared: Address) -> None:  # issue 2
    with shared.opened() as store:
        use(store, "parent")
        parents = connection_of(store)

        def child() -> list[Any]:
            use(store, "child")
            return [connection_of(store), in_child(grandchild)]

        def grandchild() -> Any:
            use(store, "grandchild")
            return connection_of(store)

        childs, grandchilds = in_child(child)
        assert len({parents, childs, grandchilds}) == 3
        use(store, "after")


@forks
def test_closing_in_the_child_leaves_the_parents_alone(shared: Address) -> None:  # issue 2
    with shared.opened() as store:
        use(store, "before")
        parents = connection_of(store)
        in_child(store.close)
        assert goes_on(store, shared.kind, parents)
        use(store, "after")


@forks
def test_a_child_inherits_nothing_of_sqlite(tmp_path: Path) -> None:  # issue 2: it keeps book of locks in memory
    with Address("sqlite", f"sqlite:///{tmp_path / 'store.db'}").opened() as store:
        use(store, "before")
        (before,) = store._pool._idle  # type: ignore[attr-defined]
        assert files_open_in(tmp_path)

        def child() -> list[str]:
            with pytest.raises(sqlite3.ProgrammingError, match="closed"):
                before.execute("SELECT 1")
            return files_open_in(tmp_path)

        assert in_child(child) == []
        use(store, "after")


def files_open_in(folder: Path) -> list[str]:
    """What this process has open there."""
    opened = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            opened.append(str(descriptor.readlink()))
    return [path for path in opened if path.startswith(str(folder))]


@forks
def test_a_live_lease_outlasts_a_helper_process(shared: Address) -> None:  # issue 2: nobody else may run meanwhile
    with shared.opened() as store:
        claim = store.claim("k", Work("m"), owner="a", lease=600, keep=600, limits=Limits())
        in_child(lambda: None)
        in_child(store.close)
        with shared.opened() as another:
            answer = another.claim("k", Work("m"), owner="b", lease=600, keep=600, limits=Limits())
        assert (claim.outcome, answer.outcome) == ("won", "busy")


@forks
def test_the_parent_may_leave_before_its_child(shared: Address) -> None:  # issue 2: SQLite deletes a WAL at last close
    work, leave = os.pipe(), os.pipe()
    with shared.opened() as store:
        use(store, "before")

        def child() -> None:
            use(store, "child-1")
            os.write(work[1], b"1")
            os.read(leave[0], 1)
            use(store, "child-2")

        def parent() -> None:
            os.read(work[0], 1)
            store.close()
            os.write(leave[1], b"1")

        in_child(child, meanwhile=parent)
    with shared.opened() as store:
        found = [store.get(key) for key in ("child-1", "child-2")]
    for end in (*work, *leave):
        os.close(end)
    assert [record and record.state for record in found] == ["done", "done"]


@forks
def test_a_fork_while_other_threads_are_busy(anywhere: Address) -> None:  # issue 2: no lock stays held in the child
    with anywhere.opened() as store:
        stop = threading.Event()

        def busy(name: str) -> None:
            n = 0
            while not stop.is_set():
                use(store, f"{name}-{(n := n + 1)}")

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(busy, f"t{n}") for n in range(4)]
            try:
                for n in range(20):
                    in_child(lambda n=n: use(store, f"child-{n}"))  # type: ignore[misc]  # mypy cannot infer the lambda
            finally:
                stop.set()
            for future in futures:
                future.result(60)


def test_many_threads_use_one_store(anywhere: Address) -> None:  # issue 2: survives threads
    with anywhere.opened() as store, ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda n: use(store, f"k{n}"), range(200), timeout=90))


GREENLETS = """
from gevent import monkey
monkey.patch_all()
import gevent, sys
from tests.stores.opening import Address
from tests.stores.test_fork import use
address = Address.load(sys.argv[1])
with address.opened() as store:
    jobs = [gevent.spawn(use, store, f"k{n}") for n in range(50)]
    gevent.joinall(jobs, timeout=60, raise_error=True)
    assert all(job.successful() for job in jobs)
    assert {store.get(f"k{n}").state for n in range(50)} == {"done"}
print("50 done")
"""


def test_greenlets(anywhere: Address) -> None:  # issue 2: gevent-safe
    done = subprocess.run(
        [sys.executable, "-c", GREENLETS, anywhere.dump()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stdout == "50 done\n", done.stderr[-3000:]
