from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sframegen import api
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_LIST, QUIET
from sframegen.cli.shared.output import FILES, Run
from sframegen.cli.shared.packages_too import packages_too
from sframegen.cli.shared.several import changes, print_change
from sframegen.cli.shared.write_options import FORCE_FOREIGN, OUTPUT_OR_DIR, RESULTS, VERIFICATION, dry_run

if TYPE_CHECKING:
    from sframegen.cli.shared.common_options import How


@click.command(
    name="remove",
    cls=Command,
    exclusive=[OUTPUT_OR_DIR],
    examples=[
        Example("Restore a program as it was before add-section", "sframegen remove ./prog"),
        Example("Print what would change", "sframegen remove --dry-run prog lib.so"),
    ],
)
@FILES
@RESULTS
@FORCE_FOREIGN
@dry_run()
@VERIFICATION
@QUIET
@JSON_LIST
def command(files: tuple[str, ...], *, keywords: dict[str, Any], how: How) -> None:
    """Remove the SFrame section from each FILE.

    FILE is restored as it was before add-section, byte for byte. If another tool, such as strip, has rewritten it, only the
    section and its headers are removed. A FILE without a section is left unchanged; with -o or --output-dir it is copied. FILE
    may also be an object, an archive or a package. In a package, each file is restored, and the package is packed again: its bytes
    may differ.
    """
    run = Run()
    for removal in changes(run, files, packages_too(api.remove), keywords, how):
        if how.prints_lines:
            print_change(removal, plan=keywords["dry_run"])
    run.end(as_json=how.as_json)
