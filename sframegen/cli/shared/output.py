"""What all commands share: the exit status, one line of error for each refused file, common options, JSON."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from cfi.errors import SframegenError
from linker.files.refusals import Refusal, RefusedError
from linker.inject.kernel_versions import SAFE_SINCE, Change, safe_on
from sframegen.detached.stores import VARIABLE
from sframegen.elf.text import printable, shortened
from sframegen.format.layouts import WRITABLE
from sframegen.program.workers import REFUSALS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Decorated = TypeVar("Decorated", bound=Callable[..., object])

# What allows a change that was refused.
HINTS = {
    Refusal.SIGNED: "--force changes it anyway: sign it again afterwards",
    Refusal.OTHER_SECTION: "--replace puts that in its place",
    Refusal.FOREIGN_SECTION: "--force takes it out",
    Refusal.DYNAMIC_LOADER: f"--min-kernel {SAFE_SINCE[Change.SEGMENT_IN_A_LOADER]} allows it, as does add-section --force",
    Refusal.OLD_KERNELS: f"--min-kernel {SAFE_SINCE[Change.TABLE_AT_THE_END]} puts them at the end of the file",
    Refusal.NO_ROOM_IN_PLACE: "sframegen add-section --replace makes a new one",
    Refusal.NO_LINKER: "--linker names another",
    Refusal.NO_MEMORY_TO_VERIFY: "--no-verify does without",
}


class PathName(click.Path):
    """A path that click does not look at: each command gives a file that it cannot read its own line, and does the others.

    It also saves two system calls for each of thousands of objects.
    """

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's
        return os.fspath(value)


FILES = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PathName())


OUTPUT = click.option("-o", "--output", type=PathName(), help="Write to this file and leave FILE unchanged.")
OUTPUT_DIR = click.option("--output-dir", type=PathName(), help="Write to files with the same names in this directory.")
VERSIONS = click.Choice([str(version) for version in sorted(WRITABLE, reverse=True)])


SECTIONS = click.option(
    "--sections",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help=f"Find detached sections in this directory, then in those of ${VARIABLE}. May be given again.",
)


def _kernel(_ctx: click.Context, _parameter: click.Parameter, version: str | None) -> str | None:
    try:
        safe_on(version)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return version


MIN_KERNEL = click.option(
    "--min-kernel",
    metavar="VERSION",
    callback=_kernel,
    help="The oldest Linux that the result must run on. Newer versions allow sections in static programs of gold, lld and mold"
    " (5.18) and in dynamic loaders (6.7).",
)


UNLOADED = click.option(
    "--unloaded",
    is_flag=True,
    is_eager=True,  # known when --compress is read
    help="Add a section that no segment has, for readers of files: no program header changes.",
)


def compression(*options: str) -> Callable[[Decorated], Decorated]:
    """The option to compress a section. `options`: it needs one of these, which are read before it."""
    either = " or ".join(options)

    def checked(ctx: click.Context, _parameter: click.Parameter, compression: str | None) -> str | None:
        if compression and not any(ctx.params[option.lstrip("-")] for option in options):
            raise click.UsageError(f"--compress needs {either}")
        return compression

    return click.option("--compress", type=click.Choice(["zstd"]), callback=checked, help=f"With {either}: compress the section.")


def verification(command: Callable[..., object]) -> Callable[..., object]:
    """The options of how the result is read back. The command gets `verify`, which is what the public functions take."""

    @wraps(command)
    def with_reader(*arguments: object, verify: str | None, no_verify: bool, **options: object) -> object:
        return command(*arguments, verify=False if no_verify or verify == "none" else verify or True, **options)

    reader = click.option(
        "--verify",
        type=click.Choice(["lief", "elftools", "none"]),
        help="Read the result back with this library. Both compare each header, segment and section, and all bytes that were there"
        " before, with what was planned. By default LIEF reads large files and many, pyelftools others, because it starts faster.",
    )
    without = click.option("--no-verify", is_flag=True, help="Do not read the result back: --verify none.")
    return reader(without(with_reader))


def level(default: str) -> Callable[[Decorated], Decorated]:
    """The option of how small a section is made."""
    return click.option(
        "--optimize",
        type=click.Choice(["none", "share", "fast", "size"]),
        default=default,
        show_default=True,
        help="none: one FDE per function. share: equal rows only once. fast: also cut functions and join neighbours where look-ups"
        " stay fast. size: join more.",
    )


class Run:
    """One run of a command over its files: `status` becomes 1 with the first finding or refused file."""

    def __init__(self) -> None:
        self.status = 0

    @contextmanager
    def file(self, path: str) -> Iterator[None]:
        """The block works on one file; what is wrong with that file ends the block and is one line on stderr."""
        try:
            yield
        except BrokenPipeError:
            raise
        except REFUSALS as error:
            sys.stdout.flush()
            for line in getattr(error, "__notes__", ()):  # of another program, as it printed them
                click.echo(printable(line), err=True)
            self.finding(in_words(error, path))

    def finding(self, message: str) -> None:
        self.status = 1
        note(message)


def in_words(error: Exception, path: str) -> str:
    """One line, with the file that it is about: `path`, where the error names none."""
    if isinstance(error, SframegenError):
        error.file = error.file or path
        hint = HINTS.get(error.reason) if isinstance(error, RefusedError) else None
        return f"{error}; {hint}" if hint else str(error)
    if isinstance(error, OSError):
        if error.errno == errno.ENOENT and not str(error.filename or "").startswith("/") and _nowhere():
            return "the current directory has been removed: change to one that exists"
        return f"{error.filename or path}: {error.strerror or error}"
    if isinstance(error, MemoryError):
        return f"{path}: not enough memory"
    return f"{path}: {error}"


def _nowhere() -> bool:
    """True if the current directory does not exist any more."""
    try:
        os.getcwd()  # noqa: PTH109 - pathlib does the same
    except FileNotFoundError:
        return True
    return False


def note(message: str) -> None:
    """One line on stderr."""
    sys.stdout.flush()
    click.echo(f"sframegen: {shortened(printable(message))}", err=True)


class Report(Protocol):
    """What a command did, or found."""

    def to_json(self) -> dict[str, Any]: ...


def print_json(reports: Iterable[Report], *, several: bool) -> None:
    """Print them as one JSON document."""
    import json  # noqa: PLC0415 - takes as long as a small file

    sys.stdout.writelines(json_list((iter([json.dumps(report.to_json())]) for report in reports), several=several))


def json_list(documents: Iterator[Iterator[str]], *, several: bool) -> Iterator[str]:
    """JSON documents, each in pieces, as one: a list where several were asked for, else the one if there is one."""
    if several:
        yield "["
    for number, document in enumerate(documents):
        yield ",\n" * (number > 0)
        yield from document
        yield "\n" * (not several)
    if several:
        yield "]\n"
