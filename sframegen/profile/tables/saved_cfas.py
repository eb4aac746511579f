"""Rules for code that saves the caller's SP, less some bytes, on a realigned stack, as OpenSSL's assembly does: *(rsp + 40) + 8.

Sections cannot express such a CFA. Here, the bytes to add are in its offset above the 32 bits of the offset itself.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from cfi import reader
from cfi.expression import evaluate
from cfi.opcodes import RuleKind
from cfi.rules import CfiRule, RegisterRule
from sframegen.conversion.translate import Translator
from sframegen.format.layouts import V3
from sframegen.format.model import FunctionTable, Kind, Rule, Where
from sframegen.format.words import Reason, RuleWords

if TYPE_CHECKING:
    from sframegen.conversion.cfi_sections import Sources
    from sframegen.conversion.convert import Converted
    from sframegen.format.abi import Abi

MORE = range(1, 1 << 8)
OFFSETS = range(-(1 << 31), 1 << 31)
ABOVE = 32  # bits
UNSAID = list(Reason).index(Reason.CFA_EXPRESSION)


def with_saved_cfas(converted: Converted, sources: Sources, abi: Abi) -> FunctionTable:
    """Return the converted functions, with more for code whose saved CFA a section cannot express."""
    unsaid, pieces = converted.coverage.unsaid, converted.coverage.pieces
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
