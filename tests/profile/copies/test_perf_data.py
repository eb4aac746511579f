"""perf.data files: the frames of their samples, the files that they name, and what damaged ones come to."""

from __future__ import annotations

import os
import platform
import random
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cfi.errors import FormatError
from sframegen.elf.file import open_elf
from sframegen.elf.notes import build_id_of
from sframegen.format.abi import AARCH64, AMD64
from sframegen.profile.copies.counting import Wanted, registers_mask
from sframegen.profile.copies.perf_data import MAPPINGS_LOST, NOT_WRITTEN, read_perf_data
from sframegen.profile.packed_frames import unpacked_frame
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.tables.proven_code import PROVEN
from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.live.process import Process
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.ends import End
from tests.support.inputs.perf_data_writer import (
    COMPRESSED,
    Place,
    architecture,
    attributes,
    build_ids,
    event_name,
    forked,
    lost,
    mapped,
    named,
    perf_data,
    piped,
    record,
    sample,
)
from tests.support.processes.live import Program, compiled
from tests.support.zstandard import zstd

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.format.abi import Abi
    from sframegen.profile.collected import Collected
    from tests.support.peers import Compiler

DEEP = r"""
KEPT int deep(int n) { volatile int local[10]; local[0] = n; if (n) deep(n - 1); else hold(); return local[0] + n; }
int main(void) { after += deep(20); puts("done"); }
"""
PID = 4242
BASE = 0x10_0000
STACK = 0x7000_0000


def registers_of(abi: Abi, values: dict[int, int], pc: int) -> list[int]:
    """As a sample has them: in the order of the kernel's numbers."""
    known = conventions_of(abi).sampled
    assert known
    numbered = {at: values.get(number, 0) for number, at in known.places.items()} | {known.pc: pc}
    return [numbered[at] for at in sorted(numbered)]


def chain(abi: Abi) -> list[bytes]:
    """A process whose file is not here, with two frame records."""
    fp = STACK + 0x20
    words = {fp: fp + 0x40, fp + 8: BASE + 0x200, fp + 0x40: 0, fp + 0x48: 0}
    stack = b"".join(words.get(STACK + at, 0).to_bytes(8, "little") for at in range(0, 0x100, 8))
    registers = registers_of(abi, {abi.sp: STACK, abi.fp: fp}, BASE + 0x100)
    return [named(PID, "chain"), mapped(PID, Place(BASE, 0x1000, 0x3000), "/no/such/file"), sample(PID, 5, registers, stack)]


def read(path: Path, data: bytes, wanted: Wanted = Wanted()) -> Collected:  # noqa: B008 - it has no state
    path.unlink(missing_ok=True)  # ext4 waits for the disk where a file is written in another one's place
    path.write_bytes(data)
    return read_perf_data(path, wanted)


@pytest.mark.parametrize("abi", [AMD64, AARCH64], ids=lambda abi: abi.name)
@pytest.mark.parametrize("write", [perf_data, piped])
def test_recordings_of_both_machines_are_walked(abi: Abi, write: Callable[..., bytes], tmp_path: Path) -> None:
    event = attributes(registers_mask(abi))
    name = conventions_of(abi).host
    found = read(tmp_path / "perf.data", write(event, chain(abi), [architecture(name), event_name("cycles:u", event)]))
    [stack] = found.stacks
    assert (stack.samples, stack.pid, stack.end) == (1, PID, End.NO_RETURN)
    assert [(frame.address, frame.guessed) for frame in map(unpacked_frame, stack.frames)] == [(0x3100, False), (0x31FF, True)]
    assert found.files[1].path == "/no/such/file"
    assert found.notes == ["/no/such/file: No such file or directory"]
    assert [task.process for task in found.stacks.tasks] == ["chain"]


@pytest.mark.parametrize("threads", [True, False])
def test_each_sample_has_its_moment(threads: bool, tmp_path: Path) -> None:
    event = attributes(registers_mask(AMD64))
    records = [*chain(AMD64), chain(AMD64)[2].replace(struct.pack("<IIQ", PID, PID, 5), struct.pack("<IIQ", PID, PID + 1, 6))]
    found = read(tmp_path / "perf.data", perf_data(event, records, []), Wanted(threads=threads, moments=True))
    moments = list(found.stacks.moments or ())
    assert [nanoseconds for nanoseconds, _, _ in moments] == [5, 6]
    assert {found.stacks.stack(row).tid for _, _, row in moments} == ({PID, PID + 1} if threads else {0})
    found.stacks.keep_threads(frozenset([PID]))
    assert found.stacks.samples == (1 if threads else 0)
    assert len(name_stacks(found).moments or ()) == found.stacks.samples


@pytest.mark.skipif(platform.machine() != "x86_64", reason="programs for x86-64")
def test_samples_are_walked_as_the_process_itself(compile_c: Compiler, tmp_path: Path) -> None:
    program = compiled(compile_c, tmp_path, DEEP, "-O2", "-fomit-frame-pointer", section=False)
    with Program(program) as held, Process(held.pid) as process:
        [thread] = Tracer(convert=True).trace_process(process)
        with process.stopped() as snapshot:
            rows = [row for row in snapshot.mappings if row.executable and row.path.startswith("/")]
            values = snapshot.registers(held.pid)
            sp = values.values[AMD64.sp]
            bounds = snapshot.mappings.stack_at(sp)
            assert bounds
            stack = snapshot.memory.read(sp, min(bounds[1] - sp, 60_000) & ~7)
    event = attributes(registers_mask(AMD64))
    records = [mapped(PID, Place(row.start, row.end - row.start, row.offset), row.path) for row in rows]
    taken = sample(PID, 9, registers_of(AMD64, values.values, values.pc), stack)
    # Written by another CPU first: the order is that of the times.
    data = perf_data(
        event,
        [forked(PID + 1, PID, 3), taken.replace(PID.to_bytes(4, "little"), (PID + 1).to_bytes(4, "little")), *records, taken],
        [],
    )
    found = read(tmp_path / "perf.data", data)
    assert {stack.pid: (stack.end, len(stack.frames)) for stack in found.stacks} == {
        pid: (End.OUTERMOST, len(thread.frames)) for pid in (PID, PID + 1)
    }
    [frames] = {stack.frames for stack in found.stacks}
    biases = {}
    for row in rows:
        elf = open_elf(row.path)
        load = next(load for load in elf.executable_loads() if load.p_offset & ~0xFFF == row.offset)
        biases[row.path] = row.start - (load.p_vaddr & ~0xFFF)
    addresses = [biases[found.files[frame.file].path] + frame.address for frame in map(unpacked_frame, frames)]
    assert addresses == [frame.code for frame in thread.frames]
    assert len(frames) > 20


def test_another_file_than_the_recorded_one_is_not_used(tmp_path: Path) -> None:
    python = Path("/proc/self/exe").resolve()
    event = attributes(registers_mask(AMD64))
    records = [mapped(PID, Place(BASE, 0x1000, 0), str(python)), *chain(AMD64)[2:]]
    found = read(tmp_path / "perf.data", perf_data(event, records, [build_ids({str(python): b"\1" * 20})]))
    assert found.notes == [f"{python}: another file than in the recording: its build-id differs"]
    assert found.files[1].elf is None
    assert [stack.end for stack in found.stacks] == [End.NO_RETURN]
    own = build_id_of(open_elf(python))
    if own:
        found = read(tmp_path / "perf.data", perf_data(event, records, [build_ids({str(python): own})]))
        assert found.notes in ([], [f"{python}: {PROVEN}"])  # the made-up sample may be in code without CFI
        assert found.files[1].build_id == own


def test_a_file_that_changed_after_the_recording_is_not_used(compile_c: Compiler, tmp_path: Path) -> None:
    program = compiled(compile_c, tmp_path, DEEP, section=False)
    path = tmp_path / "perf.data"
    path.write_bytes(perf_data(attributes(registers_mask(AMD64)), [mapped(PID, Place(BASE, 0x1000, 0), str(program))], []))
    program.touch()
    recorded = path.stat().st_mtime_ns - 10**10
    os.utime(path, ns=(recorded, recorded))
    assert read_perf_data(path, Wanted()).notes == [f"{program}: changed after the recording, which has no build-id of it"]


def test_what_cannot_be_walked_is_counted_with_the_reason(tmp_path: Path) -> None:
    event = attributes(registers_mask(AMD64))
    nothing = [0] * registers_mask(AMD64).bit_count()
    records = [
        named(PID, "x"), sample(PID, 1, nothing, b"", abi=0), sample(PID, 2, nothing, bytes(8), abi=1),
        sample(PID, 3, nothing, b""),
        sample(PID + 9, 4, nothing, bytes(8)), lost(7, 5),
    ]  # fmt: skip
    found = read(tmp_path / "perf.data", perf_data(event, records, []), Wanted(moments=True))
    assert sorted(found.lost.values()) == [1, 1, 1, 1, 7]
    assert found.lost[NOT_WRITTEN] == 7
    assert any(MAPPINGS_LOST in note for note in found.notes)
    assert (found.stacks.samples, len(found.stacks.moments or ())) == (0, 0)


def with_many_ids() -> bytes:
    """Each of its events has the identifiers that are most of the file."""
    event = attributes(registers_mask(AMD64)).packed()
    head = 104
    ids_at = head + 10 * (len(event) + 16)
    one = event + struct.pack("<QQ", ids_at, 8000)
    return struct.pack("<8s12Q", b"PERFILE2", head, len(one), head, 10 * len(one), 0, 0, *bytes(6)) + 10 * one + bytes(8000)


def sized(kind: int, body: bytes) -> bytes:
    """A record whose size is that of its bytes: perf does not pad compressed ones."""
    return kind.to_bytes(4, "little") + bytes(2) + (8 + len(body)).to_bytes(2, "little") + body


def test_compressed_records_are_read(tmp_path: Path) -> None:
    event = attributes(registers_mask(AMD64))
    data = b"".join(chain(AMD64))
    compressor = zstd.ZstdCompressor()
    parts = [compressor.compress(part, zstd.ZstdCompressor.FLUSH_BLOCK) for part in (data[:100], data[100:])]
    found = read(tmp_path / "perf.data", perf_data(event, [sized(COMPRESSED, part) for part in parts], []))
    assert [len(stack.frames) for stack in found.stacks] == [2]
    with pytest.raises(FormatError, match="compressed records are damaged"):
        read(tmp_path / "perf.data", perf_data(event, [record(COMPRESSED, b"no zstd at all")], []))
    nested = record(COMPRESSED, b"")
    packed = zstd.compress(nested)
    with pytest.raises(FormatError, match="compressed records in compressed ones"):
        read(tmp_path / "perf.data", perf_data(event, [sized(COMPRESSED, packed)], []))


def test_a_stack_may_lead_through_any_number_of_files(tmp_path: Path) -> None:
    """Each of its frames is in another file, none of which is here."""
    frames = 600
    records = [named(PID, "chain")]
    words: list[int] = []
    for number in range(frames):
        records.append(mapped(PID, Place(BASE + number * 0x1000, 0x1000, 0), f"/no/such/file{number}"))
        last = number == frames - 1
        words += (0, 0) if last else (STACK + 16 * (number + 1), BASE + (number + 1) * 0x1000 + 0x100)
    registers = registers_of(AMD64, {AMD64.sp: STACK, AMD64.fp: STACK}, BASE + 0x100)
    records.append(sample(PID, 5, registers, b"".join(word.to_bytes(8, "little") for word in words)))
    found = read(tmp_path / "perf.data", perf_data(attributes(registers_mask(AMD64)), records, []))
    assert [(len(stack.frames), stack.end) for stack in found.stacks] == [(frames, End.NO_RETURN)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"2ELIFREP" + bytes(200), "big-endian"),
        (b"\x7fELF" + bytes(200), "not a perf.data file"),
        (perf_data(attributes(0), [named(1, "x")], []), "no program counter"),
        (with_many_ids(), "more identifiers than there is room for"),
        (perf_data(attributes(1, 2), [lost(1, 1)], []), "record with perf record --call-graph dwarf"),
        (perf_data(attributes(registers_mask(AMD64)), [named(1, "x")], [architecture("riscv64")]), "recorded on riscv64"),
    ],
)
def test_other_files_are_refused_in_one_line(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message) as raised:
        read(tmp_path / "perf.data", data)
    assert str(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.dear
def test_damaged_files_end_in_one_line(tmp_path: Path) -> None:
    """Cut off at every byte, and random bytes in random places."""
    event = attributes(registers_mask(AMD64))
    whole = perf_data(
        event, chain(AMD64), [architecture("x86_64"), event_name("cycles", event), build_ids({"/no/such/file": b"\1" * 20})]
    )
    pipe = piped(event, chain(AMD64), [architecture("x86_64")])
    numbers = random.Random(1)
    cases = [data[:size] for data in (whole, pipe) for size in range(1, len(data))]
    for _ in range(600):
        damaged = bytearray(numbers.choice((whole, pipe)))
        for _ in range(numbers.randrange(1, 6)):
            damaged[numbers.randrange(8, len(damaged))] = numbers.choice((0, 1, 0x7F, 0x80, 0xFF, numbers.randrange(256)))
        cases.append(bytes(damaged))
    outcomes = Counter(outcome(tmp_path / "perf.data", case) for case in cases)
    assert outcomes.keys() == {"read", "refused"}
    assert min(outcomes.values()) > 50


def outcome(path: Path, data: bytes) -> str:
    try:
        read(path, data)
    except FormatError as error:
        return "refused" if "\n" not in str(error) else str(error)
    return "read"
