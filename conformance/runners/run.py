"""Tries a reader of SFrame on the cases beside this file; prints TAP. Python 3.10 or newer, and nothing else.

    python3 run.py                        the reference reader
    python3 run.py --reader my_reader     my_reader.py: see README.md
    python3 run.py v3-amd64-usual ...     these cases only
    python3 run.py --list

Exit status 1: a case is not ok; 2: no such case or reader.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HERE = Path(__file__).resolve().parent
MARKS = ("ra_signed", "signal", "key_b")
Answer = dict[str, Any]


class Section(Protocol):
    def find(self, pc: int, /) -> Answer:
        """The answer at an address. ValueError: none; NotImplementedError: the reader does not do that."""


class Reader(Protocol):
    """A module, or anything else, with these. `REPORTS`: those of MARKS that its answers have."""

    @property
    def NAME(self) -> str: ...  # noqa: N802 - constants of modules
    @property
    def VERSIONS(self) -> tuple[int, ...]: ...  # noqa: N802
    @property
    def ABIS(self) -> tuple[int, ...]: ...  # noqa: N802
    @property
    def REPORTS(self) -> tuple[str, ...]: ...  # noqa: N802

    def open_section(self, data: bytes, address: int, /) -> Section:
        """Raise ValueError to refuse it."""


def shown(answer: Answer) -> str:
    if answer["kind"] != "rule":
        return str(answer["kind"])
    places = ", ".join(f"{name} = {place_shown(answer[name])}" for name in ("cfa", "ra", "fp"))
    return places + "".join(f", {mark}" for mark in MARKS if answer.get(mark))


def place_shown(place: Answer | None) -> str:
    if place is None:
        return "kept"
    base = "cfa" if place["register"] is None else f"r{place['register']}"
    text = f"{base}{place['offset']:+}"
    return f"*({text})" if place["deref"] else text


def judged(answer: Answer, reports: Iterable[str]) -> Answer:
    """What of an answer is compared: the marks that the reader does not report are not."""
    if answer["kind"] != "rule":
        return {"kind": answer["kind"]}
    return {name: answer[name] for name in ("kind", "cfa", "ra", "fp")} | {mark: bool(answer.get(mark)) for mark in reports}


def faults(case: Answer, reader: Reader) -> Iterator[str]:
    """What is wrong, a line each. Raises NotImplementedError where the reader does not do what the case is about."""
    try:
        opened = reader.open_section(bytes.fromhex(case["section"]), case["address"])
    except ValueError as error:
        if case["version"] in reader.VERSIONS and not case["refusable"]:
            yield f"refuses the section: {error}"
        return
    if case["version"] not in reader.VERSIONS:
        yield f"reads Version {case['version']}, which it does not know"
        return
    for probe in case["probes"]:
        try:
            given = opened.find(probe["pc"])
        except ValueError as error:
            given = {"kind": "none", "error": str(error)}
        allowed = [judged(answer, reader.REPORTS) for answer in probe["answers"]]
        if allowed and judged(given, reader.REPORTS) not in allowed:
            expected = ", or ".join(map(shown, probe["answers"]))
            yield f"{probe['pc']:#x}: {shown(given)} {given.get('error', '')}".rstrip() + f"; expected {expected}"


def line(number: int, case: Answer, reader: Reader) -> tuple[bool, str]:
    """True if the case is ok, and its lines."""
    if case["abi_number"] not in reader.ABIS:
        return True, f"ok {number} - {case['name']} # SKIP {case['abi']}"
    try:
        wrong = list(faults(case, reader))
    except NotImplementedError as error:
        return True, f"ok {number} - {case['name']} # SKIP {error}"
    except Exception as error:  # noqa: BLE001 - a reader that dies of a section is what this looks for
        last = traceback.extract_tb(error.__traceback__)[-1]
        wrong = [f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno}); only a ValueError refuses"]
    if not wrong:
        skip = "" if case["version"] in reader.VERSIONS else f" # SKIP Version {case['version']} is refused"
        return True, f"ok {number} - {case['name']}{skip}"
    return False, "\n".join(
        [f"not ok {number} - {case['name']}", f"# {case['verdict']}: {case['why']}", *(f"# {one}" for one in wrong)]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE")
    parser.add_argument("--reader", default="reference_reader", help="a module beside this file or in the current folder")
    parser.add_argument("--cases", type=Path, default=HERE / "cases", help="folder of the cases' JSON files")
    parser.add_argument("--list", action="store_true", help="print names, verdicts and what the cases are about")
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(Path.cwd()), str(HERE)]
    files = [options.cases / f"{name}.json" for name in options.names] or sorted(options.cases.glob("*.json"))
    for file in files:
        if not file.exists():
            parser.error(f"no such case: {file.stem}; --list prints their names")
    cases = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    if options.list:
        for case in cases:
            print(f"{case['name']:44} {case['verdict']:8} {case['why']}")
        return 0
    try:
        reader: Any = importlib.import_module(options.reader)
    except ModuleNotFoundError as error:
        if error.name not in (options.reader, options.reader.removesuffix(".py")):
            raise
        parser.error(f"no module {options.reader} beside run.py or in the current folder; give its name without .py")
    print("TAP version 13", f"1..{len(cases)}", sep="\n")
    failed = skipped = 0
    for number, case in enumerate(cases, 1):
        is_ok, text = line(number, case, reader)
        failed += not is_ok
        skipped += is_ok and "# SKIP" in text
        print(text)
    print(f"# {len(cases) - failed - skipped} ok, {failed} not ok, {skipped} skipped: {reader.NAME}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
