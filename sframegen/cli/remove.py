from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sframegen.api.removing import SectionRemoval, remove_section
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_LIST, QUIET, CommonOptions
from sframegen.cli.shared.file_kinds import is_package
from sframegen.cli.shared.many_files import change_files, print_change
from sframegen.cli.shared.output import FILES, Run
from sframegen.cli.shared.write_options import FORCE_FOREIGN, RECURSIVE, RESULT_OPTIONS, VERIFICATION, dry_run_option

if TYPE_CHECKING:
    from sframegen.api.options import WriteOptions


@click.command(
    name="remove",
    cls=Command,
    exclusive=[("--recursive", "--output")],
    examples=[
        Example("Restore a program as it was before add-section", "sframegen remove ./prog"),
        Example("Print what would change", "sframegen remove --dry-run prog lib.so"),
        Example("Restore all files below a directory", "sframegen remove -r build/root"),
    ],
)
@FILES
@RECURSIVE
@RESULT_OPTIONS
@FORCE_FOREIGN
@dry_run_option()
@VERIFICATION
@QUIET
@JSON_LIST
def command(files: tuple[str, ...], *, recursive: bool, write_options: WriteOptions, common: CommonOptions) -> None:
    """Remove the SFrame section from each FILE.

    FILE is restored as it was before add-section, byte for byte. If another tool, such as strip, has rewritten it, only the
    section and its headers are removed. A FILE without a section is left unchanged; with -o it is copied. FILE
    may also be an object, an archive or a package. In a package, each file is restored, and the package is packed again: its bytes
    may differ.

    -r restores all programs and libraries below each directory, as remove-tree does, which has more options.
    """
    if recursive:
        from sframegen.cli import remove_tree  # noqa: PLC0415 - only for trees
        from sframegen.cli.trees.each_file import run_tree_command  # noqa: PLC0415

        run_tree_command(remove_tree.command, files, write_options=write_options, common=common)
    run = Run()

    def remove_from(path: str, file_options: WriteOptions) -> SectionRemoval:
        if not is_package(path):
            return remove_section(path, file_options)
        from sframegen.packages.package_api import remove_from_package  # noqa: PLC0415 - only for packages

        names = ("output", "verify", "dry_run", "hard_links", "force")
        return remove_from_package(path, **{name: getattr(file_options, name) for name in names})

    for removal in change_files(run, files, remove_from, write_options, common):
        if common.prints_lines:
            print_change(removal, plan=write_options.dry_run)
    run.finish(as_json=common.as_json)
