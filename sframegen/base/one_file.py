"""The boundary of the work on one file: an exception fails only that file, with a message of one line; work on others continues."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sframegen.base.errors import SframegenError

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_ERRORS = (SframegenError, OSError, MemoryError, ImportError)  # ImportError: there may be too little memory to load a library
TRACEBACK_VARIABLE = "SFRAMEGEN_TRACEBACK"  # environment variable: if it is set, faults also print their tracebacks


class FaultError(SframegenError):
    """An unexpected exception: a fault of sframegen, whatever the file is."""


class DiedError(ChildProcessError):
    """The process that worked on a file died, before or after its changes to the file."""


@contextmanager
def only_file_errors(*passing: type[Exception]) -> Iterator[None]:
    """Let only FILE_ERRORS and `passing` leave a block that works on one file: any other exception becomes a FaultError."""
    expected: tuple[type[Exception], ...] = (*FILE_ERRORS, *passing)
    try:
        yield
    except expected:
        raise
    except Exception as error:
        if is_lost_memory_error(error):
            raise MemoryError from error
        raise build_fault_error(error) from error


def is_lost_memory_error(error: Exception) -> bool:
    """Return True for "... without setting an exception", which means that CPython lost a MemoryError."""
    return isinstance(error, SystemError) and " without " in str(error)


def build_fault_error(error: Exception) -> FaultError:
    """Return the FaultError for an unexpected exception, and print its traceback if users ask for that."""
    if TRACEBACK_VARIABLE in os.environ:
        from traceback import print_exception  # noqa: PLC0415 - most runs do not need it

        print_exception(error)
    summary = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    location = _locate_in_our_code(error)
    return FaultError(f"sframegen fault, please report it: {summary} ({location}); {TRACEBACK_VARIABLE}=1 prints more")


def _locate_in_our_code(error: Exception) -> str:
    """Return `module:line` of the innermost frame of ours that the exception passed."""
    location = "outside of sframegen"
    entry = error.__traceback__
    while entry is not None:
        module = str(entry.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in ("cfi", "linker", "sframegen") and module != __name__:
            location = f"{module}:{entry.tb_lineno}"
        entry = entry.tb_next
    return location
