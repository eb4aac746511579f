"""Recordings of several events: each record is read with the attributes of its own event, found by its identifier."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cfi.errors import FormatError
from sframegen.format.abi import AMD64
from sframegen.profile.copies.counting import Wanted, registers_mask
from sframegen.profile.copies.perf_data import NO_EVENT, read_perf_data
from sframegen.profile.events.attributes import EventAttributes, EventFlag, SampleType
from sframegen.profile.events.event_records import ReadFormat
from tests.support.inputs.perf_data_writer import MMAP2, PROT_EXEC, SAMPLE, USER, perf_data_of, piped_of, record, text
from tests.support.kernel_events import needs_perf_events

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sframegen.profile.collected import Collected
    from tests.support.peers import Compiler

# As perf records several events: the identifier is not the first field, and there are more fields around it.
PERFS = SampleType.IP | SampleType.TID | SampleType.TIME | SampleType.ADDR | SampleType.CALLCHAIN | SampleType.ID | SampleType.CPU
PERFS |= SampleType.PERIOD | SampleType.REGS_USER | SampleType.STACK_USER
CLOCK, FAULTS, DUMMY = 0, 2, 9  # of software events
PID, BASE = 4242, 0x10_0000
X86_64 = registers_mask(AMD64)
SP, PC = 7, 8  # bits of the kernel's mask of registers


def event_of(config: int, sampled: int = PERFS, registers: int = X86_64, reads: int = 0) -> EventAttributes:
    flags = EventFlag.SAMPLE_ID_ALL | EventFlag.FREQUENCY
    return EventAttributes(
        1, config=config, period=99, sample_type=sampled, read_format=reads, flags=flags, user_registers=registers, user_stack=64
    )  # fmt: skip


class Writer(NamedTuple):
    """Writes the records of one event."""

    number: int
    event: EventAttributes

    def fields(self, order: str, time: int) -> bytes:
        number, asked = struct.pack("<Q", self.number), self.event.sample_type
        known = {
            "identifier": (SampleType.IDENTIFIER, number),
            "ip": (SampleType.IP, struct.pack("<Q", BASE)),
            "tid": (SampleType.TID, struct.pack("<II", PID, PID)),
            "time": (SampleType.TIME, struct.pack("<Q", time)),
            "addr": (SampleType.ADDR, bytes(8)),
            "id": (SampleType.ID, number),
            "cpu": (SampleType.CPU, bytes(8)),
            "period": (SampleType.PERIOD, struct.pack("<Q", 1)),
        }
        return b"".join(known[name][1] for name in order.split() if asked & known[name][0])

    def sample(self, time: int) -> bytes:
        event = self.event
        body = self.fields("identifier ip tid time addr id cpu period", time)
        if event.sample_type & SampleType.READ:
            body += bytes(8 * (1 + event.read_format.bit_count()))
        if event.sample_type & SampleType.CALLCHAIN:
            body += struct.pack("<QQ", 1, BASE)
        values = [BASE + 0x100 if bit == PC else 0x7000_0000 for bit in range(64) if event.user_registers >> bit & 1]
        body += struct.pack(f"<Q{len(values)}Q", 2, *values)
        return record(SAMPLE, body + struct.pack("<Q", 64) + bytes(64) + struct.pack("<Q", 64), USER)

    def mapped(self) -> bytes:
        body = struct.pack("<II3QIIQQII", PID, PID, BASE, 0x1000, 0, 8, 1, 4711, 0, PROT_EXEC, 2) + text("/no/such/file")
        return record(MMAP2, body + bytes(-len(body) % 8) + self.fields("tid time id cpu identifier", 0))


def read(path: Path, data: bytes, event: str | None = None) -> Collected:
    path.write_bytes(data)
    return read_perf_data(path, Wanted(moments=True), event=event)


@pytest.mark.parametrize("write", [perf_data_of, piped_of])
@pytest.mark.parametrize("named", [SampleType.ID, SampleType.IDENTIFIER], ids=["ID", "IDENTIFIER"])
def test_each_record_has_the_fields_of_its_own_event(write: Callable[..., bytes], named: SampleType, tmp_path: Path) -> None:
    """The second event has fewer registers, no call chain, and counters."""
    more = PERFS & ~SampleType.ID | named
    fewer = more & ~SampleType.CALLCHAIN | SampleType.READ
    clock = Writer(71, event_of(CLOCK, more))
    faults = Writer(72, event_of(FAULTS, fewer, 1 << SP | 1 << PC, ReadFormat.ID | ReadFormat.ENABLED))
    dummy = Writer(73, event_of(DUMMY, more))
    records = [dummy.mapped(), clock.sample(1), faults.sample(2), clock.sample(3), faults.sample(4), faults.sample(5)]
    data = write({one.number: one.event for one in (clock, faults, dummy)}, records)
    for event, name, times in ((None, "cpu-clock", [1, 3]), ("faults", "page-faults", [2, 4, 5])):
        found = read(tmp_path / "perf.data", data, event)
        other = "page-faults" if event is None else "cpu-clock"
        assert found.event == name
        assert [nanoseconds for nanoseconds, _, _ in found.stacks.moments or ()] == times
        assert {stack.frames for stack in found.stacks} == {(1 << 48 | 0x100,)}
        assert not found.lost
        assert f"{tmp_path / 'perf.data'}: {name} is read; other events: {other}" in found.notes
    with pytest.raises(FormatError, match="it has no samples of cycles; its events: cpu-clock, page-faults"):
        read(tmp_path / "perf.data", data, "cycles")


def test_a_sample_of_no_event_is_lost_with_the_reason(tmp_path: Path) -> None:
    clock, faults = Writer(71, event_of(CLOCK)), Writer(72, event_of(FAULTS))
    unknown = Writer(99, event_of(CLOCK))
    made_up = Writer(0, event_of(CLOCK))  # perf has no identifier for what it read from /proc
    records = [made_up.mapped(), clock.sample(1), unknown.sample(2)]
    found = read(tmp_path / "perf.data", perf_data_of({one.number: one.event for one in (clock, faults)}, records))
    assert (found.stacks.samples, dict(found.lost)) == (1, {NO_EVENT: 1})
    assert [path.path for path in found.files.values()] == ["/no/such/file"]


@pytest.mark.parametrize(
    "second",
    [PERFS & ~SampleType.IP, PERFS | SampleType.IDENTIFIER, PERFS & ~SampleType.CPU, PERFS & ~SampleType.ID],
    ids=["in samples", "another kind", "in other records", "none"],
)
def test_events_that_cannot_be_told_apart_are_refused_in_one_line(second: int, tmp_path: Path) -> None:
    clock, faults = Writer(71, event_of(CLOCK)), Writer(72, event_of(FAULTS, second))
    data = perf_data_of({one.number: one.event for one in (clock, faults)}, [clock.mapped(), clock.sample(1), faults.sample(2)])
    with pytest.raises(FormatError, match=r"perf\.data: its events cannot be told apart: ") as raised:
        read(tmp_path / "perf.data", data)
    assert "\n" not in str(raised.value)


WORK = r"""
#include <stdlib.h>
#include <string.h>
volatile long after;
__attribute__((noinline)) void work(int n) { for (int i = 0; i < 30000000; i++) after += n; }
__attribute__((noinline)) void fill(void) { memset(malloc(1 << 20), 1, 1 << 20); }
int main(void) { for (int i = 0; i < 5; i++) { work(i); fill(); after++; } }
"""


@needs_perf_events
@pytest.mark.once
@pytest.mark.skipif(shutil.which("perf") is None, reason="no perf on this machine")
@pytest.mark.parametrize(
    "options",
    [["-e", "cpu-clock:u"], ["-e", "cpu-clock:u,task-clock:u"], ["-e", "task-clock:u,page-faults:u"], ["-a", "-e", "cpu-clock"]],
    ids=" ".join,
)
def test_as_many_samples_as_perf_script_prints(options: list[str], compile_c: Compiler, tmp_path: Path) -> None:
    data = tmp_path / "perf.data"
    line: list[str | Path] = ["perf", "record", "-q", *options, "-F", "199", "--call-graph", "dwarf,8192", "-o", data]
    done = subprocess.run([*line, compile_c(WORK, "-O1")], capture_output=True, text=True, check=False)
    if done.returncode or not data.exists():
        pytest.skip(f"no perf record here: {done.stderr.strip()[:200]}")
    script = ["perf", "script", "-i", str(data), "-F", "event", "-G"]
    printed = re.findall(
        r"^\s*(\S+?):?\s*$", subprocess.run(script, capture_output=True, text=True, check=True).stdout, re.MULTILINE
    )
    assert printed
    for name in sorted(set(printed)):
        found = read_perf_data(data, Wanted(), event=name.rstrip(":"))
        unwritten = {reason: count for reason, count in found.lost.items() if "ring buffer" not in reason}
        assert found.stacks.samples + sum(unwritten.values()) == printed.count(name)
