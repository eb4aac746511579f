"""What readelf and llvm-readelf print of a section, as a reader: run.py's interface, for one case each."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.linked.elf import linked_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conformance.case import Case

SECONDS = 20
MOST_OUTPUT = 1 << 26


class CrashError(Exception):
    """A signal, or it does not end."""


class Row(NamedTuple):
    start: int
    answer: dict[str, Any]


class Described(NamedTuple):
    """`period`: None if rows repeat and the dump does not say how often. Row starts count from the function's."""

    start: int
    size: int
    period: int | None
    rows: list[Row]


class Tool(NamedTuple):
    """`lines`: of a dump, as functions."""

    name: str
    command: tuple[str, ...]
    versions: tuple[int, ...]
    read: Callable[[str, Case], Iterator[Described]]
    abis: tuple[int, ...] = (1, 2, 3, 4)
    reports: tuple[str, ...] = ("ra_signed", "signal", "key_b")


class ToolReader:
    """One tool and one case."""

    def __init__(self, tool: Tool, case: Case, folder: Path) -> None:
        self.tool, self.case = tool, case
        self.NAME, self.VERSIONS, self.ABIS, self.REPORTS = tool.name, tool.versions, tool.abis, tool.reports
        self.file = folder / f"{case.name}.elf"

    def open_section(self, data: bytes, address: int) -> ToolReader:
        self.file.write_bytes(linked_file(self.case.machine, data, address, self.case.code))
        try:
            done = subprocess.run(
                [*self.tool.command, self.file], capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise CrashError("does not end") from None
        finally:
            self.file.unlink()
        if done.returncode < 0 or done.returncode >= 128:  # a shell's way to say a signal
            raise CrashError(f"signal {-done.returncode if done.returncode < 0 else done.returncode - 128}")
        said = f"{done.stdout[:2000]}\n{done.stderr[:2000]}"
        refusal = re.search(r"(?:Error|error|warning|Warning): .*(?:SFrame|sframe|version|unexpected|magic|ABI).*", said)
        if refusal or done.returncode:
            raise ValueError(refusal[0] if refusal else f"exit status {done.returncode}")
        self.functions = list(self.tool.read(done.stdout[:MOST_OUTPUT], self.case))
        return self

    def find(self, pc: int) -> dict[str, Any]:
        for one in self.functions:
            if one.start <= pc < one.start + one.size:
                if one.period is None:
                    raise NotImplementedError("the dump does not say the size of a repeated block")
                offset = (pc - one.start) % one.period if one.period else pc - one.start
                rows = [row for row in one.rows if row.start <= offset]
                return rows[-1].answer if rows else {"kind": "none"}
        return {"kind": "none"}


FUNCTION = re.compile(r"func idx \[\d+\]: pc = 0x([0-9a-f]+), size = (-?\d+) bytes(.*)")
# A wide CFA leaves no space before the next column.
GNU_ROW = re.compile(r"([0-9a-f]{16})  (?:(RA undefined)|(\(?\w+\+?[+-]?\d+\)?) *(\S+) +(\S+))")
GNU_PLACE = re.compile(r"(\()?(sp|fp|c|r\d+)(?:\+?([+-]?\d+))?\)?(\[s\])?")


def gnu(text: str, case: Case) -> Iterator[Described]:
    started = masked = False
    start, size, attributes = 0, 0, ""
    rows: list[Row] = []
    for line in [*text.splitlines(), "func idx [0]: pc = 0x0, size = 0 bytes"]:
        function = FUNCTION.search(line)
        if function:
            if started:
                yield Described(start, size, None if masked else 0, rows)
            start, size, attributes, rows, masked = int(function[1], 16), int(function[2]), function[3], [], False
            started = True
        masked = masked or "STARTPC[m]" in line
        row = GNU_ROW.search(line)
        if row:
            offset = int(row[1], 16) - (0 if masked else start)
            rows.append(Row(offset % (1 << 64), gnu_answer(row, attributes, case)))


def gnu_answer(row: re.Match[str], attributes: str, case: Case) -> dict[str, Any]:
    """A register without a rule of its own is where the ABI fixes it: f, u and U are printed for it."""
    if row[2]:
        return {"kind": "outermost"}
    machine = case.machine
    fixed = {"register": None, "offset": machine.fixed_ra, "deref": True} if machine.fixed_ra else None
    cfa, fp, ra = row.groups()[2:]
    return {
        "kind": "rule",
        "cfa": gnu_place(cfa, case),
        "ra": gnu_place(ra, case) or fixed,
        "fp": gnu_place(fp, case),
        "ra_signed": ra.endswith("[s]"),
        "signal": "S" in "".join(re.findall(r'attr = "(\w+)"', attributes)),
        "key_b": "pauth = B" in attributes,
    }


def gnu_place(text: str, case: Case) -> dict[str, Any] | None:
    match = GNU_PLACE.fullmatch(text)
    if not match:
        return None
    registers = {"sp": case.machine.sp, "fp": case.machine.fp, "c": None}
    base = match[2]
    register = registers[base] if base in registers else int(base[1:])
    return {"register": register, "offset": int(match[3] or 0), "deref": bool(match[1]) or register is None}


LLVM_FIELD = re.compile(r"^\s*(PC|Size|FDE Type|Repetitive block size|PAuth Key|Start Address|Return Address Signed|Base Register|"
                        r"CFA Offset|RA Offset|FP Offset)(?: \(unused\))?: (\S+)")  # fmt: skip


def llvm(text: str, case: Case) -> Iterator[Described]:
    """Functions begin with their PC, rows with their start."""
    function: dict[str, str] = {}
    rows: list[dict[str, str]] = []
    for line in [*text.splitlines(), "PC: end"]:
        match = LLVM_FIELD.match(line)
        if not match:
            continue
        if match[1] == "PC":
            if function:
                yield llvm_function(function, rows, case)
            function, rows = {}, []
        elif match[1] == "Start Address":
            rows.append({})
        (rows[-1] if rows else function)[match[1]] = match[2]


def llvm_function(function: dict[str, str], rows: list[dict[str, str]], case: Case) -> Described:
    start = int(function["PC"], 16)
    masked = function["FDE Type"] == "PCMask"
    answers = [
        Row((int(row["Start Address"], 16) - (0 if masked else start)) % (1 << 64), llvm_answer(row, function, case))
        for row in rows
    ]
    period = int(function["Repetitive block size"], 16) if masked else 0
    return Described(start, int(function["Size"], 16), period, answers)


def llvm_answer(row: dict[str, str], function: dict[str, str], case: Case) -> dict[str, Any]:
    if "CFA Offset" not in row:
        return {"kind": "outermost"}
    base = case.machine.sp if row["Base Register"] == "SP" else case.machine.fp
    saved = {
        name: {"register": None, "offset": int(row[field]), "deref": True} if field in row else None
        for name, field in (("ra", "RA Offset"), ("fp", "FP Offset"))
    }
    marks = {"ra_signed": row["Return Address Signed"] == "Yes", "signal": False, "key_b": function.get("PAuth Key") == "B"}
    return {"kind": "rule", "cfa": {"register": base, "offset": int(row["CFA Offset"]), "deref": False}, **saved, **marks}
