"""A small run of what corpus/merge shows."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

import pytest

from corpus.merge import damage, links
from corpus.merge.compare import described
from corpus.merge.parts import Set, relocatable, stripped, with_gnu_ld, with_mold_3, with_others, without_sframe
from corpus.merge.sources import sources
from corpus.merge.toolchain import WITH_SFRAME, Toolchain
from sframegen import merge
from sframegen.base.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from corpus.merge.parts import Row
    from corpus.merge.sources import Source
    from tests.support.peers import Peers

pytestmark = pytest.mark.full

MACHINES = {"x86-64": "", "arm64": "aarch64-linux-gnu-", "s390x": "s390x-linux-gnu-"}
COUNT = 7
LINKS = {  # one of each kind
    "x86-64": [links.Link(("-pie",)), links.Link(("-no-pie", "-Wl,-z,ibtplt", links.GC)), links.Link(("-shared",))],
    "arm64": [links.Link(("-shared",)), links.Link(("-pie", links.GC), archive=True)],
    "s390x": [links.Link(("-shared",)), links.Link(("-pie", links.GC), archive=True)],
}


@pytest.fixture(scope="module", params=MACHINES)
def machine(request: pytest.FixtureRequest, peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    name = str(request.param)
    tools = Toolchain(peers, name, MACHINES[name], tmp_path_factory.mktemp("merge") / name)
    if not tools.has("g++"):
        pytest.skip(f"no {MACHINES[name]}g++ on this machine")
    return tools


@pytest.fixture(scope="module")
def made(machine: Toolchain) -> list[Source]:
    """Without those that include the headers of C++, which take long to compile."""
    found = [one for one in sources(4, COUNT, machine.machine) if "#include <map>" not in one.text]
    assert {one.language for one in found} == {"c", "c++", "assembler"}
    return found


@pytest.fixture(scope="module")
def objects(machine: Toolchain, made: list[Source]) -> Set:
    return Set(machine, machine.compile_all(made, "o", WITH_SFRAME, 2))


def assert_equal(rows: Iterator[Row]) -> None:
    found = list(rows)
    assert found
    assert [(row.case, row.outcome.differences) for row in found if row.outcome.differences] == []
    assert all(row.outcome.fdes > 10 for row in found)


def test_by_map_as_gnu_ld(objects: Set) -> None:
    assert_equal(with_gnu_ld(objects, LINKS[objects.tools.machine]))


def test_by_map_as_mold_3(objects: Set) -> None:
    assert_equal(with_mold_3(objects, links.MOLD_3[objects.tools.machine][-2:]))


def test_relocatable_as_gnu_ld(objects: Set) -> None:
    assert_equal(relocatable(objects))


@pytest.mark.parametrize("machine", ["x86-64"], indirect=True)
def test_by_map_with_other_linkers(objects: Set, machine: Toolchain, tmp_path: Path) -> None:
    machine.link("reference", "bfd", "-pie", *objects.objects)
    names = described(objects.reader, objects.path("reference"))
    bare = stripped(objects, tmp_path / "bare")
    assert_equal(with_others(objects, "lld", [links.LLD[5]], names, bare))
    if not machine.has("mold"):
        pytest.skip("no mold on this machine")
    assert_equal(with_others(objects, "mold", [links.MOLD[4]], names))


def test_objects_without_sframe(machine: Toolchain, made: list[Source]) -> None:
    bare = Set(machine, machine.compile_all(made, "w", (), 2))
    assert_equal(without_sframe(bare, "gcc", ("bfd",) if machine.prefix else ("bfd", "lld")))


# What is said of each damaged object, "" where it is merged all the same: by `merge --map`, and by `merge -o`.
SAID = {
    "none": ("", ""),
    "bad magic": ("magic number is 0000", "magic number is 0000"),
    "truncated: 20 bytes, its relocations still there": ("expected 28 bytes of header", "expected 28 bytes of header"),
    "truncated: 20 bytes, no relocations": ("expected 28 bytes of header", "expected 28 bytes of header"),
    "truncated: in the FDEs": ("do not fit into 36 bytes", "do not fit into 36 bytes"),
    "truncated: in the rows": ("the FRE sub-section ends at", "the FRE sub-section ends at"),
    "empty: 0 bytes, its relocations still there": ("", "outside of it"),
    "empty: 0 bytes, no relocations": ("", ""),
    "ABI mismatch": ("for AArch64 in an object for AMD64", "for AArch64 in an object for AMD64"),
    "data encoding mismatch: not FUNC_START_PCREL": ("-0x1c is not inside of .text", "-0x1c is not inside of .text"),
    "another fixed RA offset": ("", ""),
    "an FDE without relocation: one entry less": ("function 1 has no relocation", "function 1 has no relocation"),
    "an FDE without relocation: R_NONE": ("", "ld: -r failed: "),
    "unknown version: 4": ("SFrame version 4 is not read", "SFrame version 4 is not read"),
    "older version: 2": ("", ""),
    "wrong section type: PROGBITS": ("", ""),
    "more FDEs than there are": ("1000 functions do not fit", "1000 functions do not fit"),
}

LINKER_SAYS = {  # what merge takes for code that was dropped, or does not look at, and GNU ld does not take
    "an FDE without relocation: R_NONE",
    "empty: 0 bytes, its relocations still there",
}


@pytest.fixture(scope="module")
def sound(peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good.o, bad.o, older.o, and linked.so of the first two with its map."""
    tools = Toolchain(peers, "x86-64", "", tmp_path_factory.mktemp("damage") / "x86-64")
    folder = damage.compile_objects(tools)
    tools.gnu("ld", "-shared", "--discard-sframe", "-Map=map", "-o", "linked.so", "good.o", "bad.o", cwd=folder.name)
    return folder


@pytest.mark.parametrize("name", SAID)
def test_damaged_objects(name: str, sound: Path, peers: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in ("good.o", "linked.so", "map"):
        shutil.copy(sound / file, tmp_path / file)
    (tmp_path / "bad.o").write_bytes(damage.damaged(sound / damage.ORIGINALS.get(name, "bad.o"), name))
    monkeypatch.chdir(tmp_path)
    by_map = partial(merge, ["good.o", "bad.o"], "out.so", executable="linked.so", map_file="map", verify=False)
    relocatable = partial(merge, ["good.o", "bad.o"], "out.o", linker=peers.tool("ld"), verify=False)
    for said, work in zip(SAID[name], (by_map, relocatable), strict=True):
        if said:
            with pytest.raises(FormatError, match=said) as error:
                work()
            assert str(error.value).startswith("bad.o: ") or name in LINKER_SAYS
        else:
            work()
    assert {file.name for file in tmp_path.glob("out.*")} == {
        out for out, said in zip(("out.so", "out.o"), SAID[name], strict=True) if not said
    }
