"""Reference pages from the program itself: the text of `--help` and of docstrings, the rules of `check`, the keys of `--json`.

They are Markdown, which conf.py writes. The man pages are made of the same Markdown.
"""

from __future__ import annotations

import json
import re
from inspect import cleandoc, isclass, isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

import sframegen.api
from sframegen.checks.consumers import CONSUMERS, DEMANDS, EFFECTS
from sframegen.checks.specification.rule_list import RULES
from sframegen.cli.commands import COMMANDS, EXIT_STATUSES, GROUPS, cli
from sframegen.cli.shared.command import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.checks.consumers import Demand
    from sframegen.checks.specification.rule_list import SpecificationRule

PROGRAM = "sframegen"
KEEPS_LINES = "\b\n"  # click's mark
CODE = re.compile(r"`[^`]+`")
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
ENVIRONMENT = {
    "SFRAMEGEN_PATH": "directories of detached sections, with colons between them: docs/detached.md",
    "SFRAMEGEN_LINK_OPTIONS": "options of `sframegen link`, for links by shims: docs/linking.md",
    "_SFRAMEGEN_COMPLETE": "asks for completion instead of a run: docs/installing.md",
}


def write_reference(folder: Path) -> None:
    """A page for the program, one for each command, and one for Python."""
    folder.mkdir(exist_ok=True)
    pages = {PROGRAM: program_page(), "python": python_page()} | {name: command_page(name) for name in COMMANDS}
    for old in folder.glob("*.md"):
        if old.stem not in pages:
            old.unlink()
    for name, page in pages.items():
        text = "\n".join(page) + "\n"
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:  # Sphinx reads again what is newer than it knows
            path.write_text(text)


def man_pages() -> list[tuple[str, str, str, list[str], int]]:
    """For Sphinx: document, name, what follows the name, no author, section 1."""
    names = {PROGRAM: (PROGRAM, cli.help or "")} | {name: (f"{PROGRAM}-{name}", line) for name, line in COMMANDS.items()}
    return [(f"reference/{page}", name, line.rstrip("."), [], 1) for page, (name, line) in names.items()]


def reference_lines() -> list[tuple[str, str, str]]:
    """Each page of the reference, its title, and a line about it."""
    lines = {PROGRAM: "exit statuses, environment"} | {name: marked(line.rstrip(".")) for name, line in COMMANDS.items()}
    titles = [(f"reference/{page}", page if page == PROGRAM else f"{PROGRAM} {page}", line) for page, line in lines.items()]
    return [*titles, ("reference/python", "Python functions", "what they return and raise, and the types of their parameters")]


def context_of(name: str) -> click.Context:
    """As the program makes it for a command, or for itself: help is -h too."""
    program = click.Context(cli, info_name=PROGRAM, **cli.context_settings)
    command = None if name == PROGRAM else cli.get_command(program, name)
    return program if command is None else click.Context(command, info_name=name, parent=program)


def program_page() -> Iterator[str]:
    yield f"# {PROGRAM}\n\n## Synopsis\n"
    yield f"`{PROGRAM} [OPTIONS] COMMAND [ARGS]...`\n"
    yield "## Description\n"
    yield from paragraphs(cli.help or "")
    yield "## Commands\n"
    for group, lines in GROUPS.items():
        yield f"### {group}\n"
        for name, line in lines.items():
            yield f"[{name}]({name}.md)\n: {marked(line)}\n"
    yield from examples(cli)
    yield from options(context_of(PROGRAM))
    yield "## Exit status\n"
    for status, meaning in EXIT_STATUSES.items():
        yield f"{status}\n: {marked(meaning)}\n"
    yield "`sframegen link` ends as the linker did.\n"
    yield "## Environment\n"
    for name, meaning in ENVIRONMENT.items():
        yield f"`{name}`\n: {marked(meaning)}\n"


def command_page(name: str) -> Iterator[str]:
    context = context_of(name)
    command = context.command
    yield f"# {PROGRAM} {name}\n\n## Synopsis\n"
    yield f"`{' '.join([PROGRAM, name, *command.collect_usage_pieces(context)])}`\n"
    yield "## Description\n"
    yield from paragraphs(command.help or "")
    yield from examples(command)
    yield from options(context)
    if name == "check":
        yield from rules_of_check()
    if isinstance(command, click.Group):
        for part in command.list_commands(context):
            yield from part_of(context, part)
    yield "## See also\n"
    yield f"[{PROGRAM}(1)]({PROGRAM}.md), which has the exit statuses.\n"


def part_of(group: click.Context, name: str) -> Iterator[str]:
    """A command with a name of two words, on the page of the first: `fleet run`."""
    assert isinstance(group.command, click.Group)
    command = group.command.get_command(group, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=group)
    yield f"## {PROGRAM} {group.info_name} {name}\n"
    yield f"`{' '.join([context.command_path, *command.collect_usage_pieces(context)])}`\n"
    yield from paragraphs(command.help or "")
    yield from examples(command, level="###")
    yield from options(context, level="###")


def options(context: click.Context, level: str = "##") -> Iterator[str]:
    yield f"{level} Options\n"
    assert isinstance(context.command, Command)
    groups = context.command.option_groups(context)
    for heading, records in groups.items():
        if len(groups) > 1:
            yield f"{level}# {heading}\n"
        for names, text in records:
            yield f"`{names}`\n: {marked(text)}\n"


def examples(command: click.Command, level: str = "##") -> Iterator[str]:
    assert isinstance(command, Command)
    yield f"{level} Examples\n"
    for example in command.examples:
        yield f"{marked(example.purpose)}:\n\n```text\n{example.line}\n```\n"


def paragraphs(text: str) -> Iterator[str]:
    for paragraph in cleandoc(text).split("\n\n"):
        if paragraph.startswith(KEEPS_LINES):
            yield f"```text\n{paragraph.removeprefix(KEEPS_LINES)}\n```\n"
        else:
            yield marked(paragraph) + "\n"


def marked(text: str) -> str:
    """Options as code, and nothing else that Markdown would read in its own way."""
    plain = CODE.split(text)
    code = [*CODE.findall(text), ""]
    return "".join(OPTION.sub(r"`\g<0>`", re.sub(r"[\\*_<>\[\]]", r"\\\g<0>", p)) + c for p, c in zip(plain, code, strict=True))


def rules_of_check() -> Iterator[str]:
    """Each rule of the specification and of its readers, with its severity and the fault if it is broken."""
    yield "## Rules of the specification\n"
    for rule in RULES.values():
        yield f"`{rule.name}`\n: {marked(text_of_rule(rule))}\n"
    yield "## Rules of the readers\n"
    for demand in DEMANDS:
        yield f"`{demand.name}`\n: {marked(text_of_demand(demand))}\n"


def text_of_rule(rule: SpecificationRule) -> str:
    versions = "" if rule.versions == (1, 2, 3) else f", version {' and '.join(map(str, rule.versions))}"
    return f"{rule.severity.name.lower()}{versions}: {rule.fault}"


def text_of_demand(demand: Demand) -> str:
    effect, severity = EFFECTS[demand.effect]
    validated = ", or rejects the section where it validates" if demand.validated else ""
    return f"{severity.name.lower()}: {CONSUMERS[demand.consumer].title} {effect}{validated}: {demand.fault}"


def key_tables() -> Iterator[str]:
    """The objects of docs/json-schema.json, each with a table of its keys."""
    yield "## Objects\n"
    schema = json.loads((Path(__file__).parent / "json-schema.json").read_text())
    for name, each in schema["$defs"].items():
        yield f"### {name}\n\n{each['description']}.\n\n| key | type | |\n| --- | --- | --- |"
        for key, value in each["properties"].items():
            yield f"| `{key}` | {type_of(value)} | {value.get('description', '')} |"
        yield ""


def type_of(value: dict[str, Any]) -> str:
    """Of a key's value, in words: `list of strings or null`."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "anyOf" in value:
        return " or ".join(map(type_of, value["anyOf"]))
    kinds = value["type"] if isinstance(value["type"], list) else [value["type"]]
    items = f"list of {type_of(value['items'])}{'s' if 'type' in value['items'] else ''}" if "items" in value else ""
    return " or ".join(items if kind == "array" else kind for kind in kinds)


def python_page() -> Iterator[str]:
    """The public names: functions, what they return and raise, and the types of their parameters."""
    yield "# Python functions\n\nRecipes, and which names are stable: [library.md](../library.md).\n"
    public = {name: getattr(sframegen.api, name) for name in sframegen.api.__all__}  # type: ignore[attr-defined]
    for heading, belongs in (("Functions", isfunction), ("Values", isclass)):
        yield f"## {heading}\n"
        for name, value in public.items():
            if belongs(value):
                kind = ("autoexception" if issubclass(value, Exception) else "autoclass") if isclass(value) else "autofunction"
                yield f"```{{eval-rst}}\n.. {kind}:: sframegen.{name}\n```\n"
    yield "## Types\n\nOf parameters, for type checkers.\n"
    for name, value in public.items():
        if allowed := get_args(value):
            yield f"`sframegen.{name}`\n: {', '.join(f'`{one!r}`' for one in allowed)}. {value.__doc__}\n"
