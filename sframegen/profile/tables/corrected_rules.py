"""Corrects rules of converted call frame information, beyond what sections can express.

No rule holds while an exception's handler is installed: see code/function/hazards.py. Other code saves the caller's SP, less some
bytes, on a realigned stack, as OpenSSL's assembly does: *(rsp + 40) + 8. Sections cannot express such a CFA. Here, the bytes to add
are in its offset above the 32 bits of the offset itself.
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
from sframegen.code.function.hazards import MAX_FUNCTION, Installation, installations_in, jumps_in
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

MAX_JUMPS = 64  # of a file: libgcc has four


def without_installations(functions: FunctionTable, elf: ElfFile, abi: Abi) -> FunctionTable:
    """Return the functions; those that install handlers are split, with a gap where no rule holds."""
    jumps = _jumps(elf, abi)
    if not jumps:
        return functions
    order, starts = functions.by_start()
    chosen = {order[at - 1] for at in (bisect_right(starts, end - 1) for _, end in jumps) if at}
    found = {function: _installations(functions, function, elf, abi) for function in sorted(chosen)}
    found = {function: installations for function, installations in found.items() if installations}
    out = functions.select(function for function in range(len(functions)) if function not in found)
    for function, installations in found.items():
        _append_parts(out, functions, function, installations)
    return out


def _jumps(elf: ElfFile, abi: Abi) -> list[tuple[int, int]]:
    """Return (where its function may begin, address) for each address after what looks like a jump to a handler."""
    found = []
    for start, code in readable_code(elf):
        for _, last in islice(jumps_in(code, abi), MAX_JUMPS):
            found.append((max(start, start + last - MAX_FUNCTION), start + last))
    return found[:MAX_JUMPS]


def _installations(functions: FunctionTable, function: int, elf: ElfFile, abi: Abi) -> list[Installation]:
    start, size = functions.start[function], functions.size[function]
    if size > MAX_FUNCTION or functions.kinds[functions.kind[function]].mask:
        return []
    try:
        return installations_in(bytes(elf.at(start, size)), start, abi)
    except FormatError:  # the file is cut off there
        return []


def _append_parts(out: FunctionTable, functions: FunctionTable, function: int, installations: Iterable[Installation]) -> None:
    start, end = functions.start[function], functions.start[function] + functions.size[function]
    rows = functions.rows(function)
    offsets = [offset for offset, _ in rows]
    numbers = {rule: number for number, rule in enumerate(out.rules)}
    places = {start + offset for offset in offsets} | {place for one in installations for place in one}
    borders = sorted(place for place in places if start <= place < end)
    for at, limit in zip(borders, [*borders[1:], end], strict=True):
        row = bisect_right(offsets, at - start) - 1
        if row < 0 or any(one.copied <= at < one.end for one in installations):
            continue
        rule = rows[row][1]
        if rule not in numbers:
            numbers[rule] = len(out.rules)
            out.rules.append(rule)
        out.append(at, limit - at, functions.kind[function], [(0, numbers[rule])])


MORE = range(1, 1 << 8)
OFFSETS = range(-(1 << 31), 1 << 31)
ABOVE = 32  # bits
UNSAID = list(Reason).index(Reason.CFA_EXPRESSION)


def with_saved_cfas(converted: Converted, sources: Sources, abi: Abi) -> FunctionTable:
    """Return the converted functions, with more for code whose saved CFA a section cannot express."""
    unsaid, pieces = converted.coverage.uncovered, converted.coverage.fde_ranges
    ranges = [(start, size) for start, size, why in zip(unsaid.start, unsaid.size, unsaid.reason, strict=True) if why == UNSAID]
    if not ranges:
        return converted.table
    fdes = reader.read(sources.sections, abi.followed)
    words = Translator(RuleWords(abi, V3))
    said = [_rule(rule, words, abi) for rule in fdes.rules]
    out = converted.table.select(range(len(converted.table)))
    out.kinds, out.rules = [*dict.fromkeys((*out.kinds, Kind()))], list(out.rules)
    kind = out.kinds.index(Kind())
    numbers: dict[Rule, int] = {}
    for start, size in ranges:
        fde = pieces.fde[bisect_right(pieces.start, start) - 1]
        begin = fdes.start[fde]
        if fdes.cies[fdes.cie[fde]].signal:
            continue
        end = fdes.first_row[fde + 1]
        row = bisect_right(fdes.row_start, start - begin, fdes.first_row[fde], end) - 1
        while row < end and begin + fdes.row_start[row] < start + size:
            low = max(start, begin + fdes.row_start[row])
            high = min(start + size, begin + (fdes.row_start[row + 1] if row + 1 < end else fdes.size[fde]))
            rule = said[fdes.row_rule[row]]
            if low < high and rule is not None:
                number = numbers.setdefault(rule, len(out.rules) + len(numbers))
                out.append(low, high - low, kind, [(0, number)])
            row += 1
    out.rules += numbers
    return out


def _rule(rule: CfiRule, words: Translator, abi: Abi) -> Rule | None:
    """Return the rule with its saved CFA; None if the CFA is not saved, or if RA or FP cannot be expressed."""
    if rule.cfa.kind is not RuleKind.VAL_EXPRESSION:
        return None
    term = evaluate(rule.cfa.expression, abi.byte_order, abi.pc)
    if term is None or term.register not in abi.base_registers or term.offset not in OFFSETS or term.more not in MORE:
        return None
    found = words.translate(rule._replace(cfa=RegisterRule(RuleKind.REGISTER, abi.sp)))
    if not isinstance(found, Rule) or found.cfa is None or found.ra is None or found.ra.register is not None:
        return None
    return found._replace(cfa=Where(term.register, term.offset + (term.more << ABOVE), deref=True))
