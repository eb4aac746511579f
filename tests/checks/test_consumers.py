"""What each consumer would do with a section: every demand is broken and found, and agrees with what the consumer's reader does."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from sframegen.checks.consumers import (
    CONSUMERS,
    DEMANDS,
    EFFECTS,
    Demand,
    Effect,
    check_consumers,
    find_unmet_demands,
    is_accepted_by,
    select_consumers,
)
from sframegen.checks.finding import Severity
from sframegen.checks.specification.rule_list import RULES
from sframegen.checks.specification.wellformed import SectionFacts, examine_section
from sframegen.checks.unusable import LIMITS, find_unusable_code
from sframegen.elf.file import open_elf
from sframegen.format.abi import AMD64
from sframegen.format.decode import decode
from sframegen.format.locate import find_sframe
from sframegen.format.model import FdeType, FunctionTable, Kind, Rule, Where
from tests import ROOT
from tests.checks.readers.compare import compare, verdicts
from tests.checks.readers.kernel import Kernel, KernelError
from tests.checks.readers.libsframe import LibSframe
from tests.checks.readers.mutate import Base, bases, put
from tests.checks.section_damage import DAMAGES, MASKED, Editor, base_named, judge
from tests.support.loops import for_each
from tests.support.peers import Peers
from tests.support.producers import GNU, ROWS_X86_64

MUTANTS = 300
BIG = "AArch64 big-endian V3"
VERSION = {"kernel": 3, "glibc": 2, "gnu": 3, "arm64-kernel": 3}
# Demands that are not a rule of the specification: of one consumer, or of several.
OTHERS: dict[str, Callable[[Editor], object]] = {
    "sorted": lambda e: e.set_header(flags=4),
    "pc-relative": lambda e: e.set_header(flags=1),
    "wrapped": lambda e: e.start(-1, -0x40000),
    "offsets": lambda e: e.set_header(fdeoff=e.header.freoff + 1),
    "layout": DAMAGES["sub-section-gap"],
    "no-rows": DAMAGES["no-rows"],
    "period": DAMAGES["mask-without-period"],
    "kernel-auxiliary-header": DAMAGES["auxiliary-header"],
    "kernel-empty": lambda e: e.set_header(num_fres=0),
    "kernel-header-only": lambda e: e.data.__delitem__(slice(28, None)),
    "kernel-sub-sections": lambda e: e.set_header(freoff=0),
    "glibc-empty": lambda e: e.set_header(num_fdes=0),
    "glibc-far": lambda e: put(e.data, e.entry(-1), 4, 0x7FFFFFFF, e.order),
    "glibc-words": lambda e: e.set(e.row(1, 1) + 1, 4 << 1),
    "gnu-foreign-auxiliary-header": DAMAGES["auxiliary-header"],
    "gnu-foreign-total": DAMAGES["row-total"],
    "gnu-foreign-shared": lambda e: e.add(e.entry(1) + e.layout.fre_offset_at, 4, e.block(0) - e.block(1)),
    "gnu-foreign-rest": DAMAGES["trailing-bytes"],
    "gnu-word-bytes": lambda e: e.set(e.rows(0) + 1, 15 << 1 | 2 << 5),
    "gnu-words": lambda e: e.set(e.rows(0) + 1, 7 << 1),
}


def broken(demand: Demand) -> SectionFacts:
    """A section in which it is."""
    facts = damaged(demand)
    facts.of_kernel = CONSUMERS[demand.consumer].of_kernels
    facts.unwalked = int(demand.name == "arm64-kernel-outside-text")
    return facts


def damaged(demand: Demand) -> SectionFacts:
    base = base_named(BIG if "foreign" in demand.name else f"AMD64 V{VERSION[demand.consumer]}")
    if demand.name.endswith("byte-order"):
        return judge(base.data, base, byte_order="big")
    if demand.name == "arm64-kernel-outside-text":
        return judge(base.data, base)
    if demand.name == "kernel-one-text":
        return judge(base.data, base, executable=[(0x1000, 0x1080), (0x1080, 0x40000)])
    editor = Editor(base)
    name = demand.name.removeprefix("arm64-")
    others = OTHERS.get(name) or OTHERS.get(name.partition("-")[2], lambda _: pytest.fail("no damage"))
    damage = DAMAGES[demand.broken[0]] if isinstance(demand.broken, tuple) else others
    damage(editor)
    return judge(bytes(editor.data), base)


@for_each("demand", DEMANDS, ids=lambda demand: demand.name)
def test_each_demand_is_broken_and_found(demand: Demand) -> None:
    facts = broken(demand)
    assert not isinstance(demand.broken, tuple) or set(demand.broken) <= set(RULES)
    assert demand in find_unmet_demands(facts, demand.consumer)
    [finding] = [finding for finding in check_consumers(facts, demand.consumer) if finding.rule == demand.name]
    assert finding.consumer == demand.consumer
    assert finding.severity == EFFECTS[demand.effect][1]
    assert EFFECTS[demand.effect][0] in finding.message
    assert demand.name in {finding.rule for finding in check_consumers(facts)}


@for_each("base", bases(), ids=lambda base: base.name)
def test_sound_sections_are_accepted_by_all(base: Base) -> None:
    facts = judge(base.data, base)
    found = check_consumers(facts)
    assert [finding for finding in found if finding.severity > Severity.NOTE] == []
    unread = [name for name in select_consumers(facts, "all") if base.data[2] not in CONSUMERS[name].versions]
    assert [(finding.consumer, finding.rule) for finding in found] == [(name, f"{name}-version") for name in unread]
    assert [finding.severity for name in unread for finding in check_consumers(facts, name)] == [Severity.ERROR] * len(unread)


@pytest.mark.parametrize("producer", GNU, ids=lambda producer: producer.name)
def test_what_gnu_tools_write_is_accepted(producer: object, peers: Peers, tmp_path: Path) -> None:
    made = producer.link(ROWS_X86_64, tmp_path / "lib.so", peers)  # type: ignore[attr-defined]
    elf = open_elf(made)
    found = find_sframe(elf)
    assert found is not None
    facts = examine_section(*found, executable=elf.executable_ranges(), byte_order=elf.byte_order)
    # GNU 2.44 knew no flag for starts that are relative to themselves; to 2.47 all are.
    expected = {"gnu-pc-relative"} if not facts.header or facts.header.flags == 1 else set()
    read = facts.layout is not None and facts.layout.version in CONSUMERS["gnu"].versions
    assert {finding.rule for finding in check_consumers(facts) if finding.severity} == (expected if read else set())


def test_a_section_that_is_not_loaded_is_for_readers_of_files() -> None:
    """A damaged one as well: the others do not come to see it."""
    editor = Editor(base_named("AMD64 V3"))
    editor.set_header(flags=4)
    facts = judge(bytes(editor.data), base_named("AMD64 V3"))
    assert {finding.rule for finding in check_consumers(facts)} == {"kernel-sorted", "glibc-version", "gnu-sorted"}
    DAMAGES["row-order"](editor)  # what is rejected is not judged further
    both = judge(bytes(editor.data), base_named("AMD64 V3"))
    assert [demand.name for demand in find_unmet_demands(both, "kernel")] == ["kernel-sorted"]
    facts.loaded = False
    found = check_consumers(facts)
    assert {finding.rule for finding in found} == {"kernel-not-loaded", "glibc-not-loaded", "gnu-sorted"}
    assert {finding.severity for finding in found if finding.consumer != "gnu"} == {Severity.NOTE}
    assert [name for name in CONSUMERS if is_accepted_by(facts, name)] == ["gnu"]
    assert [(one.rule, one.severity) for one in check_consumers(facts, "kernel")] == [("kernel-not-loaded", Severity.ERROR)]


def test_a_start_round_the_end_of_the_address_space_has_the_kernel_drop_the_section() -> None:
    """At its link-time address it is the last, as it should be; in a library that is loaded elsewhere it is below all others."""
    base = base_named("AMD64 V3")
    editor = Editor(base)
    editor.start(-1, -0x40000)
    data = bytes(editor.data)
    assert "start-order" not in judge(data, base).counts
    [kernel] = [verdict for verdict in verdicts(base, data, None) if verdict.consumer == "kernel"]
    assert kernel.said is kernel.done is Effect.DROPS


@for_each("version", [2, 3])
@for_each(
    ("damage", "crashes"),
    [
        (lambda e: e.size(MASKED, 0x40), {"kernel", "glibc", "gnu"}),
        (lambda e: e.set(e.info(MASKED), e.data[e.info(MASKED)] | 7), {"kernel"}),
        (lambda e: e.size(MASKED, 0), set()),
    ],
    ids=["found", "of an unknown FRE type", "never found"],
)
def test_a_period_of_nothing_divides_only_where_a_look_up_comes_to_it(
    version: int, damage: Callable[[Editor], object], crashes: set[str]
) -> None:
    base = base_named(f"AMD64 V{version}")
    editor = Editor(base)
    DAMAGES["mask-without-period"](editor)
    damage(editor)
    data = bytes(editor.data)
    assert "mask-without-period" in judge(data, base).counts
    for verdict in verdicts(base, data, None):
        if verdict.consumer in CONSUMERS and version in CONSUMERS[verdict.consumer].versions:
            assert (verdict.done is Effect.CRASHES) is (verdict.consumer in crashes)
            assert (f"{verdict.consumer}-period" in verdict.rules) is (verdict.consumer in crashes)


@for_each("base", [base for base in bases() if base.data[2] == 3], ids=lambda base: base.name)
def test_code_that_the_kernel_cannot_use_is_what_its_reader_says(base: Base) -> None:
    section = decode(memoryview(base.data), base.address)
    kernel = Kernel(base.data, base.address, base.order, base.code)
    code = [(0x1000, 0x1100), (0x22000, 0x22060)]  # usual functions, the repeated one, the flexible one, the outermost one
    counts = {limit.name: 0 for limit in LIMITS}
    for ip in chain.from_iterable(range(*part) for part in code):
        try:
            limit = kernel.limit(ip, section.abi.sp, section.abi.fp)
        except KernelError:
            continue
        if limit:
            counts[f"kernel-{limit}"] += 1
    found = find_unusable_code(section.table, code, section.abi)
    assert found.code == counts
    assert [name for name, count in counts.items() if not count] == ["kernel-fp-at-cfa"]  # nothing of ours has it
    assert [(note.rule, note.severity) for note in found.notes] == [(limit.name, Severity.NOTE) for limit in LIMITS[:-1]]


def test_repeated_code_that_cannot_be_used_is_counted_in_every_period() -> None:
    table = FunctionTable(kinds=[Kind(FdeType.FLEX, rep_size=16, mask=True)])
    table.rules = [Rule(Where(AMD64.sp, 8)), Rule(Where(AMD64.sp, 8, deref=True))]
    table.append(0x1000, 0x47, 0, [(0, 0), (6, 1)])
    assert find_unusable_code(table, [(0x1000, 0x2000)], AMD64).code["kernel-cfa-memory"] == 4 * 10 + 1
    assert find_unusable_code(table, [(0x2000, 0x3000)], AMD64) == (dict.fromkeys((limit.name for limit in LIMITS), 0), [])


# -- the readers themselves; `python -m tests.checks.readers.compare` does the same with more mutants


@pytest.fixture(scope="module")
def gnu(peers: Peers) -> Iterator[LibSframe]:
    with LibSframe(peers.libsframe()) as process:
        yield process


@for_each("seed", range(3))
def test_check_says_what_the_readers_do(seed: int, gnu: LibSframe) -> None:
    wrong = [
        f"{base.name}: {verdict}: {data.hex()}"
        for base, data, verdict in compare(bases(), MUTANTS // 3, seed, gnu)
        if not verdict.agrees
    ]
    assert wrong == []


@for_each("base", bases(), ids=lambda base: base.name)
def test_the_readers_take_sound_sections(base: Base, gnu: LibSframe) -> None:
    for verdict in verdicts(base, base.data, gnu):
        unread = verdict.consumer.split()[-1]
        assert verdict.done is (None if base.data[2] in CONSUMERS[unread].versions else Effect.REJECTS)
        assert verdict.said is verdict.done


def test_each_reader_has_its_kind_of_file() -> None:
    base = base_named("AArch64 V3")
    program, kernel = judge(base.data, base), judge(base.data, base)
    kernel.of_kernel = True
    assert select_consumers(program, "all") == ["kernel", "glibc", "gnu"]
    assert select_consumers(kernel, "all") == ["gnu", "arm64-kernel"]
    for facts, name in ((program, "arm64-kernel"), (kernel, "kernel"), (kernel, "glibc")):
        assert [(one.rule, one.severity) for one in check_consumers(facts, name)] == [(f"{name}-other-kind", Severity.ERROR)]


def test_each_rule_is_in_a_list_for_users() -> None:
    """Texts with a hyphen are rules or readers; with one at the beginning, rules of each reader."""
    nodes = [node for file in (ROOT / "sframegen/checks").rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    rules = {text for text in texts if re.fullmatch("[a-z0-9]*(-[a-z0-9]+)+", text)}
    page = (ROOT / "docs/checking.md").read_text()
    assert {rule for rule in rules if f"{rule}`" not in page} - set(RULES) - {demand.name for demand in DEMANDS} == set()
    assert set(re.findall(r"^\| `([a-z-]+)` \| (?:error|warning|note) \|", page, re.MULTILINE)) <= texts


def test_the_document_names_the_readers_and_what_the_kernel_cannot_use() -> None:
    text = (ROOT / "docs/checking.md").read_text()
    assert {limit.name for limit in LIMITS if f"| `{limit.name}` | {limit.severity.name.lower()} |" not in text} == set()
    for name, consumer in CONSUMERS.items():
        assert re.search(rf"^\| `{name}` \| .* \| {', '.join(map(str, consumer.versions))} \|$", text, re.MULTILINE)
