from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from sframegen.backtrace.preloading import STATISTICS, find_program, is_program, list_libraries, list_objects, make_environment
from sframegen.base.errors import FormatError, SframegenError
from sframegen.base.text import format_count, format_first
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import QUIET, VERBOSITY, CommonOptions, verbose_option
from sframegen.cli.shared.output import SECTIONS, PathName, describe_error, note
from sframegen.detached.stores import VARIABLE, Stores
from sframegen.elf.file import open_elf
from sframegen.elf.records import PT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

IN_FILE, IN_STORE, MISSING = "section", "in a store", "no section"  # where the section of an object is


@click.command(
    name="preload",
    cls=Command,
    exclusive=[VERBOSITY],
    examples=[
        Example("Make missing sections, then run the command", "sframegen preload --detached store -- heaptrack ./prog"),
        Example("Where all have sections already", "sframegen preload -- ./prog"),
        Example("Also for a library that COMMAND preloads itself", "sframegen preload --detached store --also lib.so -- ./prog"),
        Example("Print at the end how many traces it answered", "sframegen preload --statistics -- ./prog"),
    ],
)
@click.argument("arguments", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--detached",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="First write sections for the objects without one to files of their own in DIR, where COMMAND finds them.",
)
@click.option(
    "--also",
    metavar="PATH",
    multiple=True,
    type=PathName(),
    help="Also look at this library, or all in this directory, which COMMAND itself puts into LD_PRELOAD. May be repeated.",
)
@SECTIONS
@click.option(
    "--statistics",
    is_flag=True,
    help="When a process ends, print how many traces came from sections, and how many from its own unwinder.",
)
@verbose_option("List the objects that COMMAND loads at its start, each with where its section is.")
@QUIET
def command(
    arguments: tuple[str, ...],
    *,
    detached: str | None,
    also: tuple[str, ...],
    sections: list[str],
    statistics: bool,
    common: CommonOptions,
) -> NoReturn:
    """Run COMMAND with stack traces from SFrame sections.

    libsframe-backtrace-preload.so, in LD_PRELOAD, answers backtrace(), unw_backtrace() and _Unwind_Backtrace() in COMMAND and the
    programs that it starts: heap profilers, crash handlers and stall detectors take most of their traces with these. A trace that
    sections cannot complete is answered as without it. Exceptions are not affected.

    On a terminal, a line says first which objects have no section: of COMMAND, of programs among its arguments, and of what they
    load at their start. The exit status is that of COMMAND.
    """
    try:
        loading = make_environment(os.environ)
    except SframegenError as error:
        note(str(error))
        raise click.exceptions.Exit(1) from None
    stores = [os.path.abspath(store) for store in ([detached] if detached else []) + sections]  # noqa: PTH100 - a text
    if detached or common.verbose or (sys.stderr.isatty() and not common.quiet):
        _prepare_sections(_list_objects(arguments, also), detached, stores, common)
    environment = _original_environment() | loading
    if stores:
        environment[VARIABLE] = ":".join(dict.fromkeys(stores))
    if statistics:
        environment[STATISTICS] = "1"
    sys.stdout.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these; COMMAND must not
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(arguments[0], arguments, environment)  # noqa: S606 - the user's command
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{arguments[0]}: not a program: {getattr(error, 'strerror', None) or error}") from None


def _original_environment() -> dict[str, str]:
    """Return the environment that sframegen was started with, without the LC_CTYPE that Python adds in the C locale."""
    environment = dict(os.environ)
    with suppress(OSError):
        before = Path("/proc/self/environ").read_bytes().split(b"\0")
        if not any(line.startswith(b"LC_CTYPE=") for line in before):
            environment.pop("LC_CTYPE", None)
    return environment


def _list_objects(arguments: Sequence[str], also: Iterable[str]) -> list[str]:
    """Return the objects that a command and the programs among its arguments load, and those of `also`. Errors are only notes."""
    found: dict[str, None] = {}
    program = ""
    try:
        program = find_program(arguments[0])
        found |= dict.fromkeys(list_objects(program))
    except (OSError, SframegenError) as error:
        note(describe_error(error, arguments[0]))
    trusted = [path for path in (program, sys.executable) if path]
    listings: dict[str, Callable[[], list[str]]] = {
        path: partial(list_objects, path, trusted) for path in map(os.path.realpath, filter(is_program, arguments[1:]))
    }
    listings |= {path: partial(list_libraries, path, program) for path in also if program}
    for path, find_objects in listings.items():
        try:
            found |= dict.fromkeys(find_objects())
        except (OSError, SframegenError) as error:
            note(describe_error(error, path))
    return list(found)


def _prepare_sections(objects: list[str], detached: str | None, stores: Sequence[str], common: CommonOptions) -> None:
    """Make detached sections for objects without one if `detached` is given, and print which objects have sections."""
    locations = _find_sections(objects, stores)
    if detached and (lacking := [path for path, location in locations.items() if location == MISSING]):
        _add_detached(lacking, detached, quiet=common.quiet)
        locations |= _find_sections(lacking, stores)
    if common.verbose:
        for path, location in locations.items():
            note(f"{path}: {location}")
    lacking = [path for path, location in locations.items() if location == MISSING]
    if lacking and not common.quiet:
        remedy = "" if detached else "; --detached DIR makes their sections"
        note(f"no section in {len(lacking)} of {format_count(len(locations), 'object')}: {format_first(lacking)}{remedy}")


def _find_sections(objects: Iterable[str], directories: Sequence[str]) -> dict[str, str]:
    """Return where each object has its section: IN_FILE, IN_STORE or MISSING. An object that cannot be read is MISSING, too."""
    stores = Stores(directories)
    locations = {}
    for path in objects:
        locations[path] = MISSING
        try:
            elf = open_elf(path)
            if any(segment.p_type == PT.GNU_SFRAME and segment.p_filesz for segment in elf.segments):
                locations[path] = IN_FILE
            elif stores.find_for_file(elf, len):
                locations[path] = IN_STORE
        except (OSError, FormatError) as error:
            note(describe_error(error, path))
    for line in stores.take_notes():
        note(line)
    return locations


def _add_detached(paths: Iterable[str], directory: str, *, quiet: bool) -> None:
    from sframegen.api.adding import add_section  # noqa: PLC0415 - not for each run

    for path in paths:
        try:
            summary = add_section(path, detached=directory)
        except (OSError, SframegenError) as error:
            note(describe_error(error, path))
        else:
            if not quiet:
                note(summary.one_line())
