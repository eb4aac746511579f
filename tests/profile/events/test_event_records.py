"""Records, made byte by byte as the kernel's header describes them, and damaged ones."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.base.errors import FormatError
from sframegen.profile.events.attributes import TYPE_SOFTWARE, EventAttributes, EventFlag, SampleType
from sframegen.profile.events.event_records import (
    COMM_EXEC,
    CommRecord,
    MmapRecord,
    RecordKind,
    RecordReader,
    SampleRecord,
    TaskRecord,
)

S = SampleType
SUFFIXED = EventAttributes(TYPE_SOFTWARE, sample_type=S.TID | S.TIME | S.CPU, flags=EventFlag.SAMPLE_ID_ALL)
SUFFIX = struct.pack("=IIQII", 10, 11, 12345, 3, 0)
EVERYTHING = EventAttributes(TYPE_SOFTWARE, sample_type=sum(S), user_registers=0b10110)
# pid tid, time, cpu; callchain; registers; stack
SAMPLE = (
    SUFFIX
    + struct.pack("=QQQ", 2, 0xFF, 0x401000)
    + struct.pack("=QQQQ", 2, 101, 102, 104)
    + struct.pack("=Q", 16) + b"stack of 16 byte" + struct.pack("=Q", 8)
)  # fmt: skip


def mmap2(path: bytes, *, protection: int = 5, tail: bytes = SUFFIX) -> MmapRecord:
    body = struct.pack("=IIQQQIIQQII", 10, 11, 0x1000, 0x2000, 0x3000, 254, 1, 99, 7, protection, 2) + path + tail
    record = RecordReader(SUFFIXED).read(RecordKind.MMAP2, 0, body)
    assert isinstance(record, MmapRecord)
    return record


def test_a_mapping_names_its_file_by_inode() -> None:
    assert mmap2(b"/lib/a.so\0\0\0\0\0\0\0") == (10, 11, 0x1000, 0x3000, 0x3000, True, "/lib/a.so", 254, 1, 99, 7)
    assert not mmap2(b"//anon\0\0", protection=3).executable


def test_records_of_threads() -> None:
    reader = RecordReader(SUFFIXED)
    comm = struct.pack("=II", 10, 11) + b"name\xff\0\0\0" + SUFFIX
    assert reader.read(RecordKind.COMM, COMM_EXEC, comm) == CommRecord(10, 11, "name\udcff", by_exec=True)
    task = struct.pack("=IIIIQ", 10, 1, 11, 2, 99) + SUFFIX
    assert reader.read(RecordKind.FORK, 0, task) == TaskRecord(True, 10, 1, 11, 2)
    assert reader.read(RecordKind.EXIT, 0, task) == TaskRecord(False, 10, 1, 11, 2)
    assert reader.read(64, 0, b"") is None


def test_a_sample_with_all_parts() -> None:
    sample = RecordReader(EVERYTHING).read(RecordKind.SAMPLE, 0, SAMPLE)
    assert isinstance(sample, SampleRecord)
    assert sample == SampleRecord(10, 11, 12345, 3, (0xFF, 0x401000), 2, (101, 102, 104), memoryview(b"stack of"))


def test_a_sample_of_a_thread_without_user_registers_or_stack() -> None:
    attributes = EventAttributes(TYPE_SOFTWARE, sample_type=S.REGS_USER | S.STACK_USER, user_registers=0xFF)
    sample = RecordReader(attributes).read(RecordKind.SAMPLE, 0, SUFFIX + struct.pack("=QQ", 0, 0))
    assert sample == SampleRecord(10, 11, 12345, 3, stack=memoryview(b""))


def test_a_sample_that_is_cut_is_refused() -> None:
    for size in range(len(SAMPLE)):
        with pytest.raises(FormatError):
            RecordReader(EVERYTHING).read(RecordKind.SAMPLE, 0, SAMPLE[:size])


def test_a_name_without_end_is_refused() -> None:
    with pytest.raises(FormatError, match="no end"):
        mmap2(b"/lib/a.so", tail=b"\1" * 24)
    with pytest.raises(FormatError, match="no end"):
        mmap2(b"", tail=SUFFIX)  # the zeros of the suffix are not its end


@given(st.sampled_from(RecordKind), st.integers(0, 0xFFFF), st.binary(max_size=200), st.sampled_from([SUFFIXED, EVERYTHING]))
def test_any_bytes_are_read_or_refused(kind: RecordKind, misc: int, body: bytes, attributes: EventAttributes) -> None:
    with suppress(FormatError):
        RecordReader(attributes).read(kind, misc, body)
