from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from sframegen import api
from sframegen.api.added import fates_table, total_fates
from sframegen.cli.shared.output import FILES, MIN_KERNEL, OUTPUT, OUTPUT_DIR, VERSIONS, Run, json_list, level
from sframegen.cli.shared.several import JOBS, changes, for_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.api.added import Summary


@click.command(name="add-section")
@FILES
@click.option("--format", "version", type=VERSIONS, default="3", show_default=True, help="The SFrame version to write.")
@OUTPUT
@OUTPUT_DIR
@JOBS
@click.option("-p", "--preserve-timestamps", is_flag=True, help="Keep the times of access and modification.")
@click.option("--dry-run", is_flag=True, help="Print what would change in the file; write nothing.")
@click.option("--no-verify", is_flag=True, help="Do not read the result back with LIEF: faster.")
@level("fast")
@click.option("--replace", is_flag=True, help="Put the new section in the place of another one that FILE has, by whomever.")
@click.option("--strict", is_flag=True, help="Exit 1 if nothing was added or any code was left out; files are still written.")
@click.option("--min-coverage", type=click.FloatRange(0, 100), metavar="PCT", help="Exit 1 if less of the code is covered.")
@click.option(
    "--debug-file",
    type=click.Path(),
    help="Separate debug file, or a directory of them, for code on which FILE's .eh_frame is silent.",
)
@click.option("--synthesize", is_flag=True, help="Also describe code without call frame information, by its instructions.")
@MIN_KERNEL
@click.option(
    "--force", is_flag=True, help="Also change files that are signed, have a checksum of themselves, or may be dynamic loaders."
)
@click.option("-v", "--verbose", is_flag=True, help="Say what became of all executable bytes, and what was left out.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--per-function", is_flag=True, help="With --json: what became of each function's code, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, or with several FILEs a list of them.")
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[str, ...],
    *,
    version: str,
    optimize: str,
    replace: bool,
    output: str | None,
    output_dir: str | None,
    jobs: int,
    preserve_timestamps: bool,
    dry_run: bool,
    no_verify: bool,
    strict: bool,
    min_coverage: float | None,
    debug_file: str | None,
    synthesize: bool,
    min_kernel: str | None,
    force: bool,
    verbose: bool,
    quiet: bool,
    per_function: bool,
    as_json: bool,
) -> None:
    """Give each FILE an SFrame section, made from the call frame information that it has.

    Code and data stay at their addresses, byte for byte; the section goes to the end. A FILE is replaced only when the new one is
    complete and verified. One without call frame information stays as it is, and so does one that has this very section already; -o
    or --output-dir gets a copy. With another section, a FILE is refused, unless --replace is given.

    An object, or each object of an archive, gets sections with relocations, as an assembler makes them.

    With --synthesize, code of a linked file on which its call frame information is silent has rows, too, as far as its instructions
    prove them: PLT, .init and .fini, the program's entry, hand-written assembly, or all. A FILE that is alone has all -j processes
    for that.
    """
    run = Run()
    add: Callable[..., Summary] = partial(
        api.add_section,
        debug_file=debug_file or None,
        version=int(version),
        optimize=optimize,
        replace=replace,
        per_function=per_function,
        force=force,
        synthesize=synthesize,
        min_kernel=min_kernel,
    )
    if synthesize:
        add = for_code(add, files, jobs)
    changed = changes(
        run,
        files,
        add,
        output=output,
        output_dir=output_dir,
        jobs=jobs,
        preserve_timestamps=preserve_timestamps,
        dry_run=dry_run,
        no_verify=no_verify,
        quiet=quiet,
        as_json=as_json,
    )
    if per_function and not as_json:
        raise click.UsageError("--per-function needs --json")
    summaries: list[Summary] = []
    for summary in changed:
        summaries.append(summary)
        if not (quiet or as_json):
            _print(summary, verbose=verbose, plan=dry_run)
        _judge(run, summary, strict=strict, min_coverage=min_coverage)
    if verbose and not (quiet or as_json) and len(summaries) > 1:
        click.echo("\n".join([f"all {len(summaries)} files:", *fates_table(total_fates(summaries))]))
    if as_json:
        sys.stdout.writelines(json_list((iter([json.dumps(s.to_json())]) for s in summaries), several=len(files) > 1))
    ctx.exit(run.status)


def _print(summary: Summary, *, verbose: bool, plan: bool) -> None:
    click.echo(summary.one_line())
    if verbose:
        click.echo("\n".join(summary.details()))
    if plan and summary.plan is not None:
        click.echo(str(summary.plan))


def _judge(run: Run, summary: Summary, *, strict: bool, min_coverage: float | None) -> None:
    missing = summary.code_bytes - summary.covered_bytes
    if strict and not summary.section_bytes:
        run.finding(f"{summary.file}: --strict: nothing was added")
    elif strict and missing:
        run.finding(f"{summary.file}: --strict: {missing:,} bytes of code were left out")
    if min_coverage is not None and summary.coverage < min_coverage:
        run.finding(f"{summary.file}: --min-coverage: {summary.coverage:.4f} % is below {min_coverage:g} %")
