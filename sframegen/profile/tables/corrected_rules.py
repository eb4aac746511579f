"""Corrects the rules of converted call frame information in two ways that a section cannot express.

To throw an exception, the unwinder's library installs a handler: it replaces its own registers and return address by the handler's.
Meanwhile no rule holds (code/function/hazards.py), so `split_handler_installers` leaves these ranges out.

Code such as OpenSSL's assembly saves the caller's SP, less some bytes, on a realigned stack: the CFA is a word in memory plus an
addend, as in *(rsp + 40) + 8. `add_saved_cfa_rules` adds rules for such code. In these rules, the offset of the CFA has the word's
offset (40) in its low 32 bits, and the addend (8) above them.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING

from cfi import reader
from cfi.expression import evaluate
from cfi.opcodes import RuleKind
from cfi.rules import CfiRule, RegisterRule
from sframegen.base.errors import FormatError
from sframegen.code.function.hazards import MAX_FUNCTION, Installation, find_handler_jumps, find_installations
from sframegen.conversion.translate import Translator
from sframegen.format.layouts import V3
from sframegen.format.model import FunctionTable, Kind, Rule, Where
from sframegen.format.words import Reason, RuleWords
from sframegen.stack.objects.readable_code import readable_code

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sframegen.conversion.cfi_sections import Sources
    from sframegen.conversion.convert import Converted
    from sframegen.elf.file import ElfFile
    from sframegen.format.abi import Abi

MAX_JUMPS = 64  # jumps to handlers in one file: libgcc has four


def split_handler_installers(functions: FunctionTable, elf: ElfFile, abi: Abi) -> FunctionTable:
    """Return the functions, with each one that installs an exception handler split around the range where no rule holds."""
    jump_ends = _find_ends_of_handler_jumps(elf, abi)
    if not jump_ends:
        return functions
    order, starts = functions.sort_by_start()
    counts = {bisect_right(starts, end - 1) for end in jump_ends} - {0}  # of functions that begin before each jump's end
    candidates = {order[count - 1] for count in counts}
    searched = ((function, _find_installations(functions, function, elf, abi)) for function in sorted(candidates))
    installers = {function: installations for function, installations in searched if installations}
    out = functions.select(function for function in range(len(functions)) if function not in installers)
    for function, installations in installers.items():
        _append_split(out, functions, function, installations)
    return out


def _find_ends_of_handler_jumps(elf: ElfFile, abi: Abi) -> list[int]:
    """Return the address after each likely jump to a handler."""
    ends = (start + end for start, code in readable_code(elf) for _, end in islice(find_handler_jumps(code, abi), MAX_JUMPS))
    return [*islice(ends, MAX_JUMPS)]


def _find_installations(functions: FunctionTable, function: int, elf: ElfFile, abi: Abi) -> list[Installation]:
    """Return the ranges of a function in which it installs a handler; none if its code cannot be read."""
    start, size = functions.start[function], functions.size[function]
    if size > MAX_FUNCTION or functions.kinds[functions.kind[function]].mask:
        return []
    try:
        return find_installations(bytes(elf.at(start, size)), start, abi)
    except FormatError:  # the file is cut off there
        return []


def _append_split(out: FunctionTable, functions: FunctionTable, function: int, installations: Iterable[Installation]) -> None:
    """Append one function for each range with one rule, leaving out the ranges in which a handler is installed."""
    start, end = functions.start[function], functions.start[function] + functions.size[function]
    rows = functions.rows(function)
    offsets = [offset for offset, _ in rows]
    numbers = {rule: number for number, rule in enumerate(out.rules)}
    addresses = {start + offset for offset in offsets} | {address for installation in installations for address in installation}
    borders = sorted(address for address in addresses if start <= address < end)
    for low, high in zip(borders, [*borders[1:], end], strict=True):
        row = bisect_right(offsets, low - start) - 1
        if row < 0 or any(installation.copied <= low < installation.end for installation in installations):
            continue
        rule = rows[row][1]
        if rule not in numbers:
            numbers[rule] = len(out.rules)
            out.rules.append(rule)
        out.append(low, high - low, functions.kind[function], [(0, numbers[rule])])


ADDENDS = range(1, 1 << 8)  # those that fit into one byte of a decoded rule
OFFSETS_32 = range(-(1 << 31), 1 << 31)
ADDEND_SHIFT = 32  # bits
CFA_EXPRESSION_REASON = list(Reason).index(Reason.CFA_EXPRESSION)


def add_saved_cfa_rules(converted: Converted, sources: Sources, abi: Abi) -> FunctionTable:
    """Return the converted functions, plus functions for code with a saved CFA, which the conversion had to leave out."""
    uncovered, fde_ranges = converted.coverage.uncovered, converted.coverage.fde_ranges
    with_reasons = zip(uncovered.start, uncovered.size, uncovered.reason, strict=True)
    ranges = [(start, size) for start, size, reason in with_reasons if reason == CFA_EXPRESSION_REASON]
    if not ranges:
        return converted.table
    fdes = reader.read_cfi_sections(sources.sections, abi.followed)
    translator = Translator(RuleWords(abi, V3))
    rules = [_translate_saved_cfa(rule, translator, abi) for rule in fdes.rules]
    out = converted.table.select(range(len(converted.table)))
    out.kinds, out.rules = [*dict.fromkeys((*out.kinds, Kind()))], list(out.rules)
    kind = out.kinds.index(Kind())
    numbers: dict[Rule, int] = {}  # of the rules that follow those of the converted functions
    for start, size in ranges:
        fde = fde_ranges.fde[bisect_right(fde_ranges.start, start) - 1]
        fde_start, last_row = fdes.start[fde], fdes.first_row[fde + 1] - 1
        if fdes.cies[fdes.cie[fde]].signal:
            continue
        row = bisect_right(fdes.row_start, start - fde_start, fdes.first_row[fde], last_row + 1) - 1
        while row <= last_row and fde_start + fdes.row_start[row] < start + size:
            row_end = fdes.row_start[row + 1] if row < last_row else fdes.size[fde]
            low, high = max(start, fde_start + fdes.row_start[row]), min(start + size, fde_start + row_end)
            rule = rules[fdes.row_rule[row]]
            if low < high and rule is not None:
                number = numbers.setdefault(rule, len(out.rules) + len(numbers))
                out.append(low, high - low, kind, [(0, number)])
            row += 1
    out.rules += numbers
    return out


def _translate_saved_cfa(rule: CfiRule, translator: Translator, abi: Abi) -> Rule | None:
    """Return the rule with its saved CFA; None if the CFA is not in memory, or if RA or FP cannot be expressed."""
    if rule.cfa.kind is not RuleKind.VAL_EXPRESSION:
        return None
    term = evaluate(rule.cfa.expression, abi.byte_order, abi.pc)
    if (
        term is None
        or term.register not in abi.base_registers
        or term.offset not in OFFSETS_32
        or term.offset_after_deref not in ADDENDS
    ):
        return None
    translated = translator.translate(rule._replace(cfa=RegisterRule(RuleKind.REGISTER, abi.sp)))  # SP stands in for the saved CFA
    if not isinstance(translated, Rule) or translated.cfa is None or translated.ra is None or translated.ra.register is not None:
        return None
    return translated._replace(cfa=Where(term.register, term.offset + (term.offset_after_deref << ADDEND_SHIFT), deref=True))
