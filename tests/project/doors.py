"""Who may import whom, checked on the source: the rules of DESIGN's rooms and doors as functions over an AST."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CORE = "task_contract"
STORES = f"{CORE}.stores"
FRAMEWORKS = ("celery", "kombu", "dramatiq", "celery_contract", "dramatiq_contract")
FORBIDDEN_TO_ADAPTERS = {
    "celery_contract": ("dramatiq", "dramatiq_contract"),
    "dramatiq_contract": ("celery", "kombu", "celery_contract"),
}
# Doors to the outside: they use everything, and only they use each other.
OUTER_DOORS = (f"{CORE}.cli", f"{CORE}.web", f"{CORE}.contrib")
# Rooms that put stores and features together.
ASSEMBLY = (f"{CORE}.contract", f"{CORE}.testing", *OUTER_DOORS)
NOT_FOR_STORES = tuple(f"{CORE}.{name}" for name in ("policy", "retry", "running", "sending", "contract"))
DRIVER_ROOMS = {"redis": "redis", "psycopg": "postgres", "sqlite3": "sqlite"}
ONE_FILE_DRIVERS = ("fsspec", "sentry_sdk", "opentelemetry", "prometheus_client", "sqlalchemy")


@dataclass(frozen=True)
class Import:
    """One imported name in full. `from a import b` is `a.b`: whether b is a module, the importer does not say."""

    name: str
    for_types_only: bool = False

    def is_within(self, *rooms: str) -> bool:
        return within(self.name, *rooms)


@dataclass(frozen=True)
class Module:
    name: str
    imports: tuple[Import, ...]
    is_package: bool = False

    def is_within(self, *rooms: str) -> bool:
        return within(self.name, *rooms)

    @property
    def is_assembly(self) -> bool:
        return self.name == CORE or self.is_within(*ASSEMBLY)

    @property
    def is_feature(self) -> bool:
        return self.is_within(CORE) and not self.is_assembly and not self.is_within(STORES)


def within(name: str, *rooms: str) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def read_modules(folder: Path, package: str) -> list[Module]:
    return [_read(path, folder) for path in sorted((folder / package).rglob("*.py"))]


def _read(path: Path, folder: Path) -> Module:
    parts = path.relative_to(folder).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return parse(".".join(parts[:-1] if is_package else parts), path.read_text(), is_package=is_package)


def parse(name: str, source: str, *, is_package: bool = False) -> Module:
    imports = _imports(ast.parse(source), name if is_package else name.rpartition(".")[0])
    return Module(name, tuple(imports), is_package)


def _imports(node: ast.AST, package: str, *, for_types_only: bool = False) -> Iterator[Import]:
    """Imports anywhere below `node`, inside functions as well."""
    for name in _names(node, package):
        yield Import(name, for_types_only)
    for child in ast.iter_child_nodes(node):
        guarded = isinstance(node, ast.If) and _asks_for_type_checking(node.test) and child in node.body
        yield from _imports(child, package, for_types_only=for_types_only or guarded)


def _names(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(names=names):
            return [f"{_origin(node, package)}.{alias.name}" for alias in names]
        case ast.Call(func=ast.Name(id="__import__" | "import_module"), args=[ast.Constant(value=str(name)), *_]):
            return [name]
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
            return [name]
    return []


def _origin(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    above = ".".join(parts[: len(parts) - node.level + 1])
    return f"{above}.{node.module}" if node.module else above


def _asks_for_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def violations(modules: list[Module]) -> list[str]:
    """Every import that goes through a closed door, as `importer imports imported: the rule`."""
    submodules = {module.name for module in modules}
    found = [f"{importer.name} imports {rule}" for importer in modules for rule in _broken_rules(importer, submodules)]
    return found + list(_drivers_in_two_files(modules))


def _broken_rules(importer: Module, submodules: set[str]) -> Iterator[str]:
    for imported in importer.imports:
        for rule in (_adapter_rule, _core_rule, _driver_rule, _outer_door_rule):
            if (reason := rule(importer, imported)) is not None:
                yield f"{imported.name}: {reason}"
        if not imported.for_types_only:
            for rule in (_feature_rule, _store_rule):
                if (reason := rule(importer, imported)) is not None:
                    yield f"{imported.name}: {reason}"
            if _goes_round_by_the_front(importer, imported, submodules):
                yield f"{imported.name}: inside the core, import from the module that defines it"


def _adapter_rule(importer: Module, imported: Import) -> str | None:
    package = importer.name.partition(".")[0]
    if imported.is_within(*FORBIDDEN_TO_ADAPTERS.get(package, ())):
        return "an adapter knows one framework and no other adapter"
    return None


def _core_rule(importer: Module, imported: Import) -> str | None:
    if importer.is_within(CORE) and imported.is_within(*FRAMEWORKS):
        return "the core knows no framework"
    return None


def _driver_rule(importer: Module, imported: Import) -> str | None:
    for driver, room in DRIVER_ROOMS.items():
        own = importer.is_within(STORES) and room in importer.name.removeprefix(STORES)
        if importer.is_within(CORE) and imported.is_within(driver) and not own:
            return f"only the store named after it imports {driver}"
    return None


def _outer_door_rule(importer: Module, imported: Import) -> str | None:
    if imported.is_within(*OUTER_DOORS) and not importer.is_within(*OUTER_DOORS):
        return "nobody imports a door to the outside"
    return None


def _feature_rule(importer: Module, imported: Import) -> str | None:
    if importer.is_feature and imported.is_within(STORES) and not imported.is_within(f"{STORES}.base"):
        return "a feature knows stores.base only"
    return None


def _store_rule(importer: Module, imported: Import) -> str | None:
    if importer.is_within(STORES) and imported.is_within(*NOT_FOR_STORES):
        return "a store knows no policy"
    return None


def _goes_round_by_the_front(importer: Module, imported: Import, submodules: set[str]) -> bool:
    """`from task_contract import Contract` inside the core would slip past every rule above."""
    if not importer.is_within(CORE) or importer.is_assembly:
        return False
    return imported.name == CORE or (imported.name.rpartition(".")[0] == CORE and imported.name not in submodules)


def _drivers_in_two_files(modules: list[Module]) -> Iterator[str]:
    for driver in ONE_FILE_DRIVERS:
        users = [each.name for each in modules if any(imported.is_within(driver) for imported in each.imports)]
        if len(users) > 1:
            yield f"{' and '.join(users)} import {driver}: a driver is imported in one file"
