"""The command line, `sframegen COMMAND FILE...`. Each command is in a module of its own, which is imported when it is used."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from io import StringIO

import click

from sframegen.base.text import cut_middle, printable
from sframegen.cli.shared.command import Example, Group
from sframegen.cli.shared.early_end import EndedError, handle_early_ends

GROUPS = {  # headings of --help, and the commands below each, with their help
    "See stacks": {
        "profile": "Profile processes: sample their stacks, and show where the time goes.",
        "stack": "Print the stacks of a process, using SFrame sections.",
        "preload": "Run a command with stack traces from SFrame sections.",
    },
    "Put sections into files": {
        "add-section": "Add an SFrame section to ELF files, made from their call frame information.",
        "remove": "Remove the SFrame section and restore the original file.",
        "convert": "Rewrite SFrame sections smaller or in another version of the format.",
        "merge": "Merge the SFrame sections of objects, as GNU ld does.",
        "link": "Run a linker, then add an SFrame section to its output.",
    },
    "Look at sections": {
        "check": "Check SFrame sections: well formed, accepted by readers, equal to the CFI.",
        "dump": "Print SFrame sections in the format of GNU readelf.",
        "lookup": "Print the unwind rule at addresses of a file.",
    },
    "Many files": {
        "add-tree": "Add an SFrame section to all programs and libraries of a build root.",
        "remove-tree": "Remove the SFrame sections of a build root.",
        "fleet": "Add sections to many packages, or survey them: on one machine or a cluster.",
    },
    "Systems and build tools": {
        "doctor": "Print what this installation is, and which parts of it work.",
        "integration": "Print the paths of the files for build systems and packaging.",
    },
}
COMMANDS = {name: line for commands in GROUPS.values() for name, line in commands.items()}
LONGEST_NAME, SPACING = max(map(len, COMMANDS)), 2  # columns; the help of all groups is aligned
EXIT_STATUSES = {0: "done", 1: "a finding or a file refused (the others are still done)", 2: "wrong usage"}
EPILOG = f"""\
Exit status: {", ".join(f"{status} {meaning}" for status, meaning in EXIT_STATUSES.items())}.

Completion in bash, zsh, fish: eval "$(_SFRAMEGEN_COMPLETE=bash_source sframegen)", with the shell's name for bash.
"""


class LazyGroup(Group):
    """The group of all commands. For instance, `add-section` is `command` in the module `sframegen.cli.add_section`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"sframegen.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(list(commands.items()), col_spacing=SPACING + LONGEST_NAME - max(map(len, commands)))


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        from sframegen.program.build import version_line  # noqa: PLC0415 - only needed here

        click.echo(version_line())
        ctx.exit()


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=[
        Example("Profile a command, as a flame graph", "sframegen profile -o work.html -- ./prog"),
        Example("Add a section to a program, and check it", "sframegen add-section ./prog && sframegen check ./prog"),
        Example("Print the options of a command", "sframegen add-section --help"),
    ],
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print version and build, and exit."
)
def cli() -> None:
    """Take whole stacks of unchanged programs; add SFrame sections to existing ELF files, check and use them."""


def _print_click_error(error: click.ClickException) -> None:
    """Print an error as click does, but with long lines shortened in the middle."""
    text = StringIO()
    error.show(text)
    for line in text.getvalue().splitlines():
        click.echo(cut_middle(line), err=True)


def run_command() -> int:
    """Run the command line, and return its exit status. Raises ImportError and MemoryError; other errors are printed."""
    with handle_early_ends():
        sys.stdout.reconfigure(errors="surrogateescape")  # type: ignore[union-attr] # file names go out as they came in
        status = 0
        try:
            status = _run_for_status()
            sys.stdout.flush()
        except OSError as error:  # of standard output: errors of files are caught where they are read
            _report_output_error(error)
            status = status or 1
        return status


def _run_for_status() -> int:
    """Run the command, print any error except ImportError, MemoryError and OSError, and return the exit status."""
    try:
        return cli.main(prog_name="sframegen", standalone_mode=False) or 0
    except EndedError as end:
        return int(end.code or 0)
    except click.ClickException as error:
        _print_click_error(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (ImportError, MemoryError, OSError):
        raise
    except Exception as error:  # a fault of sframegen that was not caught in the work on a file
        from sframegen.base.one_file import build_fault_error, is_lost_memory_error  # noqa: PLC0415 - here and below: `--version` imports little

        if is_lost_memory_error(error):
            raise MemoryError from error
        from sframegen.cli.shared.output import describe_error, note  # noqa: PLC0415

        note(describe_error(build_fault_error(error), ""))
        return 1


def _report_output_error(error: OSError) -> None:
    """Report an error of standard output, except a closed pipe, and redirect it, so that no later flush fails again."""
    if error.errno == errno.ENOMEM:
        click.echo("sframegen: not enough memory", err=True)
    elif not isinstance(error, BrokenPipeError):
        from sframegen.cli.shared.output import describe_error  # noqa: PLC0415

        click.echo(f"sframegen: {cut_middle(printable(describe_error(error, 'standard output')))}", err=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
