"""make explains itself, and every target it names can be planned."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = ("demo", "test", "lint", "format", "bench", "mutants", "wheel", "clean")
# An outer `make test ARGS=...` passes itself on through these.
FROM_AN_OUTER_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "ARGS", "PYTHON", "VENV")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in FROM_AN_OUTER_MAKE}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_make_alone_explains_every_target() -> None:
    explained = re.findall(r"^  ([a-z]+) +\S", make().stdout, flags=re.MULTILINE)
    assert sorted(explained) == sorted([*TARGETS, "help"])


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_can_be_planned_on_a_fresh_clone(target: str, tmp_path: Path) -> None:
    planned = make("-n", target, f"VENV={tmp_path}/venv")
    assert planned.returncode == 0, planned.stderr


def test_arguments_reach_pytest(tmp_path: Path) -> None:
    assert "pytest -k foo\n" in make("-n", "test", "ARGS=-k foo", f"VENV={tmp_path}/venv").stdout


def test_the_demo_installs_less_than_the_tests(tmp_path: Path) -> None:
    planned = make("-n", "demo", f"VENV={tmp_path}/venv").stdout
    assert "'.[demo]'" in planned
    assert "'.[dev]'" not in planned


def test_without_a_python_make_says_what_to_do(tmp_path: Path) -> None:
    failed = make("test", "PYTHON=no-such-python", f"VENV={tmp_path}/venv")
    assert failed.returncode != 0
    assert "No Python 3.10 or newer" in failed.stderr
    assert "make PYTHON=" in failed.stderr
    assert not (tmp_path / "venv").exists()
