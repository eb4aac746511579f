from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from linker.files.target import is_stdout
from sframegen import api
from sframegen.api.summary import fates_table, total_fates
from sframegen.base.text import count_of
from sframegen.cli.shared.adding_options import ADD_SECTION, adding
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import JSON_LIST, QUIET, VERBOSE_OR_QUIET, min_coverage, verbose
from sframegen.cli.shared.output import FILES, Run, next_step
from sframegen.cli.shared.packages_too import packages_too
from sframegen.cli.shared.several import changes, for_code, print_change
from sframegen.cli.shared.write_options import OUTPUT_OR_DIR, RESULTS, VERIFICATION, dry_run

if TYPE_CHECKING:
    from sframegen.api.summary import Summary
    from sframegen.cli.shared.common_options import How


@click.command(
    name="add-section",
    cls=Command,
    exclusive=[
        VERBOSE_OR_QUIET,
        OUTPUT_OR_DIR,
        *(("--detached", other) for other in ("--output", "--output-dir", "--unloaded", "--replace", "--preserve-timestamps")),
    ],
    examples=[
        Example("Add a section to a program, in place", "sframegen add-section ./prog"),
        Example(
            "Write copies, and fail if less is covered", "sframegen add-section --min-coverage 99 --output-dir out prog lib.so"
        ),
        Example("Write the section to a file of its own", "sframegen add-section --detached store ./prog"),
    ],
)
@FILES
@adding(
    ADD_SECTION,
    before={
        "optimize": (RESULTS, dry_run(), VERIFICATION),
        "debug_file": (
            click.option(
                "--strict", is_flag=True, help="Exit 1 if nothing was added or any code was left out. Files are still written."
            ),
            min_coverage("Exit 1 if the section covers less of the code."),
        ),
        "per_function": (verbose("Account for all executable bytes, and list what was left out."), QUIET),
    },
)
@JSON_LIST
def command(files: tuple[str, ...], *, keywords: dict[str, Any], how: How, strict: bool, min_coverage: float | None) -> None:
    """Add an SFrame section to each FILE, made from its call frame information.

    Code and data keep their bytes and addresses; the section comes after the last segment. FILE is replaced only when the new
    file is complete and verified. Files without call frame information, and files that already have the same section, are left
    unchanged; with -o or --output-dir they are copied. A FILE with a different section is refused, unless --replace is given.

    --unloaded adds a section that is not loaded, to any linked file: also to programs and dynamic loaders without room for
    a segment. Readers of files use it, such as sframegen's stack and GNU readelf; the kernel and glibc do not.

    --detached writes the sections to files of their own, and leaves FILEs unchanged; stack, profile, lookup and check find
    them with --sections DIR.

    Packages (wheels, .deb, tar archives) keep all but their programs and libraries, which get sections; a refused one is a
    warning. A signed package is refused without --force.

    Objects, and the objects of archives, get sections with relocations, as an assembler would write them.

    --synthesize adds rows for code of linked files that has no call frame information, if its instructions prove them: PLT,
    .init and .fini, the program's entry, hand-written assembly. A single FILE uses all -j processes for this.
    """
    if keywords["per_function"] and not how.as_json:
        raise click.UsageError("--per-function needs --json")
    run = Run()
    add = packages_too(api.add_section)
    if keywords["synthesize"]:
        add = for_code(add, files, how.jobs)
    summaries: list[Summary] = []
    for summary in changes(run, files, add, keywords, how):
        summaries.append(summary)
        if how.prints_lines:
            print_change(summary, summary.details() if how.verbose else (), plan=keywords["dry_run"])
        _judge(run, summary, strict=strict, min_coverage=min_coverage)
    if how.verbose and not how.as_json and len(summaries) > 1:
        click.echo("\n".join([f"all {len(summaries)} files:", *fates_table(total_fates(summaries))]))
    if how.prints_lines and not run.status and not is_stdout(how.output):
        _say_how_to_check(summaries, keywords["detached"])
    run.end(as_json=how.as_json)


def _say_how_to_check(summaries: list[Summary], store: str | None) -> None:
    if store is None:
        next_step("sframegen check {}", *(one.output for one in summaries if one.output and one.section_bytes and not one.package))
    else:
        next_step(f"sframegen check --sections {shlex.quote(store)} {{}}", *(one.file for one in summaries if one.detached))


def _judge(run: Run, summary: Summary, *, strict: bool, min_coverage: float | None) -> None:
    missing = summary.code_bytes - summary.covered_bytes
    if strict and not summary.section_bytes:
        run.finding(f"{summary.file}: --strict: nothing was added")
    elif strict and missing:
        run.finding(f"{summary.file}: --strict: {missing:,} bytes of code were left out")
    if strict and summary.package is not None and summary.package.refused:
        run.finding(f"{summary.file}: --strict: {count_of(summary.package.refused, 'file')} in it refused")
    if min_coverage is not None and summary.coverage < min_coverage:
        run.finding(f"{summary.file}: --min-coverage: {summary.coverage:.4f} % is below {min_coverage:g} %")
