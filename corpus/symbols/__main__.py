"""Looks up addresses of programs with debug information, and compares with llvm-symbolizer: corpus/README.md.

Needs the tools of tools/get-peers, and for each program what corpus/symbols/subjects.py names; programs that are missing are left
out and reported. Exit status 1: something differs, and no rule explains it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from cfi.errors import FormatError
from corpus.report_pages import write_or_print
from corpus.symbols.judge import Judge, Level, Levels, Outcome, levels_by_llvm
from corpus.symbols.report import Row, Times, markdown
from corpus.symbols.subjects import SUBJECTS, Subject, addresses_in
from sframegen.elf.file import ElfFile, open_elf
from sframegen.profile.symbols.place import Question
from sframegen.profile.symbols.places import find_places
from sframegen.stack.names.file_names import FileNames

ADDRESSES = 20_000
SHOWN = 20  # differences


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m corpus.symbols", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--addresses", type=int, default=ADDRESSES, help="of each program (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which addresses (default %(default)s)")
    parser.add_argument("--only", choices=[one.name for one in SUBJECTS], action="append", help="may be given again")
    parser.add_argument("--report", type=Path, help="write the report to this file, not to standard output")
    options = parser.parse_args()

    rows: list[Row] = []
    left_out: list[str] = []
    with tempfile.TemporaryDirectory(prefix="corpus-symbols-") as scratch:
        for subject in SUBJECTS:
            if options.only and subject.name not in options.only:
                continue
            try:
                rows.append(study(subject, Path(scratch), options.addresses, options.seed))
            except (OSError, FormatError, subprocess.CalledProcessError) as error:
                left_out.append(f"{subject.name}: {error}")
                print(left_out[-1], file=sys.stderr)
    write_or_print(
        options.report, markdown(rows, left_out, f"python -m corpus.symbols --addresses {options.addresses} --seed {options.seed}")
    )
    return int(not rows or any(row.outcomes[Outcome.DIFFERENT] for row in rows))


def study(subject: Subject, folder: Path, count: int, seed: int) -> Row:
    """Raises OSError, FormatError and CalledProcessError where the program, or a tool, is not there."""
    program, path = subject.find(folder)
    debug = open_elf(path)
    addresses = addresses_in(program, count, seed)
    kept = folder / f"{subject.name}-index"
    began = time.monotonic()
    first = _asked(debug, addresses[:1], kept)
    made = time.monotonic() - began
    began = time.monotonic()
    found = _asked(debug, addresses, kept)
    ours_took = time.monotonic() - began
    began = time.monotonic()
    judged = levels_by_llvm(path, addresses)
    llvm_took = time.monotonic() - began
    if first[0] != found[0]:
        raise FormatError("the answer is another one the second time", file=str(path))
    names = FileNames(debug, demangled=False)
    judge = Judge(debug, path)
    outcomes: Counter[Outcome] = Counter()
    for address, ours, theirs in zip(addresses, found, judged, strict=True):
        outcome = judge.outcome(address, _named(names, address, ours), theirs)
        outcomes[outcome] += 1
        if outcome is Outcome.DIFFERENT and outcomes[outcome] <= SHOWN:
            print(f"{subject.name} {address:#x}:\n  {ours}\n  {theirs}", file=sys.stderr)
    times = Times(made, len(addresses) / ours_took, len(addresses) / llvm_took)
    inlined = sum(max(0, len(levels) - 1) for levels in found)
    return Row(subject, len(addresses), inlined, outcomes, len(debug.data), times)


def _asked(debug: ElfFile, addresses: list[int], kept: Path) -> list[Levels]:
    [(_, found)] = find_places([Question(debug, addresses)], directory=kept, demangled=False)
    if isinstance(found, str):
        raise FormatError(found)
    return [tuple(Level(place.function, place.source, place.line) for place in found[address]) for address in addresses]


def _named(names: FileNames, address: int, levels: Levels) -> Levels:
    """Return them as reports have them: the outermost function's name is from the symbol table."""
    name = names.at(address).name
    return (levels[0]._replace(function=name), *levels[1:]) if levels and name else levels


if __name__ == "__main__":
    sys.exit(main())
