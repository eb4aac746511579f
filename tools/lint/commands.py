"""Rules on what the documents have of the command line: README every command, the reference every option and paragraph."""

from __future__ import annotations

import re
import sys
from inspect import cleandoc
from typing import TYPE_CHECKING

import click

from sframegen.cli.commands import COMMANDS
from tools.lint.sources import text_of
from tools.rooms import ROOT

sys.path.append(str(ROOT / "docs"))
import commands

if TYPE_CHECKING:
    from collections.abc import Iterator


def readme_shows_every_command() -> Iterator[str]:
    yield from (f"README.md: sframegen {name} is missing" for name in COMMANDS if f"sframegen {name}" not in text_of("README.md"))


def the_reference_has_every_option_and_paragraph() -> Iterator[str]:
    for name in COMMANDS:
        page = plain("\n".join(commands.command_page(name)))
        for context in contexts(commands.context_of(name)):
            options = [one for one in context.command.get_params(context) if isinstance(one, click.Option) and not one.hidden]
            for flag in (flag for option in options for flag in option.opts):
                if not re.search(rf"^(?:\S+, )*{flag}\b", page, re.MULTILINE):
                    yield f"docs/commands.py: the page of {name} lacks {flag}"
            for paragraph in plain(cleandoc(context.command.help or "")).replace("\b\n", "").split("\n\n"):
                if paragraph not in page:
                    yield f"docs/commands.py: the page of {name} lacks: {paragraph}"


def plain(text: str) -> str:
    return text.replace("`", "").replace("\\", "")


def contexts(context: click.Context) -> Iterator[click.Context]:
    """Of a command, and of a group's commands."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            if command := context.command.get_command(context, name):
                yield click.Context(command, info_name=name, parent=context)


RULES = (readme_shows_every_command, the_reference_has_every_option_and_paragraph)
