from __future__ import annotations

from typing import TYPE_CHECKING

import click

from linker.files.target import is_stdout
from sframegen.api.converting import VersionChange, convert_section
from sframegen.api.options import ConversionOptions, WriteOptions
from sframegen.cli.shared.command import CombinedValue, Command, Example
from sframegen.cli.shared.common_options import JSON_LIST, QUIET, VERBOSITY, CommonOptions, verbose_option
from sframegen.cli.shared.file_kinds import refuse_package
from sframegen.cli.shared.many_files import change_files, print_change
from sframegen.cli.shared.output import FILES, Run, suggest_command
from sframegen.cli.shared.write_options import RESULT_OPTIONS, VERIFICATION, dry_run_option, level_option, version_option

if TYPE_CHECKING:
    from sframegen.format.layouts import FormatVersion
    from sframegen.tables.levels import LevelName


def _make_conversion(version: FormatVersion | None, optimize: LevelName | None) -> ConversionOptions:
    if not (version or optimize):
        raise click.UsageError("give --sframe-version, --optimize or both", click.get_current_context())
    return ConversionOptions(version, optimize)


CONVERSION = CombinedValue("conversion", _make_conversion)


@click.command(
    name="convert",
    cls=Command,
    exclusive=[VERBOSITY],
    examples=[
        Example("Make the section of a linker smaller", "sframegen convert --optimize fast ./prog"),
        Example("Write a copy with version 2, for glibc 2.42", "sframegen convert --sframe-version 2 -o prog.v2 ./prog"),
        Example("Print what version 2 would leave out", "sframegen convert --sframe-version 2 --dry-run -v prog lib.so"),
    ],
)
@FILES
@version_option(CONVERSION, default=None)
@level_option(None, CONVERSION)
@RESULT_OPTIONS
@dry_run_option()
@VERIFICATION
@verbose_option("List what was left out, and why.")
@QUIET
@JSON_LIST
def command(files: tuple[str, ...], *, conversion: ConversionOptions, write_options: WriteOptions, common: CommonOptions) -> None:
    """Rewrite the SFrame section of each FILE in another version of the format, or smaller, in place.

    The section may have version 1, 2 or 3 and may come from any tool. Rules that the new version cannot express are left out
    and counted: in version 2 flexible rules, signal frames and outermost frames. A FILE is refused if the new section does not
    fit in the place of the old one, and replaced only when the new file is complete and verified. A FILE that already has the
    version is left unchanged; with -o it is copied.

    --optimize makes the section smaller, whoever produced it, with the same rules. The bytes that become free stay in the file, as
    zeros; code and data do not move. A section that would not become smaller is left unchanged. Without --sframe-version, it
    keeps its version; without --optimize, the level is fast.
    """
    run = Run()
    done: list[VersionChange] = []

    def convert_in(path: str, file_options: WriteOptions) -> VersionChange:
        refuse_package(path)
        return convert_section(path, conversion, file_options)

    for change in change_files(run, files, convert_in, write_options, common):
        done.append(change)
        if common.prints_lines:
            print_change(change, change.details() if common.verbose else (), plan=write_options.dry_run)
    if common.prints_lines and not run.status and not is_stdout(common.output):
        suggest_command("sframegen check {}", *(change.output for change in done if change.output))
    run.finish(as_json=common.as_json)
