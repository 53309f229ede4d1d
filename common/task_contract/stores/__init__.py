"""Places for records. `open_store` finds the one a URL names; its driver is imported only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from task_contract.errors import ConfigurationError
from task_contract.stores.base import Store

_REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")


def open_store(
    store: str | Store, *, namespace: str = "task-contract", timeout: float = 1.0, max_connections: int | None = None
) -> Store:
    """The store that a URL names (a ready store is handed back). Nothing is connected until it is used."""
    if isinstance(store, Store):
        return store
    if not isinstance(store, str):
        raise ConfigurationError(f"a store is a URL or a Store, got {type(store).__name__}")
    opener = _OPENERS.get(urlsplit(store).scheme)
    if opener is None:
        known = "redis://, rediss://, redis+cluster://, redis+sentinel://, postgresql://, sqlite:///path, memory://"
        raise ConfigurationError(f"{_safe(store)} names no store this version knows; it knows {known}")
    return opener(store, _Options(namespace, timeout, max_connections))


class _Options(NamedTuple):
    namespace: str
    timeout: float
    max_connections: int | None


def _redis(url: str, options: _Options) -> Store:
    from task_contract.stores.redis import RedisStore

    namespace, timeout, most = options
    return RedisStore(url, namespace=namespace, timeout=timeout, max_connections=most or 50)


def _postgres(url: str, options: _Options) -> Store:
    from task_contract.stores.postgres import PostgresStore

    base, _, query = url.partition("?")
    given = dict(parse_qsl(query))
    schema = given.pop("schema", None) or options.namespace.replace("-", "_").replace(".", "_")
    url = f"{base}?{urlencode(given)}" if given else base
    return PostgresStore(url, schema=schema, timeout=options.timeout, max_connections=options.max_connections or 10)


def _sqlite(url: str, options: _Options) -> Store:
    from task_contract.stores.sqlite import SQLiteStore

    path = unquote(urlsplit(url).path)
    if urlsplit(url).netloc:
        raise ConfigurationError(f"{url}: write sqlite:///relative.db or sqlite:////absolute/path.db")
    return SQLiteStore(path[1:], timeout=max(options.timeout, 2.0))


def _memory(_url: str, _options: _Options) -> Store:
    from task_contract.stores.memory import MemoryStore

    return MemoryStore()


_OPENERS: dict[str, Callable[[str, _Options], Store]] = {
    **dict.fromkeys(_REDIS, _redis),
    "postgresql": _postgres,
    "postgres": _postgres,
    "sqlite": _sqlite,
    "memory": _memory,
}


def _safe(url: str) -> str:
    """The URL without its password, for messages."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"[:100]
