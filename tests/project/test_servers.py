"""Every server fixture answers, keeps to its own place, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import kombu
import psycopg
import pytest
import redis
from redis.cluster import RedisCluster as ClusterClient
from redis.sentinel import Sentinel

from tests.servers import NoServer, PrivateRedis, RedisCluster, RedisSentinel, Server, Servers
from tests.servers import redis as redis_server
from tests.servers.process import free_port

ROOT = Path(__file__).parents[2]
InnerRun = Callable[..., "subprocess.CompletedProcess[str]"]


def test_redis_answers(redis_url: str, namespace: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set(namespace, "here")
        assert client.get(namespace) == b"here"


def test_a_private_redis_can_be_killed_and_restarted(private_redis: PrivateRedis) -> None:
    with private_redis.client() as client:
        client.set("key", "value")
        private_redis.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        private_redis.restart()
        assert client.get("key") is None


def test_the_cluster_serves_every_slot(redis_cluster: RedisCluster) -> None:
    with ClusterClient(host="127.0.0.1", port=redis_cluster.nodes[0].port) as client:
        for number in range(50):
            client.set(f"key-{number}", number)
        assert [client.get(f"key-{number}") for number in range(50)] == [b"%d" % number for number in range(50)]
    sizes = [_size(node) for node in redis_cluster.nodes]
    assert all(sizes), f"a node without keys: {sizes}"


def _size(node: PrivateRedis) -> int:
    with node.client() as client:
        return int(client.dbsize())


def test_the_sentinel_names_master_and_replica(redis_sentinel: RedisSentinel) -> None:
    sentinel = Sentinel([("127.0.0.1", redis_sentinel.port)], socket_timeout=5)
    assert sentinel.discover_master("mymaster") == ("127.0.0.1", redis_sentinel.master.port)
    assert sentinel.discover_slaves("mymaster") == [("127.0.0.1", redis_sentinel.replica.port)]
    with sentinel.master_for("mymaster") as client:
        client.set("key", "value")
        assert client.wait(1, 5000) == 1
    for each in sentinel.sentinels:
        each.close()


def test_postgres_answers_and_a_schema_is_ours(postgres_url: str, schema: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.thing (id int)")
        assert connection.execute(f"SELECT count(*) FROM {schema}.thing").fetchone() == (0,)


def test_rabbitmq_carries_a_message(rabbitmq_url: str, queue_name: Callable[[str], str]) -> None:
    with kombu.Connection(rabbitmq_url) as connection, connection.SimpleQueue(queue_name("mail")) as queue:
        queue.put("hello")
        message = queue.get(timeout=10)
        assert message.payload == "hello"
        message.ack()


def test_free_ports_are_not_given_twice() -> None:
    ports = [free_port() for _ in range(200)]
    assert len(set(ports)) == len(ports)


def test_a_named_server_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_PRIVATE_SERVERS", raising=False)
    monkeypatch.setenv("TEST_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(RuntimeError, match="TEST_REDIS_URL does not answer"):
        Servers().redis()


def test_a_password_is_not_printed() -> None:
    assert str(Server("redis://me:secret@host:1/0", "named")) == "named redis://me:***@host:1/0"


def test_a_server_that_cannot_be_had_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PRIVATE_SERVERS", "1")
    monkeypatch.setattr(redis_server, "redis_executable", _missing)
    servers = Servers()
    with pytest.raises(NoServer, match="not on this machine"):
        servers.redis()
    monkeypatch.undo()
    with pytest.raises(NoServer, match="not on this machine"):
        servers.redis()
    assert servers.summary() == "redis=none (not on this machine)"


def _missing(*, bundled_first: bool) -> str:
    raise NoServer("not on this machine")


@pytest.fixture
def inner_run() -> InnerRun:
    """Runs pytest on one test of `test_servers.py` in a process and an environment of its own."""

    def run(test: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", f"{__file__}::{test}", "-p", "no:cacheprovider"],
            cwd=ROOT,
            env={**os.environ, "TEST_PRIVATE_SERVERS": "1", **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_the_run_names_its_servers(inner_run: InnerRun) -> None:
    done = inner_run("test_redis_answers")
    assert "servers: redis=private redis://127.0.0.1:" in done.stdout
    assert done.returncode == 0


def test_a_run_that_needs_no_server_starts_none(inner_run: InnerRun) -> None:
    assert "servers: none needed" in inner_run("test_free_ports_are_not_given_twice").stdout


def test_a_missing_server_skips_or_fails_where_servers_are_required(inner_run: InnerRun, tmp_path: Path) -> None:
    """With an empty PATH there is no RabbitMQ to start."""
    skipped = inner_run("test_rabbitmq_carries_a_message", PATH=str(tmp_path), TEST_REQUIRE_SERVERS="")
    assert "SKIPPED" in skipped.stdout
    assert "no server: " in skipped.stdout
    assert skipped.returncode == 0
    required = inner_run("test_rabbitmq_carries_a_message", PATH=str(tmp_path), TEST_REQUIRE_SERVERS="1")
    assert "no server: " in required.stdout
    assert required.returncode == 1
