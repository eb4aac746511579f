"""Tries a linker on the links beside this file; prints TAP. What it links is read with the reference reader.

    python3 run_links.py --linker ld.mold
    python3 run_links.py --linker aarch64-linux-gnu-ld --abi aarch64

Exit status 1: a link is not ok.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))

import reference_reader  # noqa: E402
from run import judged, shown  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

SHT_SYMTAB = 2
PT_GNU_SFRAME = 0x6474E554
SORTED = 1
SECONDS = 60


class Linked(NamedTuple):
    """`section`, `address`: of PT_GNU_SFRAME, or of the section if there is no such segment. `symbols`: and sections, by name."""

    section: bytes
    address: int
    has_segment: bool
    symbols: dict[str, int]


def text(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()


def read_linked(data: bytes) -> Linked:
    mark = "<" if data[5] == 1 else ">"
    phoff, shoff = struct.unpack_from(mark + "QQ", data, 32)
    _, phnum, _, shnum, names_at = struct.unpack_from(mark + "HHHHH", data, 54)
    headers = [struct.unpack_from(mark + "IIQQQQIIQQ", data, shoff + 64 * number) for number in range(shnum)]
    contents = [data[at : at + size] for *_, at, size, _, _, _, _ in headers]
    names = [text(contents[names_at], header[0]) for header in headers]
    symbols = {name: header[3] for name, header in zip(names, headers, strict=True)}
    for header, content in zip(headers, contents, strict=True):
        if header[1] == SHT_SYMTAB:
            for at in range(0, len(content), 24):
                name, _, _, section, value, _ = struct.unpack_from(mark + "IBBHQQ", content, at)
                if section:
                    symbols[text(contents[header[6]], name)] = value
    for number in range(phnum):
        kind, _, offset, address, _, size, _, _ = struct.unpack_from(mark + "IIQQQQQQ", data, phoff + 56 * number)
        if kind == PT_GNU_SFRAME:
            return Linked(data[offset : offset + size], address, True, symbols)
    if ".sframe" in names:
        number = names.index(".sframe")
        return Linked(contents[number], headers[number][3], False, symbols)
    return Linked(b"", 0, False, symbols)


def run_steps(link: dict[str, Any], linker: str, folder: Path) -> str:
    """What the linker says when it fails, or nothing."""
    for step in link["steps"]:
        try:
            done = subprocess.run(
                [linker, *step], cwd=folder, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "crash: it does not end"
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[:300]
            kind = "crash: " if done.returncode < 0 or "internal error" in said or "assertion" in said.lower() else ""
            return f"{kind}exit status {done.returncode}: {said}"
    return ""


def faults(link: dict[str, Any], linked: Linked) -> Iterator[str]:
    """What is wrong with a linked file, a line each."""
    if not linked.section:
        if not link["refusable"]:
            yield "no SFrame section"
        return
    if not linked.has_segment:
        yield "no PT_GNU_SFRAME leads to the section"
    try:
        reader = reference_reader.open_section(linked.section, linked.address)
    except ValueError as error:
        yield f"the section is damaged: {error}"
        return
    if not reader.flags & SORTED:
        yield "the section is not sorted"
    end = max(reader.rows_end, reader.index + len(reader.functions) * reader.entry_size)
    if linked.section[end:].strip(b"\0"):
        yield "another section follows the first, which no reader finds"
    for place in link["places"]:
        pc = linked.symbols[place["symbol"]] + place["offset"]
        try:
            given = reader.find(pc)
        except ValueError as error:
            yield f"{place['symbol']}+{place['offset']:#x}: damaged: {error}"
            continue
        marks = reference_reader.REPORTS
        if judged(given, marks) not in [judged(answer, marks) for answer in place["answers"]]:
            expected = ", or ".join(map(shown, place["answers"]))
            yield f"{place['symbol']}+{place['offset']:#x}: {shown(given)}; expected {expected}"


def wrong_with(folder: Path, link: dict[str, Any], linker: str) -> list[str]:
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary, "link")
        shutil.copytree(folder, work)
        failure = run_steps(link, linker, work)
        if failure:
            return [] if link["refusable"] and not failure.startswith("crash") else [failure]
        return list(faults(link, read_linked((work / "OUT").read_bytes())))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="LINK")
    parser.add_argument("--linker", default="ld")
    parser.add_argument("--abi", default="amd64")
    parser.add_argument("--links", type=Path, default=HERE / "links", help="folder of the links")
    options = parser.parse_args(arguments)
    folders = [options.links / name for name in options.names] or sorted(options.links.iterdir())
    links = [(folder, json.loads((folder / "link.json").read_text(encoding="utf-8"))) for folder in folders]
    print("TAP version 13", f"1..{len(links)}", sep="\n")
    failed = skipped = 0
    for number, (folder, link) in enumerate(links, 1):
        if link["abi"] != options.abi:
            print(f"ok {number} - {link['name']} # SKIP {link['abi']}")
            skipped += 1
            continue
        wrong = wrong_with(folder, link, options.linker)
        failed += bool(wrong)
        print(f"{'not ok' if wrong else 'ok'} {number} - {link['name']}")
        if wrong:
            print(f"# {link['why']}", *(f"# {one}" for one in wrong), sep="\n")
    print(f"# {len(links) - failed - skipped} ok, {failed} not ok, {skipped} skipped: {options.linker}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
