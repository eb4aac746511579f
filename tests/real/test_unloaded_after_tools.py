"""What other tools leave of a section that is not loaded; that is the table of docs/injection.md."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from corpus.tools.invocations import RPATH as NEW_RPATH
from sframegen import Severity, add_section, check
from sframegen.elf.file import open_elf
from sframegen.elf.records import PT, SHF
from sframegen.format.locate import find_unloaded_section
from tests import ROOT
from tests.real.post_link import WITH_RPATH
from tests.support.peers import Compiler, Peers
from tests.support.programs import PRINTED, PROGRAM
from tests.support.zstandard import compress_section

# As the table names them; FILE is changed to OUT. Debug files are at DEBUG.
TOOLS = (
    "strip -o OUT FILE",
    "strip -g -o OUT FILE",
    "objcopy FILE OUT",
    "objcopy --only-keep-debug FILE DEBUG",
    "objcopy --compress-debug-sections=zstd FILE OUT",
    "objcopy --decompress-debug-sections FILE OUT",
    "eu-strip -o OUT FILE",
    "eu-strip -g -o OUT FILE",
    "eu-strip -f DEBUG -o OUT FILE",
    "eu-elfcompress -t none -o OUT FILE",
    "eu-elfcompress -n .sframe -t none -o OUT FILE",
    "eu-elfcompress -n .sframe -t zstd -o OUT FILE",
    "llvm-strip -o OUT FILE",
    "llvm-strip -g -o OUT FILE",
    "llvm-objcopy FILE OUT",
    "llvm-objcopy --only-keep-debug FILE DEBUG",
    "llvm-objcopy --decompress-debug-sections FILE OUT",
    "llvm-objcopy --compress-sections=.sframe=zstd FILE OUT",
    "llvm-objcopy --compress-sections=.sframe=none FILE OUT",
    f"patchelf --set-rpath {NEW_RPATH} --output OUT FILE",
)
DROPPED, KEPT, TO_DEBUG, DAMAGED = "dropped", "kept", "moved to the debug file", "DAMAGED"
COMPRESSED, EXPANDED, COPIED = "compressed", "expanded", "copied to the debug file"


def documented() -> dict[str, list[str]]:
    """What is left of a plain section, and of a compressed one."""
    lines = (ROOT / "docs" / "injection.md").read_text().splitlines()
    start = lines.index("| afterwards | plain | compressed |")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start + 2 :]]
    table = rows[: next(number for number, row in enumerate(rows) if len(row) != 3)]
    return {tool.strip("`"): row[1:] for row in table for tool in row[0].split(", ")}


def title(tool: str) -> str:
    """As the table has it: without the files."""
    words = [word for word in tool.split() if word not in ("FILE", "OUT", "-o", "--output")]
    return " ".join("PATH" if word == NEW_RPATH else word for word in words).removesuffix(" DEBUG")


def state(file: Path, was_compressed: bool) -> str:
    """Of the section in a file that runs, or in a debug file."""
    section = find_unloaded_section(open_elf(file))
    if section is None:
        return DROPPED
    is_compressed = bool(section.header.sh_flags & SHF.COMPRESSED)
    if check(file).worst() is Severity.ERROR:
        return DAMAGED
    return KEPT if is_compressed == was_compressed else (COMPRESSED if is_compressed else EXPANDED)


def outcome(tool: str, file: Path, directory: Path, peers: Peers) -> str:
    """Run it on a program, which must run afterwards."""
    out, debug = directory / "out", directory / "debug"
    places = {"FILE": str(file), "OUT": str(out), "DEBUG": str(debug)}
    name, *arguments = tool.split()
    subprocess.run([peers.tool(name), *(places.get(word, word) for word in arguments)], check=True, capture_output=True)
    section = find_unloaded_section(open_elf(file))
    assert section is not None
    was_compressed = bool(section.header.sh_flags & SHF.COMPRESSED)
    kept_for_debug = debug.exists() and find_unloaded_section(open_elf(debug))
    if kept_for_debug:
        assert open_elf(debug).contents(kept_for_debug) == open_elf(file).contents(section)
    if not out.exists():
        return COPIED if kept_for_debug else DROPPED
    assert PT.GNU_SFRAME not in {segment.p_type for segment in open_elf(out).segments}
    assert subprocess.run([out], capture_output=True, text=True, check=True).stdout == PRINTED
    found = state(out, was_compressed)
    return TO_DEBUG if found == DROPPED and kept_for_debug else found


@pytest.mark.parametrize("tool", TOOLS, ids=title)
def test_what_the_tool_leaves(tool: str, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    found = []
    for is_compressed in (False, True):
        directory = tmp_path / str(is_compressed)
        directory.mkdir()
        file = Path(shutil.copy(compile_c(PROGRAM, *WITH_RPATH), directory / "program"))
        add_section(file, unloaded=True, verify=False)
        if is_compressed:
            compress_section(file)
        found.append(outcome(tool, file, directory, peers))
    assert documented()[title(tool)] == found


def test_the_document_names_every_tool() -> None:
    assert sorted(documented()) == sorted(map(title, TOOLS))
