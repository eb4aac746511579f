"""Records, made byte by byte as the kernel's header describes them, and damaged ones."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi.errors import FormatError
from sframegen.profile.events.attributes import TYPE_SOFTWARE, EventAttributes, EventFlag, SampleType
from sframegen.profile.events.event_records import (
    CommRecord,
    LostRecord,
    Misc,
    MmapRecord,
    RecordKind,
    RecordReader,
    SampleRecord,
    TaskRecord,
)

S = SampleType
SUFFIXED = EventAttributes(TYPE_SOFTWARE, sample_type=S.TID | S.TIME | S.CPU, flags=EventFlag.SAMPLE_ID_ALL)
SUFFIX = struct.pack("=IIQII", 10, 11, 12345, 3, 0)
EVERYTHING = EventAttributes(
    TYPE_SOFTWARE,
    sample_type=sum(S),
    read_format=1 | 4 | 8,
    branch_sample_type=1 << 17,
    user_registers=0b10110,
)
# identifier, ip, pid tid, time, addr, id, stream, cpu, period; read of a group of two; callchain; raw; branches; registers; stack
SAMPLE = (
    struct.pack("=QQIIQQQQIIQ", 77, 0x401000, 10, 11, 12345, 0, 77, 0, 3, 0, 1000)
    + struct.pack("=QQQQQQ", 2, 5, 6, 7, 8, 9)
    + struct.pack("=QQQ", 2, 0xFF, 0x401000)
    + struct.pack("=I", 4) + b"raw!"
    + struct.pack("=QQ24x", 1, 0)
    + struct.pack("=QQQQ", 2, 101, 102, 104)
    + struct.pack("=Q", 16) + b"stack of 16 byte" + struct.pack("=Q", 8)
)  # fmt: skip


def mmap2(path: bytes, *, misc: int = 0, protection: int = 5, tail: bytes = SUFFIX) -> MmapRecord:
    body = struct.pack("=IIQQQIIQQII", 10, 11, 0x1000, 0x2000, 0x3000, 254, 1, 99, 7, protection, 2) + path + tail
    record = RecordReader(SUFFIXED).read(RecordKind.MMAP2, misc, body)
    assert isinstance(record, MmapRecord)
    return record


def test_a_mapping_names_its_file_by_inode_or_build_id() -> None:
    assert mmap2(b"/lib/a.so\0\0\0\0\0\0\0") == (10, 11, 0x1000, 0x3000, 0x3000, True, "/lib/a.so", 254, 1, 99, 7, b"")
    assert not mmap2(b"//anon\0\0", protection=3).executable
    identity = bytes([20, 0, 0, 0]) + bytes(range(1, 21))
    body = struct.pack("=IIQQQ", 10, 11, 0x1000, 0x2000, 0) + identity + struct.pack("=II", 4, 2) + b"/lib/a.so\0" + SUFFIX
    record = RecordReader(SUFFIXED).read(RecordKind.MMAP2, Misc.BUILD_ID, body)
    assert isinstance(record, MmapRecord)
    assert (record.build_id, record.inode, record.path) == (bytes(range(1, 21)), 0, "/lib/a.so")


def test_the_short_form_of_a_mapping() -> None:
    body = struct.pack("=IIQQQ", 10, 11, 0x1000, 0x2000, 0x3000) + b"/bin/x\0\0" + SUFFIX
    reader = RecordReader(SUFFIXED)
    assert reader.read(RecordKind.MMAP, 0, body) == MmapRecord(10, 11, 0x1000, 0x3000, 0x3000, executable=True, path="/bin/x")
    data = reader.read(RecordKind.MMAP, Misc.MMAP_DATA, body)
    assert isinstance(data, MmapRecord)
    assert not data.executable


def test_records_of_threads() -> None:
    reader = RecordReader(SUFFIXED)
    comm = struct.pack("=II", 10, 11) + b"name\xff\0\0\0" + SUFFIX
    assert reader.read(RecordKind.COMM, Misc.COMM_EXEC, comm) == CommRecord(10, 11, "name\udcff", by_exec=True)
    task = struct.pack("=IIIIQ", 10, 1, 11, 2, 99) + SUFFIX
    assert reader.read(RecordKind.FORK, 0, task) == TaskRecord(True, 10, 1, 11, 2)
    assert reader.read(RecordKind.EXIT, 0, task) == TaskRecord(False, 10, 1, 11, 2)
    assert reader.time_of(RecordKind.EXIT, task) == 12345
    assert reader.read(RecordKind.LOST, 0, struct.pack("=QQ", 1, 55) + SUFFIX) == LostRecord(55)
    assert reader.read(RecordKind.LOST_SAMPLES, 0, struct.pack("=Q", 5) + SUFFIX) == LostRecord(5)
    assert reader.read(64, 0, b"") is None


def test_a_sample_with_all_parts() -> None:
    sample = RecordReader(EVERYTHING).read(RecordKind.SAMPLE, 0, SAMPLE)
    assert isinstance(sample, SampleRecord)
    assert sample == SampleRecord(
        0x401000, 10, 11, 12345, 77, 3, 1000, (0xFF, 0x401000), 2, (101, 102, 104), memoryview(b"stack of")
    )  # fmt: skip


def test_a_sample_of_a_thread_without_user_registers_or_stack() -> None:
    attributes = EventAttributes(TYPE_SOFTWARE, sample_type=S.IP | S.REGS_USER | S.STACK_USER, user_registers=0xFF)
    sample = RecordReader(attributes).read(RecordKind.SAMPLE, 0, struct.pack("=QQQ", 0x1234, 0, 0))
    assert sample == SampleRecord(ip=0x1234, stack=memoryview(b""))


@pytest.mark.parametrize("size", range(len(SAMPLE)))
def test_a_sample_that_is_cut_is_refused(size: int) -> None:
    with pytest.raises(FormatError):
        RecordReader(EVERYTHING).read(RecordKind.SAMPLE, 0, SAMPLE[:size])


def test_a_name_without_end_is_refused() -> None:
    with pytest.raises(FormatError, match="no end"):
        mmap2(b"/lib/a.so", tail=b"\1" * 24)
    with pytest.raises(FormatError, match="no end"):
        mmap2(b"", tail=SUFFIX)  # the zeros of the suffix are not its end


@given(st.sampled_from(RecordKind), st.integers(0, 0xFFFF), st.binary(max_size=200), st.sampled_from([SUFFIXED, EVERYTHING]))
def test_any_bytes_are_read_or_refused(kind: RecordKind, misc: int, body: bytes, attributes: EventAttributes) -> None:
    reader = RecordReader(attributes)
    for read in (lambda: reader.read(kind, misc, body), lambda: reader.time_of(kind, body)):
        with suppress(FormatError):
            read()


@given(st.binary(min_size=64, max_size=200))
def test_attributes_are_what_was_packed(data: bytes) -> None:
    """Their kinds of breakpoints are left out, and what follows the clock."""
    kept = data[:52] + bytes(4) + data[56:96]
    assert EventAttributes.unpacked(data).packed() == kept.ljust(128, b"\0")


@given(st.binary(max_size=63))
def test_attributes_that_are_too_short_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="expected 64 bytes"):
        EventAttributes.unpacked(data)
