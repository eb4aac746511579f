"""Writes a profile to files, in the formats that their endings select, or prints it as JSON or as a table."""

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
from sframegen.cli.shared.output import PathName, Run, note, suggest_viewer
from sframegen.cli.start import closed_streams
from sframegen.profile.report.formats.file_formats import FORMATS, Format, check_target, format_of, write_profile
from sframegen.profile.report.formats.texts import encode_json
from sframegen.profile.report.table import format_notes, format_table, format_totals

if TYPE_CHECKING:
    from sframegen.profile.report.named import NamedProfile

FALLBACK_DIRECTORIES, FALLBACK_SUFFIX = (None, "/var/tmp", "/dev/shm"), ".pb.gz"  # noqa: S108 - None: the directory of TMPDIR
REMOVED_ENDINGS = (".speedscope.json", ".firefox.json", ".pprof")  # endings of file names, for formats that were removed
STDOUT = 1
WIDTH = 100  # columns, if the output is not a terminal


def refuse_removed_formats(*paths: str) -> tuple[str, ...]:
    """Return the paths. Raises RemovedError if one has the ending of a removed format."""
    for ending in REMOVED_ENDINGS:
        if any(path.endswith(ending) for path in paths):
            refuse_removed("profile", "--output", ending)
    return paths


OUTPUT = click.option(
    "-o",
    "--output",
    metavar="FILE",
    multiple=True,
    type=PathName(),
    callback=lambda _ctx, _parameter, paths: refuse_removed_formats(*paths),
    help=f"Write to this file; its extension selects the format: {', '.join(FORMATS)}. May be repeated.",
)


def select_format(path: str) -> Format:
    """Return the format for the ending of a path. Raises UsageError for an unknown ending."""
    try:
        return format_of(path)
    except SframegenError as error:
        raise click.UsageError(str(error)) from None


def compose_title(named: NamedProfile, arguments: tuple[str, ...], comm: str | None) -> str:
    """Return a title that says what was sampled, on which machine, and when.

    `arguments`: a command, or process ids; if they are empty, threads named `comm` were sampled, or all processes.
    """
    names = {str(task.pid): task.process for task in named.tasks}
    if not arguments:
        sampled = f"threads named {comm}" if comm else "all processes"
    elif all(map(str.isdecimal, arguments)):
        sampled = format_first([f"{names.get(pid) or 'process'} [{pid}]" for pid in arguments])
    else:
        sampled = shlex.join(arguments)
    return f"{sampled}, {os.uname().nodename}, {time.strftime('%Y-%m-%d %H:%M', time.localtime(named.started))}"


class Outputs(NamedTuple):
    """The outputs of a profile: `files`, JSON or a table on standard output."""

    run: Run
    files: tuple[str, ...]
    as_json: bool
    quiet: bool = False

    def check(self) -> None:
        """Check, before hours of sampling, that all outputs can be written. Raises UsageError."""
        if (self.as_json or not self.files) and STDOUT in closed_streams:
            raise click.UsageError("standard output is closed; name a file with --output")
        for path in self.files:
            select_format(path)
        for path in self.files:
            with self.run.working_on(path):
                check_target(path)

    def write(self, named: NamedProfile) -> None:
        """Write all outputs. If one of them cannot be written, also print the table, and save a copy."""
        failed = False
        for path in self.files:
            written = False
            with self.run.working_on(path):
                write_profile(named, path)
                written = True
            failed |= not written
        try:
            self._print(named, whole=failed or not self.files)
        except BrokenPipeError:  # the reader of the pipe has seen enough
            raise
        except OSError:
            self._save_copy(named)
            raise
        if failed:
            self._save_copy(named)
        elif not (self.as_json or self.quiet):
            suggest_viewer(self.files)

    def _print(self, named: NamedProfile, *, whole: bool) -> None:
        if self.as_json:
            for part in encode_json(named):
                click.echo(part, nl=False)
        else:
            self._print_lines(named, whole=whole)
        sys.stdout.flush()

    def _print_lines(self, named: NamedProfile, *, whole: bool) -> None:
        width = shutil.get_terminal_size((WIDTH, 24)).columns
        for line in format_table(named, width) if whole else ():
            click.echo(line)
        if not self.quiet:
            for line in () if whole else format_totals(named):
                note(line)
            for line in format_notes(named, width):
                click.echo(line, err=not whole)

    def _save_copy(self, named: NamedProfile) -> None:
        """Write the profile to a directory for temporary files, and print the name of the copy."""
        for folder in FALLBACK_DIRECTORIES:
            try:
                descriptor, name = tempfile.mkstemp(dir=folder, prefix="sframegen-profile-", suffix=FALLBACK_SUFFIX)
            except OSError:
                continue
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.writelines(format_of(name).encode(named))
            except OSError:
                Path(name).unlink(missing_ok=True)  # so that an incomplete copy takes up no space on a full disk
                continue
            note(f"the profile is kept in {name}: go tool pprof shows it")
            return
        note("the profile cannot be kept: no directory for temporary files is writable")
