"""The program `sframegen`, and what starts it: importing this is the first thing that it does."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` would import others first
import os
import sys

# Until there is something to clean up, Ctrl-C ends the program as it ends others, and not by an exception with its traceback.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> None:
    """Ends the process."""
    try:
        from sframegen.cli import main as command_line  # noqa: PLC0415 - not before signals are taken care of
    except (ImportError, MemoryError) as error:
        os.write(2, f"sframegen: it cannot start: {str(error) or 'not enough memory'}\n".encode())
        sys.exit(1)
    command_line()
