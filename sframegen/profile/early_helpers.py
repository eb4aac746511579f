"""The processes that help a session, begun while it has little memory: what it changes or drops later, they would keep."""

from __future__ import annotations

from contextlib import suppress

from sframegen.program.helper import helpers
from sframegen.stack.names.demangle import begin_demangling


def begin_helpers() -> None:
    """Begin those that open files, and that demangle names. Where none can begin, the first use says so."""
    with suppress(OSError):
        helpers().begin()
        begin_demangling()
