"""Fixtures of the whole suite: servers on demand, and a place of its own in them for every test."""

from __future__ import annotations

import atexit
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

import psycopg
import pytest
import redis

from tests.servers import NoServer, PrivateRedis, RedisCluster, RedisSentinel, Servers
from tests.servers.rabbitmq import delete_queues

REQUIRE_SERVERS = "TEST_REQUIRE_SERVERS"
T = TypeVar("T")
SERVERS = pytest.StashKey[Servers]()


def pytest_configure(config: pytest.Config) -> None:
    servers = config.stash[SERVERS] = Servers()
    atexit.register(servers.close)
    _end_in_order_on_sigterm()


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[SERVERS].close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.write_line(f"servers: {config.stash[SERVERS].summary() or 'none needed'}")


@pytest.fixture(scope="session")
def servers(pytestconfig: pytest.Config) -> Servers:
    return pytestconfig.stash[SERVERS]


@pytest.fixture
def namespace(servers: Servers) -> Iterator[str]:
    """A string no other test and no other run uses. Redis keys that contain it are deleted afterwards."""
    name = f"tc-{uuid.uuid4().hex[:12]}"
    yield name
    server = servers.known("redis")
    if server is not None:
        _delete_keys(server.url, f"*{name}*")


@pytest.fixture(scope="session")
def redis_url(servers: Servers) -> str:
    """Possibly somebody's own server: write only keys that contain the test's `namespace`."""
    return _have(servers.redis).url


@pytest.fixture
def private_redis() -> Iterator[PrivateRedis]:
    """A server for this test alone, to be killed, restarted or watched."""
    with _have(PrivateRedis) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(servers: Servers) -> RedisCluster:
    return _have(servers.cluster)


@pytest.fixture(scope="session")
def redis_sentinel(servers: Servers) -> RedisSentinel:
    return _have(servers.sentinel)


@pytest.fixture(scope="session")
def postgres_url(servers: Servers) -> str:
    """Possibly somebody's own server: write only into the test's `schema`."""
    return _have(servers.postgres).url


@pytest.fixture
def schema(postgres_url: str) -> Iterator[str]:
    """The name of a schema that does not exist yet. It is dropped afterwards with all that is in it."""
    name = f"tc_{uuid.uuid4().hex[:12]}"
    yield name
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '10s'; SET client_min_messages = 'warning'")
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture(scope="session")
def rabbitmq_url(servers: Servers) -> str:
    """With a virtual host of this run where possible. Name queues by `queue_name`, in case it is not."""
    return _have(servers.rabbitmq).url


@pytest.fixture
def queue_name(rabbitmq_url: str) -> Iterator[Callable[[str], str]]:
    """`queue_name("mail")` gives a name of this test's own; the queue and Dramatiq's companions go with the test."""
    prefix = f"tc-{uuid.uuid4().hex[:12]}"
    made: list[str] = []

    def make(name: str) -> str:
        made.append(f"{prefix}-{name}")
        return made[-1]

    yield make
    delete_queues(rabbitmq_url, [queue + suffix for queue in made for suffix in ("", ".DQ", ".XQ")])


def _have(server: Callable[[], T]) -> T:
    """A server that cannot be had skips the test, or fails it where servers are required."""
    try:
        return server()
    except NoServer as reason:
        if os.environ.get(REQUIRE_SERVERS):
            pytest.fail(f"no server: {reason}", pytrace=False)
        pytest.skip(f"no server: {reason}")


def _delete_keys(url: str, pattern: str) -> None:
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(match=pattern, count=1000):
            client.unlink(key)


def _end_in_order_on_sigterm() -> None:
    """A cancelled CI job gets the same clean end as a Ctrl-C. Forked children keep the default."""
    owner = os.getpid()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            raise KeyboardInterrupt
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    signal.signal(signal.SIGTERM, interrupt)
