"""Exception hierarchy of the whole project; a leaf module, standard library only.

The server maps a class to an HTTP status in one table and the command line maps it to an exit code;
message text is never parsed. A message says what was being done, what was found, what was needed
and what to do, in one line.
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error that this project raises on purpose.

    Attributes:
        exit_code: what the command line returns for an uncaught error of this class.
    """

    exit_code = 1


class ConfigError(EngineError, ValueError):
    """A setting is unknown, cannot be parsed, is out of range or excludes another one."""

    exit_code = 2


class ModelFileError(EngineError):
    """A model file is missing, damaged, of another architecture or lacks a key or tensor.

    Attributes:
        path: the file at fault, as given or found.
        field: the key, tensor or header field at fault; empty if the file as a whole is.
    """

    exit_code = 3

    def __init__(self, path: object, field: str, problem: str) -> None:
        self.path = str(path)
        self.field = field
        super().__init__(f"{path}: {field}: {problem}" if field else f"{path}: {problem}")


class PlacementError(EngineError):
    """The model does not fit the memory it was given; says need and have per component."""

    exit_code = 4


class CapacityError(EngineError):
    """A run-time limit (slots, context, queue) is exhausted; the request may be tried again."""

    exit_code = 5


class DriverError(EngineError):
    """A CUDA driver or runtime call failed, or the driver is missing."""

    exit_code = 6


class CaptureError(EngineError):
    """A step could not be compiled or captured into a CUDA graph."""

    exit_code = 7


class RequestError(EngineError):
    """A client's request is wrong; maps to a 4xx answer.

    Attributes:
        param: the request field at fault, or None.
        code: the OpenAI error code, or None.
        status: HTTP status, 400 unless said otherwise.
    """

    exit_code = 2

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        self.param = param
        self.code = code
        self.status = status
        super().__init__(message)


class InternalError(EngineError):
    """An invariant of the engine does not hold: a bug, never the user's fault."""
