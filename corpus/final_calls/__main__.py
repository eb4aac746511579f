"""What sections say of the return addresses of calls that end a function: `python -m corpus.final_calls [--docs FILE] [FILE...]`.

Such a call never returns, and at its return address is padding or the next function. Consumers that look up this address, not the
byte before it, need the call's own rule there. A copy of each FILE gets a section at each level. All instructions of a function are
decoded to know whether the last one is a call. Without FILEs: those of the corpus that docs/consumers.md shows.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import capstone

from benchmarks.figures import written_into
from corpus.merge.report import table
from sframegen import add_section, read
from sframegen.elf.file import open_elf
from sframegen.elf.records import EM_AARCH64, EM_S390, EM_X86_64
from sframegen.tables.optimize import LEVELS
from tests.support.peers import corpus_file

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGIN = "<!-- make final-calls-show writes this: begin -->"
PROGRAMS = ("bash", "libc", "libcrypto", "libstdcxx")
CORPUS = (*PROGRAMS, *(f"{machine}-{name}" for machine in ("arm64", "s390x") for name in PROGRAMS))


class Studied(NamedTuple):
    name: str
    calls: int  #: that end a function
    counted: int  #: by add-section, which knows calls by their last bytes
    adjoining: int  #: of them, those at whose return address a function begins
    levels: dict[
        tuple[int, ...], list[str]
    ]  #: return addresses with the rule of the call, another one, none -> levels at which it is so


def x86_64_calls(code: bytes) -> bool:
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    end, last = 0, ""
    for address, size, mnemonic, _ in decoder.disasm_lite(code, 0):
        end, last = address + size, mnemonic
    return end == len(code) and last.rpartition(" ")[2] == "call"


def aarch64_calls(code: bytes) -> bool:
    decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    return any(mnemonic == "bl" or mnemonic.startswith("blr") for _, _, mnemonic, _ in decoder.disasm_lite(code[-4:], 0))


def s390x_calls(code: bytes) -> bool:
    """Decoded by hand: the first two bits of an instruction are its length."""
    at = last = 0
    while at < len(code):
        last, at = at, at + (2, 4, 4, 6)[code[at] >> 6]
    name = code[last : last + 2].hex()
    return at == len(code) and name.startswith(("c0e5", "a7e5", "0de"))


ENDS_WITH_CALL = {EM_X86_64: x86_64_calls, EM_AARCH64: aarch64_calls, EM_S390: s390x_calls}


def study(name: str, file: Path, scratch: Path) -> Studied:
    elf = open_elf(file)
    summary = add_section(file, dry_run=True, per_function=True)
    functions = summary.per_function or ()
    ends_with_call = ENDS_WITH_CALL[elf.header.e_machine]
    after = [one.start + one.size for one in functions if ends_with_call(bytes(elf.at(one.start, one.size)))]
    levels: dict[tuple[int, ...], list[str]] = {}
    for level in LEVELS:
        out = scratch / level
        add_section(file, output=out, optimize=level, verify=False)
        section = read(out)
        rules = ((section.rule_at(address), section.rule_at(address - 1)) for address in after)
        found = Counter("none" if rule is None else "same" if rule == call else "another" for rule, call in rules)
        levels.setdefault(tuple(found[what] for what in ("same", "another", "none")), []).append(level)
        out.unlink()
    adjoining = {function.start for function in functions}.intersection(after)
    return Studied(name, len(after), summary.final_calls, len(adjoining), levels)


def markdown(studies: list[Studied]) -> str:
    calls = ("calls that end a function", "counted by add-section", "before a function")
    head = ("file", *calls, "level", "the call's rule", "another function's", "none")
    return "\n".join(table(head, (row for one in studies for row in rows(one))))


def rows(one: Studied) -> Iterator[tuple[object, ...]]:
    for found, levels in one.levels.items():
        calls = (one.calls, one.counted, one.adjoining)
        yield one.name, *(f"{count:,}" for count in calls), ", ".join(levels), *(f"{count:,}" for count in found)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m corpus.final_calls", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the table into a document, between its markers")
    options = parser.parse_args()
    files = [(file.name, file) for file in options.files] or [(name, corpus_file(name)) for name in CORPUS]
    with tempfile.TemporaryDirectory() as scratch:
        text = markdown([study(name, file, Path(scratch)) for name, file in files])
    print(text)
    if options.docs:
        options.docs.write_text(written_into(options.docs.read_text(), text, BEGIN))


main()
