"""Where profiles go: files in the formats of their endings, JSON, or a table on the terminal."""

from __future__ import annotations

import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, NamedTuple

import click

from cfi.errors import SframegenError
from sframegen.cli.shared.output import PathName, note
from sframegen.profile.report.formats.file_formats import FORMATS, check_target, format_of, write_profile
from sframegen.profile.report.formats.summary import summary
from sframegen.profile.report.table import table, totals

if TYPE_CHECKING:
    from sframegen.cli.shared.output import Run
    from sframegen.profile.report.formats.file_formats import Format
    from sframegen.profile.report.named import Named

KEPT_IN, KEPT_AS = (None, "/var/tmp", "/dev/shm"), ".pb.gz"  # noqa: S108 - None: as TMPDIR says
WIDTH = 100  # columns, where there is no terminal
OUTPUT = click.option(
    "-o",
    "--output",
    metavar="FILE",
    multiple=True,
    type=PathName(),
    help=f"Write to this file, in the format of its ending: {', '.join(FORMATS)}. May be given again.",
)


def format_for(path: str) -> Format:
    """Raises UsageError."""
    try:
        return format_of(path)
    except SframegenError as error:
        raise click.UsageError(str(error)) from None


class Outputs(NamedTuple):
    """`files`: names, whose endings are known."""

    run: Run
    files: tuple[str, ...]
    as_json: bool

    def check(self) -> None:
        """Tell of files that cannot be made, before hours of samples wait for them. Raises UsageError for an unknown ending."""
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
        except BrokenPipeError:  # whoever reads it has seen enough
            raise
        except OSError:
            _keep(named)
            raise
        if failed:
            _keep(named)

    def _print(self, named: Named, *, whole: bool) -> None:
        if self.as_json:
            for part in summary(named):
                click.echo(part, nl=False)
        elif whole:
            for line in table(named, shutil.get_terminal_size((WIDTH, 24)).columns):
                click.echo(line)
        else:
            for line in totals(named):
                note(line)
        sys.stdout.flush()


def _keep(named: Named) -> None:
    """Write the profile where there may be room, and say where."""
    for folder in KEPT_IN:
        try:
            with tempfile.NamedTemporaryFile(dir=folder, prefix="sframegen-profile-", suffix=KEPT_AS, delete=False) as file:
                file.writelines(format_of(file.name).parts(named))
        except OSError:
            continue
        note(f"the profile is kept in {file.name}: sframegen profile report shows it, or writes it in another format")
        return
    note("the profile cannot be kept: no directory for temporary files can be written to")
