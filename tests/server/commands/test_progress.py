from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from server.commands import progress
from server.commands.progress import ProgressReport


def make_console(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=80), out


@pytest.mark.parametrize("terminal", [False, True])
def test_short_work_shows_nothing(terminal: bool) -> None:
    console, out = make_console(terminal)
    with ProgressReport(console) as report:
        for i in range(100):
            report("reading", i / 100)
    assert out.getvalue() == ""


def test_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "BAR_AFTER_S", 0.0)
    console, out = make_console(True)
    with ProgressReport(console) as report:
        report("reading weights", 0.25)
        report("compiling [1]", 0.5)
    assert "reading weights" in out.getvalue()
    assert "compiling [1]" in out.getvalue()


def test_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    console, out = make_console(False)
    with ProgressReport(console) as report:
        report("reading [weights]", 0.25)
    assert out.getvalue() == "ds41: reading [weights]: 25%\n"


def test_default_console_is_standard_error(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with ProgressReport() as report:
        report("x", 1.0)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "ds41: x: 100%\n")
