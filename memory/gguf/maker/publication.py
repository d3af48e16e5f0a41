"""Files that appear under their names together when all are complete, or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType

from engine.errors import ModelFileError


class Publication:
    """Context of a set of files being written.

    Each file is written under a hidden temporary name beside its target. When the context ends
    without an exception they are renamed, else removed; a killed process leaves only the hidden
    files. An OSError inside the context becomes a ModelFileError with the file last begun.
    """

    def __init__(self) -> None:
        self._files: dict[Path, Path] = {}  # target -> temporary

    def begin(self, target: Path) -> Path:
        """Return the temporary path at which to write `target`.

        Raises:
            ModelFileError: there is something else than a regular file at `target`.
        """
        if target.exists() and not target.is_file():  # replacing a device would remove it
            raise ModelFileError(target, "", "is not a regular file; name the file to write")
        temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
        self._files[target] = temporary
        return temporary

    def __enter__(self) -> Publication:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        target = next(reversed(self._files), Path())
        try:
            if kind is None:
                for target, temporary in self._files.items():
                    temporary.replace(target)
        except OSError as failure:
            problem = failure
        finally:
            for temporary in self._files.values():
                with contextlib.suppress(OSError):  # a read-only folder refuses this too
                    temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            raise ModelFileError(
                target, "", f"cannot be written: {problem.strerror or problem}"
            ) from problem
