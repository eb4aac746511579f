"""The registry against a naive list, and each interface: its structure byte for byte, its errors."""

from __future__ import annotations

import errno
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sframegen.registry
from sframegen.format.abi import AMD64, S390X
from sframegen.format.model import OUTERMOST
from sframegen.registry.calls import Caller, CodeOption, codectl, sframe_register, sframe_unregister
from sframegen.registry.regions import Region, Registry, RegistryError
from sframegen.registry.structures import LAYOUTS, CodeJitInfo, JitTable, SframeSetup, encode
from tests.support.loops import for_each
from tests.support.processes.memories import Pieces
from tests.support.processes.registered import RULE, section_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sframegen.format.model import Match

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT, SECTION, OTHER_SECTION, STRUCT, STRINGS = 0x40_0000, 0x50_0000, 0x51_0000, 0x60_0000, 0x70_0FF0
SECTION_BYTES = section_bytes(SECTION, (TEXT, TEXT + 64))
SIZE = len(SECTION_BYTES)
SETUP = SframeSetup(SECTION, SIZE, TEXT, 4096)


def caller(struct_bytes: bytes = b"", **more: bytes) -> Caller:
    pieces = {
        SECTION: SECTION_BYTES,
        OTHER_SECTION: section_bytes(OTHER_SECTION, (TEXT + 8192,)),
        STRUCT: struct_bytes,
        STRINGS: more.get("strings", b""),
    }
    return Caller(Registry(), Pieces(pieces), AMD64)


def give(call: Caller, struct_bytes: bytes) -> tuple[int, int]:
    """Address and size of a structure in the caller's memory."""
    memory = call.memory
    assert isinstance(memory, Pieces)
    memory.pieces[STRUCT] = struct_bytes
    return STRUCT, len(struct_bytes)


def refused(number: int, call: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(RegistryError) as caught:
        call(*arguments)
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[number]


# --- The model --------------------------------------------------------------------------------------------------------------------


class Nothing:
    def look_up(self, pc: int) -> Match | None:
        raise AssertionError(pc)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("register"), st.integers(-2, 40), st.integers(-2, 40), st.integers(0, 4)),
            st.tuples(st.just("unregister"), st.integers(0, 4), st.just(0), st.just(0)),
        ),
        max_size=30,
    )
)
def test_registry_is_as_a_list_would_be(calls: list[tuple[str, int, int, int]]) -> None:
    registry, model = Registry(), list[Region]()
    for what, first, end, key in calls:
        if what == "register":
            region = Region(first, end, key, Nothing())
            expected = errno.EINVAL if not 0 <= first < end else 0
            if not expected and any(set(range(first, end)) & set(range(r.start, r.end)) for r in model):
                expected = errno.EEXIST
            if expected:
                refused(expected, registry.register, region)
            else:
                registry.register(region)
                model.append(region)
        elif any(region.key == first for region in model):
            gone = registry.unregister(first)
            assert sorted(gone) == sorted(region for region in model if region.key == first)
            model = [region for region in model if region.key != first]
        else:
            refused(errno.EINVAL, registry.unregister, first)
        assert list(registry) == sorted(model)
        for pc in range(-3, 43):
            assert registry.find(pc) == next((region for region in model if region.start <= pc < region.end), None)


def test_a_region_ends_with_the_address_space() -> None:
    registry = Registry()
    registry.register(Region((1 << 64) - 1, 1 << 64, 0, Nothing()))
    assert registry.find((1 << 64) - 1) is not None
    refused(errno.EINVAL, registry.register, Region(1, (1 << 64) + 1, 0, Nothing()))


# --- Structures -------------------------------------------------------------------------------------------------------------------

BYTES = {
    SframeSetup(0x0102030405060708, 2, 3, 4): "0807060504030201 0200000000000000 0300000000000000 0400000000000000",
    CodeJitInfo(0x11, 0x22, 0x33): "1100000000000000 2200000000000000 3300000000000000",
    JitTable(48, 24, 0x1000, 24, 21): "3000000000000000 1800000000000000 0010000000000000 18000000 15000000",
}


@for_each("record", BYTES)
def test_bytes_of_a_structure(record: SframeSetup) -> None:
    expected = bytes.fromhex(BYTES[record])
    assert encode(record) == expected
    assert len(expected) == LAYOUTS[type(record)][1]
    words = struct.iter_unpack("8s", expected)
    if isinstance(record, SframeSetup):
        assert encode(record, "big") == b"".join(word[::-1] for (word,) in words)


@for_each("size", range(65))
def test_setup_of_any_size(size: int) -> None:
    """Missing bytes are 0; those that follow have to be."""
    whole = encode(SETUP).ljust(64, b"\0")[:size]
    call = caller(whole)
    if size <= 25:  # text_size is 0x1000: its second byte
        refused(errno.EINVAL, sframe_register, call, STRUCT, size)
        assert not len(call.registry)
        return
    region = sframe_register(call, STRUCT, size)
    assert (region.start, region.end) == (TEXT, TEXT + 4096)
    if size > 32:
        for at in range(32, size):
            refused(errno.E2BIG, sframe_register, call, *give(call, whole[:at] + b"\x01" + whole[at + 1 :]))


def test_sizes_beyond_a_page_are_refused() -> None:
    call = caller(encode(SETUP).ljust(4096, b"\0"))
    sframe_register(call, STRUCT, 4096)
    refused(errno.E2BIG, sframe_register, call, STRUCT, 4097)
    refused(errno.EINVAL, sframe_register, call, STRUCT, -1)


# --- sframe_register --------------------------------------------------------------------------------------------------------------


def test_what_is_registered_describes_the_code() -> None:
    call = caller(encode(SETUP))
    region = sframe_register(call, STRUCT, 32)
    found = call.registry.find(TEXT + 70)
    assert found is region
    answer = region.describer.look_up(TEXT + 70)
    assert answer is not None
    assert (answer.start, answer.size, answer.rule) == (TEXT + 64, 16, RULE)
    assert region.describer.look_up(TEXT + 32) is None
    assert sframe_unregister(call, *give(call, encode(SframeSetup(SECTION, 0, 0, 0)))) == [region]
    assert call.registry.find(TEXT) is None


@for_each(
    ("number", "change"),
    [
        (errno.EINVAL, {"text_size": 0}),
        (errno.EINVAL, {"text_start": 0}),
        (errno.EINVAL, {"text_size": 2**64 - 1}),
        (errno.EINVAL, {"sframe_start": 0}),
        (errno.EINVAL, {"sframe_size": 0}),
        (errno.EINVAL, {"sframe_size": 27}),
        (errno.EINVAL, {"sframe_size": SIZE - 1}),
        (errno.EINVAL, {"sframe_size": 2**63}),
        (errno.EINVAL, {"sframe_start": SECTION + 1, "sframe_size": SIZE - 1}),
        (errno.EFAULT, {"sframe_size": SIZE + 1}),
        (errno.EFAULT, {"sframe_start": 0x1000}),
        (errno.EINVAL, {"sframe_start": 2**64 - 28, "sframe_size": 29}),
    ],
)
def test_a_setup_that_is_refused(number: int, change: dict[str, int]) -> None:
    call = caller(encode(SETUP._replace(**change)))
    refused(number, sframe_register, call, STRUCT, 32)
    assert not len(call.registry)


def test_structures_that_cannot_be_read() -> None:
    call = caller(encode(SETUP))
    for function in (sframe_register, sframe_unregister):
        for address in (0, STRUCT - 1, 2**64 - 1, 2**64, -1):
            refused(errno.EFAULT, function, call, address, 32)
        refused(errno.EFAULT, function, call, STRUCT, 33)


def test_overlaps_are_refused_neighbours_are_not() -> None:
    call = caller()
    for start, size in ((TEXT, 4096), (TEXT + 4096, 1), (TEXT - 1, 1)):
        sframe_register(call, *give(call, encode(SETUP._replace(text_start=start, text_size=size))))
    for start, size in ((TEXT, 1), (TEXT + 4095, 1), (TEXT - 16, 64), (TEXT - 1, 2)):
        refused(errno.EEXIST, sframe_register, call, *give(call, encode(SETUP._replace(text_start=start, text_size=size))))
    gone = sframe_unregister(call, *give(call, encode(SframeSetup(SECTION, 0, 0, 0))[:8]))
    assert len(gone) == 3, "all that the section describes"


@pytest.mark.parametrize("field", SframeSetup._fields[1:])
def test_to_unregister_takes_the_section_alone(field: str) -> None:
    call = caller(encode(SETUP))
    sframe_register(call, STRUCT, 32)
    only = SframeSetup(SECTION, 0, 0, 0)
    refused(errno.EINVAL, sframe_unregister, call, *give(call, encode(only._replace(**{field: 1}))))
    refused(errno.EINVAL, sframe_unregister, call, *give(call, encode(SframeSetup(SECTION + 8, 0, 0, 0))))
    assert len(call.registry) == 1


def test_sections_of_the_wrong_machine_are_refused() -> None:
    memory = Pieces({SECTION: section_bytes(SECTION, (TEXT,), S390X), STRUCT: b""})
    section = len(memory.pieces[SECTION])
    memory.pieces[STRUCT] = encode(SETUP._replace(sframe_size=section))
    refused(errno.EINVAL, sframe_register, Caller(Registry(), memory, AMD64), STRUCT, 32)
    memory.pieces[STRUCT] = encode(SETUP._replace(sframe_size=section), "big")
    region = sframe_register(Caller(Registry(), memory, S390X), STRUCT, 32)
    assert (region.start, region.end) == (TEXT, TEXT + 4096)


# --- codectl ----------------------------------------------------------------------------------------------------------------------


def test_codectl_knows_two_options_and_no_flags() -> None:
    call = caller(bytes(32 - 1) + b"x")
    for option in (-1, 0, 3, 1 << 32):
        refused(errno.EINVAL, codectl, call, option, STRUCT, 24)
    refused(errno.EINVAL, codectl, call, CodeOption.REGISTER_JIT, STRUCT, 24, 1)
    refused(errno.E2BIG, codectl, call, CodeOption.REGISTER_JIT, STRUCT, 32)
    refused(errno.EFAULT, codectl, call, CodeOption.REGISTER_JIT, 0, 24)


def test_codectl_registers_tables() -> None:
    call = caller()
    memory = call.memory
    assert isinstance(memory, Pieces)
    head = 0x80_0000
    info = CodeJitInfo(TEXT, TEXT + 64, head)
    refused(errno.EINVAL, codectl, call, 1, *give(call, encode(info)))
    memory.pieces[head] = encode(JitTable(24, 24, 0, 24, 21)) + struct.pack("<2I3iB3x", 8, 16, 0, 0, 0, 0x08)
    refused(errno.EINVAL, codectl, call, 1, *give(call, encode(info._replace(unwind_head=0))))
    refused(errno.EINVAL, codectl, call, 1, *give(call, encode(info._replace(text_end=TEXT + 23))))
    refused(errno.EINVAL, codectl, call, 1, *give(call, encode(info)[:16]))
    [region] = codectl(call, 1, *give(call, encode(info)))
    found = region.describer.look_up(TEXT + 20)
    assert found is not None
    assert (found.start, found.size, found.rule) == (TEXT + 16, 8, OUTERMOST)
    refused(errno.EEXIST, sframe_register, call, *give(call, encode(SETUP)))
    assert codectl(call, CodeOption.UNREGISTER, TEXT, 0) == [region]


def test_interfaces_do_not_take_each_others_regions_away() -> None:
    call = caller()
    sframe_register(call, *give(call, encode(SETUP)))
    refused(errno.EINVAL, codectl, call, CodeOption.UNREGISTER, TEXT, 0)
    assert len(call.registry) == 1


# --- Damage -----------------------------------------------------------------------------------------------------------------------


def damaged(data: bytes) -> Iterator[bytes]:
    for bit in range(len(data) * 8):
        copy = bytearray(data)
        copy[bit // 8] ^= 1 << bit % 8
        yield bytes(copy)


@for_each("option", [None, *CodeOption])
def test_damaged_structures_are_refused_or_taken(option: CodeOption | None) -> None:
    """Whatever bit is flipped: a region that can be asked, or an errno."""
    data = encode(SETUP) if option is None else encode(CodeJitInfo(TEXT, TEXT + 64, 0x80_0000))
    for copy in damaged(data):
        call = caller(copy)
        try:
            if option is None:
                sframe_register(call, STRUCT, len(copy))
            else:
                codectl(call, option, STRUCT, len(copy))
        except RegistryError:
            assert not len(call.registry)
        else:
            [region] = call.registry
            region.describer.look_up(region.start)


# --- What docs/registration.md publishes -----------------------------------------------------------------------------------------


def test_public_names_are_those_that_the_document_lists() -> None:
    lines = [line.split("|")[1] for line in (DOCS / "registration.md").read_text().splitlines() if line.startswith("| `")]
    listed = {name for line in lines for name in re.findall(r"`(\w+)(?:\([^)]*\))?`", line)}
    assert listed == set(sframegen.registry.__all__)  # type: ignore[attr-defined]
    assert all(getattr(sframegen.registry, name).__name__ == name for name in listed)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = sframegen.registry.nothing  # type: ignore[attr-defined]


def test_importing_the_registry_loads_no_interface() -> None:
    command = [sys.executable, "-c", "import sys, sframegen.registry; print(*sys.modules)"]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert [name for name in loaded if name.startswith("sframegen.registry.")] == []
