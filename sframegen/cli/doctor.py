from __future__ import annotations

import click

from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_OBJECT, CommonOptions
from sframegen.cli.shared.installation import describe_installation


@click.command(
    name="doctor",
    cls=Command,
    examples=[
        Example("Print what this installation is, for a bug report", "sframegen doctor > doctor.txt"),
        Example("Print the parts that do not work", "sframegen doctor --json | jq '.parts[] | select(.works | not)'"),
    ],
)
@JSON_OBJECT
def command(*, common: CommonOptions) -> None:
    """Print what this installation is, and which parts of it work.

    Versions, whether the hot loops are compiled, and then a line for each part: libraries, what `profile` needs, the extra
    `fleet`. A line that begins with `no` has the reason, and below it the command that helps, if there is one.
    Nothing is changed, and nothing is fetched.

    The exit status is 0 whatever works. A bug report should have the output.
    """
    click.echo(describe_installation(as_json=common.as_json))
