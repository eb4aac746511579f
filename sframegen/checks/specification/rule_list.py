"""The rules of the SFrame specification that a section can break, with the severity and the text of each breach.

Rules of other subjects are where they are checked: `cfi-` in against_cfi.py, `instructions-` in contradictions.py, `second-` in
second/agreement.py, and those that begin with the name of a consumer in consumers.py and unusable.py.
"""

from __future__ import annotations

from sframegen.base.quick_typing import NamedTuple
from sframegen.checks.finding import Severity

NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR

MAX_PER_RULE = 20  # findings of one rule that are listed; further breaches are only counted


class SpecificationRule(NamedTuple):
    """A rule of the specification. `fault`: what a breach of it is like. `versions`: the versions of the format that have it."""

    name: str
    severity: Severity
    fault: str
    versions: tuple[int, ...] = (1, 2, 3)


# SectionWalk identifies these rules by their index here.
WALKED = (
    SpecificationRule("start-order", ERROR, "function begins below the one before it, though the section says that it is sorted"),
    SpecificationRule("same-start", ERROR, "function begins where another does"),
    SpecificationRule("overlap", ERROR, "function begins inside another"),
    SpecificationRule("empty-function", WARNING, "function has no bytes"),
    SpecificationRule("start-outside-code", ERROR, "function begins outside the executable segments"),
    SpecificationRule("end-outside-code", ERROR, "function reaches past the end of its executable segment"),
    SpecificationRule("block-outside", ERROR, "function's FREs begin outside the FRE sub-section"),
    SpecificationRule("no-rows", WARNING, "function has no FREs, which its type does not define"),
    SpecificationRule("fre-type", ERROR, "unknown FRE type"),
    SpecificationRule("fde-type", ERROR, "unknown FDE type", (3,)),
    SpecificationRule("unused-bits", WARNING, "bits or bytes without a meaning are set"),
    SpecificationRule("mask-without-period", ERROR, "PC type MASK with a repeated block of no bytes", (2, 3)),
    SpecificationRule("period-without-mask", WARNING, "size of a repeated block in a function of PC type INC", (2, 3)),
    SpecificationRule("blocks-overlap", ERROR, "function's FREs begin among those of another, and are not the same"),
    SpecificationRule("unused-bytes", WARNING, "bytes of the FRE sub-section belong to no function and are not padding at its end"),
    SpecificationRule("row-cut-off", ERROR, "FRE reaches past the end of the FRE sub-section"),
    SpecificationRule("word-size", ERROR, "unknown data word size"),
    SpecificationRule("first-row", ERROR, "function's first FRE does not begin where the function does"),
    SpecificationRule("row-order", ERROR, "FRE does not begin after the one before it"),
    SpecificationRule("row-at-end", WARNING, "FRE begins where its function ends, and covers nothing"),
    SpecificationRule("row-beyond-function", ERROR, "FRE begins after the end of its function"),
    SpecificationRule("row-beyond-period", ERROR, "FRE begins after the end of the repeated block"),
    SpecificationRule("row-beyond-masked", WARNING, "FRE of a repeated block begins after the end of its function"),
    SpecificationRule(
        "row-without-words", NOTE, "FRE without data words, an outermost frame according to an erratum of version 2", (1, 2)
    ),
)

HEADER = (
    SpecificationRule("header-size", ERROR, "section is shorter than a header"),
    SpecificationRule("magic", ERROR, "magic number is not 0xdee2 in either byte order"),
    SpecificationRule("version", ERROR, "unknown version of the format"),
    SpecificationRule("byte-order", ERROR, "byte order is not that of the ABI or the file"),
    SpecificationRule("flags", ERROR, "flags are set that the version does not define"),
    SpecificationRule("abi", ERROR, "ABI is unknown to the version"),
    SpecificationRule("fixed-offsets", ERROR, "fixed offsets of FP and RA are not those of the ABI"),
    SpecificationRule("auxiliary-header", WARNING, "auxiliary header, which no ABI defines"),
    SpecificationRule("index-bounds", ERROR, "function index reaches past the end of the section"),
    SpecificationRule("rows-bounds", ERROR, "FRE sub-section reaches past the end of the section"),
    SpecificationRule("sub-section-order", ERROR, "FRE sub-section begins before the function index ends"),
    SpecificationRule("sub-section-gap", WARNING, "bytes between header, function index and FRE sub-section"),
    SpecificationRule("another-section", ERROR, "another SFrame section follows, which no consumer finds"),
    SpecificationRule("trailing-bytes", WARNING, "bytes other than zero after the FRE sub-section"),
    SpecificationRule("row-total", ERROR, "number of FREs in the header is not the sum of the functions'"),
)
WORDS = (
    SpecificationRule("words", ERROR, "data words fit no rule of the FDE's type"),
    SpecificationRule("cfa-base", ERROR, "flexible rule's CFA has no base register", (3,)),
    SpecificationRule("padding-word", WARNING, "padding word at the end of a flexible rule, where nothing follows", (3,)),
    SpecificationRule("register", WARNING, "base register that stack tracers of the ABI do not have", (3,)),
    SpecificationRule("signed-address", WARNING, "signed return address on an ABI that does not sign them"),
    SpecificationRule("many-rules", ERROR, "FREs have more different rules than check compares"),
)
FILE = (
    SpecificationRule("several-sections", ERROR, "file has more than one SFrame section or segment"),
    SpecificationRule("not-loaded", NOTE, "section is not loaded: for tools that read the file"),
    SpecificationRule("no-segment", ERROR, "no PT_GNU_SFRAME leads to the section"),
    SpecificationRule("no-section", WARNING, "no section header describes the section that PT_GNU_SFRAME covers"),
    SpecificationRule("section-type", WARNING, "section's type is not SHT_GNU_SFRAME", (3,)),
    SpecificationRule("section-flags", ERROR, "section's flags are not those of loaded, read-only data"),
    SpecificationRule("section-place", ERROR, "section header and PT_GNU_SFRAME disagree on address or place in the file"),
    SpecificationRule("segment-size", WARNING, "PT_GNU_SFRAME is not as long as the section"),
    SpecificationRule("outside-file", ERROR, "section lies outside the file"),
    SpecificationRule("not-mapped", ERROR, "no PT_LOAD maps the section from the file as the segment says"),
    SpecificationRule("mapped-unreadable", ERROR, "section is mapped without read permission"),
    SpecificationRule("mapped-writable", WARNING, "section is mapped writable"),
    SpecificationRule("machine", ERROR, "ABI or byte order is not that of the file"),
    SpecificationRule("dynamic-read-only", ERROR, "PT_DYNAMIC is writable, but no PT_LOAD maps it so: dynamic loaders crash"),
)
RULES = {rule.name: rule for rule in (*HEADER, *WALKED, *WORDS, *FILE)}
