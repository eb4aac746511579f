from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any

import click

from sframegen.cli.shared.command import Command, Example
from sframegen.cli.shared.number_values import CALL_NUMBER
from sframegen.cli.shared.output import Run, note
from sframegen.elf.file import open_elf
from sframegen.elf.text import printable
from sframegen.registry import system
from sframegen.registry.codectl_calls import CodeOption
from sframegen.registry.kernel_calls import has_call
from sframegen.registry.regions import RegistryError
from sframegen.registry.requests import INTERFACES, loaded_section
from sframegen.registry.structures import SframeSetup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.registry.requests import LoadedSection, Request

# By interface: the call, and a request for nothing, which every kernel refuses.
PROBES: dict[str, tuple[str, Callable[[int], None]]] = {
    "sframe": ("sframe_register", lambda number: system.sframe_register(SframeSetup(0, 0, 0, 0), number)),
    "prctl": ("prctl", lambda number: system.prctl(number, 0, 0, 0)),
    "codectl": ("codectl", lambda number: system.codectl(number, CodeOption.UNREGISTER, 0)),
}
UNSEEN = "this kernel shows neither BTF nor symbols"


@click.command(
    name="register",
    cls=Command,
    exclusive=[("--dry-run", "--probe"), *(("--probe", other) for other in ("--json", "--raw")), ("--dry-run", "--number")],
    examples=[
        Example("Print the call for a program", "sframegen register --dry-run ./prog"),
        Example("Test whether this kernel has the call", "sframegen register --probe"),
    ],
)
@click.argument("objects", metavar="PID|FILE...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Print the calls that a dynamic loader would make.")
@click.option("--probe", is_flag=True, help="Test whether this machine's kernel has the call.")
@click.option("--interface", type=click.Choice(list(INTERFACES)), default="sframe", show_default=True, help="The interface to use.")
@click.option("--number", metavar="N", type=CALL_NUMBER, help="With --probe: the number of the system call, or prctl's option.")
@click.option("--raw", is_flag=True, help="Add the bytes of the call's structure.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of calls, with the bytes, and of refused objects.")
@click.pass_context
def command(
    ctx: click.Context,
    objects: tuple[str, ...],
    *,
    dry_run: bool,
    probe: bool,
    interface: str,
    number: int | None,
    raw: bool,
    as_json: bool,
) -> None:
    """Print the calls that would register the SFrame sections of a process, or of FILEs, with the kernel.

    A process registers its own code, and no released kernel has these calls, so this prints the calls that a dynamic loader would
    make. For a FILE, addresses are link-time addresses. The interfaces follow the proposals: sframe is the system call
    sframe_register, prctl passes {key, address, length}, codectl also passes the file's names. Pointers in the bytes of a structure
    count from its beginning.

    --probe looks for the call by name in the kernel's BTF and symbols; with --number, it also makes an empty request. The exit
    status is 1 if the kernel does not have the call.
    """
    if not (dry_run or probe):
        raise click.UsageError("give either --dry-run, to print the calls, or --probe, to test this kernel")
    if probe:
        if objects:
            raise click.UsageError("--probe takes no objects")
        ctx.exit(_probe(interface, number))
    if not objects:
        raise click.UsageError("--dry-run needs a PID or a FILE")
    run = Run()
    calls: list[dict[str, Any]] = []
    for name in objects:
        with run.file(name):
            for loaded in _sections(run, name):
                request = INTERFACES[interface](loaded, 0)
                if as_json:
                    calls.append({"file": loaded.name, "call": request.call, "fields": request.fields, "bytes": request.data.hex()})
                else:
                    click.echo(printable(f"{loaded.name}: {_text(request)}"))
                    if raw:
                        click.echo(f"  {request.data.hex(' ', -8)}")
        calls += run.taken()
    if as_json:
        click.echo(json.dumps(calls, indent=1))
    ctx.exit(run.status)


def _sections(run: Run, name: str) -> Iterator[LoadedSection]:
    if name.isdecimal() and name.isascii():
        yield from _of_process(run, int(name))
        return
    elf = open_elf(name)
    loaded = loaded_section(name, elf.byte_order, elf.segments, file=elf)
    if loaded:
        yield loaded
    else:
        run.refuse(name, f"{name}: no PT_GNU_SFRAME, so a loader finds no section")


def _of_process(run: Run, pid: int) -> Iterator[LoadedSection]:
    """The objects that a process has loaded, in the order of their addresses."""
    from sframegen.stack.live.process import Process  # noqa: PLC0415
    from sframegen.stack.objects.loaded_image import read_loaded_image  # noqa: PLC0415 - for processes only
    from sframegen.stack.snapshot.snapshot import StackError  # noqa: PLC0415

    seen = set()
    try:
        with Process(pid) as process, process.stopped() as snapshot:
            images = [(row.path, read_loaded_image(snapshot, row)) for row in snapshot.mappings if row.executable]
    except StackError as error:
        run.refuse(str(pid), str(error))
        return
    for path, image in images:
        if image and (path, image.bias) not in seen:
            seen.add((path, image.bias))
            with run.file(path):
                loaded = loaded_section(path, process.abi.byte_order, image.segments, image.bias, image.file)
                if loaded:
                    yield loaded


def _text(request: Request) -> str:
    values = [f"{key}={value if isinstance(value, str) else hex(value)}" for key, value in request.fields.items()]
    return f"{request.call} {' '.join(values)}"


def _probe(interface: str, number: int | None) -> int:
    """The exit status."""
    name, ask = PROBES[interface]
    if interface == "prctl":
        if number is None:
            raise click.UsageError("no number was proposed for prctl's option: give one with --number")
    else:
        found = has_call(name)
        if not found and (number is None or found is False):
            click.echo(f"{name}: this kernel has no such system call" if found is False else f"{name}: unknown: {UNSEEN}")
            return 1
        if number is None:
            click.echo(f"{name}: this kernel has the call")
            return 0
        if found is None:
            note(f"warning: {UNSEEN}: number {number} may be another call's")
    try:
        ask(number)
    except RegistryError as error:
        if error.errno == errno.ENOSYS:
            click.echo(str(error.strerror))
            return 1
        answer = f"{errno.errorcode.get(error.errno or 0, error.errno)} for an empty request"
    else:
        answer = "success for an empty request"
    unknown = ""
    if interface == "prctl":
        unknown = ", as for an option that the kernel does not know" if "EINVAL" in answer else ", of any option with that number"
    click.echo(f"{name}, number {number}: {answer}{unknown}")
    return 0
