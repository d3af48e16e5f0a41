"""Find and read all files of a model: shard sets and the shared Engram table.

A set is named `<prefix>-00001-of-00006.gguf` (1-based); every shard carries `split.no` (0-based),
`split.count` and `split.tensors.count`, all other keys stand in the first. The Engram table is the
last shard of every build and the same file for all, so it may be missing under its shard name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelFileError
from memory.gguf import format as fmt
from memory.gguf.format import quote
from memory.gguf.header import read_header
from memory.gguf.tensors import Header, TensorInfo

SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
ENGRAM_PATTERN = "DeepSeek-V4.1-Flash-Engram-*.gguf"
ENGRAM_EXAMPLE = "DeepSeek-V4.1-Flash-Engram-IQ4_NL.gguf"
TABLE_NAME = re.compile(
    r"per_layer_token_embd\.weight|blk\.\d+\.engram_(embd|embed|embd_scale)\.weight"
)
"""Names of Engram tables in all layouts: tensors that are read by rows and never mapped."""


@dataclass(frozen=True, kw_only=True)
class FileSet:
    """The headers of all files of one model, first shard first."""

    headers: tuple[Header, ...]
    """Headers of the shards that were found, in order; [0] holds the metadata."""
    engram_expected: str
    """If the Engram table is missing: path its shard should have, or the model file itself if it
    is not split. Else empty."""

    @property
    def path(self) -> str:
        """The first file: the one that errors about metadata name."""
        return self.headers[0].path

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """All stored tensors by name, in file order."""
        return {info.name: info for header in self.headers for info in header.tensors}


def split_key(header: Header, key: str) -> int | None:
    """Return a `split.*` key of a header, or None if absent.

    Raises:
        ModelFileError: the value is no integer or is negative.
    """
    value = header.metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelFileError(header.path, key, f"{quote(str(value))} is not a whole number >= 0")
    return value


def shard_paths(header: Header, count: int) -> list[str]:
    """Return the paths of all `count` shards of the set that `header` belongs to.

    Raises:
        ModelFileError: the file is not named like a shard of such a set.
    """
    directory, name = os.path.split(header.path)
    match = SHARD_NAME.fullmatch(name)
    if match is None or int(match["count"]) != count:
        only_table = header.tensors and all(TABLE_NAME.fullmatch(t.name) for t in header.tensors)
        if only_table:
            raise ModelFileError(
                header.path,
                "split.count",
                "this is the shared Engram table, not a model; give the first shard of a model",
            )
        raise ModelFileError(
            header.path,
            "split.count",
            f"the file is one of {count} shards, so its name must end in "
            f"-<number>-of-{count:05d}.gguf (5 digits, from 00001); rename it",
        )
    return [
        os.path.join(directory, f"{match['prefix']}-{i + 1:05d}-of-{count:05d}.gguf")
        for i in range(count)
    ]


def check_shard(header: Header, number: int, count: int) -> None:
    """Check that `header` says it is shard `number` (0-based) of `count`.

    Raises:
        ModelFileError: `split.no` or `split.count` is missing or differs.
    """
    for key, wanted in (("split.no", number), ("split.count", count)):
        found = split_key(header, key)
        if found != wanted:
            raise ModelFileError(
                header.path,
                key,
                f"{'missing' if found is None else found}; by its name the file is shard "
                f"{number + 1} of {count} and must have {wanted}",
            )


def find_engram(folder: str) -> str:
    """Return the shared Engram table beside the model or one folder up; empty if there is none.

    Raises:
        ModelFileError: a folder holds several.
    """
    for place in (Path(folder), Path(folder).absolute().parent):
        found = sorted(p for p in place.glob(ENGRAM_PATTERN) if p.is_file())
        if len(found) > 1:
            names = ", ".join(quote(p.name) for p in found)
            raise ModelFileError(
                place, "", f"several Engram tables ({names}); choose one with engram_path"
            )
        if found:
            return str(found[0])
    return ""


def read_engram(path: str, file_index: int) -> Header:
    """Read the header of an Engram file that was found by name or given by the user.

    Raises:
        ModelFileError: the file is damaged or holds no Engram table.
    """
    header = read_header(path, file_index)
    if not any(TABLE_NAME.fullmatch(t.name) for t in header.tensors):
        raise ModelFileError(path, "per_layer_token_embd.weight", "no Engram table in this file")
    return header


def has_engram_keys(header: Header) -> bool:
    """Return whether the metadata speaks of an Engram memory in any layout."""
    return any(key.startswith("deepseek41.engram.") or ".ple." in key for key in header.metadata)


def has_table(headers: Sequence[Header]) -> bool:
    """Return whether any tensor is an Engram table."""
    return any(TABLE_NAME.fullmatch(t.name) for header in headers for t in header.tensors)


def missing_table_error(expected: str) -> ModelFileError:
    """Return the error for an Engram table that is nowhere to be found."""
    name = os.path.basename(expected)
    if not SHARD_NAME.fullmatch(name):
        return ModelFileError(
            expected,
            "per_layer_token_embd.weight",
            f"Engram table missing: put {ENGRAM_EXAMPLE} beside this file or give its path with "
            "engram_path",
        )
    return ModelFileError(
        expected,
        "per_layer_token_embd.weight",
        f"Engram table missing: expected {name}. Link the shared file: "
        f"ln -s {ENGRAM_EXAMPLE} {name} (or give its path with engram_path)",
    )


def check_names(headers: Sequence[Header]) -> None:
    """Check that no tensor lies in two files.

    Raises:
        ModelFileError: names the tensor and both files.
    """
    owner: dict[str, str] = {}
    for header in headers:
        for info in header.tensors:
            if info.name in owner:
                raise ModelFileError(
                    header.path, quote(info.name), f"the tensor is also in {owner[info.name]}"
                )
            owner[info.name] = header.path


def check_total(headers: Sequence[Header]) -> None:
    """Check `split.tensors.count` of every shard against the tensors found.

    Raises:
        ModelFileError: the numbers differ.
    """
    total = sum(len(header.tensors) for header in headers)
    for header in headers:
        stated = split_key(header, "split.tensors.count")
        if stated is not None and stated != total:
            raise ModelFileError(
                header.path,
                "split.tensors.count",
                f"{stated} tensors stated, {total} found in {len(headers)} files",
            )


def read_shards(first: Header, count: int) -> tuple[list[Header], str]:
    """Read all shards of a set; the last one may be missing if it can be the Engram table.

    Args:
        first: header of the shard that was given, any of the set.
        count: shards of the set.

    Returns:
        The headers in order, and the path of the missing Engram shard (empty if none).

    Raises:
        ModelFileError: shards are missing (all named) or contradict their names.
    """
    paths = shard_paths(first, count)
    missing = [path for path in paths if not os.path.exists(path)]
    engram_missing = missing == paths[-1:] and count > 1
    if missing and not engram_missing:
        names = ", ".join(
            quote(os.path.basename(path)) + (" (a dangling link)" if os.path.islink(path) else "")
            for path in missing[:8]
        )
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise ModelFileError(
            first.path, "split.count", f"{len(missing)} of {count} shards missing: {names}{more}"
        )
    headers = []
    for number, path in enumerate(paths):
        if path not in missing:
            header = read_header(path, number)
            check_shard(header, number, count)
            headers.append(header)
    return headers, paths[-1] if engram_missing else ""


def read_file_set(path: str | os.PathLike[str], engram_path: str = "") -> FileSet:
    """Read the headers of all files of the model that `path` (any of its shards) belongs to.

    A missing Engram table is looked for at `engram_path`, else beside the model and one folder up;
    if it is not there, the set is returned without it and says so in `engram_expected`.

    Raises:
        ModelFileError: a file is missing or damaged, or the shards contradict each other.
    """
    given = os.fspath(path)
    first = read_header(given)
    count = split_key(first, "split.count") or 1
    if count > fmt.MAX_SPLIT:
        raise ModelFileError(given, "split.count", f"{count} shards; at most {fmt.MAX_SPLIT}")
    headers, expected = [first], ""
    if count > 1:
        headers, expected = read_shards(first, count)
    replaced = False
    if engram_path:
        table = read_engram(engram_path, len(headers))
        replaced = has_table(headers)
        headers = [without_tables(header) for header in headers]
        # A shard that held only the table is dropped; the first one holds the metadata.
        headers = [h for i, h in enumerate(headers) if h.tensors or i == 0] + [table]
        expected = ""
    elif has_engram_keys(headers[0]) and not has_table(headers):
        found = find_engram(os.path.dirname(given))
        if found:
            headers.append(read_engram(found, len(headers)))
            expected = ""
        else:
            expected = expected or given
    elif expected:
        raise ModelFileError(
            given,
            "split.count",
            f"1 of {count} shards missing: {quote(os.path.basename(expected))}",
        )
    check_names(headers)
    if not replaced and not expected and count > 1:
        check_total(headers)
    return FileSet(headers=tuple(headers), engram_expected=expected)


def without_tables(header: Header) -> Header:
    """Return `header` without its Engram tables."""
    kept = tuple(t for t in header.tensors if not TABLE_NAME.fullmatch(t.name))
    return Header(**{**header.__dict__, "tensors": kept})
