"""usage: `python -m corpus.silent [--sections] [PATH...]`

What of the code on which call frame information is silent `--synthesize` covers, in all linked ELF files of PATHs: without any, of
/usr/bin, /usr/sbin, /usr/lib and /usr/libexec. By section for those that linkers make, `.text` and others together as `code`; each
file in which .init, .fini or a PLT is not covered to the last byte is named. Writes nothing.
--sections: only those are looked at, as if all other code were described; quick, and no more is found than without it.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cfi.errors import SframegenError
from sframegen.code.context.plt import NAMES
from sframegen.code.whole_file.synthesize import synthesize
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.sources import find_sources
from sframegen.elf.file import open_elf
from sframegen.elf.ranges import disjoint, without
from sframegen.elf.records import ET_DYN, ET_EXEC, SHF_EXECINSTR, SHT_NOBITS
from sframegen.format.abi import abi_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.conversion.convert import Converted
    from sframegen.elf.file import ElfFile

Range = tuple[int, int]
SHOWN = (".init", ".fini", *NAMES)


def overlap(ranges: list[Range], start: int, end: int) -> int:
    return sum(max(0, min(high, end) - max(low, start)) for low, high in ranges)


def files(paths: list[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            try:
                if file.is_file() and not file.is_symlink() and file.open("rb").read(4) == b"\x7fELF":
                    yield file
            except OSError:
                continue


def only_sections(elf: ElfFile, converted: Converted) -> Converted:
    """With all code of which nobody is to speak left out but that in the linkers' sections."""
    shown = (section.header for section in elf.sections if section.name in SHOWN and section.header.sh_flags & SHF_EXECINSTR)
    others = without(disjoint(elf.executable_ranges()), disjoint((one.sh_addr, one.sh_addr + one.sh_size) for one in shown))
    coverage = converted.coverage
    return converted._replace(coverage=replace(coverage, ignored_ranges=[*coverage.ignored_ranges, *others]))


def judge(elf: ElfFile, silent: Counter[str], found: Counter[str], *, sections: bool) -> list[str]:
    """Adds the bytes by section; returns those of the linkers' sections that are not covered."""
    before = convert_sources(find_sources(elf), elf.executable_ranges(), abi_of(elf))
    if sections:
        before = only_sections(elf, before)
    ranges = before.coverage.silent(elf)
    after = disjoint(one for ranges in synthesize(elf, before).coverage.synthesized for one in ranges)
    missing = []
    for section in elf.sections:
        header = section.header
        if header.sh_type != SHT_NOBITS and header.sh_flags & SHF_EXECINSTR:
            start, end = header.sh_addr, header.sh_addr + header.sh_size
            name = section.name if section.name in SHOWN else "code"
            here, covered = overlap(ranges, start, end), overlap(after, start, end)
            silent[name] += max(here, covered)
            found[name] += covered
            if here > covered and name in SHOWN:
                missing.append(f"{name}: {here - covered} of {here} bytes")
    entry = elf.header.e_entry
    if overlap(ranges, entry, entry + 1):
        silent["program entry"] += 1
        found["program entry"] += overlap(after, entry, entry + 1)
    return missing


def main() -> None:
    silent: Counter[str] = Counter()
    found: Counter[str] = Counter()
    count = 0
    paths = [argument for argument in sys.argv[1:] if argument != "--sections"]
    for file in files(paths or ["/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec"]):
        try:
            elf = open_elf(file)
            if elf.header.e_type not in (ET_EXEC, ET_DYN):
                continue
            missing = judge(elf, silent, found, sections="--sections" in sys.argv)
        except SframegenError:
            continue
        count += 1
        for what in missing:
            print(f"{file}: {what}", flush=True)
    print(f"{count:,} files")
    for name in sorted(filter(silent.get, silent), key=lambda name: -silent[name]):
        print(f"{found[name]:12,} of {silent[name]:12,}  {name}")


main()
