from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from linker.files.location import locate
from sframegen.api.options import AddOptions, SectionOptions, WriteOptions
from sframegen.base.one_file import FILE_ERRORS, only_file_errors
from sframegen.base.text import printable
from sframegen.cli.linking.link_output import file_state, find_output
from sframegen.cli.shared.adding_options import LINK, add_section_options
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.common_options import explicit_option_words
from sframegen.cli.shared.output import PathName, Run, describe_error, note
from sframegen.cli.shared.write_options import VERIFICATION
from sframegen.elf.file import read_beginning
from sframegen.elf.records import EHDR_SIZE
from sframegen.format.abi import is_linked

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_FOUND = 127  # exit status if the linker is not found, as shells have it
MAX_MESSAGE = 2000  # bytes; less than the capacity of a pipe, so that a write does not block
FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
# The variable has a character for each nested run: a linker may be a compiler driver that runs a linker, but a shim that ends up
# running itself must not do so for ever.
DEPTH_VARIABLE, MAX_DEPTH = "SFRAMEGEN_LINK_DEPTH", 5

OPTIONS_VARIABLE = "SFRAMEGEN_LINK_OPTIONS"  # shims pass its words between their own options and `--`


class LinkCommand(Command):
    """A command that ignores wrong options in the environment with a warning, unless --strict is among the options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = os.environ.get(OPTIONS_VARIABLE, "").split()
        end = args.index("--") if "--" in args else 0
        begin = end - len(words)
        if not words or begin < 0 or args[begin:end] != words or not {"--strict", "--fatal"}.isdisjoint(args[:end]):
            return super().parse_args(ctx, args)
        try:
            return super().parse_args(ctx, list(args))
        except click.ClickException as error:
            note(f"warning: {OPTIONS_VARIABLE} is ignored: {error.format_message()}")
            ctx.params.clear()
            return super().parse_args(ctx, args[:begin] + args[end:])


@click.command(
    name="link",
    cls=LinkCommand,
    context_settings={"allow_interspersed_args": False},
    examples=[
        Example("Link, and add a section to the program", "sframegen link -- ld -o prog main.o"),
        Example("Let gcc link in this way", "sframegen link --install shims && gcc -B shims -o prog main.c"),
        Example("Let Cargo link in this way", "sframegen link --install shims --as cc"),
    ],
)
@click.argument("arguments", metavar="LINKER [ARGS...]", nargs=-1, type=click.UNPROCESSED)
@add_section_options(LINK)
@VERIFICATION
@click.option("--strict", is_flag=True, help="Remove the file and exit 1 if it is refused; by default only warn.")
@click.option("--install", metavar="DIR", type=PathName(), help="Write shims for linkers into DIR, for gcc -B DIR; link nothing.")
@click.option(
    "--as", "name", metavar="NAME", help="With --install: write only this shim, for LINKER or the program of that name on PATH."
)
@click.pass_context
def command(
    ctx: click.Context,
    arguments: tuple[str, ...],
    *,
    section_options: SectionOptions,
    write_options: WriteOptions,
    strict: bool,
    install: str | None,
    name: str | None,
) -> None:
    """Run a linker, then add an SFrame section to its output: `sframegen link -- ld -o prog main.o`.

    The linker's output, exit status and signals are passed through. An existing section, from the objects, is replaced. Only linked
    ELF files for ABIs of SFrame change. If the section cannot be added, one line on stderr gives the reason, and the file stays as
    the linker wrote it.

    --install writes shims with the names of the linkers on PATH: DIR/ld, DIR/ld.lld and so on. Each runs its linker and adds the
    section, with the other options given here and those in $SFRAMEGEN_LINK_OPTIONS. DIR/sframegen-link is a prefix for any command
    that links. With LINKER, only DIR/ld is written, for that linker; with --as NAME, only DIR/NAME, for builds that link with a
    compiler that they are told, such as those of Cargo and Bazel: `--install shims --as cc`.
    """
    if install is not None:
        options = [*explicit_option_words(ctx, section_options, write_options), *["--strict"] * strict]
        ctx.exit(_install_shims(Path(install), arguments, name, options))
    if name is not None:
        raise click.UsageError("--as is for --install")
    if not arguments:
        raise click.UsageError("no LINKER: sframegen link -- LINKER ARGS...")
    depth = os.environ.get(DEPTH_VARIABLE, "")
    if len(depth) >= MAX_DEPTH:
        note(f"{arguments[0]}: this linker is itself a shim for sframegen link")
        ctx.exit(1)
    output = find_output(arguments[1:])
    before = file_state(output)
    sys.stdout.flush()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)  # until _wait_for can forward them
    defaults = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these; the linker must not
    try:
        environment = os.environ | {DEPTH_VARIABLE: depth + "|"}
        linker = os.posix_spawnp(arguments[0], arguments, environment, setsigmask=mask, setsigdef=defaults)
    except (OSError, ValueError) as error:
        note(f"{arguments[0]}: {getattr(error, 'strerror', None) or error}")
        ctx.exit(NOT_FOUND)
    from sframegen.api.adding import add as add_section  # noqa: PLC0415 - imported while the linker runs

    status, _ = _wait_for(linker)
    if status < 0:
        _end_by_signal(-status)
    if status or file_state(output) in (None, before):
        ctx.exit(status)

    def add() -> None:
        if is_linked(read_beginning(output, output, EHDR_SIZE)):
            summary = add_section(output, AddOptions(section_options, replace(write_options, replace=True)))
            for warning in summary.warnings:
                note(f"{output}: warning: {warning}")

    problem = _run_in_process(add, output)
    if problem and strict:
        with locate(output) as location:
            location.unlink()  # as linkers do when they fail, because make would take the file for finished
        note(problem)
        ctx.exit(1)
    if problem:
        note(f"warning: {problem}; linked without a new section")


def _run_in_process(work: Callable[[], None], path: str) -> str:
    """Run `work` on a file in a child process. Return its error as one line, also if the child is killed; empty after success."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            with only_file_errors():
                work()
            status = 0
        except SystemExit:  # after a signal; temporary files have been removed
            pass
        except FILE_ERRORS as error:
            os.write(writer, os.fsencode(describe_error(error, path))[:MAX_MESSAGE])
        finally:
            os._exit(status)
    os.close(writer)
    status, signalled = _wait_for(child)
    if status and signalled:
        _end_by_signal(signalled)
    message = os.fsdecode(os.read(reader, MAX_MESSAGE))
    os.close(reader)
    return (message or f"{path}: sframegen was killed") if status else ""


def _wait_for(process: int) -> tuple[int, int]:
    """Wait for a process, and forward signals to it. Return its exit status, or minus its signal; and the last forwarded, or 0."""
    forwarded = [0]

    def forward(number: int, _frame: object) -> None:
        forwarded.append(number)
        with suppress(ProcessLookupError):
            os.kill(process, number)

    handled = [number for number in FORWARDED_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, forward) for number in handled}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED_SIGNALS)
    _, status = os.waitpid(process, 0)
    for number, handler in previous.items():
        signal.signal(number, handler)
    return os.waitstatus_to_exitcode(status), forwarded[-1]


def _end_by_signal(number: int) -> None:
    """End this process by the signal that ended the linker, but without a core dump, which would hide the linker's own."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _install_shims(directory: Path, arguments: tuple[str, ...], name: str | None, options: list[str]) -> int:
    from sframegen.cli.linking.link_shim import install_shims  # noqa: PLC0415 - not for links

    if len(arguments) > 1:
        raise click.UsageError("--install takes one LINKER, and no arguments for it")
    if name is not None and (not name or "/" in name):
        raise click.UsageError(f"--as {name}: not a file name")
    run = Run()
    with run.working_on(str(directory)):
        for shim, linker in install_shims(directory, arguments[0] if arguments else name, name, options):
            click.echo(printable(f"{shim}: {linker}"))
    return run.status
