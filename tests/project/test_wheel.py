"""The distribution, built as a release would be, works in an empty environment."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"task_contract": ROOT / "common", "celery_contract": ROOT, "dramatiq_contract": ROOT}
DATA_SUFFIXES = {".lua", ".sql", ".typed"}

pytestmark = pytest.mark.timeout(600)


def data_files() -> set[str]:
    """What is no Python but belongs to a package, as paths below site-packages."""
    return {
        str(path.relative_to(folder))
        for package, folder in PACKAGES.items()
        for path in (folder / package).rglob("*")
        if path.suffix in DATA_SUFFIXES
    }


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an empty environment with the wheel and what it requires."""
    environment = tmp_path_factory.mktemp("empty") / "venv"
    _run(sys.executable, "-m", "venv", environment)
    _run(environment / "bin" / "python", "-m", "pip", "install", "--quiet", next(dist.glob("*.whl")))
    return environment / "bin"


def test_the_wheel_holds_every_data_file(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        assert data_files() <= set(wheel.namelist())


def test_the_sdist_holds_every_data_file(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2].removeprefix("common/") for name in sdist.getnames()}
    assert data_files() <= names


def test_each_package_says_that_it_is_typed() -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= data_files()


def test_the_wheel_brings_no_top_level_module_but_ours(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_core_imports_in_an_empty_environment(installed: Path) -> None:
    """-I: not the checkout, only what was installed."""
    found = _run(installed / "python", "-I", "-c", "import task_contract; print(task_contract.__file__)")
    assert str(installed.parent) in found


def test_an_adapter_without_its_framework_says_what_to_install(installed: Path) -> None:
    attempt = "try:\n    import celery_contract\nexcept ImportError as error:\n    print(error)"
    assert "pip install 'task-contract[celery]'" in _run(installed / "python", "-I", "-c", attempt)


def test_the_command_explains_itself(installed: Path) -> None:
    assert "Usage: task-contract" in _run(installed / "task-contract", "--help")


def test_only_pydantic_and_click_are_required(installed: Path) -> None:
    listed = _run(installed / "python", "-m", "pip", "list", "--format=freeze").lower()
    for optional in ("celery", "dramatiq", "redis", "psycopg", "django"):
        assert f"\n{optional}==" not in f"\n{listed}"


def _run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
