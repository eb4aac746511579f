"""The entry point of the program `sframegen`. This module is the first that the program imports."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # `signal` would import others first
import atexit
import gc
import os
import sys

gc.set_threshold(1_000_000)  # many small tuples are made and none in circles: looking for these took a seventh of the time

# Bytes of address space that the command line takes. CPython 3.13, importing it with less, may handle a MemoryError for ever.
NEEDED = 8 << 20

# Until there is something to clean up, Ctrl-C ends the program as it ends others, and not by an exception with its traceback.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> None:
    """Run the command line, and end the process with its status."""
    what = "cannot start: "
    try:
        bytes(NEEDED)
        open_standard_streams()
        from sframegen.program.own_packages import refuse_strangers  # noqa: PLC0415 - here and below: not before signals are taken care of

        refuse_strangers()
        if sys.argv[1:] == ["--version"]:
            print_version()
        try:
            from sframegen.cli.commands import run_command  # noqa: PLC0415
        except Exception:  # a damaged click may raise anything
            if sys.argv[1:2] != ["doctor"]:
                from sframegen.program.libraries import import_library  # noqa: PLC0415

                import_library("click", "Command")
                raise
            from contextlib import suppress  # noqa: PLC0415

            from sframegen.cli.shared.installation import text  # noqa: PLC0415

            with suppress(BrokenPipeError):
                print(text(as_json="--json" in sys.argv[2:]))
                sys.stdout.flush()
            return
        what = ""
        sys.exit(run_command())
    except SystemExit as end:
        leave(end)
    except (ImportError, MemoryError, OSError, SystemError) as error:
        lost = isinstance(error, SystemError)
        if lost and " without " not in str(error):  # "... without setting an exception": CPython lost a MemoryError
            raise
        reason = "not enough memory" if lost else str(error) or "not enough memory"
        if isinstance(error, ImportError):
            from sframegen.cli.shared.install_commands import with_remedy  # noqa: PLC0415

            reason = with_remedy(error)
        os.write(2, f"sframegen: {what}{reason}\n".encode(errors="backslashreplace"))
        try:  # what was begun has been taken apart with the exception; to take the rest apart may need memory, too
            sys.stdout.flush()
        finally:
            os._exit(1)


def print_version() -> None:
    """Print it, and exit; return if that fails: the command line says why. click alone takes twice as long."""
    from sframegen.program.build import version_line  # noqa: PLC0415

    try:
        os.write(1, f"{version_line()}\n".encode())
    except OSError:
        return
    sys.exit()


def leave(end: SystemExit) -> None:
    """End the process without Python's clean-up of modules, which would take as long as a short command."""
    threads = sys.modules.get("threading")
    if isinstance(end.code, str) or (threads is not None and threads.active_count() > 1):
        raise end
    atexit._run_exitfuncs()  # noqa: SLF001 - as sys.exit does
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            raise end from None
    os._exit(int(end.code or 0))


closed: set[int] = set()  # standard streams that lead nowhere, by number


def open_standard_streams() -> None:
    """Open closed standard streams as /dev/null; otherwise the next opened file would get their messages."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            closed.add(number)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115 - here and below: until the process ends
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
