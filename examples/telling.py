"""How the demo speaks: short lines, promises with a mark, plain tables. Colour only on a terminal that wants it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

BOLD, GREEN, RED, DIM = "1", "32", "31", "2"


class Teller:
    def __init__(self) -> None:
        # A story is told as it happens, and on a terminal that lacks a character it goes on without it.
        sys.stdout.reconfigure(line_buffering=True, errors="replace")  # type: ignore[union-attr]
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.broken: list[str] = []

    def title(self, text: str) -> None:
        print(f"\n{self._in(BOLD, text)}")

    def line(self, text: str) -> None:
        print(f"     {text}")

    def promise(self, text: str, kept: bool) -> None:
        """A line that was checked. A broken one fails the demo."""
        print(f"  {self._in(GREEN, 'ok') if kept else self._in(RED, 'NO')} {text}")
        if not kept:
            self.broken.append(text)

    def failure(self, text: str) -> None:
        print(f"\n{self._in(RED, text)}")

    def table(self, rows: Sequence[Sequence[object]], *, numbers: bool = False) -> None:
        """The first row is the head. `numbers`: all but the first column stand to the right."""
        cells = [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for index, row in enumerate(cells):
            aligned = [
                cell.rjust(width) if numbers and column else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            text = "  ".join(aligned).rstrip()
            self.line(text if index else self._in(DIM, text))

    def _in(self, colour: str, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour else text
