"""The rules of the specification, a row each, and how many findings of one are kept."""

from __future__ import annotations

from typing import NamedTuple

from sframegen.checks.finding import Severity

NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR

KEPT = 20  # findings of one rule that are listed; others are counted


class Rule(NamedTuple):
    """`says`: the fault if the rule is broken. `versions`: those of the format that have it."""

    name: str
    severity: Severity
    says: str
    versions: tuple[int, ...] = (1, 2, 3)


# section_walk.py knows these by their place in the list.
WALKED = (
    Rule("start-order", ERROR, "function begins below the one before it, though the section says that it is sorted"),
    Rule("same-start", ERROR, "function begins where another does"),
    Rule("overlap", ERROR, "function begins inside another"),
    Rule("empty-function", WARNING, "function has no bytes"),
    Rule("start-outside-code", ERROR, "function begins outside the executable segments"),
    Rule("end-outside-code", ERROR, "function reaches past the end of its executable segment"),
    Rule("block-outside", ERROR, "function's FREs begin outside the FRE sub-section"),
    Rule("no-rows", WARNING, "function has no FREs, which its type does not define"),
    Rule("fre-type", ERROR, "unknown FRE type"),
    Rule("fde-type", ERROR, "unknown FDE type", (3,)),
    Rule("unused-bits", WARNING, "bits or bytes without a meaning are set"),
    Rule("mask-without-period", ERROR, "PC type MASK with a repeated block of no bytes", (2, 3)),
    Rule("period-without-mask", WARNING, "size of a repeated block in a function of PC type INC", (2, 3)),
    Rule("blocks-overlap", ERROR, "function's FREs begin among those of another, and are not the same"),
    Rule("unused-bytes", WARNING, "bytes of the FRE sub-section belong to no function and are not padding at its end"),
    Rule("row-cut-off", ERROR, "FRE reaches past the end of the FRE sub-section"),
    Rule("word-size", ERROR, "unknown data word size"),
    Rule("first-row", ERROR, "function's first FRE does not begin where the function does"),
    Rule("row-order", ERROR, "FRE does not begin after the one before it"),
    Rule("row-at-end", WARNING, "FRE begins where its function ends, and covers nothing"),
    Rule("row-beyond-function", ERROR, "FRE begins after the end of its function"),
    Rule("row-beyond-period", ERROR, "FRE begins after the end of the repeated block"),
    Rule("row-beyond-masked", WARNING, "FRE of a repeated block begins after the end of its function"),
    Rule("row-without-words", NOTE, "FRE without data words, an outermost frame according to an erratum of version 2", (1, 2)),
)

HEADER = (
    Rule("header-size", ERROR, "section is shorter than a header"),
    Rule("magic", ERROR, "magic number is not 0xdee2 in either byte order"),
    Rule("version", ERROR, "unknown version of the format"),
    Rule("byte-order", ERROR, "byte order is not that of the ABI or the file"),
    Rule("flags", ERROR, "flags are set that the version does not define"),
    Rule("abi", ERROR, "ABI is unknown to the version"),
    Rule("fixed-offsets", ERROR, "fixed offsets of FP and RA are not those of the ABI"),
    Rule("auxiliary-header", WARNING, "auxiliary header, which no ABI defines"),
    Rule("index-bounds", ERROR, "function index reaches past the end of the section"),
    Rule("rows-bounds", ERROR, "FRE sub-section reaches past the end of the section"),
    Rule("sub-section-order", ERROR, "FRE sub-section begins before the function index ends"),
    Rule("sub-section-gap", WARNING, "bytes between header, function index and FRE sub-section"),
    Rule("another-section", ERROR, "another SFrame section follows, which no consumer finds"),
    Rule("trailing-bytes", WARNING, "bytes other than zero after the FRE sub-section"),
    Rule("row-total", ERROR, "number of FREs in the header is not the sum of the functions'"),
)
WORDS = (
    Rule("words", ERROR, "data words fit no rule of the FDE's type"),
    Rule("cfa-base", ERROR, "flexible rule's CFA has no base register", (3,)),
    Rule("padding-word", WARNING, "padding word at the end of a flexible rule, where nothing follows", (3,)),
    Rule("register", WARNING, "base register that stack tracers of the ABI do not have", (3,)),
    Rule("signed-address", WARNING, "signed return address on an ABI that does not sign them"),
    Rule("many-rules", ERROR, "FREs have more different rules than check compares"),
)
FILE = (
    Rule("several-sections", ERROR, "file has more than one SFrame section or segment"),
    Rule("not-loaded", NOTE, "section is not loaded: for tools that read the file"),
    Rule("no-segment", ERROR, "no PT_GNU_SFRAME leads to the section"),
    Rule("no-section", WARNING, "no section header describes the section that PT_GNU_SFRAME covers"),
    Rule("section-type", WARNING, "section's type is not SHT_GNU_SFRAME", (3,)),
    Rule("section-flags", ERROR, "section's flags are not those of loaded, read-only data"),
    Rule("section-place", ERROR, "section header and PT_GNU_SFRAME disagree on address or place in the file"),
    Rule("segment-size", WARNING, "PT_GNU_SFRAME is not as long as the section"),
    Rule("outside-file", ERROR, "section lies outside the file"),
    Rule("not-mapped", ERROR, "no PT_LOAD maps the section from the file as the segment says"),
    Rule("mapped-unreadable", ERROR, "section is mapped without read permission"),
    Rule("mapped-writable", WARNING, "section is mapped writable"),
    Rule("machine", ERROR, "ABI or byte order is not that of the file"),
    Rule(
        "dynamic-read-only",
        ERROR,
        "PT_DYNAMIC is writable, but no PT_LOAD maps it so: dynamic loaders crash",
    ),
)
RULES = {rule.name: rule for rule in (*HEADER, *WALKED, *WORDS, *FILE)}
