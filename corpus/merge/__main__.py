"""Compiles objects, links them in many ways, and compares what sframegen merge and linkers make of them: corpus/README.md.

Needs the tools of tools/get-peers, gcc and g++, for arm64 and s390x the cross compilers, for some parts mold, clang, rustc and the
libraries of corpus/samples.py: what is missing is left out, and said. Exit status 1: something differs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from corpus import measured
from corpus.merge import links
from corpus.merge.compare import described
from corpus.merge.damage import try_all
from corpus.merge.parts import Set, relocatable, stripped, with_gnu_ld, with_lto, with_mold_3, with_others, without_sframe
from corpus.merge.report import results
from corpus.merge.sources import Source, sources
from corpus.merge.toolchain import WITH_SFRAME, Toolchain
from corpus.samples import SAMPLES, sample_files
from tests.support.peers import Peers

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from corpus.merge.damage import Tried
    from corpus.merge.parts import Row

MACHINES = {"x86-64": "", "arm64": "aarch64-linux-gnu-", "s390x": "s390x-linux-gnu-"}
PARTS = ("gnu", "mold3", "lto", "samples", "lld", "mold", "relocatable", "without")
SHARE_OF_OTHERS = 3  # this many times fewer objects for other machines than for this one
RUST = """
use std::collections::BTreeMap;
#[no_mangle] pub extern "C" fn rust_one(x: i32) -> i32 {
    let mut found = BTreeMap::new();
    for i in 0..x { found.insert(format!("{i}"), i * 2); }
    std::panic::catch_unwind(|| if x == 12345 { panic!("no") }).is_err() as i32 + found.values().sum::<i32>()
}
"""


class Run:
    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.options, self.scratch, self.peers = options, scratch, Peers()
        self.left_out: list[str] = []

    def machine(self, name: str) -> Iterator[Row]:
        tools = Toolchain(self.peers, name, MACHINES[name], self.scratch / name)
        if not tools.has("g++"):
            self.left_out.append(f"{name}: no {MACHINES[name]}g++")
            return
        count = self.options.objects if not tools.prefix else self.options.objects // SHARE_OF_OTHERS
        made = sources(self.options.seed, count, name)
        objects = Set(tools, tools.compile_all(made, "o", WITH_SFRAME, self.options.jobs))
        names = None
        if {"gnu", "lld", "mold"} & self.parts:
            cases = links.gnu(name)
            yield from with_gnu_ld(objects, cases if "gnu" in self.parts else cases[:1])
            names = described(objects.reader, objects.path("gnu_pie"))
        if "mold3" in self.parts:
            yield from with_mold_3(objects, links.MOLD_3[name])
        if "relocatable" in self.parts:
            yield from relocatable(objects)
        if "without" in self.parts:
            bare = Set(tools, tools.compile_all(made[: len(made) // 2] + made[-1:], "w", (), self.options.jobs))
            yield from without_sframe(bare, "gcc", ("bfd",) if tools.prefix else ("bfd", "lld"), flags=UNRESOLVED)
        if not tools.prefix:
            yield from self.only_here(tools, objects, made, names or set())

    @property
    def parts(self) -> set[str]:
        return set(self.options.only or PARTS)

    def only_here(self, tools: Toolchain, objects: Set, made: list[Source], names: set[str]) -> Iterator[Row]:
        if "lto" in self.parts:
            flags = [one._replace(flags=() if one.language == "assembler" else ("-O2", "-flto")) for one in made]
            yield from with_lto(Set(tools, tools.compile_all(flags, "lto", WITH_SFRAME, self.options.jobs)), links.LTO)
        if "samples" in self.parts:
            yield from self.samples(tools)
        if "lld" in self.parts:
            yield from with_others(objects, "lld", links.LLD, names, stripped(objects, self.scratch / "bare"))
        if "mold" in self.parts:
            if shutil.which("mold"):
                yield from with_others(objects, "mold", links.MOLD, names)
            else:
                self.left_out.append("no mold")
        if "without" in self.parts:
            yield from self.other_compilers(tools, made)

    def samples(self, tools: Toolchain) -> Iterator[Row]:
        try:
            files = sample_files()
        except (OSError, StopIteration) as error:
            self.left_out.append(f"the samples, which tools/get-gcc and npm are needed for: {error}")
            return
        for name in SAMPLES:
            folder = files[name].parent / "objects"
            objects = Set(tools, [str(one) for one in sorted(folder.glob("*.o"))])
            renamed = [link._replace(flags=(*link.flags, f"-Wl,-soname={name}")) for link in links.AMD64 if "-shared" in link.flags]
            yield from with_gnu_ld(objects, renamed[:2], f"samples: {name}")

    def other_compilers(self, tools: Toolchain, made: list[Source]) -> Iterator[Row]:
        compiled = [one for one in made if one.language == "c"]
        clang = next((one for one in ("clang", *(f"clang-{n}" for n in range(30, 12, -1))) if shutil.which(one)), None)
        if clang:
            folder = tools.directory / "clang"
            folder.mkdir(exist_ok=True)
            for one in compiled:
                (folder / f"{one.name}.c").write_text(one.text)
                flags = [flag for flag in one.flags if flag != "-fno-reorder-functions"]
                tools.must(clang, "-w", "-fPIC", *flags, "-c", f"{one.name}.c", "-o", f"{one.name}.o", cwd="clang")
            objects = Set(tools, [f"clang/{one.name}.o" for one in compiled])
            yield from without_sframe(objects, clang, ("bfd", "lld"), flags=UNRESOLVED)
        else:
            self.left_out.append("no clang")
        if shutil.which("rustc"):
            (tools.directory / "rust.rs").write_text(RUST)
            (tools.directory / "call.c").write_text(
                "int rust_one(int);\nint main(int argc, char **argv) { return rust_one(argc) != 0; }\n"
            )
            tools.must("rustc", "-O", "--crate-type=staticlib", "-o", "librust.a", "rust.rs")
            tools.must("gcc", "-c", "-o", "call.o", "call.c")
            yield from without_sframe(Set(tools, ["call.o", "librust.a"]), "rustc's static library with its std", ("bfd",))
        else:
            self.left_out.append("no rustc")


UNRESOLVED = ("-pie", "-Wl,--unresolved-symbols=ignore-all")  # some of the objects are left out


def _versions(peers: Peers) -> str:
    """The versions of the linkers."""
    versions = dict(line.split() for line in (peers.directory / "versions").read_text().splitlines())
    lld = next((version for name, version in versions.items() if name.startswith("lld-")), "")
    found = [f"GNU binutils {versions['binutils']}", f"lld {lld}", f"mold {versions['mold']}"]
    if shutil.which("mold"):
        said = subprocess.run(["mold", "--version"], check=True, capture_output=True, text=True).stdout
        found.append(f"the machine's mold {said.split()[1]}")
    return ", ".join(found)


def main() -> int:
    parser = measured.argument_parser("corpus.merge", __doc__)
    parser.add_argument("--objects", type=int, default=320, help="for this machine; a third for others (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which sources are made (default %(default)s)")
    parser.add_argument("--machine", choices=MACHINES, action="append", help="only this one; may be given again")
    parser.add_argument("--only", choices=[*PARTS, "damage"], action="append", help="only this part; may be given again")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="compilers at a time (default %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this folder, and leave it to the next run")
    options = parser.parse_args()

    rows: list[Row] = []
    tried: list[Tried] = []
    with tempfile.TemporaryDirectory(prefix="corpus-merge-") as scratch:
        run = Run(options, options.keep or Path(scratch))
        for machine in options.machine or MACHINES:
            for row in run.machine(machine):
                rows.append(row)
                if sys.stderr.isatty() or options.json:
                    result = "; ".join(row.outcome.differences) or "equal"
                    print(f"{row.part}, {row.machine}, {row.case}: {result}"[:300], file=sys.stderr, flush=True)
        if "damage" in (options.only or ["damage"]):
            tried = try_all(Toolchain(run.peers, "x86-64", "", run.scratch / "damaged"))
    said = {"objects": options.objects, "seed": options.seed, "linkers": _versions(run.peers), "left_out": run.left_out}
    measured.write(options.json, said | results(rows, tried))
    return int(any(row.outcome.differences for row in rows))


if __name__ == "__main__":
    sys.exit(main())
