"""Where the Redis server is: one address, whatever the Sentinels call master, or the cluster node that has our keys.

A route makes connections and learns from errors; it knows nothing of records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from redis import ConnectionPool
from redis.backoff import NoBackoff
from redis.connection import Connection, parse_url
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError
from redis.retry import Retry
from redis.sentinel import Sentinel

from task_contract.errors import ConfigurationError

Address = tuple[str, int]


class Route:
    """One server, as the URL says."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._pool = ConnectionPool.from_url(url, **options)

    def connect(self) -> Connection:
        return _connected(self._pool)

    def learn(self, error: Exception) -> None:
        """A single server is where it is."""


class SentinelRoute(Route):
    """`redis+sentinel://host:port,host:port/service/0`: every new connection asks for the master."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        parts = urlsplit(url)
        service, _, database = parts.path.strip("/").partition("/")
        if not service:
            raise ConfigurationError("name the Sentinels' service in the URL: redis+sentinel://host:26379/mymaster/0")
        login = _login(url)
        sentinel = Sentinel(_addresses(url, 26379), sentinel_kwargs=dict(options), **options)
        self._pool = sentinel.master_for(service, db=int(database or 0), **login).connection_pool


class ClusterRoute(Route):
    """`redis+cluster://host:port,host:port`: any node answers with the one that has our keys."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._nodes = _addresses(url, 6379)
        self._current = self._nodes[0]
        self._pools: dict[Address, ConnectionPool] = {}
        self._url, self._options = url, options

    def connect(self) -> Connection:
        return self._to(self._current)

    def learn(self, error: Exception) -> None:
        if isinstance(error, MovedError):
            self._current = self._named(error)
            self._remember(self._current)
        elif isinstance(error, (RedisConnectionError, OSError)):
            self._current = self._nodes[(self._nodes.index(self._current) + 1) % len(self._nodes)]

    def _named(self, error: MovedError) -> Address:
        return (error.host or self._current[0], int(error.port))

    def _to(self, address: Address) -> Connection:
        if address not in self._pools:
            self._pools[address] = ConnectionPool.from_url(_single(self._url, *address), **self._options)
        connection = _connected(self._pools[address])
        if len(self._nodes) == 1:
            self._discover(connection)
        return connection

    def _discover(self, connection: Connection) -> None:
        connection.send_command("CLUSTER", "SLOTS")
        for shard in connection.read_response():
            for node in shard[2:]:
                self._remember((node[0].decode() or self._current[0], int(node[1])))

    def _remember(self, address: Address) -> None:
        if address not in self._nodes:
            self._nodes.append(address)


def _connected(pool: ConnectionPool) -> Connection:
    # Not pool.make_connection(): that counts what it ever made and refuses the hundred-and-first. And connected here,
    # because a Sentinel's connection that is only sent a command goes to localhost instead of asking for the master.
    connection = cast("Connection", pool.connection_class(**pool.connection_kwargs))
    connection.connect()
    return connection


def find_route(url: str, timeout: float) -> Route:
    try:
        return _find_route(url, timeout)
    except ValueError as error:
        raise ConfigurationError(f"not a Redis URL: {error}") from error


def _find_route(url: str, timeout: float) -> Route:
    options = {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),  # `patiently` repeats, and knows what may be repeated
        "protocol": 2,
        "encoding_errors": "surrogatepass",  # whatever a task's arguments contain, its record must be written
    }
    routes: dict[str, Callable[[str, dict[str, Any]], Route]] = {
        "redis+sentinel": SentinelRoute,
        "rediss+sentinel": SentinelRoute,
        "redis+cluster": ClusterRoute,
        "rediss+cluster": ClusterRoute,
    }
    return routes.get(urlsplit(url).scheme, Route)(url, options)


def _addresses(url: str, default_port: int) -> list[Address]:
    hosts = urlsplit(url).netloc.rpartition("@")[2] or "localhost"
    parts = (urlsplit(f"//{host}") for host in hosts.split(","))
    return [(part.hostname or "localhost", part.port or default_port) for part in parts]


def _single(url: str, host: str, port: int) -> str:
    """The URL of one server, with the login and the options of the whole."""
    parts = urlsplit(url)
    scheme = "rediss" if parts.scheme.startswith("rediss") else "redis"
    login, at, _ = parts.netloc.rpartition("@")
    host = f"[{host}]" if ":" in host else host
    return urlunsplit((scheme, f"{login}{at}{host}:{port}", "", parts.query, ""))


def _login(url: str) -> dict[str, Any]:
    known = parse_url(_single(url, "host", 0))
    login = {name: value for name, value in known.items() if name not in ("host", "port", "db", "connection_class")}
    return login | ({"ssl": True} if "connection_class" in known else {})
