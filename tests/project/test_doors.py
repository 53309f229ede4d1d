"""The doors between the rooms are shut, and the checker would notice an open one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project.doors import Module, parse, read_modules, violations

ROOT = Path(__file__).parents[2]
PACKAGES = {"task_contract": ROOT / "common", "celery_contract": ROOT, "dramatiq_contract": ROOT}


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return [module for package, folder in PACKAGES.items() for module in read_modules(folder, package)]


def test_every_package_was_read(modules: list[Module]) -> None:
    assert {module.name.partition(".")[0] for module in modules} == set(PACKAGES)
    assert len(modules) > 10
    assert any(module.imports for module in modules)


def test_the_doors_are_shut(modules: list[Module]) -> None:
    assert violations(modules) == []


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("celery_contract.install", "import dramatiq_contract"),
        ("celery_contract.install", "from dramatiq.middleware import Middleware"),
        ("dramatiq_contract.install", "def f():\n    from celery_contract import install"),
        ("dramatiq_contract.install", "import kombu"),
        ("task_contract.running", "import celery"),
        ("task_contract.contract", "from celery_contract import install"),
        ("task_contract.cli.main", "import dramatiq.broker"),
        ("task_contract.running", "if TYPE_CHECKING:\n    from celery import Celery"),
        ("task_contract.running", "def f():\n    import kombu.utils"),
        ("task_contract.running", "import importlib\nimportlib.import_module('celery')"),
        ("task_contract.running", "from importlib import import_module\nimport_module('celery.app')"),
        ("task_contract.running", "__import__('dramatiq')"),
        ("task_contract.contract", "import redis"),
        ("task_contract.stores.base", "from redis.exceptions import RedisError"),
        ("task_contract.stores.postgres", "import redis"),
        ("task_contract.stores.redis", "import psycopg"),
        ("task_contract.retry", "try:\n    import psycopg\nexcept ImportError:\n    pass"),
        ("task_contract.stores.memory", "import sqlite3"),
        ("task_contract.running", "from task_contract.stores.redis import RedisStore"),
        ("task_contract.running", "from task_contract.stores import open_store"),
        ("task_contract.running", "from task_contract import stores"),
        ("task_contract.running", "from .stores import memory"),
        ("task_contract.running", "import task_contract.stores"),
        ("task_contract.stores.memory", "from task_contract.policy import Policy"),
        ("task_contract.stores.memory", "from task_contract import retry"),
        ("task_contract.stores.memory", "from ..contract import Contract"),
        ("task_contract.stores", "from ..running import handle"),
        ("task_contract.stores.memory", "from task_contract import Policy"),
        ("task_contract.running", "import task_contract"),
        ("task_contract.contract", "from task_contract.cli import main"),
        ("task_contract.running", "from task_contract import web"),
        ("celery_contract.install", "import task_contract.contrib.django"),
    ],
)
def test_an_open_door_is_noticed(importer: str, source: str) -> None:
    is_package = importer == "task_contract.stores"
    assert violations([parse(importer, source, is_package=is_package)]) != []


def test_a_driver_in_two_files_is_noticed() -> None:
    blobs, inbox = (parse(f"task_contract.{name}", "import fsspec") for name in ("claim_check", "inbox"))
    assert violations([blobs, inbox]) == [
        "task_contract.claim_check and task_contract.inbox import fsspec: a driver is imported in one file"
    ]
    assert violations([blobs]) == []


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("celery_contract.install", "import celery\nfrom kombu import Queue\nfrom task_contract import Contract"),
        ("dramatiq_contract.install", "import dramatiq\nimport task_contract"),
        ("task_contract.running", "from task_contract.stores.base import Store"),
        ("task_contract.running", "from task_contract.stores import base"),
        ("task_contract.running", "if TYPE_CHECKING:\n    from task_contract.stores.memory import MemoryStore"),
        ("task_contract.stores.memory", "if typing.TYPE_CHECKING:\n    from task_contract.policy import Policy"),
        ("task_contract.stores.redis", "import redis\nfrom task_contract.errors import StoreUnavailable"),
        ("task_contract.stores.redis_cluster", "from redis.cluster import RedisCluster"),
        ("task_contract.stores.postgres", "def f():\n    import psycopg"),
        ("task_contract.stores.sqlite", "import sqlite3"),
        ("task_contract.contract", "from task_contract.stores import open_store"),
        ("task_contract", "from task_contract.contract import Contract"),
        ("task_contract.testing.suite", "from task_contract.stores.memory import MemoryStore"),
        ("task_contract.cli.main", "from task_contract import Contract\nfrom task_contract.cli.tables import table"),
        ("task_contract.contrib.django.commands", "from task_contract.cli import dlq"),
        ("task_contract.celery_names", "import celeryish\nimport redisearch"),
    ],
)
def test_an_allowed_import_is_not_flagged(importer: str, source: str) -> None:
    assert violations([parse(importer, source)]) == []
