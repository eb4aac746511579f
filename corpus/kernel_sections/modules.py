"""Random modules of Debian's kernels, with sections from their debug files, relocated as a kernel does it."""

from __future__ import annotations

import lzma
import shutil
import subprocess
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from corpus.kernel_sections.judge import Judged, judged
from corpus.kernel_sections.loaded import load_module, without_signature
from sframegen import add_section, check
from sframegen.base.errors import SframegenError
from tests.support.oracles.rules import OracleError

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from tests.support.peers import Peers

PACKED = ".ko.xz"
VERSION = "1.0"  # of the folder that depmod reads


class Module(NamedTuple):
    """`growth`: of the file, with relocations and the record that removes them; `fault`: why it is not as it should be."""

    name: str
    size: int
    section: int
    growth: int
    judged: Judged | None
    fault: str


def tried(packed: Path, debug: Path, folders: tuple[Path, Path], pcs: int, random: Random, peers: Peers) -> Module:
    """`folders`: for the module as it was, and with its section."""
    name = packed.name.removesuffix(".xz")
    before, after = (folder / name for folder in folders)
    before.write_bytes(without_signature(lzma.decompress(packed.read_bytes())))
    try:
        summary = add_section(before, output=after, debug_file=debug)
        if not summary.section_bytes:
            shutil.copy(before, after)
            return Module(name, before.stat().st_size, 0, 0, None, "" if not summary.ignored_fdes else str(summary.note))
        found = judged(load_module(after, debug), after.with_name("loaded"), pcs, random, peers)
    except (SframegenError, OracleError, AssertionError, KeyError, ValueError) as error:
        return Module(name, before.stat().st_size, 0, 0, None, f"{type(error).__name__}: {error}")
    faults = [*found.differences]
    faults += [f"check: {one.message}" for one in check(after, debug_file=debug).findings if one.severity]
    if modinfo(before) != modinfo(after):
        faults.append("modinfo prints something else")
    size = before.stat().st_size
    return Module(name, size, summary.section_bytes, after.stat().st_size - size, found, "; ".join(faults))


def modinfo(path: Path) -> list[str]:
    lines = subprocess.check_output(["modinfo", path], text=True).splitlines()
    return [line for line in lines if not line.startswith("filename:")]


def depmod(root: Path) -> str:
    """Return all that depmod writes about the modules below `root`."""
    made = subprocess.run(["depmod", "-n", "-b", root, VERSION], capture_output=True, text=True, check=True)
    return made.stdout


def results(root: Path, count: int, pcs: int, random: Random, scratch: Path, peers: Peers) -> dict[str, object]:
    """`root`: a folder with unpacked packages. Modules without lasting code that has CFI get no section: `without`."""
    every = sorted(root.glob(f"usr/lib/modules/*/kernel/**/*{PACKED}"))
    chosen = random.sample(every, min(count, len(every)))
    roots = [scratch / "before", scratch / "after"]
    places = [one / "lib/modules" / VERSION for one in roots]
    for place in places:
        place.mkdir(parents=True)
    found = []
    for packed in chosen:
        inside = packed.relative_to(root / "usr/lib").with_suffix("")
        debug = root / "usr/lib/debug/lib" / inside
        found.append(tried(packed, debug, (places[0], places[1]), -(-pcs // len(chosen)), random, peers))
    (places[1] / "loaded").unlink(missing_ok=True)
    listings = [depmod(one) for one in roots]
    made = [one for one in found if one.judged]
    parts = [one.judged for one in made if one.judged]
    shares = sorted(one.section / one.size for one in made)
    return {
        "modules": len(found),
        "of": len(every),
        "without": len([one for one in found if not one.judged and not one.fault]),
        "functions": sum(one.functions for one in parts),
        "fdes": sum(one.fdes for one in parts),
        "not_looked_up": sum(one.not_looked_up for one in parts),
        "code_bytes": sum((one.bytes for one in parts), Counter()),
        "unsaid": sum((one.unsaid for one in parts), Counter()),
        "looked_up": sum((one.looked_up for one in parts), Counter()),
        "module_bytes": sum(one.size for one in made),
        "section_bytes": sum(one.section for one in made),
        "growth_bytes": sum(one.growth for one in made),
        "share": {"least": shares[0], "median": shares[len(shares) // 2], "most": shares[-1]} if shares else {},
        "depmod": "the same" if listings[0] == listings[1] else "DIFFERS",
        "faults": {one.name: one.fault for one in found if one.fault},
    }
