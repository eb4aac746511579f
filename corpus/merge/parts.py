"""What is shown, a function each part: the objects linked by others, merged by us, and both compared."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from linker.objects.given_file import Objects, open_input
from sframegen.base.errors import SframegenError
from sframegen.elf.file import open_elf
from sframegen.elf.symbols import read_functions
from tests.support.oracles.rules import OracleError

from .compare import Functions, Outcome, Reader, by_name, described, fde_for_fde, rule_for_rule, sections_of
from .toolchain import MOLD_3, WITH_SFRAME, Toolchain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from .links import Link

ARCHIVED = slice(0, None, 2)  # objects of the archive, where there is one


@dataclass
class Row:
    part: str
    machine: str
    case: str
    objects: int
    outcome: Outcome = field(default_factory=Outcome)


class FailedError(Exception):
    """A tool did not do what it was to do: a finding about the case."""


@dataclass
class Set:
    """Objects of a machine, and what works on them. `objects`: names below the toolchain's folder."""

    tools: Toolchain
    objects: list[str]

    def __post_init__(self) -> None:
        self.reader = Reader(self.tools.peers, self.tools.prefix)

    def path(self, name: str) -> Path:
        return self.tools.directory / name

    def inputs(self, link: Link) -> list[str]:
        """What the linker is given."""
        if not link.archive:
            return self.objects
        folder = os.path.dirname(self.objects[0])  # noqa: PTH120 - a name, not a path
        archive = f"{folder}/lib{folder.replace('/', '_')}.a"
        if not self.path(archive).exists():
            members = [one for one in self.objects if not one.endswith("main.o")]
            self.must_gnu("ar", "rcs", archive, *members[ARCHIVED])
        inside = set(self.objects[:-1][ARCHIVED])
        return [*(one for one in self.objects if one not in inside), archive]

    def must_gnu(self, tool: str, *arguments: str | Path) -> None:
        done = self.tools.gnu(tool, *arguments)
        if done.status:
            raise FailedError(f"{tool}: exit status {done.status}: {done.said[:300]}")

    def must(self, command: str, *arguments: str | Path) -> None:
        done = self.tools.sframegen(command, *arguments)
        if done.status:
            raise FailedError(f"sframegen {command}: exit status {done.status}: {done.said[-400:]}")

    def bare(self, file: str) -> str:
        """A copy without a section."""
        self.must_gnu("objcopy", "-R", ".sframe", file, f"{file}.bare")
        return f"{file}.bare"

    def added(self, file: str) -> str:
        """A copy of a file without a section, with one by add-section, an FDE each function."""
        out = f"{file}.added"
        self.must("add-section", "--optimize", "none", "-o", out, file)
        return out

    def merged(self, file: str, inputs: Sequence[str], level: str = "none") -> str:
        """A copy with the section of merge --map."""
        out = f"{file}.{level}.merged"
        self.must("merge", "--optimize", level, "--map", f"{file}.map", "-o", out, file, *inputs)
        return out

    def joined(self, out: str, *inputs: str) -> None:
        """`out` by merge -o."""
        self.must("merge", "--linker", self.tools.tools / "ld", "-o", out, *inputs)

    def same_places(self, one: str, two: str) -> bool:
        """True if code is at the same places in both files."""
        return sections_of(open_elf(self.path(one))) == sections_of(open_elf(self.path(two)))

    def must_be_same_places(self, one: str, two: str) -> None:
        if not self.same_places(one, two):
            raise FailedError(f"{one} and {two} have different executable sections")


def stripped(objects: Set, directory: Path) -> Set:
    """The same objects by the same names, in another folder and without their sections."""
    tools = Toolchain(objects.tools.peers, objects.tools.machine, objects.tools.prefix, directory)
    bare = Set(tools, objects.objects)
    for name in objects.objects:
        bare.path(name).parent.mkdir(exist_ok=True)
        objects.must_gnu("objcopy", "-R", ".sframe", "-R", ".rela.sframe", name, bare.path(name))
    return bare


def attempt(row: Row, work: Callable[[], Outcome]) -> Row:
    try:
        row.outcome = work()
    except (FailedError, OracleError, SframegenError, OSError, RuntimeError) as error:
        row.outcome.found(" ".join(str(error).split()))
    return row


def with_gnu_ld(objects: Set, links: Sequence[Link], part: str = "GNU ld") -> Iterator[Row]:
    """Merge --map, of the file linked without a section and of the one with GNU's, against GNU's section."""
    for number, link in enumerate(links):
        inputs = objects.inputs(link)

        def work(link: Link = link, inputs: list[str] = inputs, *, levels: bool = not number) -> Outcome:
            gnu, file = f"gnu_{link.file}", f"bare_{link.file}"
            objects.tools.link(gnu, "bfd", *link.flags, *inputs)
            objects.tools.link(file, "bfd", *link.flags, "-Wl,--discard-sframe", *inputs)
            superseded = objects.path(objects.merged(gnu, inputs))
            merged = objects.path(objects.merged(file, inputs))
            outcome = fde_for_fde(objects.reader, objects.path(gnu), superseded)
            if objects.same_places(gnu, file):
                alone = fde_for_fde(objects.reader, objects.path(gnu), merged)
            else:  # a program header more, or the section, moves code
                alone = by_name(objects.reader, superseded, merged)
                outcome.notes.append("code moves")
            outcome.differences += (f"without GNU's section in the file: {one}" for one in alone.differences)
            if levels:
                outcome.differences += _levels(objects, file, inputs, merged)
            if "-shared" not in link.flags and not objects.tools.prefix:
                outcome.differences += _runs(objects, merged)
            return outcome

        yield attempt(Row(part, objects.tools.machine, link.name, len(objects.objects)), work)


def _levels(objects: Set, file: str, inputs: Sequence[str], merged: Path) -> Iterator[str]:
    names = described(objects.reader, merged)
    for level in ("none", "fast", "size"):
        other = objects.path(objects.merged(file, inputs, level))
        compare = (
            fde_for_fde(objects.reader, merged, other) if level == "none" else rule_for_rule(objects.reader, merged, other, names)
        )
        yield from (f"--optimize {level}: {one}" for one in compare.differences)


def _runs(objects: Set, file: Path) -> Iterator[str]:
    done = objects.tools.run(file)
    if done.status:
        yield f"with the section the program ends with status {done.status}: {done.said[:200]}"


def with_lto(objects: Set, links: Sequence[Link]) -> Iterator[Row]:
    """Merge --map of the objects that the compiler makes while it links. `objects`: compiled with -flto, or assembled."""
    assembled = [one for one in objects.objects if objects.reader.is_native(objects.path(one))]
    for link in links:

        def work(link: Link = link) -> Outcome:
            files = [f"{kind}_lto_{link.file}" for kind in ("gnu", "bare")]
            for file, flags in zip(files, ((), ("-Wl,--discard-sframe",)), strict=True):
                options = ("-O2", "-flto=1", "-save-temps", *WITH_SFRAME, *link.flags, *flags)
                objects.tools.link(file, "bfd", *options, *objects.objects)
            if not objects.same_places(*files):
                raise FailedError("the compiler made other code the second time")
            partitions = sorted(one.name for one in objects.tools.directory.glob(f"{files[1]}.ltrans*.ltrans.o"))
            merged = objects.path(objects.merged(files[1], [*partitions, *assembled]))
            outcome = fde_for_fde(objects.reader, objects.path(files[0]), merged)
            outcome.notes.append(f"{len(partitions)} partitions")
            if "-shared" not in link.flags and not objects.tools.prefix:
                outcome.differences += _runs(objects, merged)
            return outcome

        yield attempt(Row("GNU ld, LTO", objects.tools.machine, link.name, len(objects.objects)), work)


def with_others(objects: Set, linker: str, links: Sequence[Link], names: set[str], bare: Set | None = None) -> Iterator[Row]:
    """Merge --map against add-section on the linked file, rule for rule. With `bare`, the linker is given these objects: the same
    by the same names, without sections, in a folder of its own. `names`: functions that the objects' sections describe.
    """
    given = bare or objects
    for link in links:

        def work(link: Link = link) -> Outcome:
            file = f"{linker}_{link.file}"
            given.tools.link(file, linker, *link.flags, *given.inputs(link))
            merged_from = given.path(file)
            out = objects.path(f"{file}.merged")
            objects.must("merge", "--map", f"{merged_from}.map", "-o", out, merged_from, *objects.inputs(link))
            added = given.path(given.added(given.bare(file)))
            outcome = rule_for_rule(objects.reader, added, out, names)
            if "-shared" not in link.flags and not objects.tools.prefix:
                outcome.differences += _runs(objects, out)
            return outcome

        yield attempt(Row(linker, objects.tools.machine, link.name, len(objects.objects)), work)


def with_mold_3(objects: Set, links: Sequence[Link]) -> Iterator[Row]:
    """Merge --map, of the file with mold's section and of a copy without one, against mold's section."""
    for link in links:
        inputs = objects.inputs(link)

        def work(link: Link = link, inputs: list[str] = inputs) -> Outcome:
            file = f"{MOLD_3}_{link.file}"
            objects.tools.link(file, MOLD_3, *link.flags, *inputs)
            mold = objects.path(file)
            outcome = fde_for_fde(objects.reader, mold, objects.path(objects.merged(file, inputs)))
            bare = objects.bare(file)
            shutil.copy(f"{mold}.map", objects.path(f"{bare}.map"))
            merged = objects.path(objects.merged(bare, inputs))
            alone = fde_for_fde(objects.reader, mold, merged)
            outcome.differences += (f"without mold's section in the file: {one}" for one in alone.differences)
            if "-shared" not in link.flags and not objects.tools.prefix:
                outcome.differences += _runs(objects, merged)
            return outcome

        yield attempt(Row("mold 3", objects.tools.machine, link.name, len(objects.objects)), work)


def relocatable(objects: Set, parts: int = 3) -> Iterator[Row]:
    """Merge -o OUT.o of all objects, linked by GNU ld, against the objects linked directly."""
    direct = "gnu_direct"
    machine, count = objects.tools.machine, len(objects.objects)

    def linked(name: str, *inputs: str) -> Path:
        objects.tools.link(name, "bfd", "-pie", *inputs)
        return objects.path(name)

    def once() -> Outcome:
        linked(direct, *objects.objects)
        objects.joined("merged.o", *objects.objects)
        return by_name(objects.reader, objects.path(direct), linked("of_merged", "merged.o"))

    def as_ld() -> Outcome:
        objects.must_gnu("ld", "-r", "-o", "joined.o", *objects.objects)
        linked("of_joined", "joined.o")
        objects.must_be_same_places("of_joined", "of_merged")
        return fde_for_fde(objects.reader, objects.path("of_joined"), objects.path("of_merged"))

    def again() -> Outcome:
        objects.must_gnu("ld", "-r", "-o", "again.o", "merged.o")
        return by_name(objects.reader, objects.path(direct), linked("of_again", "again.o"))

    def in_parts() -> Outcome:
        pieces = [f"part{number}.o" for number in range(parts)]
        bounds = [count * number // parts for number in range(parts + 1)]
        for piece, begin, end in zip(pieces, bounds, bounds[1:], strict=False):
            objects.joined(piece, *objects.objects[begin:end])
        objects.joined("of_parts.o", *pieces)
        return by_name(objects.reader, objects.path(direct), linked("of_parts", "of_parts.o"))

    def collected() -> Outcome:
        files = [f"collected_{name}" for name in ("joined", "merged")]
        for file in files:
            objects.tools.link(file, "bfd", "-pie", "-Wl,--gc-sections", f"{file.removeprefix('collected_')}.o")
        names = described(objects.reader, objects.path("of_merged"))
        expected = objects.path(objects.added(objects.bare(files[1])))
        outcome = rule_for_rule(objects.reader, expected, objects.path(files[1]), names)
        kept = [len(Functions(objects.path(file)).names) for file in files]
        outcome.notes.append(f"{kept[1]:,} functions stay, {kept[0]:,} of GNU ld -r's object")
        return outcome

    for case, work in (
        ("merge -o OUT.o, linked: the objects linked directly", once),
        ("merge -o OUT.o, linked: GNU ld -r, linked, at the same addresses", as_ld),
        ("merge -o OUT.o, through GNU ld -r, linked: directly", again),
        (f"{parts} times merge -o, merge -o of these, linked: directly", in_parts),
        ("merge -o OUT.o, linked with --gc-sections: add-section on the linked file", collected),
    ):
        yield attempt(Row("relocatable", machine, case, count), work)


def _functions(path: Path) -> Iterator[str]:
    """Names of the functions of an object or an archive of them."""
    given = open_input(str(path))
    assert isinstance(given, Objects)
    for elf in given.members.values():
        yield from (symbol.name for symbol in read_functions(elf))


def without_sframe(
    objects: Set, case: str, linkers: Sequence[str], *, flags: Sequence[str] = ("-pie",), extra: Sequence[str] = ()
) -> Iterator[Row]:
    """add-section on each of the objects (which it changes), linked: against add-section on the linked file without the section.

    `extra`: objects that stay unchanged, last on the command line.
    """
    tools = objects.tools
    names = {name for one in objects.objects for name in _functions(objects.path(one))}
    done = tools.sframegen("add-section", *objects.objects)
    for linker in linkers:

        def work(linker: str = linker) -> Outcome:
            if done.status:
                raise FailedError(f"sframegen add-section: exit status {done.status}: {done.said[-400:]}")
            file = f"{linker}_of_{''.join(filter(str.isalnum, case))}"
            tools.link(file, linker, *flags, *objects.objects, *extra)
            expected = objects.path(objects.added(objects.bare(file)))
            if linker == "bfd":
                return rule_for_rule(objects.reader, expected, objects.path(file), names)
            merged = objects.path(objects.merged(file, objects.objects))
            outcome = rule_for_rule(objects.reader, expected, merged, names)
            converted = objects.path(f"{file}.converted")
            objects.must("convert", "--sframe-version", "3", "--optimize", "none", "-o", converted, file)
            outcome.differences += (f"convert: {one}" for one in fde_for_fde(objects.reader, converted, merged).differences)
            return outcome

        yield attempt(Row("objects without .sframe", tools.machine, f"{case}, linked by {linker}", len(objects.objects)), work)
