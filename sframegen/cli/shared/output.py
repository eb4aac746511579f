"""Output shared by all commands: the exit status, one line of error for each refused file, JSON, next steps."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from contextlib import contextmanager

import click

from linker.inject.kernel_versions import KernelChange
from sframegen.base.errors import Refusal, RefusedError, SframegenError
from sframegen.base.one_file import FILE_ERRORS, only_file_errors
from sframegen.base.quick_typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol
from sframegen.base.text import cut_middle, printable
from sframegen.detached.stores import VARIABLE, list_stores

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


HINTS = {
    Refusal.SIGNED: "use --force to change it anyway, then sign it again",
    Refusal.OTHER_SECTION: "use --replace to overwrite it",
    Refusal.FOREIGN_SECTION: "use --force to remove it",
    Refusal.FOREIGN_OBJECT: "use objcopy -R .sframe",
    Refusal.DYNAMIC_LOADER: f"--min-kernel {KernelChange.SEGMENT_IN_A_LOADER.value} allows it, as does add-section --force",
    Refusal.OLD_KERNELS: f"--min-kernel {KernelChange.TABLE_AT_THE_END.value} puts them at the end of the file",
    Refusal.NO_ROOM_LOADED: "use --unloaded to add a section for tools that read the file",
    Refusal.NO_ROOM_IN_PLACE: "use sframegen add-section --replace to make a new one",
    Refusal.NO_LINKER: "use --linker to name another",
}


def hint_of(error: Exception) -> str | None:
    """Return the hint at an option that allows the refused change; None if there is none."""
    return HINTS.get(error.reason) if isinstance(error, RefusedError) else None


class PathName(click.Path):
    """A path that click does not check, so that a command reports each unreadable file in a line, and goes on with the others.

    This also saves two system calls per file, for thousands of objects.
    """

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's
        return os.fspath(value)


class Directory(click.Path):
    """A directory that exists; click itself takes a FIFO or a device for one."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> str:
        path = os.fsdecode(super().convert(value, param, ctx))
        if not os.path.isdir(path):  # noqa: PTH112 - pathlib takes as long to import as a look-up
            self.fail(f"{path}: not a directory", param, ctx)
        return path


FILES = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PathName())


SECTIONS = click.option(
    "--sections",
    metavar="DIR",
    multiple=True,
    type=Directory(),
    callback=lambda _ctx, _parameter, given: list_stores(given),
    help=f"Search this directory for detached sections before those of ${VARIABLE}. May be repeated.",
)


OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of writing to an open file
LIMITS = {
    errno.EMFILE: "too many open files: raise the limit with `ulimit -n`",
    errno.ENFILE: "the machine has too many open files: raise fs.file-max with sysctl",
    errno.EAGAIN: "cannot start more processes: raise the limit with `ulimit -u`",
    errno.ENOMEM: "not enough memory",
}  # errors that do not depend on the file
PASSING = (click.ClickException, click.Abort, click.exceptions.Exit)  # exceptions that end a command


class Report(Protocol):
    """The report of a command on one file."""

    def to_json(self) -> dict[str, Any]: ...


class Refused(NamedTuple):
    """A file that a command refused, or could not read."""

    file: str
    error: str  #: the line on stderr

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class Run:
    """One run of a command over its files: `status` becomes 1 with the first finding or refused file.

    `reports`: for `--json`, in the order of the files: those that the command adds, and the refused files.
    """

    def __init__(self) -> None:
        self.status = 0
        self.reports: list[Report] = []

    @contextmanager
    def file(self, path: str, *, named: bool = False) -> Iterator[None]:
        """Run a block that works on one file; an error of that file ends the block, and is one line on stderr.

        `named`: the block works on several files, so the report has the file that the error names, if any.
        """
        try:
            with only_file_errors(*PASSING):
                yield
        except BrokenPipeError:
            raise
        except FILE_ERRORS as error:
            about = getattr(error, "file", "") or getattr(error, "filename", "") if named else ""
            self.refuse(str(about or path), in_words(error, path))
            for line in getattr(error, "__notes__", ()):  # of another program, as it printed them
                click.echo(printable(line), err=True)

    def refuse(self, path: str, message: str) -> None:
        self.reports.append(Refused(path, message))
        self.finding(message)

    def print_json(self) -> None:
        """Print the reports as one JSON document."""
        import json  # noqa: PLC0415 - takes as long as a small file

        sys.stdout.writelines(json_list(iter([json.dumps(report)]) for report in self.taken()))

    def end(self, *, as_json: bool) -> NoReturn:
        """Print the reports if `as_json`, and end the command with its status."""
        if as_json:
            self.print_json()
        raise click.exceptions.Exit(self.status)

    def taken(self) -> list[dict[str, Any]]:
        """Return the reports as JSON objects, and forget them."""
        taken, self.reports = self.reports, []
        return [report.to_json() for report in taken]

    def finding(self, message: str) -> None:
        self.status = 1
        note(message)


def in_words(error: Exception, path: str) -> str:
    """Return an error as one line, with the file that it names, or else `path`."""
    about = f"{path}: " if path else ""
    if isinstance(error, SframegenError):
        error.file = error.file or path
        hint = hint_of(error)
        return f"{error}; {hint}" if hint else str(error)
    if isinstance(error, OSError):
        if error.errno == errno.ENOENT and not str(error.filename or "").startswith("/") and _is_directory_gone():
            return "the current directory has been removed: change to one that exists"
        limit = LIMITS.get(error.errno or 0)
        if limit and not (error.errno == errno.EAGAIN and error.filename):  # that file is locked, or has nothing to read
            return about + limit
        name = error.filename or path or ("standard output" if error.errno in OF_WRITING else "")
        return f"{name}: {error.strerror or error}" if name else str(error.strerror or error)
    if isinstance(error, MemoryError):
        return about + LIMITS[errno.ENOMEM]
    if isinstance(error, ImportError):
        from sframegen.cli.shared.install_commands import with_remedy  # noqa: PLC0415 - not for each run

        return about + with_remedy(error)
    return f"{about}{error}"


def _is_directory_gone() -> bool:
    """Return True if the current directory does not exist any more."""
    try:
        os.getcwd()  # noqa: PTH109 - pathlib does the same
    except FileNotFoundError:
        return True
    return False


def note(message: str) -> None:
    """Print one line on stderr."""
    sys.stdout.flush()
    click.echo(f"sframegen: {cut_middle(printable(message))}", err=True)


def json_list(documents: Iterable[Iterator[str]]) -> Iterator[str]:
    """Yield a JSON list of documents, each of which comes in pieces."""
    yield "["
    for number, document in enumerate(documents):
        yield ",\n" * (number > 0)
        yield from document
    yield "]\n"


MOST_NAMES = 3  # file names in a line
# The command that shows a profile, by the ending of its name.
VIEWERS = {
    ".html": "xdg-open {}",
    ".pb.gz": "go tool pprof -http=: {}",
}


def next_step(line: str, *names: str) -> None:
    """Print a suggestion on standard error if that is a terminal; `{}` in it stands for the names, quoted for a shell.

    Nothing is printed if there are many names, or if one cannot be typed.
    """
    if sys.stderr.isatty() and 0 < len(names) <= MOST_NAMES and all(name.isprintable() for name in names):
        sys.stdout.flush()
        click.echo(f"next: {line.replace('{}', ' '.join(map(_quote, names)))}", err=True)


def _quote(name: str) -> str:
    """Return a name quoted for a shell; one that begins with a dash gets `./`, so that it is not an option."""
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def next_to_view(paths: Sequence[str]) -> None:
    """Suggest the command that shows the first of these profiles that has a viewer."""
    for path in paths:
        for ending, viewer in VIEWERS.items():
            if path.endswith(ending):
                next_step(viewer, path)
                return
