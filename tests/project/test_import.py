"""Importing the core is cheap: no framework and no driver comes along."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPTIONAL = (
    *("celery", "kombu", "dramatiq"),
    *("redis", "psycopg", "sqlalchemy", "django", "fsspec"),
    *("sentry_sdk", "opentelemetry", "prometheus_client", "starlette", "uvicorn"),
)
PRINT_WHAT_CAME_ALONG = """
import sys
import {module}
print(*(name for name in {optional!r} if name in sys.modules))
"""


def came_along(module: str) -> list[str]:
    code = PRINT_WHAT_CAME_ALONG.format(module=module, optional=OPTIONAL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_core_brings_nothing_optional() -> None:
    assert came_along("task_contract") == []


@pytest.mark.parametrize("module", ["redis", "psycopg"])
def test_the_probe_sees_what_is_imported(module: str) -> None:
    assert module in came_along(module)
