"""Files with a section in the tail layout, or of other machines, go through other tools: docs/strip.md.

corpus/tools has the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from linker.inject.image import check_no_appended_data
from sframegen import add_section, remove
from sframegen.elf.file import open_elf
from sframegen.elf.notes import read_build_id
from sframegen.elf.records import PT
from tests.real.post_link import (
    BREAKS,
    NO_BETTER,
    SUBJECTS,
    TOOLS,
    WARNS,
    WORKS,
    Subject,
    Tool,
    ToolError,
    Workshop,
    apply,
    judge,
    outcome,
)
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers

pytestmark = pytest.mark.full

# Tools that break a file without a section, and the same with a section not.
BROKEN_WITHOUT = {("LIEF, adding a library", "static-PIE, tail")}
TABLED = [subject for subject in SUBJECTS if subject.machine or "tail" in subject.name]
TAILS = {"static-PIE, tail", "library, tail"}
STRIP_AND_OTHERS = ("strip, then llvm-strip", "llvm-strip, then strip", "eu-strip, then strip")
WITH_GNU_STRIP = ("strip", "strip -g", "objcopy", "objcopy, strip and debug link as Debian", *STRIP_AND_OTHERS)
EXPECTED = {  # except WORKS
    **{(tool, name): WARNS for name in TAILS for tool in WITH_GNU_STRIP},
    **{(tool.name, name): NO_BETTER for name in TAILS for tool in TOOLS if "patchelf" in tool.name},
    **{("strip, then eu-strip", name): BREAKS for name in TAILS},
    ("eu-strip -f, then eu-unstrip", "library, tail"): BREAKS,
    ("eu-strip -f, then eu-unstrip", "static-PIE, tail"): NO_BETTER,
    ("chrpath -r", "static-PIE, tail"): NO_BETTER,
    ("chrpath -r", "s390x"): NO_BETTER,
}


def expected(tool: Tool, subject: Subject) -> str:
    return EXPECTED.get((tool.name, subject.name), WORKS)


@pytest.fixture(scope="module")
def shop_of(peers: Peers, compile_c: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Subject], Workshop]:
    @cache
    def made(subject: Subject) -> Workshop:
        return Workshop.of(subject, tmp_path_factory.mktemp("shop"), peers, compile_c)

    return made


each_tool = pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
each_subject = for_each("subject", TABLED, ids=lambda subject: subject.name)


@each_tool
@each_subject
def test_add_section_and_then_the_tool(
    tool: Tool, subject: Subject, shop_of: Callable[[Subject], Workshop], tmp_path: Path
) -> None:
    mark, why = outcome(tool, shop_of(subject), tmp_path)
    assert mark == expected(tool, subject), why


@each_tool
@each_subject
def test_the_tool_and_then_add_section(
    tool: Tool, subject: Subject, shop_of: Callable[[Subject], Workshop], tmp_path: Path
) -> None:
    """Works wherever the tool itself does."""
    shop = shop_of(subject)
    first, then = tmp_path / "first" / shop.original.name, tmp_path / "then" / shop.original.name
    if expected(tool, subject) == NO_BETTER:
        return
    apply(tool, shop, shop.original, first)
    if (tool.name, shop.subject.name) in BROKEN_WITHOUT:
        with pytest.raises(ToolError):
            shop.run(first)
        return
    shop.run(first)
    then.parent.mkdir()
    add_section(first, output=then, verify=False, min_kernel=shop.subject.min_kernel)
    judge(then, shop)


@each_tool
@each_subject
def test_add_section_the_tool_and_then_remove(
    tool: Tool, subject: Subject, shop_of: Callable[[Subject], Workshop], tmp_path: Path
) -> None:
    """The tool's own work is kept."""
    shop = shop_of(subject)
    if expected(tool, subject) not in (WORKS, WARNS):
        return
    file = tmp_path / "changed" / shop.original.name
    apply(tool, shop, shop.result, file)
    remove(file, verify=False)
    elf = open_elf(file)
    assert PT.GNU_SFRAME not in {s.p_type for s in elf.segments}
    assert ".sframe" not in {s.name for s in elf.sections}
    assert read_build_id(elf) == read_build_id(open_elf(shop.original))
    assert tool.leaves.encode() in file.read_bytes()
    check_no_appended_data(elf)  # nothing is left of the record that would look like a payload
    shop.run(file)
