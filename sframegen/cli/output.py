"""What all commands do alike: several files, one line of error for each that is refused, JSON."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from cfi.errors import FormatError
from sframegen.names import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())


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
        except FormatError as error:
            error.file = error.file or path
            self.finding(str(error))
        except OSError as error:
            self.finding(f"{error.filename or path}: {error.strerror or error}")

    def finding(self, message: str) -> None:
        self.status = 1
        note(message)


def note(message: str) -> None:
    """One line on stderr."""
    sys.stdout.flush()
    click.echo(f"sframegen: {printable(message)}", err=True)


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
