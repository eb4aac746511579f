"""The output that all commands share: a line for each refused file, notes, JSON, the next command; and a run's exit status."""

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

HINTS = {  # the option that allows a refused change, or the command to use instead
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


class PathName(click.Path):
    """A path that click does not check, so that a command reports each unreadable file in a line, and goes on with the others.

    This also saves two system calls for each file, of which there may be thousands.
    """

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value and isinstance(param, click.Option):  # a shell variable is not set; as a directory, it would be this one
            self.fail("an empty name", param, ctx)
        return os.fspath(value)


class Directory(click.Path):
    """A directory that exists. click's own check accepts a FIFO or a device as well."""

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
    callback=lambda _ctx, _parameter, paths: list_stores(paths),
    help=f"Search this directory for detached sections before those of ${VARIABLE}. May be repeated.",
)

WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of writes to an open file, so they name no file
RESOURCE_ERRORS = {  # that do not depend on the file
    errno.EMFILE: "too many open files: raise the limit with `ulimit -n`",
    errno.ENFILE: "the machine has too many open files: raise fs.file-max with sysctl",
    errno.EAGAIN: "cannot start more processes: raise the limit with `ulimit -u`",
    errno.ENOMEM: "not enough memory",
}
COMMAND_ENDINGS = (click.ClickException, click.Abort, click.exceptions.Exit)  # exceptions by which click ends a command


class Report(Protocol):
    """The report of a command on one file."""

    def to_json(self) -> dict[str, Any]: ...


class Refused(NamedTuple):
    """A file that a command refused, or could not read."""

    file: str
    error: str  #: the line that was printed on stderr

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class Run:
    """One run of a command over its files. Its exit `status` becomes 1 with the first finding or refused file.

    `reports` has, for `--json` and in the order of the files, the reports that the command adds, and the refused files.
    """

    def __init__(self) -> None:
        self.status = 0
        self.reports: list[Report] = []

    @contextmanager
    def working_on(self, path: str, *, named: bool = False) -> Iterator[None]:
        """Run a block that works on one file. An error of that file ends the block, and is printed as one line on stderr.

        `named`: the block works on several files, so that the error is reported for the file that it names, if it names one.
        """
        try:
            with only_file_errors(*COMMAND_ENDINGS):
                yield
        except BrokenPipeError:
            raise
        except FILE_ERRORS as error:
            named_file = getattr(error, "file", "") or getattr(error, "filename", "") if named else ""
            self.report_refusal(str(named_file or path), describe_error(error, path))
            for line in getattr(error, "__notes__", ()):  # lines that another program, such as a linker, printed
                click.echo(printable(line), err=True)

    def report_refusal(self, path: str, message: str) -> None:
        self.reports.append(Refused(path, message))
        self.report_finding(message)

    def finish(self, *, as_json: bool) -> NoReturn:
        """Print the reports if `as_json`, and end the command with the run's status."""
        if as_json:
            import json  # noqa: PLC0415 - takes as long as a small file

            sys.stdout.writelines(join_json_list(iter([json.dumps(report)]) for report in self.take_json()))
        raise click.exceptions.Exit(self.status)

    def take_json(self) -> list[dict[str, Any]]:
        """Return the reports as JSON objects, and drop them."""
        reports, self.reports = self.reports, []
        return [report.to_json() for report in reports]

    def report_finding(self, message: str) -> None:
        self.status = 1
        note(message)


def describe_error(error: Exception, path: str) -> str:
    """Return an error as one line, with the file that the error names, or else `path`."""
    prefix = f"{path}: " if path else ""
    if isinstance(error, SframegenError):
        error.file = error.file or path
        hint = HINTS.get(error.reason) if isinstance(error, RefusedError) else None
        return f"{error}; {hint}" if hint else str(error)
    if isinstance(error, OSError):
        if error.errno == errno.ENOENT and not str(error.filename or "").startswith("/") and _is_current_directory_gone():
            return "the current directory has been removed: change to one that exists"
        resource_error = RESOURCE_ERRORS.get(error.errno or 0)
        if resource_error and not (error.errno == errno.EAGAIN and error.filename):  # EAGAIN of a file: it is locked, or empty
            return prefix + resource_error
        name = error.filename or path or ("standard output" if error.errno in WRITE_ERRORS else "")
        return f"{name}: {error.strerror or error}" if name else str(error.strerror or error)
    if isinstance(error, MemoryError):
        return prefix + RESOURCE_ERRORS[errno.ENOMEM]
    if isinstance(error, ImportError):
        from sframegen.cli.shared.install_commands import describe_import_error  # noqa: PLC0415 - not for each run

        return prefix + describe_import_error(error)
    return f"{prefix}{error}"


def _is_current_directory_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - pathlib does the same
    except FileNotFoundError:
        return True
    return False


def note(message: str) -> None:
    """Print a message as one line on stderr."""
    sys.stdout.flush()
    click.echo(f"sframegen: {cut_middle(printable(message))}", err=True)


def join_json_list(documents: Iterable[Iterator[str]]) -> Iterator[str]:
    """Yield a JSON list of documents, each of which comes in several strings."""
    yield "["
    for number, document in enumerate(documents):
        yield ",\n" * (number > 0)
        yield from document
    yield "]\n"


MAX_SUGGESTED_NAMES = 3  # file names in a suggested command
# The command that shows a profile, by the ending of the profile's name.
VIEWERS = {".html": "xdg-open {}", ".pb.gz": "go tool pprof -http=: {}"}


def suggest_command(line: str, *names: str) -> None:
    """Suggest the next command on standard error, if that is a terminal; `{}` in it stands for the names, quoted for a shell.

    Nothing is printed for many names, or if a name has characters that cannot be typed.
    """
    if sys.stderr.isatty() and 0 < len(names) <= MAX_SUGGESTED_NAMES and all(name.isprintable() for name in names):
        sys.stdout.flush()
        click.echo(f"next: {line.replace('{}', ' '.join(map(_quote_operand, names)))}", err=True)


def _quote_operand(name: str) -> str:
    """Return a name quoted for a shell; if it begins with a dash, put `./` before it, so that it is not an option."""
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def suggest_viewer(paths: Sequence[str]) -> None:
    """Suggest the command that shows the first of these profiles that has a viewer."""
    for path in paths:
        for ending, viewer in VIEWERS.items():
            if path.endswith(ending):
                suggest_command(viewer, path)
                return
