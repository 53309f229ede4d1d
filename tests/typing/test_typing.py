"""A strict mypy reads user code of the public API without a complaint, and would complain about misuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
API = Path(__file__).with_name("api.py")


def mypy(path: Path) -> subprocess.CompletedProcess[str]:
    """As a user would: strict, and without this project's settings."""
    cache = ROOT / ".mypy_cache" / "user_code"
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", str(path)],
        cwd=path.parent,
        env={**os.environ, "MYPYPATH": f"{ROOT / 'common'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(300)
def test_user_code_is_well_typed() -> None:
    checked = mypy(API)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.timeout(300)
def test_misuse_is_an_error(tmp_path: Path) -> None:
    misuse = tmp_path / "misuse.py"
    misuse.write_text("from task_contract import Policy\n\nPolicy(attempts='many')\n")
    checked = mypy(misuse)
    assert "arg-type" in checked.stdout, checked.stdout + checked.stderr
    assert checked.returncode == 1
