"""What all commands share: the exit status, one line of error for each refused file, common options, JSON."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import click

from cfi.errors import SframegenError
from sframegen.detached.stores import VARIABLE
from sframegen.elf.text import printable, shortened
from sframegen.program.workers import REFUSALS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class PathName(click.Path):
    """A path that click does not look at: each command gives a file that it cannot read its own line, and does the others.

    It also saves two system calls for each of thousands of objects.
    """

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's
        return os.fspath(value)


FILES = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PathName())


SECTIONS = click.option(
    "--sections",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help=f"Find detached sections in this directory, then in those of ${VARIABLE}. May be given again.",
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
        from sframegen.cli.shared.hints import hint_of  # noqa: PLC0415 - not for each run

        hint = hint_of(error)
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
