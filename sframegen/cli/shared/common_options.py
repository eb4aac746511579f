"""Options that several commands have: the same name, short name and value in each. docs/gates.md has the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from sframegen.cli.shared.number_values import COUNT, PERCENT, SECONDS
from sframegen.cli.shared.output import PathName

if TYPE_CHECKING:
    from collections.abc import Callable

    Decorated = TypeVar("Decorated", bound=Callable[..., object])

VERBOSE_OR_QUIET = ("--verbose", "--quiet")  # exclude each other

QUIET = click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
PRESERVE_TIMESTAMPS = click.option("-p", "--preserve-timestamps", is_flag=True, help="Keep the access and modification times.")
SYNTHESIZE = click.option(
    "--synthesize", is_flag=True, help="Also describe code without call frame information, from its instructions."
)
FORCE_FOREIGN = click.option("--force", is_flag=True, help="Also remove sections that other tools produced.")
FORCE_ADD = click.option(
    "--force", is_flag=True, help="Also change files that are signed, contain their own checksum, or may be dynamic loaders."
)
JSON_LIST = click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON list: an object for each file; one that is refused has its error."
)
JSON_OBJECT = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


def verbose(text: str) -> Callable[[Decorated], Decorated]:
    return click.option("-v", "--verbose", is_flag=True, help=text)


def dry_run(text: str = "Print the changes to the file; write nothing.") -> Callable[[Decorated], Decorated]:
    return click.option("--dry-run", is_flag=True, help=text)


def duration(text: str) -> Callable[[Decorated], Decorated]:
    return click.option("-d", "--duration", metavar="SECONDS", type=SECONDS, help=text)


def min_coverage(text: str) -> Callable[[Decorated], Decorated]:
    return click.option("--min-coverage", metavar="PCT", type=PERCENT, help=text)


def debug_file(text: str) -> Callable[[Decorated], Decorated]:
    return click.option("--debug-file", metavar="PATH", type=PathName(), help=f"Separate debug file, or directory of them, {text}")


def tid(text: str, *, several: bool) -> Callable[[Decorated], Decorated]:
    return click.option("--tid", metavar="TID", type=COUNT, multiple=several, help=text)
