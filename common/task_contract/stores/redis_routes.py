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
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from redis.sentinel import Sentinel

from task_contract.errors import ConfigurationError
from task_contract.stores.urls import refuse_unclear

Address = tuple[str, int]


class Route:
    """One server, as the URL says."""

    def __init__(self, url: str, timeout: float) -> None:
        self._pool = ConnectionPool(**_options(url, timeout))

    def connect(self) -> Connection:
        return _connected(self._pool)

    def learn(self, error: Exception) -> None:
        """A single server is where it is."""


class SentinelRoute(Route):
    """`redis+sentinel://host:port,host:port/service/0`: every new connection asks for the master."""

    def __init__(self, url: str, timeout: float) -> None:
        service, _, database = urlsplit(url).path.strip("/").partition("/")
        if not service:
            raise ConfigurationError("name the Sentinels' service in the URL: redis+sentinel://host:26379/mymaster/0")
        # The login is the master's: the Sentinels themselves have none, or one of their own.
        sentinel = Sentinel(_addresses(url, 26379), sentinel_kwargs={**_timeouts(timeout), **_OURS})
        options = _options(_single(url, "host", 0), timeout)
        secure = {"ssl": True} if "connection_class" in options else {}
        asked = {
            name: value for name, value in options.items() if name not in ("host", "port", "db", "connection_class")
        }
        self._pool = sentinel.master_for(service, db=int(database or 0), **asked, **secure).connection_pool


class ClusterRoute(Route):
    """`redis+cluster://host:port,host:port`: any node answers with the one that has our keys."""

    def __init__(self, url: str, timeout: float) -> None:
        self._nodes = _addresses(url, 6379)
        self._current = self._nodes[0]
        self._pools: dict[Address, ConnectionPool] = {}
        self._options = _options(_single(url, "host", 0), timeout)

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
            host, port = address
            self._pools[address] = ConnectionPool(**{**self._options, "host": host, "port": port})
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


def recognised(error: Exception) -> Exception:
    """An older redis-py knows a cluster's answers only inside its cluster client."""
    word, _, rest = str(error).partition(" ")
    return _CLUSTER_ANSWERS[word](rest) if type(error) is ResponseError and word in _CLUSTER_ANSWERS else error


_CLUSTER_ANSWERS: dict[str, Callable[[str], Exception]] = {
    "MOVED": MovedError,
    "ASK": AskError,
    "TRYAGAIN": TryAgainError,
    "CLUSTERDOWN": ClusterDownError,
    "MASTERDOWN": MasterDownError,
}


def find_route(url: str, timeout: float) -> Route:
    refuse_unclear(url)
    try:
        return _ROUTES.get(urlsplit(url).scheme, Route)(url, timeout)
    except ConfigurationError:
        raise
    except ValueError:
        # What a parser says may quote the password, and so would the chain of exceptions.
        raise ConfigurationError(
            "not a Redis URL: redis://user:password@host:6379/0, with what is special in a URL (@ : / ? # %) "
            "percent-encoded in its parts"
        ) from None


_ROUTES: dict[str, Callable[[str, float], Route]] = {
    "redis+sentinel": SentinelRoute,
    "rediss+sentinel": SentinelRoute,
    "redis+cluster": ClusterRoute,
    "rediss+cluster": ClusterRoute,
}

#: What the store relies on, whatever the URL says.
_OURS: dict[str, Any] = {
    "retry": Retry(NoBackoff(), 0),  # `patiently` repeats, and knows what may be repeated
    "protocol": 2,
    "decode_responses": False,
    "encoding": "utf-8",
    "encoding_errors": "surrogatepass",  # whatever a task's arguments contain, its record must be written
    "health_check_interval": 0,
}
#: What a URL may say besides. Its timeouts win over the store's.
_THEIRS = frozenset(
    [
        "host",
        "port",
        "path",
        "db",
        "username",
        "password",
        "client_name",
        "connection_class",
        "socket_timeout",
        "socket_connect_timeout",
        "socket_keepalive",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_cert_reqs",
        "ssl_ca_certs",
        "ssl_ca_data",
        "ssl_ca_path",
        "ssl_check_hostname",
        "ssl_password",
        "ssl_ciphers",
    ]
)
#: And what it may say to redis-py's own clients and pools, and has no meaning for ours.
_MOOT = frozenset(["max_connections", "timeout", "retry_on_timeout", "retry_on_error"])


def _options(url: str, timeout: float) -> dict[str, Any]:
    given: dict[str, Any] = {**parse_url(url)}
    unknown = set(given) - _THEIRS - _MOOT - set(_OURS)
    if unknown:  # not named: what stands there may belong to a password
        known = ", ".join(sorted(_THEIRS - {"host", "port", "path", "connection_class"}))
        raise ConfigurationError(f"an option in the Redis URL is none that can be given there; known are {known}")
    if "ssl_cert_reqs" in given:  # Celery has it as CERT_NONE
        given["ssl_cert_reqs"] = str(given["ssl_cert_reqs"]).lower().removeprefix("cert_")
    options = {**_timeouts(timeout), **{name: given[name] for name in given if name in _THEIRS}, **_OURS}
    _try(**options)
    return options


def _try(*, connection_class: type[Connection] = Connection, **options: Any) -> None:
    try:
        connection_class(**options)
    except (TypeError, RedisError):
        raise ConfigurationError(
            "an option in the Redis URL does not fit: those that begin with ssl_ need rediss://, and values that "
            "redis-py can use"
        ) from None


def _timeouts(timeout: float) -> dict[str, float]:
    return {"socket_timeout": timeout, "socket_connect_timeout": timeout}


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
