"""What was measured: printed line by line as it comes, and kept for `--json`."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Report:
    results: list[dict[str, Any]] = field(default_factory=list)

    def section(self, title: str, *columns: str) -> None:
        print(f"\n{title}")
        if columns:
            print("  " + _aligned(columns))
        sys.stdout.flush()

    def row(self, *cells: str, **measured: Any) -> None:
        print("  " + _aligned(cells), flush=True)
        self.results.append(measured)

    def save(self, path: Path, **facts: str) -> None:
        path.write_text(json.dumps({"machine": {**machine(), **facts}, "results": self.results}, indent=2) + "\n")


def _aligned(cells: tuple[str, ...]) -> str:
    first, *rest = cells
    return f"{first:<34}" + "".join(f"{cell:>14}" if len(cell) <= 14 else f"  {cell}" for cell in rest)


def machine() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def rate(value: float) -> str:
    return f"{value:,.0f}"
