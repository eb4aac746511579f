"""Mappings of ELF files -> spans with biases; the first case is what loaders do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from sframegen.elf.records import PF, PT, Phdr
from sframegen.profile.following.files import CodeSpan, TracedFile
from sframegen.profile.following.follower import MAX_SPAN_LISTS, FileMapping, make_spans, split_into_code_spans

if TYPE_CHECKING:
    from sframegen.elf.file import ElfFile

PAGE = 0x1000


def load(offset: int, vaddr: int, size: int, flags: int = PF.X) -> Phdr:
    return Phdr(PT.LOAD, flags, offset, vaddr, vaddr, size, size, PAGE)


def elf(*loads: Phdr) -> ElfFile:
    made = SimpleNamespace(segments=list(loads), executable_loads=lambda: [one for one in loads if one.p_flags & PF.X])
    return cast("ElfFile", made)


TEXT, DATA = load(0x1100, 0x401100, 0x1F00), load(0x3000, 0x405000, 0x500, 0)
SHARING = load(0, 0x400000, 0x1800), load(0x1800, 0x602800, 0x800)
SECOND = load(0x3800, 0x806800, 0x1000)


def test_spans() -> None:
    cases: list[tuple[tuple[Phdr, ...], FileMapping, list[CodeSpan]]] = [
        ((TEXT, DATA), FileMapping(0x10000, 0x12000, PAGE), [CodeSpan(0x10000, 0x12000, 0x10000 - 0x401000, 1)]),
        ((TEXT, DATA), FileMapping(0x11000, 0x12000, 2 * PAGE), [CodeSpan(0x11000, 0x12000, 0x11000 - 0x402000, 1)]),
        ((TEXT, DATA), FileMapping(0x10000, 0x11000, 3 * PAGE), [CodeSpan(0x10000, 0x11000, 0x10000 - 0x405000, 1)]),
        ((TEXT, DATA), FileMapping(0x10000, 0x11000, 9 * PAGE), [CodeSpan(0x10000, 0x11000, 0, 0)]),
        (
            (TEXT, SECOND),
            FileMapping(0x10000, 0x15000, 0),
            [CodeSpan(0x11100, 0x13000, 0x10000 - 0x400000, 1), CodeSpan(0x13800, 0x14800, 0x10000 - 0x803000, 1)],
        ),
        ((TEXT, SECOND), FileMapping(0x20000, 0x22000, 3 * PAGE), [CodeSpan(0x20000, 0x22000, 0x20000 - 0x806000, 1)]),
        # two segments in one page: each mapping has the segment that it was made for
        (
            (load(0, 0x400000, 0x1800), load(0x1800, 0x602800, 0x800)),
            FileMapping(0x10000, 0x12000, 0),
            [CodeSpan(0x10000, 0x12000, -0x3F0000, 1)],
        ),
        ((), FileMapping(0x10000, 0x11000, 0), [CodeSpan(0x10000, 0x11000, 0, 0)]),
    ]
    wrong = []
    for loads, mapped, spans in cases:
        expected = [span._replace(bias=span.bias & (1 << 64) - 1) for span in spans]
        file = TracedFile(1, "/library", elf(*loads))
        found = [split_into_code_spans(elf(*loads), 1, mapped), *(make_spans(file, mapped) for _ in range(2))]
        if found != [expected] * 3:
            wrong.append((loads, mapped, found))
    assert wrong == []


def test_a_file_at_other_addresses_and_from_other_places() -> None:
    """What is known of a file's mappings is known by offset and size."""
    file = TracedFile(1, "/library", elf(TEXT, SECOND))
    for mapped in (
        FileMapping(0x10000, 0x12000, PAGE),
        FileMapping(0x7F0000010000, 0x7F0000012000, PAGE),
        FileMapping(0x10000, 0x11000, PAGE),
        FileMapping(0x10000, 0x12000, 3 * PAGE),
        *(FileMapping(0x10000, 0x10000 + size * PAGE, 0) for size in range(1, 2 * MAX_SPAN_LISTS)),
        FileMapping(0x20000, 0x22000, PAGE),
    ):
        assert make_spans(file, mapped) == split_into_code_spans(elf(TEXT, SECOND), 1, mapped)
