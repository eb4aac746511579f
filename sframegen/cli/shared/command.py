"""The class of all commands: click's, with examples in the help, options that exclude one another, and combined options."""

from __future__ import annotations

from itertools import combinations, pairwise

import click
from click.core import ParameterSource

from sframegen.base.quick_typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Example(NamedTuple):
    what: str  # purpose of the line
    line: str  # for a shell


class CombinedValue(NamedTuple):
    """A parameter of a command that combines several options."""

    name: str
    make: Callable[..., object]  # called with the options' values, by their names


class PartOption(click.Option):
    """An option that is a part of a CombinedValue."""

    def __init__(self, *arguments: Any, value: CombinedValue, **options: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*arguments, **options)
        self.value = value


def options(*decorators: Decorator) -> Decorator:
    """Return a decorator that adds all these options, in the order of the help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(decorators):
            command = option(command)
        return command

    return decorate


class Command(click.Command):
    """A command. `examples`: shown by --help. `exclusive`: groups of options, by long names; a run can have one of each group."""

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
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            _refuse_removed(ctx, words, error)
            raise
        if not ctx.resilient_parsing:
            given = self._given(ctx)
            for group in self.exclusive:
                for one, other in combinations(group, 2):
                    if one in given and other in given:
                        raise click.UsageError(f"{one} and {other} exclude each other", ctx)
            self._put_together(ctx)
        return rest

    def _put_together(self, ctx: click.Context) -> None:
        values: dict[CombinedValue, dict[str, object]] = {}
        for option in self.params:
            if isinstance(option, PartOption) and option.name:
                values.setdefault(option.value, {})[option.name] = ctx.params.pop(option.name)
        for value, parts in values.items():
            ctx.params[value.name] = value.make(**parts)

    def _given(self, ctx: click.Context) -> set[str]:
        """Return all names of the options that are on the command line."""
        options = (one for one in self.params if isinstance(one, click.Option))
        return {
            name
            for option in options
            if ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
            for name in option.opts
        }

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example.what}:\n")
                    formatter.write(f"{'':{formatter.current_indent}}    {example.line}\n")


def _refuse_removed(ctx: click.Context, words: Sequence[str], error: click.UsageError) -> None:
    """Raise RemovedError if the error is about a removed option, or a removed value of an option."""
    from sframegen.cli.removed_names import refuse_removed  # noqa: PLC0415 - not for each run

    path = ctx.command_path.partition(" ")[2]
    if isinstance(error, click.NoSuchOption):
        refuse_removed(path, error.option_name)
    elif isinstance(error, click.BadParameter) and error.param:
        for option, value in pairwise(words):
            if option in error.param.opts:
                refuse_removed(path, error.param.opts[-1], value)


class Group(Command, click.Group):
    """A group of commands with names of two words. Without the second word, it prints the help, and exits as for wrong usage."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)
