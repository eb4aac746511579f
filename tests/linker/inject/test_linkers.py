"""Files as each linker lays them out: those with a section added run as before, and what cannot be done is refused in one line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from linker.existing.original import restore_original
from sframegen.base.errors import RefusedError
from sframegen.elf.file import open_elf
from sframegen.elf.notes import read_build_id
from sframegen.elf.records import PT, SHT
from tests.linker.inject.test_run import assert_only_the_new_types_are_remarked, run
from tests.support.inputs.linker_inputs import FLAGS, LARGE_BSS, SOURCE, inject
from tests.support.inputs.linker_inputs import both_findings as verify
from tests.support.loops import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.peers import Compiler, Peers

LINKERS = ("bfd", "newest bfd", "gold", "lld", "mold")
PEERS = {"newest bfd": "ld.bfd", "lld": "ld.lld"}
SHAPES = {
    "pie": ("-fPIE", "-pie"),
    "no-pie": ("-fno-pie", "-no-pie"),
    "library": ("-fPIC", "-shared", "-DLIBRARY"),
    "static": ("-fno-pie", "-static"),
    "static-pie": ("-fPIE", "-static-pie"),
    "one segment for headers and code": ("-fPIE", "-pie", "-Wl,-z,noseparate-code"),
    "64 KiB pages": ("-fPIE", "-pie", "-Wl,-z,max-page-size=0x10000"),
    "2 MiB pages, fixed": ("-fno-pie", "-no-pie", "-Wl,-z,max-page-size=0x200000"),
    "2 MiB pages, library": ("-fPIC", "-shared", "-DLIBRARY", "-Wl,-z,max-page-size=0x200000"),
    "64 KiB pages, static": ("-fno-pie", "-static", "-Wl,-z,max-page-size=0x10000"),
    "a segment for every section": ("-fPIE", "-pie", "-Wl,-z,separate-loadable-segments"),
    "one read-only segment": ("-fPIE", "-pie", "-Wl,--no-rosegment"),
    "no section headers": ("-fPIE", "-pie", "-Wl,-z,nosectionheader"),
    "no section headers, static": ("-fno-pie", "-static", "-Wl,-z,nosectionheader"),
    "a read-only segment of its own": ("-fPIE", "-pie", "-Wl,--rosegment"),
    "huge .bss": ("-fPIE", "-pie", "-DHUGE"),
}
ONLY = {  # linkers that have the option; all others have all the other shapes
    "static-pie": ("bfd", "newest bfd", "lld", "mold"),
    "one segment for headers and code": ("bfd", "newest bfd", "lld", "mold"),
    "a segment for every section": ("lld",),
    "one read-only segment": ("lld",),
    "a read-only segment of its own": ("gold", "newest bfd"),
    "no section headers": ("newest bfd",),
    "no section headers, static": ("newest bfd",),
}
CODE = r"no room for two more program headers: \.init cannot move"
BUILD_ID = "no room for two more program headers: the build-id note would leave the first page of the file"
REFUSED = {  # for kernels before 5.18
    ("gold", "a read-only segment of its own"): CODE,
    ("lld", "static-pie"): BUILD_ID,
    ("mold", "static-pie"): BUILD_ID,
}
HUGE = "#ifdef HUGE\n" + LARGE_BSS.replace("100 << 20", "1500 << 20") + "#endif\n"


@pytest.fixture
def linked(compile_c: Compiler, peers: Peers) -> Callable[[str, str], Path]:
    def link(linker: str, shape: str) -> Path:
        where = ("-B", str(Path(peers.tool(PEERS[linker])).parent)) if linker in PEERS else ()
        if not where and shutil.which(f"ld.{linker}") is None:
            pytest.skip(f"no ld.{linker} on this machine")
        return compile_c(
            HUGE + SOURCE, *FLAGS, *SHAPES[shape], f"-fuse-ld={linker.removeprefix('newest ')}", *where, name=name_of(shape)
        )

    return link


def assert_runs(file: Path, shape: str, compile_c: Compiler) -> None:
    run(file, "library" if "-shared" in SHAPES[shape] else "pie", compile_c)


@pytest.mark.parametrize("linker", LINKERS)
@for_each("shape", SHAPES)
def test_every_shape_of_every_linker(
    linker: str, shape: str, linked: Callable[[str, str], Path], compile_c: Compiler, peers: Peers, tmp_path: Path
) -> None:
    """In the usual shapes, readers find nothing new."""
    if linker not in ONLY.get(shape, LINKERS):
        return
    original, result = linked(linker, shape), tmp_path / "result"
    if (linker, shape) in REFUSED:
        with pytest.raises(RefusedError, match=REFUSED[linker, shape] + "$") as error:
            inject(original, result, min_kernel="5.17")
        assert "\n" not in str(error.value)
    plan = inject(original, result)
    assert plan.layout == ("tail" if (linker, shape) in REFUSED else "before" if "-fno-pie" in SHAPES[shape] else "front")
    assert_runs(result, shape, compile_c)
    before, after = open_elf(original), open_elf(result)
    assert verify(plan, before, result) == []
    assert read_build_id(after) == read_build_id(before) is not None
    way_back = restore_original(after)
    assert way_back is not None
    assert way_back.elf.data == before.data
    [segment] = [s for s in after.segments if s.p_type == PT.GNU_SFRAME]
    assert segment.p_vaddr == plan.section_address
    moved = {name for item in plan.moves for name in item.names}
    for section in before.sections:
        header = section.header
        if header.sh_addr and header.sh_size and header.sh_type != SHT.NOBITS and section.name not in moved | {".dynamic"}:
            assert after.at(header.sh_addr, header.sh_size) == before.contents(section), section.name
    if shape in ("pie", "library"):
        assert_only_the_new_types_are_remarked(original, result, peers)
        done = subprocess.run([peers.tool("readelf"), "-aW", result], capture_output=True, text=True, check=False)
        assert done.stderr == ""


def name_of(shape: str) -> str:
    return "file.so" if "-shared" in SHAPES[shape] else "file"
