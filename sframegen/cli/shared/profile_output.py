"""Writes profiles: to files in the formats of their endings, as JSON, or as a table on the terminal."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from sframegen.base.errors import SframegenError
from sframegen.base.text import format_first
from sframegen.cli.removed_names import refuse_removed
from sframegen.cli.shared.output import PathName, Run, next_to_view, note
from sframegen.cli.start import closed
from sframegen.profile.report.formats.file_formats import FORMATS, Format, check_target, format_of, write_profile
from sframegen.profile.report.formats.texts import summary
from sframegen.profile.report.table import note_lines, table, totals

if TYPE_CHECKING:
    from sframegen.profile.report.named import Named

KEPT_IN, KEPT_AS = (None, "/var/tmp", "/dev/shm"), ".pb.gz"  # noqa: S108 - None: as TMPDIR says
GONE = (".speedscope.json", ".firefox.json", ".pprof")  # endings of removed formats
STDOUT = 1
WIDTH = 100  # columns of output that is not a terminal


def refuse_gone(*paths: str) -> tuple[str, ...]:
    """Return the names. Raises RemovedError for one with the ending of a removed format."""
    for ending in GONE:
        if any(path.endswith(ending) for path in paths):
            refuse_removed("profile", "--output", ending)
    return paths


OUTPUT = click.option(
    "-o",
    "--output",
    metavar="FILE",
    multiple=True,
    type=PathName(),
    callback=lambda _ctx, _parameter, paths: refuse_gone(*paths),
    help=f"Write to this file; its extension selects the format: {', '.join(FORMATS)}. May be repeated.",
)


def format_for(path: str) -> Format:
    """Return the format for the ending of a name. Raises UsageError for unknown endings."""
    try:
        return format_of(path)
    except SframegenError as error:
        raise click.UsageError(str(error)) from None


def title_of(named: Named, arguments: tuple[str, ...], comm: str | None) -> str:
    """Return what was sampled, where and when. `arguments`: a command or process ids; none: `comm`, or everything."""
    names = {str(task.pid): task.process for task in named.tasks}
    if not arguments:
        what = f"threads named {comm}" if comm else "all processes"
    elif all(map(str.isdecimal, arguments)):
        what = format_first([f"{names.get(pid) or 'process'} [{pid}]" for pid in arguments])
    else:
        what = shlex.join(arguments)
    return f"{what}, {os.uname().nodename}, {time.strftime('%Y-%m-%d %H:%M', time.localtime(named.started))}"


def refuse_closed_stdout() -> None:
    """Raise UsageError if standard output is closed."""
    if STDOUT in closed:
        raise click.UsageError("standard output is closed; name a file with --output")


class Outputs(NamedTuple):
    """The outputs of a profile. `files`: names, whose endings are known."""

    run: Run
    files: tuple[str, ...]
    as_json: bool
    quiet: bool = False

    def check(self) -> None:
        """Check, before hours of sampling, that all outputs can be written. Raises UsageError for an unknown ending."""
        if self.as_json or not self.files:
            refuse_closed_stdout()
        for path in self.files:
            format_for(path)
        for path in self.files:
            with self.run.file(path):
                check_target(path)

    def write(self, named: Named) -> None:
        """Write all outputs. If one of them cannot be written, print the table, too, and keep a copy."""
        failed = False
        for path in self.files:
            ended = False
            with self.run.file(path):
                write_profile(named, path)
                ended = True
            failed |= not ended
        try:
            self._print(named, whole=failed or not self.files)
        except BrokenPipeError:  # the reader of the pipe has seen enough
            raise
        except OSError:
            self._keep(named)
            raise
        if failed:
            self._keep(named)
        elif not (self.as_json or self.quiet):
            next_to_view(self.files)

    def _print(self, named: Named, *, whole: bool) -> None:
        if self.as_json:
            for part in summary(named):
                click.echo(part, nl=False)
        else:
            self._print_lines(named, whole=whole)
        sys.stdout.flush()

    def _print_lines(self, named: Named, *, whole: bool) -> None:
        width = shutil.get_terminal_size((WIDTH, 24)).columns
        for line in table(named, width) if whole else ():
            click.echo(line)
        if not self.quiet:
            for line in () if whole else totals(named):
                note(line)
            for line in note_lines(named, width):
                click.echo(line, err=not whole)

    def _keep(self, named: Named) -> None:
        """Write the profile where there may be room, and say where."""
        for folder in KEPT_IN:
            try:
                descriptor, name = tempfile.mkstemp(dir=folder, prefix="sframegen-profile-", suffix=KEPT_AS)
            except OSError:
                continue
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.writelines(format_of(name).parts(named))
            except OSError:
                Path(name).unlink(missing_ok=True)  # an incomplete file would take up room on a full disk
                continue
            note(f"the profile is kept in {name}: go tool pprof shows it")
            return
        note("the profile cannot be kept: no directory for temporary files is writable")
