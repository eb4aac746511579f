"""The programs: how each is made."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.tools.obtaining import of_suite
from tests.support.programs import SHAPES

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = Path(__file__).parent / "programs"
WARM = (str(PROGRAMS / "warm.s"), str(PROGRAMS / "frames.c"))
SUITE, LLVM = "sid", 23
PACKAGES = {
    f"bolt-{LLVM}": {"llvm-bolt": f"usr/lib/llvm-{LLVM}/bin/llvm-bolt"},
    f"lld-{LLVM}": {"ld.lld": f"usr/lib/llvm-{LLVM}/bin/lld"},
}
# With the profile, three fragments: hot, warm, cold.
OPTIMIZED = (
    f"--data={PROGRAMS / 'warm.fdata'}", "--reorder-blocks=ext-tsp", "--reorder-functions=user",
    f"--function-order={PROGRAMS / 'warm.order'}", "--split-functions",
)  # fmt: skip
TWICE = """
#include <vector>
template <class T> [[gnu::noinline]] void keep(std::vector<T> &to, T value) { if (value) to.push_back(value); else to.clear(); }
int main(int count, char **) {
    std::vector<long> one; std::vector<unsigned long> other;
    keep<long>(one, count); keep<unsigned long>(other, count);
    return one.size() != other.size();
}
"""  # two functions of the same code, which linkers fold
RECURSIVE = SHAPES + "\nint main(void) { return 0; }\n"


class Built(NamedTuple):
    """A program. `runs`: it counts the frames of its own stack; `wrong`: its CFI is known to be wrong."""

    how: str
    file: Path
    runs: bool = False
    wrong: bool = False


def builds(folder: Path) -> Iterator[Built]:
    """Make all in a folder. Raises CalledProcessError if a tool fails."""
    llvm = of_suite(SUITE, PACKAGES)
    version = llvm.versions["llvm-bolt"]
    (folder / "shapes.c").write_text(RECURSIVE)
    (folder / "twice.cc").write_text(TWICE)
    (folder / "ld.lld").symlink_to(_wrapper(folder, llvm.commands["ld.lld"]))

    def gcc(name: str, *words: str) -> Path:
        subprocess.run(["gcc", "-O2", "-o", folder / name, *words], check=True)
        return folder / name

    def bolt(name: str, program: Path, *words: str) -> Path:
        subprocess.run([*llvm.commands["llvm-bolt"], program, "-o", folder / name, *words], check=True, capture_output=True)
        return folder / name

    warm = gcc("warm", "-Wl,--emit-relocs", *WARM)
    yield Built("hand-written assembly, GNU ld", warm, runs=True)
    without_row = folder / "without-row.s"
    text = Path(WARM[0]).read_text()
    without_row.write_text(text.replace("        .cfi_adjust_cfa_offset 16\n", "", 1))
    yield Built("the same, a directive is missing", gcc("missing", str(without_row), WARM[1]), wrong=True)
    for strategy in ("profile2", "cdsplit"):
        for frames in ("none", "hot"):
            how = f"BOLT {version} `--split-strategy={strategy} --frame-opt={frames}`"
            file = bolt(f"{strategy}-{frames}", warm, *OPTIMIZED, f"--split-strategy={strategy}", f"--frame-opt={frames}")
            yield Built(how, file, runs=True, wrong=(strategy, frames) == ("cdsplit", "hot"))
    shapes = gcc("shapes", "-Wl,--emit-relocs", str(folder / "shapes.c"))
    for seed in range(4):
        words = ("--split-functions", "--split-strategy=randomN", f"--bolt-seed={seed}", "--lite=0")
        yield Built(f"BOLT {version}, random fragments, seed {seed}", bolt(f"random-{seed}", shapes, *words))
    partial = gcc("partial.o", "-r", "-nostdlib", *WARM)
    yield Built("`ld -r`, then GNU ld", gcc("partial", str(partial)), runs=True)
    if shutil.which("ld.gold"):
        yield Built("gold `--icf=all`", gcc("gold", *_folding(folder), "-fuse-ld=gold"))
    yield Built(f"lld {llvm.versions['ld.lld']} `--icf=all`", gcc("lld", *_folding(folder), "-B", str(folder), "-fuse-ld=lld"))


def _folding(folder: Path) -> tuple[str, ...]:
    return ("-ffunction-sections", "-Wl,--icf=all", "-x", "c++", str(folder / "twice.cc"), "-lstdc++")


def _wrapper(folder: Path, command: tuple[str, ...]) -> Path:
    """Return a program that runs a command: a compiler finds linkers by their names."""
    wrapper = folder / "run-lld"
    wrapper.write_text('#!/bin/sh\nexec {} "$@"\n'.format(" ".join(f"'{word}'" for word in command)))
    wrapper.chmod(0o755)
    return wrapper
