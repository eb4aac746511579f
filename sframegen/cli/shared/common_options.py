"""Options that several commands have: the same name, short name and value in each. docs/gates.md has the rules."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from sframegen.cli.shared.command import Part, Value
from sframegen.cli.shared.number_values import COUNT, PERCENT, SECONDS, Numbers
from sframegen.cli.shared.output import PathName
from sframegen.program.workers import MOST_WORKERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sframegen.cli.shared.command import Decorator

VERBOSE_OR_QUIET = ("--verbose", "--quiet")  # exclude each other


class How(NamedTuple):
    """How a command goes through its files, where results go, and what is printed. Commands have options for some of these."""

    output: str | None = None
    output_dir: str | None = None
    jobs: int = 1
    verbose: bool = False
    quiet: bool = False
    as_json: bool = False

    @property
    def prints_lines(self) -> bool:
        """For people, one or more for each file."""
        return not (self.quiet or self.as_json)


part_of_how = partial(click.option, cls=Part, value=Value("how", How))
QUIET = part_of_how("-q", "--quiet", is_flag=True, help="Print only errors.")
JSON_LIST = part_of_how(
    "--json", "as_json", is_flag=True, help="Print a JSON list: an object for each file; one that is refused has its error."
)
JSON_OBJECT = part_of_how("--json", "as_json", is_flag=True, help="Print a JSON object.")


def verbose(text: str) -> Decorator:
    return part_of_how("-v", "--verbose", is_flag=True, help=text)


def jobs(text: str) -> Decorator:
    return part_of_how(
        "-j",
        "--jobs",
        metavar="N",
        type=Numbers(int, 1, MOST_WORKERS),
        default=lambda: len(os.sched_getaffinity(0)),
        show_default="usable cores",
        help=text,
    )


JOBS = jobs("Number of files to process in parallel.")


KEYWORDS = Value("keywords", dict)  # of the public function that the command calls
keyword = partial(click.option, cls=Part, value=KEYWORDS)


def words_of(ctx: click.Context, keywords: Mapping[str, Any]) -> Iterator[str]:
    """The options, as words of a command line, that give these keywords."""
    for one in ctx.command.params:
        if isinstance(one, Part) and one.value is KEYWORDS:
            name = one.name or ""
            if one.is_flag:
                yield from one.opts[-1:] * (ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE)
            elif keywords[name] is not None:
                yield from (one.opts[-1], str(keywords[name]))


def debug_file(text: str) -> Decorator:
    return keyword(
        "--debug-file",
        metavar="PATH",
        type=PathName(),
        callback=lambda _ctx, _parameter, path: path or None,
        help=f"Separate debug file, or directory of them, {text}",
    )


def duration(text: str) -> Decorator:
    return click.option("-d", "--duration", metavar="SECONDS", type=SECONDS, help=text)


def min_coverage(text: str) -> Decorator:
    return click.option("--min-coverage", metavar="PCT", type=PERCENT, help=text)


def tid(text: str, *, several: bool) -> Decorator:
    return click.option("--tid", metavar="TID", type=COUNT, multiple=several, help=text)
