from __future__ import annotations

import click

from sframegen.cli.installation.description import text


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(*, as_json: bool) -> None:
    """Print what this installation is, and which parts of it work.

    Versions, whether the hot loops are compiled, and then a line for each part: libraries, the kernel program of `profile`, tools
    for packages, the extra `fleet`, completion. Each part is tried, in a process of its own. A line that begins with `no` has the
    reason, and below it the command that helps, if there is one. Nothing is changed, and nothing is fetched.

    The exit status is 0 whatever works. A bug report should have the output.
    """
    click.echo(text(as_json=as_json))
