from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sframegen.base.text import printable
from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.file_kinds import open_views
from sframegen.cli.shared.output import SECTIONS, PathName, Run, note
from sframegen.detached.stores import Stores
from sframegen.elf.file import ElfFile
from sframegen.elf.function_names import FunctionNames, resolve_address
from sframegen.elf.symbols import last_functions_before
from sframegen.format.abi import Abi, abi_of
from sframegen.format.equations import rule_fields

if TYPE_CHECKING:
    from linker.objects.object_view import ObjectView
    from sframegen.format.model import Match


@click.command(
    name="lookup",
    cls=Command,
    examples=[
        Example("Print the rules at the start of a function and after 4 bytes", "sframegen lookup ./prog main main+4"),
        Example("Print the rule at an address, found in a store", "sframegen lookup --sections store ./prog 0x1139"),
    ],
)
@click.argument("file", metavar="FILE", type=PathName())
@click.argument("addresses", metavar="ADDR...", nargs=-1, required=True)
@SECTIONS
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with a list of the addresses.")
@click.pass_context
def command(ctx: click.Context, file: str, addresses: tuple[str, ...], sections: list[str], as_json: bool) -> None:
    """Print the rule for each ADDR in FILE's SFrame section, as an equation.

    ADDR is a link-time address (hexadecimal, with or without 0x), a function name, or name+offset with the offset in decimal or as
    0x... A word that could be both is a name if FILE has a function of that name, else an address: `add` may be a function, 0xadd
    never is. Objects have no addresses yet: there ADDR is a function name or SECTION+OFFSET (`.text+0x10`), and the output uses the
    same form.

    The right side of an equation refers to the registers at ADDR and to the cfa on its left side. The exit status is 1 if an
    address is not covered.
    """
    run = Run()
    answers: list[dict[str, Any]] = []
    with run.working_on(file):
        opened = open_views(file)
        if isinstance(opened, ElfFile):
            answers += _look_up_addresses(opened, addresses, run, Stores(sections))
        else:
            answers += _look_up_in_objects(opened, file, addresses, run)
    if as_json:
        import json  # noqa: PLC0415 - takes as long as a look-up

        [result] = run.take_json() or [{"file": file, "addresses": answers}]
        click.echo(json.dumps(result, indent=1))
    else:
        for answer in (answer for answer in answers if "error" not in answer):
            name = f" <{answer['name']}>" if answer["name"] else ""
            section = f"{printable(answer['section'])}+" if "section" in answer else ""
            click.echo(f"{section}{answer['address']:#x}{name}: {answer['rule'] or 'not covered by the SFrame section'}")
    ctx.exit(run.status or int(any(answer["rule"] is None for answer in answers)))


def _look_up_addresses(elf: ElfFile, addresses: tuple[str, ...], run: Run, stores: Stores) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    try:
        section = stores.open_for_file(elf)
    finally:
        for line in stores.take_notes():
            note(line)
    _ = section.seeker  # raises FormatError here, once, for a section that cannot be searched, and not for each address
    for text in addresses:
        with run.working_on(elf.name):
            address = resolve_address(elf, text)
            answers.append({"address": address, "name": None, **_format_match(section.look_up(address), section.abi)})
        answers += _take_errors(run, text)
    resolved = [answer for answer in answers if "error" not in answer]
    names = FunctionNames(last_functions_before(elf, [answer["address"] for answer in resolved]))
    for answer in resolved:
        answer["name"] = names.at(answer["address"])
    return answers


def _take_errors(run: Run, text: str) -> list[dict[str, Any]]:
    """Return the JSON entry for an address that was refused, removing its report from the run; empty if it was not refused."""
    return [{"given": text, "error": one["error"]} for one in run.take_json()]


def _look_up_in_objects(views: list[ObjectView], file: str, addresses: tuple[str, ...], run: Run) -> list[dict[str, Any]]:
    from linker.objects.object_view import find_place  # noqa: PLC0415 - as in objects.py

    answers: list[dict[str, Any]] = []
    for text in addresses:
        with run.working_on(file):
            view, location = find_place(views, text, file)
            answer = {"address": location.offset, "section": location.section.name, "name": view.name_at(location)}
            if view.elf.name != file:
                answer["object"] = view.elf.name
            answers.append(answer | _format_match(view.look_up(location), abi_of(view.elf)))
        answers += _take_errors(run, text)
    return answers


def _format_match(match: Match | None, abi: Abi) -> dict[str, Any]:
    """Return the JSON fields of a look-up. `rule` is None if no function is there, `row_offset` if the function has no rows."""
    if match is None:
        return {"rule": None}
    function = {"start": match.start, "size": match.size, "row_offset": match.row_offset}
    return rule_fields(match.rule, abi) | {"function": function, "signal": match.kind.signal}
