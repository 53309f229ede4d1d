"""Places for records. `open_store` finds the one a URL names; its driver is imported only then."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

from task_contract.errors import ConfigurationError
from task_contract.stores.base import Store

_REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
_KNOWN = "redis://, rediss://, redis+cluster://, redis+sentinel://, postgresql://, sqlite:///path, memory://"


def open_store(
    store: str | Store, *, namespace: str = "task-contract", timeout: float = 1.0, max_connections: int | None = None
) -> Store:
    """The store that a URL names (a ready store is handed back). Nothing is connected until it is used."""
    if isinstance(store, Store):
        return store
    if not isinstance(store, str):
        raise ConfigurationError(f"a store is a URL or a Store, got {type(store).__name__}")
    scheme = re.match(r"([a-z][a-z0-9+.-]*):", store, re.IGNORECASE)
    opener = _OPENERS.get(scheme[1].lower()) if scheme else None
    if opener is None:
        named = f"a URL with the scheme {scheme[1]}" if scheme and store[scheme.end() :].startswith("//") else "the URL"
        raise ConfigurationError(f"{named} names no store this version knows; it knows {_KNOWN}")
    return opener(store, _Options(namespace, timeout, max_connections))


def sqlite_url(path: str | os.PathLike[str]) -> str:
    """The URL of a file, whatever characters its path has."""
    return f"sqlite:///{quote(os.fsencode(path))}"


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
    given = [(unquote(part.partition("=")[0]), part) for part in query.split("&") if part]
    rest = "&".join(part for name, part in given if name != "schema")
    schemas = [unquote(part.partition("=")[2]) for name, part in given if name == "schema"]
    return PostgresStore(
        f"{base}?{rest}" if rest else base,
        schema=schemas[-1] if schemas and schemas[-1] else _schema(options.namespace),
        timeout=options.timeout,
        max_connections=options.max_connections or 10,
    )


def _schema(namespace: str) -> str:
    """The default has a name that needs no quotes; the others stay as they are, so that no two of them meet."""
    return "task_contract" if namespace == "task-contract" else namespace


def _sqlite(url: str, options: _Options) -> Store:
    from task_contract.stores.sqlite import SQLiteStore

    path = re.fullmatch(r"sqlite:///([^?#]+)", url, re.IGNORECASE | re.DOTALL)
    if path is None or "\0" in unquote(url):
        raise ConfigurationError(
            "not the URL of an SQLite file: write sqlite:///relative.db or sqlite:////absolute/path.db, "
            "with %3F for a ? and %23 for a # in the path"
        )
    name = os.fsdecode(unquote_to_bytes(path[1]))
    return SQLiteStore(name, namespace=options.namespace, timeout=max(options.timeout, 2.0))


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
