"""The entry point of the program `sframegen`, and the first module that it imports."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # not `signal`, which would import other modules first
import atexit
import gc
import os
import sys

gc.set_threshold(1_000_000)  # commands make many small tuples but no reference cycles; collection took a seventh of the time

# Bytes of address space that importing the command line takes. With less, CPython 3.13 may handle a MemoryError for ever.
MIN_ADDRESS_SPACE = 8 << 20

# Until there is something to clean up, Ctrl-C ends the process at once, without KeyboardInterrupt and its traceback.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> None:
    """Run the command line, and end the process with its status."""
    prefix = "cannot start: "
    try:
        bytes(MIN_ADDRESS_SPACE)
        open_standard_streams()
        from sframegen.program.own_packages import refuse_foreign_packages  # noqa: PLC0415 - here and below: after the set-up of signals

        refuse_foreign_packages()
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

            from sframegen.cli.shared.installation import describe_installation  # noqa: PLC0415

            with suppress(BrokenPipeError):
                print(describe_installation(as_json="--json" in sys.argv[2:]))
                sys.stdout.flush()
            return
        prefix = ""
        sys.exit(run_command())
    except SystemExit as end:
        exit_without_cleanup(end)
    except (ImportError, MemoryError, OSError, SystemError) as error:
        is_lost_error = isinstance(error, SystemError)
        if is_lost_error and " without " not in str(error):  # "... without setting an exception": CPython lost a MemoryError
            raise
        reason = "not enough memory" if is_lost_error else str(error) or "not enough memory"
        if isinstance(error, ImportError):
            from sframegen.cli.shared.install_commands import describe_import_error  # noqa: PLC0415

            reason = describe_import_error(error)
        os.write(2, f"sframegen: {prefix}{reason}\n".encode(errors="backslashreplace"))
        try:  # the exception has cleaned up what was begun; Python's own clean-up at exit may need memory that is not there
            sys.stdout.flush()
        finally:
            os._exit(1)


def print_version() -> None:
    """Print the version and exit, in half the time of importing click. Return if printing fails: the command line reports why."""
    from sframegen.program.build import version_line  # noqa: PLC0415

    try:
        os.write(1, f"{version_line()}\n".encode())
    except OSError:
        return
    sys.exit()


def exit_without_cleanup(end: SystemExit) -> None:
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


closed_streams: set[int] = set()  # file descriptors of standard streams that were closed at the start


def open_standard_streams() -> None:
    """Open closed standard streams as /dev/null, because the next opened file would get their descriptor and their messages."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this number
            closed_streams.add(number)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115 - here and below: until the process ends
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
