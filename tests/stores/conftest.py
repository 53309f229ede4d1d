"""A store of each kind, for tests that run on all of them or on all that can be shared."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.stores.opening import Address

#: What several processes can share.
SHARED = ("sqlite", "redis", "postgres")
ALL = ("memory", *SHARED)


@pytest.fixture
def address_of(request: pytest.FixtureRequest) -> Callable[[str], Address]:
    """Where an empty store of this kind is; its server starts if it must."""
    return lambda kind: _address(request, kind)


@pytest.fixture(params=SHARED)
def shared(request: pytest.FixtureRequest) -> Address:
    return _address(request, request.param)


@pytest.fixture(params=ALL)
def anywhere(request: pytest.FixtureRequest) -> Address:
    return _address(request, request.param)


@pytest.fixture(scope="module")
def module_schema(postgres_url: str) -> Iterator[str]:
    """One schema for a whole file of tests: to migrate for each of a thousand would take longer than to run them."""
    name = f"tc_{uuid.uuid4().hex[:12]}"
    yield name
    _execute(postgres_url, f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture
def emptied_schema(postgres_url: str, module_schema: str) -> Iterator[str]:
    yield module_schema
    # Not TRUNCATE: it makes new files for every table and index, a hundred milliseconds for each of a thousand tests.
    for table in ("records", "reservations", "letters", "tallies"):
        _execute(postgres_url, f'DELETE FROM "{module_schema}".{table}')


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '10s'; SET client_min_messages = 'warning'")
        connection.execute(statement)


def _address(request: pytest.FixtureRequest, kind: str) -> Address:
    ask = request.getfixturevalue
    if kind == "memory":
        return Address(kind, "memory://")
    if kind == "sqlite":
        folder: Path = ask("tmp_path")
        return Address(kind, f"sqlite:///{folder / 'store.db'}")
    if kind == "postgres":
        return Address(kind, ask("postgres_url"), ask("emptied_schema"))
    if kind == "redis":
        return Address(kind, ask("redis_url"), ask("namespace"))
    return Address(kind, ask(f"redis_{kind}").url, ask("namespace"))
