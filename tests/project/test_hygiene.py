"""The repository names no machine and no registry: it builds wherever pip is configured."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Spelled so that this file does not contain what it looks for.
FOLDERS = ("root", "home", "Users", "work", "opt", "workspace")
HOSTS = ("pypi" + r"\.org", "python" + r"hosted\.org", "docker" + r"\.io", "ghcr" + r"\.io", "quay" + r"\.io")
OPTIONS = ("--(extra-)?index" + "-url", "--trusted" + "-host", "--find" + "-links")
MACHINE_PATH = rf"(?<![\w.\-/}}\])])/({'|'.join(FOLDERS)})/"
FORBIDDEN = re.compile("|".join([MACHINE_PATH, *HOSTS, *OPTIONS]))


def repository_files() -> list[Path]:
    """Tracked, and untracked but not ignored."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def findings(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if FORBIDDEN.search(line)]


def test_nothing_names_a_machine_or_a_registry() -> None:
    files = repository_files()
    assert ROOT / "pyproject.toml" in files
    found = {
        str(path.relative_to(ROOT)): lines for path in files if (lines := findings(path.read_text(errors="replace")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "path = '/" + "root/.venv'",
        "cd /" + "home/me/src",
        "see https://pypi" + ".org/project/task-contract",
        "pip install --extra-index" + "-url x",
    ],
)
def test_a_careless_line_is_noticed(line: str) -> None:
    assert findings(line) == [line]


@pytest.mark.parametrize("line", ["tests/root/thing", "${ROOT}/home/", "../work/x", "/usr/lib/rabbitmq/bin"])
def test_a_relative_path_is_no_finding(line: str) -> None:
    assert findings(line) == []
