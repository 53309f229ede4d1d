"""The servers of one test run, each looked for once: named, found or private, in this order."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from typing_extensions import Self

from tests.servers.postgres import PrivatePostgres, postgres_answers, usual_postgres_urls
from tests.servers.process import NoServer
from tests.servers.rabbitmq import USUAL_URL, PrivateRabbitMQ, RabbitMQ, rabbitmq_answers
from tests.servers.redis import PrivateRedis, RedisCluster, RedisSentinel, redis_answers

PRIVATE_ONLY = "TEST_PRIVATE_SERVERS"


class Startable(Protocol):
    @property
    def url(self) -> str: ...
    def start(self) -> Self: ...
    def close(self) -> None: ...


S = TypeVar("S", bound=Startable)


@dataclass(frozen=True)
class Server:
    """Where it is, and how we came by it: `named`, `found` or `private`."""

    url: str
    origin: str

    def __str__(self) -> str:
        return f"{self.origin} {without_password(self.url)}"


@dataclass
class Servers:
    """Asked by the fixtures. Closing it stops what it started, in reverse order."""

    _known: dict[str, Server | NoServer] = field(default_factory=dict)
    _started: ExitStack = field(default_factory=ExitStack)
    _owner: int = field(default_factory=os.getpid)

    def redis(self) -> Server:
        return self._once("redis", lambda: self._named("TEST_REDIS_URL", redis_answers) or self._redis())

    def postgres(self) -> Server:
        return self._once("postgres", lambda: self._named("TEST_POSTGRES_URL", postgres_answers) or self._postgres())

    def rabbitmq(self) -> Server:
        return self._once("rabbitmq", lambda: self._named("TEST_RABBITMQ_URL", rabbitmq_answers) or self._rabbitmq())

    def cluster(self) -> RedisCluster:
        cluster = self._start(RedisCluster())
        self._known["redis cluster"] = Server(cluster.url, "private")
        return cluster

    def sentinel(self) -> RedisSentinel:
        sentinel = self._start(RedisSentinel())
        self._known["redis sentinel"] = Server(sentinel.url, "private")
        return sentinel

    def known(self, kind: str) -> Server | None:
        """The server if a test of this run has asked for it already."""
        server = self._known.get(kind)
        return server if isinstance(server, Server) else None

    def summary(self) -> str:
        return ", ".join(
            f"{kind}={server if isinstance(server, Server) else f'none ({server})'}"
            for kind, server in self._known.items()
        )

    def close(self) -> None:
        """A forked child that ends does not stop its parent's servers."""
        if os.getpid() == self._owner:
            self._started.close()

    def _once(self, kind: str, look_for: Callable[[], Server]) -> Server:
        if kind not in self._known:
            try:
                self._known[kind] = look_for()
            except NoServer as reason:
                self._known[kind] = reason
        server = self._known[kind]
        if isinstance(server, NoServer):
            raise server
        return server

    @staticmethod
    def _named(variable: str, answers: Callable[[str], bool]) -> Server | None:
        url = os.environ.get(variable)
        if not url or _private_only():
            return None
        if not answers(url):
            raise RuntimeError(
                f"the server named by {variable} does not answer or cannot be used: {without_password(url)}"
            )
        return Server(url, "named")

    def _redis(self) -> Server:
        url = "redis://127.0.0.1:6379/0"
        if not _private_only() and redis_answers(url):
            return Server(url, "found")
        return Server(self._start(PrivateRedis(bundled_first=True)).url, "private")

    def _postgres(self) -> Server:
        usable = (url for url in usual_postgres_urls() if not _private_only() and postgres_answers(url))
        found = next(usable, None)
        return Server(found, "found") if found else Server(self._start(PrivatePostgres()).url, "private")

    def _rabbitmq(self) -> Server:
        if not _private_only() and rabbitmq_answers(USUAL_URL):
            found = RabbitMQ(USUAL_URL)
            self._started.callback(found.close)
            return Server(found.enter_own_vhost().url, "found")
        return Server(self._start(PrivateRabbitMQ()).url, "private")

    def _start(self, server: S) -> S:
        self._started.callback(server.close)
        return server.start()


def _private_only() -> bool:
    return os.environ.get(PRIVATE_ONLY, "") not in {"", "0"}


def without_password(url: str) -> str:
    """What is printed ends up in logs."""
    parts = urlsplit(url)
    return url.replace(f":{parts.password}@", ":***@") if parts.password else url
