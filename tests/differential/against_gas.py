"""How the `.sframe` that GNU as writes differs from the CFI that it writes, and the smallest source of each difference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.inputs.cfi_programs import CODE_ADDRESS, ESCAPES, AssemblerError, Target, is_sound, source_of
from tests.support.oracles import cfi_text, compare, sframe_text
from tests.support.oracles.cfi_text import CfiRow
from tests.support.oracles.files import PT_GNU_SFRAME, elf_facts
from tests.support.oracles.rules import ABIS, OUTERMOST, Interner, Rule, by_byte
from tests.support.peers import Peers

HEADER_SIZE = 28  # bytes of a section that says nothing
FIELDS = ("CFA", "FP", "RA", "signal", "key")
BATCH = 100  # functions in a source
WARNING = re.compile(r"Warning: no SFrame FDE emitted; (.*)")
SUM = re.compile(r"(\w+)([+-]\d+)")
GAVE_UP = re.compile(r"(Fatal error: SFrame .*|Internal error in sframe_\w+)")


@dataclass
class Reading:
    """What is said of a function's rows: by its CFI, and by GNU as's own section."""

    cfi: list[CfiRow]
    gnu: list[Rule | None]
    said: str = ""  # why there is no section, or nothing of this function in it
    empty: bool = False  # GNU as wrote an FDE without rows

    @property
    def difference(self) -> str:
        """In what GNU as departs from the CFI; "" for nothing."""
        if self.said:
            left = "no rows" if self.empty else "left out"
            return f"{left}: {self.said}" if self.empty or any(row.rule for row in self.cfi) else ""
        for row, rule in zip(self.cfi, self.gnu, strict=True):
            if row.rule != rule:
                return f"said: {row.reason}" if row.rule is None else depart(row.rule, rule)
        return ""


def depart(told: Rule, given: Rule | None) -> str:
    """In what the rule `given` departs first from the one that the CFI shows."""
    if given is None:
        return "no rule"
    if given == OUTERMOST:
        return "wrong: outermost"
    field, one, other = next(wrong for wrong in zip(FIELDS, told, given, strict=True) if wrong[1] != wrong[2])
    right, wrong = SUM.fullmatch(str(one)), SUM.fullmatch(str(other))
    if right and wrong and right[1] == wrong[1]:
        offset, instead = int(right[2]), int(wrong[2])
        if field == "CFA" and instead < 0 and offset == -(-instead // 8 * 8):
            return "rounded CFA"
        if field == "RA" and any(instead == (offset + half) % (2 * half) - half for half in (1 << 7, 1 << 15)):
            return "cut RA"
    return f"wrong {field}"


class Bench:
    """Assembles functions for a target with and without `.sframe`, and reads both."""

    def __init__(self, target: Target, peers: Peers, directory: Path) -> None:
        self.target = target
        self.peers = peers
        self.directory = directory
        self.readelf = peers.tool("readelf")

    def read(self, functions: list[list[str]]) -> list[Reading]:
        """Of each function. `said` begins with `gave up` where GNU as stops with an error of its own, `refused` for any other."""
        stops: dict[int, str] = {}
        self._find_stops(functions, range(len(functions)), stops)
        kept = [body for number, body in enumerate(functions) if number not in stops]
        plain = self.target.plain
        rest = iter(self._read_all([*plain, *kept])[len(plain) :])
        readings = []
        for number, body in enumerate(functions):
            if stop := stops.get(number):
                alone = [*plain, body]
                cfi = (
                    []
                    if stop == "refused"
                    else self._cfi(self.target.link(self.peers, source_of(alone), self.directory), alone)[-1]
                )
                readings.append(Reading(cfi, [], stop))
            else:
                readings.append(next(rest))
        return readings

    def _find_stops(self, functions: list[list[str]], numbers: range, stops: dict[int, str]) -> None:
        """Which functions stop the assembler, and how."""
        try:
            self.target.assemble(self.peers, source_of([functions[number] for number in numbers]), self.directory, "--gsframe")
        except AssemblerError as error:
            if len(numbers) == 1:
                gave_up = GAVE_UP.search(str(error))
                stops[numbers[0]] = f"gave up: {gave_up[1]}" if gave_up else "refused"
                return
            half = len(numbers) // 2
            self._find_stops(functions, numbers[:half], stops)
            self._find_stops(functions, numbers[half:], stops)

    def _read_all(self, functions: list[list[str]]) -> list[Reading]:
        source = source_of(functions)
        plain = self.target.link(self.peers, source, self.directory)
        made, messages = self.target.assemble(self.peers, source, self.directory, "--gsframe")
        gnu, empty = self._gnu(self.target.link_object(self.peers, made))
        readings = []
        warnings = WARNING.findall(messages)
        for (begin, places), cfi in zip(self._places(functions), self._cfi(plain, functions), strict=True):
            rules = [gnu.get(place) for place in places]
            reading = Reading(cfi, rules, empty=begin in empty)
            if begin in empty or not any(rules):
                reading.said = warnings.pop(0) if warnings else "no warning"
            readings.append(reading)
        assert not warnings, warnings
        return readings

    def _places(self, functions: list[list[str]]) -> Iterator[tuple[int, list[int]]]:
        """(start, address of each row) of each function."""
        begin = CODE_ADDRESS
        for body in functions:
            end = begin + self.target.nop_size * body.count("nop")
            yield begin, list(range(begin, end, self.target.nop_size))
            begin = end

    def _cfi(self, plain: Path, functions: list[list[str]]) -> list[list[CfiRow]]:
        facts = elf_facts(plain)
        cfi = cfi_text.read(self.readelf, str(plain), ABIS[facts.machine], facts.executable())
        rows = by_byte(cfi.table)
        return [[cfi.rows.values[rows[place]] for place in places] for _, places in self._places(functions)]

    def _gnu(self, file: Path) -> tuple[dict[int, Rule | None], set[int]]:
        """Address -> rule, and where FDEs without rows begin."""
        if not any(segment.kind == PT_GNU_SFRAME and segment.filesz > HEADER_SIZE for segment in elf_facts(file).segments):
            return {}, set()
        rules: Interner[Rule | None] = Interner(None, compare.OVERLAP)
        sframe = sframe_text.read(self.readelf, str(file), rules, ())
        return {at: rules.values[rule] for at, rule in by_byte(sframe.table).items()}, set(sframe.empty)

    def shrink(self, functions: list[list[str]], found: list[str]) -> list[list[str]]:
        """Each function without the lines that can go without changing its difference, which is found[i]."""
        smallest = list(functions)
        todo = list(range(len(functions)))
        while todo:
            tries = [(number, smaller) for number in todo for smaller in shortened(smallest[number])]
            better = {}
            for first in range(0, len(tries), BATCH):
                some = tries[first : first + BATCH]
                for (number, smaller), reading in zip(some, self.read([smaller for _, smaller in some]), strict=True):
                    if reading.difference == found[number]:
                        better[number] = smaller
            smallest = [better.get(number, body) for number, body in enumerate(smallest)]
            todo = list(better)
        return smallest


def shortened(body: list[str]) -> list[list[str]]:
    """All bodies of one line less."""
    return [body[:at] + body[at + 1 :] for at in range(len(body)) if is_sound(body[:at] + body[at + 1 :])]


NAMES = {opcode: name for name, (opcode, _) in ESCAPES.items()}


def shape(target: Target, body: list[str]) -> str:
    """A body without its numbers: `.cfi_offset FP`, `escape val_offset`, a `;` between directives, `nop` for a row."""
    words = []
    for line in body:
        name, _, operands = line.partition(" ")
        if name == ".cfi_escape":
            words.append(f"escape {NAMES[int(operands.split(',')[0], 16)]}")
        elif operands and name not in {".cfi_def_cfa_offset", ".cfi_adjust_cfa_offset", ".cfi_startproc"}:
            words.append(f"{name} {target.register_name(operands.split(',')[0])}")
        else:
            words.append(name)
    return "; ".join(words)


# what gnu_as.txt calls a difference: by Reading.difference, and by the shape of what is left after shrinking
KINDS = {
    "Functions left out": (r"left out: (?!gave up).*", ".*"),
    "FDEs without rows": (r"no rows: .*", ".*"),
    "The assembler stops": (r"left out: gave up: .*", ".*"),
    "CFA offsets below zero": ("rounded CFA", ".*"),
    "CFA registers": ("wrong CFA", r".*; \.cfi_def_cfa_register \w+; nop"),
    "Nested states": ("wrong .*", r".*\.cfi_remember_state; .*\.cfi_remember_state; .*\.cfi_restore_state; nop"),
    "Restored registers": ("wrong (FP|RA)", r".*; \.cfi_restore (FP|RA); nop"),
    "RA that is no longer undefined": ("wrong: outermost", r"(.*; )?\.cfi_undefined RA; .*"),
    "RA far from the CFA": ("cut RA", ".*"),
    "RA saved at the CFA": ("wrong RA", r"(.*; )?\.cfi_(rel_)?offset RA; nop"),
    "RA by instructions that are not read": ("wrong RA", r"(nop; )?escape \w+; nop"),
    "RA rules that SFrame cannot say": ("said: RA rule", ".*"),
    "FP by expressions": ("wrong FP|said: FP rule", r"(nop; )?escape (val_)?expression; nop"),
    "SP rules": ("said: SP rule", ".*"),
    "CFA offsets that cannot be scaled": ("said: CFA offset", ".*"),
    "Offsets of more than 32 bits": ("said: offset of more than 32 bits", ".*"),
    "Registers that stack tracers do not have": ("said: base register", ".*"),
}


def kinds_of(difference: str, smallest: str) -> list[str]:
    """The kinds that fit; `smallest` is a shape()."""
    return [kind for kind, (one, other) in KINDS.items() if re.fullmatch(one, difference) and re.fullmatch(other, smallest)]


def needs_shrinking(difference: str) -> bool:
    return not kinds_of(difference, "")
