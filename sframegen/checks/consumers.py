"""The demands of SFrame's consumers, one for each property that a consumer cannot handle, and the findings about unmet ones."""

from __future__ import annotations

from enum import IntEnum

from sframegen.base.quick_typing import TYPE_CHECKING, NamedTuple
from sframegen.checks.finding import Finding, Severity
from sframegen.checks.specification.wellformed import SectionFacts
from sframegen.format.layouts import F_FDE_FUNC_START_PCREL, F_FDE_SORTED, HEADER_SIZE, Layout, SframeHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sframegen.elf.ranges import Range


class Effect(IntEnum):
    """A consumer's reaction, the mildest first."""

    FAILS = 0
    GIVES_UP = 1
    CRASHES = 2
    READS_OUT = 3
    DROPS = 4
    REJECTS = 5


FAILS, GIVES_UP, CRASHES, READS_OUT, DROPS, REJECTS = Effect
EFFECTS = {
    FAILS: ("fails the look-up", Severity.WARNING),
    GIVES_UP: ("discards every stack trace that reaches it", Severity.ERROR),
    CRASHES: ("crashes", Severity.ERROR),
    READS_OUT: ("reads out of bounds", Severity.ERROR),
    DROPS: ("drops the section for the process", Severity.ERROR),
    REJECTS: ("rejects the section", Severity.ERROR),
}


class Consumer(NamedTuple):
    """A program or library that reads SFrame sections."""

    title: str
    versions: tuple[int, ...]  # versions that it reads
    source: str
    reads_files: bool = False  # False: it reads only loaded sections
    of_kernels: bool = False  # True: it reads those of the kernel and its modules, False: of programs and libraries


# The most bytes and the most data words of one FRE that libsframe has room for, and the most data words that glibc reads.
LIBSFRAME_WORD_BYTES, LIBSFRAME_WORDS, GLIBC_WORDS = 24, 6, 3

CONSUMERS = {
    "kernel": Consumer("the Linux kernel", (3,), "unwind_user patches for 7.x, with CONFIG_SFRAME_VALIDATION or without"),
    "glibc": Consumer("glibc", (2,), "backtrace() of 2.42 to 2.44"),
    "gnu": Consumer("GNU binutils", (2, 3), "libsframe 2.47, with which readelf, objdump and ld read", reads_files=True),
    "arm64-kernel": Consumer("the arm64 kernel's unwinder", (3,), "series for arm64 of May 2026, v6", of_kernels=True),
}


class Demand(NamedTuple):
    """A demand of a consumer. `broken`: rules of the specification whose breach breaks it, or a function that returns True then.

    `validated`: with CONFIG_SFRAME_VALIDATION, the kernel already rejects the section when it is registered.
    """

    consumer: str
    name: str
    effect: Effect  # of a section that does not meet it
    fault: str
    broken: tuple[str, ...] | Callable[[SectionFacts], bool]
    validated: bool = False


def _judge(is_broken: Callable[[SframeHeader], bool]) -> Callable[[SectionFacts], bool]:
    """Return a test of a section's facts that is False without a readable header, else what `is_broken` returns for it."""
    return lambda facts: facts.header is not None and is_broken(facts.header)


def _judge_all(is_broken: Callable[[SectionFacts, SframeHeader, Layout], bool]) -> Callable[[SectionFacts], bool]:
    """Return a test like that of `_judge` for a function that also needs the facts and the layout of the version."""
    return lambda facts: facts.header is not None and facts.layout is not None and is_broken(facts, facts.header, facts.layout)


def _is_swapped(facts: SectionFacts) -> bool:
    """Return True if GNU's tools, run on a little-endian machine, swap the section's bytes before they read it."""
    return facts.byte_order == "big"


def _has_wrong_byte_order(facts: SectionFacts) -> bool:
    return facts.byte_order is not None and facts.expected_order not in (None, facts.byte_order)


def _has_several_texts(facts: SectionFacts) -> bool:
    return facts.executable is not None and len(facts.executable) > 1


def _index_end(header: SframeHeader, layout: Layout) -> int:
    return header.fdeoff + header.num_fdes * layout.index_size


def _body_at(header: SframeHeader) -> int:
    """Return the offset in the section that the header's offsets of sub-sections count from."""
    return HEADER_SIZE + header.auxhdr_len


PROGRAM_DEMANDS = (
    Demand("kernel", "kernel-magic", REJECTS, "no magic number in its byte order", ("header-size", "magic", "version")),
    Demand("kernel", "kernel-byte-order", REJECTS, "the other byte order", _has_wrong_byte_order),
    Demand("kernel", "kernel-sorted", REJECTS, "not flagged as sorted", _judge(lambda h: not h.flags & F_FDE_SORTED)),
    Demand(
        "kernel", "kernel-pc-relative", REJECTS, "starts are not flagged as relative to themselves",
        _judge(lambda h: not h.flags & F_FDE_FUNC_START_PCREL),
    ),
    Demand("kernel", "kernel-auxiliary-header", REJECTS, "an auxiliary header", _judge(lambda h: h.auxhdr_len > 0)),
    Demand("kernel", "kernel-empty", REJECTS, "no functions, or no FREs", _judge(lambda h: not (h.num_fdes and h.num_fres))),
    Demand("kernel", "kernel-header-only", REJECTS, "nothing after the header", _judge_all(lambda f, h, _: _body_at(h) >= f.size)),
    Demand(
        "kernel", "kernel-sub-sections", REJECTS, "FREs before the end of the index, or reaching past the end of the section",
        _judge_all(lambda f, h, v: h.freoff < _index_end(h, v) or _body_at(h) + h.freoff + h.fre_len > f.size),
    ),
    Demand(
        "kernel", "kernel-one-text", REJECTS, "the range from the first byte of code to the last is not one executable mapping",
        _has_several_texts,
    ),
    Demand("kernel", "kernel-order", DROPS, "functions do not ascend, which a search may notice", ("start-order",), validated=True),
    Demand(
        "kernel", "kernel-wrapped", DROPS, "a distance across the end of the address space: once loaded, functions do not ascend",
        lambda f: f.wrapped > 0,
    ),
    Demand("kernel", "kernel-same-start", FAILS, "of functions with one start the last is found", ("same-start",), validated=True),
    Demand("kernel", "kernel-overlap", FAILS, "a function that begins after another one hides it", ("overlap",)),
    Demand("kernel", "kernel-outside-code", FAILS, "a function outside of the code", ("start-outside-code",), validated=True),
    Demand("kernel", "kernel-block", FAILS, "a function whose FREs lie elsewhere", ("block-outside",), validated=True),
    Demand("kernel", "kernel-no-rows", FAILS, "a function without FREs", lambda f: f.without_rows > 0),
    Demand("kernel", "kernel-first-row", FAILS, "code before a function's first FRE", ("first-row",)),
    Demand("kernel", "kernel-period", CRASHES, "a division by zero", lambda f: f.divides_by_zero > 0),
    Demand("kernel", "kernel-fre-type", DROPS, "unknown FRE type", ("fre-type",), validated=True),
    Demand("kernel", "kernel-row-cut-off", DROPS, "an FRE that is cut off", ("row-cut-off",), validated=True),
    Demand("kernel", "kernel-word-size", DROPS, "unknown data word size", ("word-size",), validated=True),
    Demand("kernel", "kernel-row-order", DROPS, "FREs that do not ascend", ("row-order",), validated=True),
    Demand("kernel", "kernel-row-beyond", DROPS, "an FRE after the function's end", ("row-beyond-function",), validated=True),
    Demand("kernel", "kernel-words", DROPS, "data words too few or left over", ("words", "padding-word"), validated=True),
    Demand("kernel", "kernel-cfa-base", FAILS, "a CFA without a base register", ("cfa-base",)),
    Demand("glibc", "glibc-magic", REJECTS, "no magic number in its byte order", ("header-size", "magic", "version")),
    Demand("glibc", "glibc-byte-order", REJECTS, "the other byte order", _has_wrong_byte_order),
    Demand("glibc", "glibc-flags", REJECTS, "unknown flags", ("flags",)),
    Demand("glibc", "glibc-offsets", REJECTS, "FREs before the index", _judge(lambda h: h.fdeoff > h.freoff)),
    Demand("glibc", "glibc-sorted", REJECTS, "not flagged as sorted", _judge(lambda h: not h.flags & F_FDE_SORTED)),
    Demand("glibc", "glibc-empty", REJECTS, "no functions", _judge(lambda h: not h.num_fdes)),
    Demand(
        "glibc", "glibc-layout", READS_OUT, "a gap before the index or the FREs, which it does not expect",
        _judge_all(lambda _, h, v: h.fdeoff != 0 or h.freoff != _index_end(h, v)),
    ),
    Demand("glibc", "glibc-index", READS_OUT, "an index that reaches past the section", ("index-bounds",)),
    Demand("glibc", "glibc-rows", READS_OUT, "FREs that reach past the section", ("rows-bounds", "block-outside", "row-cut-off")),
    Demand("glibc", "glibc-order", FAILS, "functions do not ascend", ("start-order", "same-start")),
    Demand("glibc", "glibc-far", FAILS, "a function more than 2 GiB from the section", lambda f: f.far > 0),
    Demand("glibc", "glibc-wrapped", FAILS, "a distance across the end of the address space", lambda f: f.wrapped > 0),
    Demand("glibc", "glibc-overlap", FAILS, "functions overlap", ("overlap",)),
    Demand("glibc", "glibc-no-rows", FAILS, "a function without FREs", lambda f: f.without_rows > 0),
    Demand("glibc", "glibc-first-row", FAILS, "code before a function's first FRE", ("first-row",)),
    Demand("glibc", "glibc-fre-type", FAILS, "unknown FRE type", ("fre-type",)),
    Demand("glibc", "glibc-period", CRASHES, "a division by zero", lambda f: f.divides_with_rows > 0),
    Demand("glibc", "glibc-row-order", FAILS, "FREs that do not ascend", ("row-order",)),
    Demand("glibc", "glibc-word-size", READS_OUT, "an unknown data word size, which it reads as words of a byte", ("word-size",)),
    Demand("glibc", "glibc-words", FAILS, "more than 3 data words", lambda f: f.most_words > GLIBC_WORDS),
    Demand("glibc", "glibc-no-words", GIVES_UP, "an FRE without data words, an outermost frame", ("row-without-words",)),
    Demand("gnu", "gnu-magic", REJECTS, "no header", ("header-size", "magic", "version")),
    Demand("gnu", "gnu-flags", REJECTS, "unknown flags", ("flags",)),
    Demand("gnu", "gnu-offsets", REJECTS, "FREs before the index", _judge(lambda h: h.fdeoff > h.freoff)),
    Demand(
        "gnu", "gnu-foreign-auxiliary-header", REJECTS, "an auxiliary header in the other byte order",
        lambda f: _is_swapped(f) and f.header is not None and f.header.auxhdr_len > 0,
    ),
    Demand(
        "gnu", "gnu-foreign-total", REJECTS, "in the other byte order, a number of FREs that is not the functions' sum",
        lambda f: _is_swapped(f) and f.header is not None and f.header.num_fres != f.claimed_rows,
    ),
    Demand(
        "gnu", "gnu-foreign-shared", REJECTS, "in the other byte order, FREs that functions share: it swaps their bytes twice",
        lambda f: _is_swapped(f) and (f.shares_blocks or f.first_finding("blocks-overlap") is not None),
    ),
    Demand(
        "gnu", "gnu-foreign-rest", REJECTS, "in the other byte order, bytes that no FRE accounts for",
        lambda f: _is_swapped(f)
        and f.first_finding("trailing-bytes", "another-section", "unused-bytes", "sub-section-order") is not None,
    ),
    Demand("gnu", "gnu-index", READS_OUT, "an index that reaches past the section", ("index-bounds",)),
    Demand("gnu", "gnu-rows", READS_OUT, "FREs that reach past the section", ("rows-bounds", "block-outside", "row-cut-off")),
    Demand(
        "gnu", "gnu-word-bytes", READS_OUT, "more than 24 bytes of data words, for which it has no room",
        lambda f: f.most_word_bytes > LIBSFRAME_WORD_BYTES,
    ),
    Demand("gnu", "gnu-fre-type", CRASHES, "an assertion: unknown FRE type", ("fre-type",)),
    Demand(
        "gnu", "gnu-row-beyond", CRASHES, "an assertion: an FRE after the function's end",
        ("row-beyond-function", "row-beyond-masked"),
    ),
    Demand("gnu", "gnu-period", CRASHES, "a division by zero", lambda f: f.divides_with_rows > 0),
    Demand("gnu", "gnu-sorted", FAILS, "not flagged as sorted", _judge(lambda h: h.num_fdes > 0 and not h.flags & F_FDE_SORTED)),
    Demand(
        "gnu", "gnu-pc-relative", FAILS, "starts that are not relative to themselves, though it reads them so",
        _judge(lambda h: h.num_fdes > 0 and not h.flags & F_FDE_FUNC_START_PCREL),
    ),
    Demand("gnu", "gnu-layout", FAILS, "a gap between header and index, which it does not expect", _judge(lambda h: h.fdeoff > 0)),
    Demand("gnu", "gnu-order", FAILS, "functions do not ascend", ("start-order", "same-start")),
    Demand("gnu", "gnu-wrapped", FAILS, "a distance across the end of the address space", lambda f: f.wrapped > 0),
    Demand("gnu", "gnu-overlap", FAILS, "functions overlap", ("overlap",)),
    Demand("gnu", "gnu-no-rows", FAILS, "a function without FREs", lambda f: f.without_rows > 0),
    Demand("gnu", "gnu-first-row", FAILS, "code before a function's first FRE", ("first-row",)),
    Demand("gnu", "gnu-row-order", FAILS, "FREs that do not ascend", ("row-order",)),
    Demand("gnu", "gnu-word-size", READS_OUT, "an unknown data word size, which it reads as words of a byte", ("word-size",)),
    Demand("gnu", "gnu-words", FAILS, "more than 6 data words", lambda f: f.most_words > LIBSFRAME_WORDS),
)  # fmt: skip

# The unwinder of arm64 kernels shares its reader with the one for processes. But kernel code is not a user-space mapping, a failed
# look-up never drops the section, and functions outside of the text that is looked up are never found.
ARM64_KERNEL_DEMANDS = (
    *(
        one._replace(consumer="arm64-kernel", name=f"arm64-{one.name}", effect=FAILS if one.effect is DROPS else one.effect)
        for one in PROGRAM_DEMANDS
        if one.consumer == "kernel" and one.name not in ("kernel-one-text", "kernel-outside-code", "kernel-sorted")
    ),
    Demand(
        "arm64-kernel", "arm64-kernel-sorted", REJECTS, "not flagged as sorted",
        lambda f: f.header is not None and not f.header.flags & F_FDE_SORTED and not f.sorted_later,
    ),
    Demand(
        "arm64-kernel", "arm64-kernel-outside-text", FAILS, "a function before _stext, after _etext, or in a module's .init",
        lambda f: f.unwalked > 0, validated=True,
    ),
)  # fmt: skip

DEMANDS = PROGRAM_DEMANDS + ARM64_KERNEL_DEMANDS


def check_consumers(facts: SectionFacts, consumers: str = "all") -> list[Finding]:
    """Return findings that say how one consumer, or each of them, reacts to a section with these facts.

    A consumer that does not find the section, or does not read its version, is one finding: an error only if it was named.
    """
    unused = Severity.NOTE if consumers == "all" else Severity.ERROR
    return [finding for name in select_consumers(facts, consumers) for finding in _check_consumer(facts, name, unused)]


def select_consumers(facts: SectionFacts, consumers: str) -> list[str]:
    """Return the named consumer, or for "all" those that read the sections of files of this kind."""
    return [name for name, one in CONSUMERS.items() if consumers == name or (consumers == "all" and _is_for(one, facts))]


def _is_for(consumer: Consumer, facts: SectionFacts) -> bool:
    return consumer.reads_files or consumer.of_kernels == facts.of_kernel


def is_accepted_by(facts: SectionFacts, name: str) -> bool:
    """Return True if the consumer finds the section, reads sections of its version, and does not reject this one."""
    consumer = CONSUMERS[name]
    return (
        _is_for(consumer, facts)
        and (facts.loaded or consumer.reads_files)
        and _reads_version(facts, name)
        and not any(demand.effect is Effect.REJECTS for demand in find_unmet_demands(facts, name))
    )


def _reads_version(facts: SectionFacts, name: str) -> bool:
    return facts.layout is None or facts.layout.version in CONSUMERS[name].versions


def _check_consumer(facts: SectionFacts, name: str, unused: Severity) -> list[Finding]:
    """Return the findings about one consumer. `unused`: how bad it is if the consumer does not use the section at all."""
    consumer = CONSUMERS[name]
    # "all" also applies its demands to the modules of other architectures, whose sections no kernel reads.
    if not _is_for(consumer, facts) or (consumer.of_kernels and facts.of_other_machine and unused > Severity.NOTE):
        kernels = "arm64 kernels, which have the symbols _stext and _etext, and of their modules"
        files = kernels if consumer.of_kernels else "programs and libraries"
        return [Finding(f"{name}-other-kind", unused, f"{consumer.title} reads only the sections of {files}", name)]
    if not (facts.loaded or consumer.reads_files):
        return [Finding(f"{name}-not-loaded", unused, f"{consumer.title} uses only sections that are loaded", name)]
    if facts.layout is not None and not _reads_version(facts, name):
        message = f"{consumer.title} does not read version {facts.layout.version}"
        return [Finding(f"{name}-version", unused, message, name)]
    findings = []
    for demand in find_unmet_demands(facts, name):
        first = facts.first_finding(*demand.broken) if isinstance(demand.broken, tuple) else None
        place = (first.offset, first.address) if first else (None, None)
        findings.append(_make_finding(demand, *place))
    return findings


def _make_finding(demand: Demand, offset: int | None = None, address: int | None = None) -> Finding:
    reaction, severity = EFFECTS[demand.effect]
    message = f"{CONSUMERS[demand.consumer].title} {reaction}: {demand.fault}"
    if demand.validated:
        message += " (rejects the section where it validates)"
    return Finding(demand.name, severity, message, demand.consumer, offset, address)


def find_unavoidable_rejections(executable: Sequence[Range], version: int) -> list[Finding]:
    """Return a finding for each consumer that rejects any section of this version in a file with code in these ranges."""
    facts = SectionFacts(size=0, address=0, executable=executable)
    names = {name for name, consumer in CONSUMERS.items() if version in consumer.versions}
    demands = [demand for demand in PROGRAM_DEMANDS if demand.broken is _has_several_texts and demand.consumer in names]
    return [_make_finding(demand) for demand in demands if _is_broken(demand, facts)]


def find_unmet_demands(facts: SectionFacts, consumer: str) -> list[Demand]:
    """Return the unmet demands of a consumer. If it rejects the section, only those that make it do so, because it stops there."""
    unmet = [demand for demand in DEMANDS if demand.consumer == consumer and _is_broken(demand, facts)]
    return [demand for demand in unmet if demand.effect is Effect.REJECTS] or unmet


def _is_broken(demand: Demand, facts: SectionFacts) -> bool:
    if isinstance(demand.broken, tuple):
        return facts.first_finding(*demand.broken) is not None
    return demand.broken(facts)
