"""Progress of long work on standard error: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

BAR_AFTER_S = 1.0
"""Work that ends sooner shows no bar."""
LINE_EVERY_S = 10.0


class ProgressReport:
    """Callable with (stage, share done); use as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)
        self._start_s = time.monotonic()
        self._last_line_s = self._start_s
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, stage: str, done: float) -> None:
        """Report; may be called from any thread."""
        now_s = time.monotonic()
        if self._console.is_terminal:
            if now_s - self._start_s >= BAR_AFTER_S:
                self._show_bar(stage, done)
        elif now_s - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = now_s
            self._console.print(f"ds41: {stage}: {done:.0%}", markup=False, highlight=False)

    def _show_bar(self, stage: str, done: float) -> None:
        if self._bar is None or self._task is None:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task(stage, total=1.0)
            self._bar.start()
        self._bar.update(self._task, description=stage, completed=done)
