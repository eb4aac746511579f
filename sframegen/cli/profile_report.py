from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cfi.errors import SframegenError
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_OBJECT
from sframegen.cli.shared.output import PathName, Run
from sframegen.cli.shared.profile_output import OUTPUT, Outputs, refuse_times
from sframegen.elf.opening import open_regular
from sframegen.profile.report.grouping import GROUPS, group_stacks
from sframegen.profile.stored.intervals import between, intervals_in, time_of
from sframegen.profile.stored.read_pprof import MAX_BYTES, PprofProfiles
from sframegen.profile.units import Unit

if TYPE_CHECKING:
    from sframegen.cli.shared.common_options import How
    from sframegen.profile.report.named import Named


def _time(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else time_of(text, time.time())
    except SframegenError as error:
        raise click.BadParameter(str(error)) from None


def read_profiles(run: Run, files: tuple[str, ...], begin: float | None = None, end: float | None = None) -> Named | None:
    """Merge files, and of directories the profiles of intervals between two times. None: there was nothing to read."""
    profiles, number = PprofProfiles(), 0
    for path in files:
        with run.file(path):
            inner = (
                [str(Path(path, one.name)) for one in between(intervals_in(_names(path)), begin, end)]
                if Path(path).is_dir()
                else [path]
            )
            if not inner:
                raise SframegenError("no profiles of intervals are in it, or none of that time")
            for name in inner:
                with run.file(name):
                    profiles.add(_read(name, regular=name is not path))
                    number += 1
    return profiles.named if number else None


def _read(path: str, *, regular: bool) -> bytes:
    """Up to what a profile may have, and one byte. `regular`: the user named its directory, not the file, which may be a FIFO."""
    with os.fdopen(open_regular(path, path) if regular else os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
        return file.read(MAX_BYTES + 1)


def _names(path: str) -> list[str]:
    return [entry.name for entry in Path(path).iterdir()]


@click.command(
    name="profile-report",
    cls=Command,
    examples=[
        Example("Show the last two hours of a profile in intervals", "sframegen profile-report --from 2h profiles"),
        Example("Draw ten minutes of it", "sframegen profile-report --from 14:30 --to 14:40 -o slow.html profiles"),
    ],
)
@click.argument("files", metavar="DIR|FILE...", nargs=-1, required=True, type=PathName())
@click.option(
    "--from", "begin", metavar="TIME", callback=_time, help="Leave out what was before: 2026-11-23T14:30, 14:30, or 2h ago."
)
@click.option("--to", "end", metavar="TIME", callback=_time, help="Leave out what was after.")
@OUTPUT
@click.option("--by", type=click.Choice(list(GROUPS)), default="comm", show_default=True, help="What to group stacks by.")
@JSON_OBJECT
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    *,
    begin: float | None,
    end: float | None,
    output: tuple[str, ...],
    by: str,
    how: How,
) -> None:
    """Show profiles that are in files: all of them together, as one profile.

    DIR is a directory that `sframegen profile --every` writes; FILE is a profile in pprof's format, of any profiler. Without
    --output, the hottest functions and stacks are printed.
    """
    run = Run()
    gone = not all(Path(name).is_file() or Path(name).is_dir() for name in files)  # after reading: a pipe
    outputs = Outputs(run, output, how.as_json, keeps=gone)
    outputs.check()
    if run.status:
        ctx.exit(run.status)
    named = read_profiles(run, files, begin, end)
    if named is not None:
        if named.unit is Unit.MICROSECONDS:
            refuse_times(output)
        outputs.write(group_stacks(named, by))
    ctx.exit(run.status)
