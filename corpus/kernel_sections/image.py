"""Debian's vmlinux: the object for its next link, what it costs, and its rules at the image's addresses."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from elftools.elf.elffile import ELFFile

from corpus.kernel_sections.judge import judged
from corpus.kernel_sections.loaded import EXECUTE, MACHINES, Loaded, Piece

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from random import Random

    from tests.support.peers import Peers

SECTION, SECTION_AT = ".image_sframe", 0xFFFF800083000000  # after all of a kernel's own
ROUNDS = 3
# Code that runs at other addresses, or by the hypervisor: as arch/arm64/kernel/vmlinux.lds.S has it.
PARTS = ("idmap", "hibernate_exit", "entry_tramp", "hyp", "hyp_idmap")
ELSEWHERE = [*((f"__{part}_text_start", f"__{part}_text_end") for part in PARTS)]


class Cost(NamedTuple):
    seconds: float  # of CPU time, the least of ROUNDS
    megabytes: int  # of memory, the most


def cost(command: Sequence[str | Path]) -> Cost:
    """Raises CalledProcessError."""
    seconds, most = [], 0
    for _ in range(ROUNDS):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, list(map(str, command)))
        seconds.append(used.ru_utime + used.ru_stime)
        most = max(most, used.ru_maxrss >> 10)
    return Cost(round(min(seconds), 2), most)


def image_in_memory(path: Path, made: Path | None = None, name: str = SECTION) -> Loaded:
    """Return the kernel's code as its unwinder looks it up, with the section of the object `made`, else with its own `name`.

    Only that object is relocated: against the image's symbols.
    """
    with path.open("rb") as stream:
        elf: Any = ELFFile(stream)
        table = elf.get_section_by_name(".symtab").iter_symbols()
        symbols = {one.name: one["st_value"] for one in table if one["st_shndx"] != "SHN_UNDEF"}
        own = elf.get_section_by_name(name)
        section = _placed(made, symbols) if made else (own["sh_addr"], own.data())
        code = [(one["sh_addr"], one.data()) for one in elf.iter_sections() if one["sh_flags"] & EXECUTE]
        frames = elf.get_section_by_name(".debug_frame").data()
        machine, order = MACHINES[elf["e_machine"]], "<" if elf.little_endian else ">"
    ends = [(symbols["_stext"], symbols["_etext"])]
    out = [(symbols[start], symbols[end]) for start, end in ELSEWHERE if start in symbols]
    cuts = sorted({at for pair in [*ends, *out] for at in pair})
    pieces = []
    for start, data in code:
        inside = [start, *(cut for cut in cuts if start < cut < start + len(data)), start + len(data)]
        for low, high in pairwise(inside):
            is_text = ends[0][0] <= low < ends[0][1] and not any(first <= low < last for first, last in out)
            pieces.append(Piece(low, data[low - start : high - start], is_text))
    return Loaded(machine, order, sorted(pieces), section, frames)


def _placed(made: Path, symbols: dict[str, int]) -> tuple[int, bytes]:
    with made.open("rb") as stream:
        elf: Any = ELFFile(stream)
        data = bytearray(elf.get_section_by_name(SECTION).data())
        names = elf.get_section_by_name(".symtab")
        for one in elf.get_section_by_name(f".rela{SECTION}").iter_relocations():
            address = symbols[names.get_symbol(one["r_info_sym"]).name] + one["r_addend"]
            mark = "<" if elf.little_endian else ">"
            struct.pack_into(f"{mark}q", data, one["r_offset"], address - SECTION_AT - one["r_offset"])
    return SECTION_AT, bytes(data)


def results(root: Path, pcs: int, random: Random, scratch: Path, peers: Peers) -> list[dict[str, object]]:
    """`root`: a folder with Debian's unpacked packages; only arm64's vmlinux is judged."""
    [vmlinux] = root.glob("usr/lib/debug/lib/modules/*/vmlinux")
    made = scratch / "section.o"
    # -P: what is installed, which is compiled
    command: list[str | Path] = [sys.executable, "-P", "-m", "sframegen", "add-section", "--object", made]
    [said] = json.loads(subprocess.check_output([*command, "--json", vmlinux]))
    ours, theirs = cost([*command, vmlinux]), cost([peers.tool("readelf"), "-wF", vmlinux])
    loaded = image_in_memory(vmlinux, made)
    found = judged(loaded, scratch / "image", pcs, random, peers)
    faults = list(found.differences)
    if sum(said["ignored_fdes"].values()) != found.not_looked_up:
        faults.append(f"FDEs left out: {said['ignored_fdes']}, expected {found.not_looked_up}")
    if ours.seconds > theirs.seconds:
        faults.append(f"{ours.seconds} s, readelf -wF {theirs.seconds} s")
    return [
        {
            "kernel": vmlinux.parent.name,
            "file_bytes": vmlinux.stat().st_size,
            "debug_frame_bytes": len(loaded.debug_frame),
            "section_bytes": len(loaded.section[1]),
            "object_bytes": made.stat().st_size,
            **{key: said[key] for key in ("covered_bytes", "rows", "ignored_fdes", "fates")},
            **found._asdict(),
            "cost": {"add-section --object": ours, "readelf -wF": theirs},
            "faults": faults,
        }
    ]
