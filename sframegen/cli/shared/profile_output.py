"""The option for a file with a profile."""

from __future__ import annotations

import click

from cfi.errors import SframegenError
from sframegen.profile.report.formats.file_formats import FORMATS, format_of


def _checked(_ctx: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Refuse a file of an unknown format before the first sample is taken."""
    try:
        if path is not None:
            format_of(path)
    except SframegenError as error:
        raise click.BadParameter(str(error)) from error
    return path


PROFILE_OUTPUT = click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=_checked,
    help=f"Write all samples to this file; its ending is the format: {', '.join(FORMATS)}.",
)
