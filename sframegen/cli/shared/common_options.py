"""Options that several commands have, with the same name, short name and value in each (tests/cli/test_consistency.py)."""

from __future__ import annotations

import os
from functools import partial
from math import isfinite

import click
from click.core import ParameterSource

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.cli.shared.command import CombinedValue, PartOption
from sframegen.cli.shared.output import PathName
from sframegen.program.workers import MAX_JOBS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.cli.shared.command import Decorator


class NumberRange(click.ParamType):  # type: ignore[type-arg] # older releases of click have no arguments for it
    """An int or float (`kind`) from `minimum` to `maximum`, both included unless `above` excludes the minimum."""

    name = "number"

    def __init__(self, kind: Callable[[str], float], minimum: float, maximum: float | None = None, *, above: bool = False) -> None:
        self.kind, self.minimum, self.maximum, self.above = kind, minimum, maximum, above

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not isinstance(value, str):  # a default
            return value
        try:
            number = self.kind(value)
        except ValueError:
            self.fail(f"{value!r} is not {'a whole number' if self.kind is int else 'a number'}", param, ctx)
        if isinstance(number, float) and not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        if self.above and number <= self.minimum:
            self.fail(f"{value} is out of range (must be more than {self.minimum:g})", param, ctx)
        if number < self.minimum:
            self.fail(f"{value} is out of range (minimum {self.minimum:g})", param, ctx)
        if self.maximum is not None and number > self.maximum:
            self.fail(f"{value} is out of range (maximum {self.maximum:,.0f})", param, ctx)
        return number


COUNT = NumberRange(int, 1)
SECONDS = NumberRange(float, 0, above=True)
PERCENT = NumberRange(float, 0, 100)

VERBOSITY = ("--verbose", "--quiet")  # for `exclusive`: these options exclude each other


class CommonOptions(NamedTuple):
    """Values of options that many commands have."""

    output: str | None = None
    jobs: int = 1
    verbose: bool = False
    quiet: bool = False
    as_json: bool = False

    @property
    def prints_lines(self) -> bool:
        """Return True if the command prints lines of text for each file, and not JSON or nothing."""
        return not (self.quiet or self.as_json)


common_option = partial(click.option, cls=PartOption, value=CombinedValue("common", CommonOptions))
QUIET = common_option("-q", "--quiet", is_flag=True, help="Print only errors.")
JSON_LIST = common_option(
    "--json", "as_json", is_flag=True, help="Print a JSON list: an object for each file; one that is refused has its error."
)
JSON_OBJECT = common_option("--json", "as_json", is_flag=True, help="Print a JSON object.")


def verbose_option(text: str) -> Decorator:
    return common_option("-v", "--verbose", is_flag=True, help=text)


def jobs_option(text: str) -> Decorator:
    return common_option(
        "-j",
        "--jobs",
        metavar="N",
        type=NumberRange(int, 1, MAX_JOBS),
        default=lambda: len(os.sched_getaffinity(0)),
        show_default="usable cores",
        help=text,
    )


JOBS = jobs_option("Number of files to process in parallel.")


def explicit_option_words(ctx: click.Context, *values: object) -> Iterator[str]:
    """Yield the words of a command line with these option values: each flag that was used, each option that is not None."""
    for option in ctx.command.params:
        if isinstance(option, PartOption) and option.name:
            for value in (one for one in values if hasattr(one, option.name)):
                if option.is_flag:
                    yield from option.opts[-1:] * (ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE)
                elif getattr(value, option.name) is not None:
                    yield from (option.opts[-1], str(getattr(value, option.name)))


def debug_file_option(text: str, option: Callable[..., Decorator] = click.option) -> Decorator:
    return option(
        "--debug-file",
        metavar="PATH",
        type=PathName(),
        callback=lambda _ctx, _parameter, path: path or None,
        help=f"Separate debug file, or directory of them, {text}",
    )


def min_coverage_option(text: str) -> Decorator:
    return click.option("--min-coverage", metavar="PCT", type=PERCENT, help=text)


def tid_option(text: str, *, several: bool) -> Decorator:
    return click.option("--tid", metavar="TID", type=COUNT, multiple=several, help=text)
