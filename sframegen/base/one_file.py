"""The boundary of the work on one file: an exception fails this file with one line; other files continue."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sframegen.base.errors import SframegenError

if TYPE_CHECKING:
    from collections.abc import Iterator

REFUSALS = (SframegenError, OSError, MemoryError, ImportError)  # the last of a library for which there is no memory
TRACEBACK = "SFRAMEGEN_TRACEBACK"  # environment variable: if it is set, faults print their tracebacks, too


class FaultError(SframegenError):
    """An exception that nothing in sframegen expects: its own fault, whatever the file is."""


class DiedError(ChildProcessError):
    """The process that worked on a file died, before or after what it did."""


@contextmanager
def only_refusals(*passing: type[Exception]) -> Iterator[None]:
    """The block works on one file. What leaves it is one of REFUSALS, a FaultError among them, or of `passing`."""
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
    """True for "... without setting an exception": CPython lost a MemoryError."""
    return isinstance(error, SystemError) and " without " in str(error)


def fault_of(error: Exception) -> FaultError:
    if TRACEBACK in os.environ:
        from traceback import print_exception  # noqa: PLC0415 - not for each run

        print_exception(error)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return FaultError(f"sframegen fault, please report it: {what} ({_place_of(error)}); {TRACEBACK}=1 prints more")


def _place_of(error: Exception) -> str:
    """The module and line of ours that it came from."""
    place = "outside of sframegen"
    step = error.__traceback__
    while step is not None:
        module = str(step.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in ("cfi", "linker", "sframegen") and module != __name__:
            place = f"{module}:{step.tb_lineno}"
        step = step.tb_next
    return place
