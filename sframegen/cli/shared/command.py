"""Command, the click class of all commands: --help has examples and headings, and options can exclude one another or combine."""

from __future__ import annotations

from itertools import combinations, pairwise

import click
from click.core import ParameterSource

from sframegen.base.quick_typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

HEADINGS = {  # for long lists of options in --help, with the options below each; "command:option" is for one command only
    "What is sampled": "system comm tid event frequency duration off-cpu wall kernel",
    "How stacks are shown": "by lines no-inlined profile:sections",
    "What is made": "mode map linker sframe-version optimize synthesize debug-file min-kernel unloaded",
    "Where it is written": "recursive exclude one-file-system output detached object install as replace force dry-run",
    "What is checked": "consumer check:debug-file sections instructions second-reader no-verify min-coverage strict",
    "How it runs": "backend probe scheduler jobs timeout memory",
    "Output": "profile:output report verbose quiet json help",
}
MAX_WITHOUT_HEADINGS = 9  # options that --help lists without headings
MAX_NAME_COLUMNS = 30  # for an option's names in --help
MIN_SIMILARITY = 0.75  # difflib's ratio, from which on an unknown word counts as a mistyped name


class Example(NamedTuple):
    purpose: str
    line: str  # a shell command


class CombinedValue(NamedTuple):
    """A parameter of a command that combines the values of several options."""

    name: str
    make: Callable[..., object]  # called with the options' values as keyword arguments


class PartOption(click.Option):
    """An option whose value becomes a part of a CombinedValue."""

    def __init__(self, *arguments: Any, value: CombinedValue, **options: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*arguments, **options)
        self.value = value


def combine_options(*decorators: Decorator) -> Decorator:
    """Return a decorator that adds all these options, in the order of the help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(decorators):
            command = option(command)
        return command

    return decorate


class Command(click.Command):
    """A command. --help shows its `examples`. `exclusive` has groups of long option names, of which one run may have one each."""

    def __init__(
        self,
        name: str | None,
        *,
        examples: Sequence[Example] = (),
        exclusive: Iterable[Sequence[str]] = (),
        **options: Any,  # noqa: ANN401 - click's
    ) -> None:
        super().__init__(name, **options)
        self.examples = tuple(examples)
        self.exclusive = tuple(tuple(group) for group in exclusive)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = [word for argument in args for word in argument.split("=", 1)]
        try:
            remaining = super().parse_args(ctx, list(args))
        except click.UsageError as error:
            unknown = error.option_name if isinstance(error, click.NoSuchOption) else ""
            if unknown and (renamed := _replace_renamed_option(ctx, args, unknown)):
                return self.parse_args(ctx, renamed)
            _refuse_removed(ctx, words, error)
            if unknown:
                names = [name for option in self.get_params(ctx) for name in option.opts if name.startswith("--")]
                raise unknown_name_error("option", unknown, names, ctx) from None
            raise
        if not ctx.resilient_parsing:
            used = self._names_of_used_options(ctx)
            for group in self.exclusive:
                for one, other in combinations(group, 2):
                    if one in used and other in used:
                        raise click.UsageError(f"{one} and {other} exclude each other", ctx)
            self._combine_parts(ctx)
        return remaining

    def _combine_parts(self, ctx: click.Context) -> None:
        """Replace the parameters of PartOptions by their CombinedValues."""
        values: dict[CombinedValue, dict[str, object]] = {}
        for option in self.params:
            if isinstance(option, PartOption) and option.name:
                values.setdefault(option.value, {})[option.name] = ctx.params.pop(option.name)
        for value, parts in values.items():
            ctx.params[value.name] = value.make(**parts)

    def _names_of_used_options(self, ctx: click.Context) -> set[str]:
        """Return the names, short and long, of the options that are on the command line."""
        options = (one for one in self.params if isinstance(one, click.Option))
        return {
            name
            for option in options
            if ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
            for name in option.opts
        }

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example.purpose}:\n")
                    formatter.write(f"{'':{formatter.current_indent}}    {example.line}\n")

    def option_groups(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return (names, help) of the options, grouped by heading; a few options are all below the same heading."""
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        headings = {name: heading for heading, names in HEADINGS.items() for name in names.split()}
        headings = headings if len(options) > MAX_WITHOUT_HEADINGS else {}
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ("Options", *HEADINGS)}
        for option in options:
            name = max(option.opts, key=len).removeprefix("--")
            if record := option.get_help_record(ctx):
                groups[headings.get(f"{self.name}:{name}") or headings.get(name, "Options")].append(record)
        return {heading: records for heading, records in groups.items() if records}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = self.option_groups(ctx)
        widths = {heading: min(max(len(names) for names, _ in records), MAX_NAME_COLUMNS) for heading, records in groups.items()}
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records, MAX_NAME_COLUMNS, 2 + max(widths.values()) - widths[heading])


def unknown_name_error(kind: str, word: str, names: Iterable[str], ctx: click.Context) -> click.UsageError:
    """Return the error for an unknown option or command. It suggests the names that begin with the word, else similar names."""
    from difflib import get_close_matches  # noqa: PLC0415 - only needed here

    by_bare_name = {name.removeprefix("--"): name for name in names}
    prefix = word.removeprefix("--")
    longer = [name for name in by_bare_name if prefix and name.startswith(prefix)]
    similar = longer or get_close_matches(prefix, by_bare_name, cutoff=MIN_SIMILARITY)
    suggestion = f" Did you mean {' or '.join(repr(by_bare_name[name]) for name in similar)}?" if similar else ""
    return click.UsageError(f"No such {kind} {word!r}.{suggestion}", ctx)


def _replace_renamed_option(ctx: click.Context, args: Sequence[str], name: str) -> list[str] | None:
    """Return the arguments with the present name of a renamed option, and print a note; None if `name` was not renamed."""
    from sframegen.cli.removed_names import RENAMED  # noqa: PLC0415 - here and below: not for each run

    path = ctx.command_path.partition(" ")[2]
    present = RENAMED.get(f"{path} {name}")
    if present is None:
        return None
    at = next(number for number, word in enumerate(args) if word.partition("=")[0] == name)
    click.echo(f"sframegen: {name} is now {present}; the old name works until 1.1", err=True)
    return [*args[:at], present + args[at].removeprefix(name), *args[at + 1 :]]


def _refuse_removed(ctx: click.Context, words: Sequence[str], error: click.UsageError) -> None:
    """Raise RemovedError if the error is about a removed option, or a removed value of an option."""
    from sframegen.cli.removed_names import refuse_removed  # noqa: PLC0415

    path = ctx.command_path.partition(" ")[2]
    if isinstance(error, click.NoSuchOption):
        refuse_removed(path, error.option_name)
    elif isinstance(error, click.BadParameter) and error.param:
        for option, value in pairwise(words):
            if option in error.param.opts:
                refuse_removed(path, error.param.opts[-1], value)


class Group(Command, click.Group):
    """A group of commands with names of two words. Without the second word, it prints the help, and exits with status 2."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name, names = args[0], self.list_commands(ctx)
        if name in names or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from sframegen.cli.removed_names import refuse_removed  # noqa: PLC0415 - not for each run

        refuse_removed(*ctx.command_path.split()[1:], name)
        raise unknown_name_error("command", name, names, ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)
