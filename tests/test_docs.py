"""Documents agree with the project, and no file knows the machine that it was written on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import reference_markdown

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FOLDERS = ("memory", "ops", "graphs", "engine", "server", "bench", "tests", "docs", ".ci")
TEXT_SUFFIXES = (
    *(".py", ".md", ".txt", ".toml", ".cfg", ".json", ".html", ".css", ".js"),
    *(".cu", ".cuh", ".cpp", ".h", ".sh", ""),
)
# Character classes keep these patterns from matching this file.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:wor[k]|roo[t]|hom[e]/\w+|User[s]/\w+)/")
TEMPORARY_PATH = re.compile(r"(?<![\w.])/tm[p]/")
REGISTRY_HOST = re.compile(
    r"py[p]i\.org|python[h]osted|download\.pyt[o]rch|registry\.np[m]js|cr[a]tes\.io", re.I
)


def text_files() -> Iterator[tuple[str, str]]:
    """Every text file of the project by name; data and virtual environments left out."""
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        paths += (ROOT / folder).rglob("*")
    for path in sorted(paths):
        if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")


def machine_traces(name: str, text: str) -> list[str]:
    patterns = [MACHINE_PATH, REGISTRY_HOST]
    if name.endswith(".md"):
        patterns.append(TEMPORARY_PATH)
    return [f"{name}: {m.group()}" for pattern in patterns for m in pattern.finditer(text)]


def test_configuration_page_is_up_to_date() -> None:
    page = ROOT / "docs/configuration.md"
    assert page.read_text("utf-8") == reference_markdown(), "run `make config-docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", text)
    paths = re.findall(r"`((?:[\w.-]+/)+(?:[\w.-]+\.\w+)?)`", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert not missing, f"{page.name} names files that do not exist: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)`", page.read_text("utf-8")))
    named |= set(re.findall(r"^make ([a-z][a-z-]+)", page.read_text("utf-8"), re.M))
    assert named <= targets


def test_readme_begins_with_the_two_commands() -> None:
    top = (ROOT / "README.md").read_text("utf-8")[:1500]
    assert "make demo" in top and "make test" in top


def test_no_traces_of_a_machine() -> None:
    found, num_files = [], 0
    for name, text in text_files():
        num_files += 1
        found += machine_traces(name, text)
    assert num_files > 40
    assert not found


def test_traces_are_caught() -> None:
    path = "/".join(["", "home", "me", "x"])
    host = ".".join(["https://download", "pytorch", "org"])
    assert machine_traces("a.py", f"open({path!r})") == [f"a.py: {path[:-1]}"]
    assert len(machine_traces("constraints.txt", f"--index-url {host}/whl")) == 1
    assert len(machine_traces("a.md", "/".join(["", "tmp", "x"]))) == 1
    assert machine_traces("a.py", "tests/home/x and network/work/y") == []
