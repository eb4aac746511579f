"""The boundary of the work on one file: an exception fails this file with one line; other files continue."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sframegen.base.errors import SframegenError

if TYPE_CHECKING:
    from collections.abc import Iterator

REFUSALS = (SframegenError, OSError, MemoryError, ImportError)  # ImportError: too little memory for a library
TRACEBACK = "SFRAMEGEN_TRACEBACK"  # environment variable: if it is set, faults print their tracebacks, too


class FaultError(SframegenError):
    """An unexpected exception: a fault of sframegen, whatever the file is."""


class DiedError(ChildProcessError):
    """The death of the process that worked on a file, before or after its changes."""


@contextmanager
def only_refusals(*passing: type[Exception]) -> Iterator[None]:
    """Limit the exceptions that leave a block about one file to REFUSALS (others become a FaultError) and `passing`."""
    known: tuple[type[Exception], ...] = (*REFUSALS, *passing)
    try:
        yield
    except known:
        raise
    except Exception as error:
        if lost_memory_error(error):
            raise MemoryError from error
        raise fault_of(error) from error


def lost_memory_error(error: Exception) -> bool:
    """Return True for "... without setting an exception", which means that CPython lost a MemoryError."""
    return isinstance(error, SystemError) and " without " in str(error)


def fault_of(error: Exception) -> FaultError:
    if TRACEBACK in os.environ:
        from traceback import print_exception  # noqa: PLC0415 - not for each run

        print_exception(error)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return FaultError(f"sframegen fault, please report it: {what} ({_place_of(error)}); {TRACEBACK}=1 prints more")


def _place_of(error: Exception) -> str:
    """Return the sframegen module and line that the exception came from."""
    place = "outside of sframegen"
    step = error.__traceback__
    while step is not None:
        module = str(step.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in ("cfi", "linker", "sframegen") and module != __name__:
            place = f"{module}:{step.tb_lineno}"
        step = step.tb_next
    return place
