"""Profiles in pprof's format, read again."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from cfi.errors import FormatError
from sframegen.profile.packed_frames import OffCpu, off_cpu_label
from sframegen.profile.report.formats.message_bytes import integer, message, packed_numbers, text_field
from sframegen.profile.report.formats.pprof import pprof
from sframegen.profile.report.grouping import counts_of_groups, group_stacks
from sframegen.profile.report.named import FrameKind, NamedFrame
from sframegen.profile.report.table import totals
from sframegen.profile.stored.read_pprof import PprofProfiles
from sframegen.profile.units import Unit
from tests.support.named_stacks import EXAMPLE, named, stack

if TYPE_CHECKING:
    from sframegen.profile.report.named import Named

STRINGS = ("", "samples", "count", "work", "/bin/prog", "inner", "cpu", "nanoseconds")


def read(*files: bytes) -> Named:
    profiles = PprofProfiles()
    for file in files:
        profiles.add(file)
    return group_stacks(profiles.named, "comm")


def written(profile: Named) -> bytes:
    return b"".join(pprof(profile))


def stacks_of(profile: Named) -> Counter[tuple[object, ...]]:
    found: Counter[tuple[object, ...]] = Counter()
    for one in profile.stacks:
        frames = tuple((frame.label, frame.object, frame.path, frame.address, frame.kind) for frame in one.frames)
        found[one.pid, one.tid, one.process, one.end, frames] += one.samples
    return found


def test_what_was_written_is_read() -> None:
    profile = named(*EXAMPLE)
    profile.lost["the ring buffer was full"] = 3
    profile.notes.append("a file is damaged")
    profile.build_ids["/usr/lib/libwork.so"] = "0011"
    profile.programs.add("/usr/bin/program")
    again = read(written(profile))
    assert stacks_of(again) == stacks_of(profile)
    assert (again.event, again.backend, again.frequency, again.seconds) == ("cpu-clock", "bpf", 99, 2.0)
    assert (again.lost, again.notes, again.build_ids) == (profile.lost, profile.notes, profile.build_ids)
    assert again.started == profile.started
    assert again.programs == {"/usr/bin/program"}
    assert counts_of_groups(again) == counts_of_groups(profile)


def test_profiles_are_merged() -> None:
    first, second = named(*EXAMPLE), named(stack("main@program", 4, pid=9, process="other", thread="other"), EXAMPLE[0])
    merged = read(written(first), written(second))
    assert merged.samples == first.samples + second.samples
    assert counts_of_groups(merged) == {"program": 16, "other": 4}
    assert merged.seconds == 4.0
    assert stacks_of(merged) == stacks_of(first) + stacks_of(second)


def of_another_profiler(*, samples: bytes = b"") -> bytes:
    """A file without our labels: an inlined function, values of which the last counts, no packed lists."""
    line = message(4, integer(1, 2) + integer(2, 12)) + message(4, integer(1, 1))  # the inlined function first
    parts = [
        message(1, integer(1, 6) + integer(2, 7)),
        samples or message(2, integer(1, 9) + integer(2, 50)),
        message(3, integer(1, 3) + integer(5, 4)),
        message(4, integer(1, 9) + integer(2, 3) + integer(3, 0x1234) + line),
        message(5, integer(1, 1) + integer(2, 3)),
        message(5, integer(1, 2) + integer(2, 5)),
        *(text_field(6, text) for text in STRINGS),
    ]
    return b"".join(parts)


def test_a_file_of_another_profiler() -> None:
    profile = read(of_another_profiler())
    [one] = profile.stacks
    assert ([frame.function for frame in one.frames], one.samples, profile.event) == (["work", "inner"], 50, "cpu")
    assert [(frame.inlined, frame.line) for frame in one.frames] == [(False, 0), (True, 12)]
    assert one.frames[0].path == "/bin/prog"
    [line, *_] = totals(group_stacks(profile, "comm"))
    assert line.endswith(" s")  # nothing says how it was sampled
    again = read(written(group_stacks(profile, "comm")))
    assert (again.event, again.backend, again.notes) == (profile.event, "", [])


@pytest.mark.parametrize(
    ("samples", "message_"),
    [
        (message(2, packed_numbers(1, [8]) + packed_numbers(2, [1])), "a sample has an unknown location"),
        (message(2, packed_numbers(1, [9])), "a sample has no value"),
        (message(2, packed_numbers(1, [9]) + packed_numbers(2, [1 << 63])), "a sample has a negative value"),
        (message(2, message(1, b"\x80") + integer(2, 1)), "a list of numbers is cut off"),
        (message(4, integer(1, 9)), "there are two locations 9"),
        (message(1, integer(1, 99)), "there is no string 99"),
    ],
)
def test_what_makes_no_sense_is_refused(samples: bytes, message_: str) -> None:
    with pytest.raises(FormatError, match=message_):
        read(of_another_profiler(samples=samples))


def test_of_a_damaged_file_nothing_is_counted() -> None:
    """Its last sample is wrong: those before it are not added either."""
    profile = named(*EXAMPLE)
    profile.lost["the ring buffer was full"] = 3
    profiles = PprofProfiles()
    profiles.add(written(profile))
    with pytest.raises(FormatError, match="unknown location"):
        profiles.add(gzip.decompress(written(profile)) + message(2, packed_numbers(1, [1 << 40]) + packed_numbers(2, [1, 1])))
    again = group_stacks(profiles.named, "comm")
    assert (again.samples, again.seconds, again.lost) == (profile.samples, profile.seconds, profile.lost)
    assert stacks_of(again) == stacks_of(profile)


@pytest.mark.parametrize("data", [b"", gzip.compress(b"", mtime=0), text_field(6, "samples")])
def test_a_file_that_holds_no_profile_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="string table"):
        read(data)


@pytest.mark.parametrize("data", [b"", b"main;step 3\n", b"\x7fELF", b"{}"])
def test_a_file_in_another_format_is_called_so(data: bytes) -> None:
    with pytest.raises(FormatError, match="no profile in pprof's format"):
        read(data)


def test_damaged_files_are_refused_or_read() -> None:
    """No other exception, whatever the bytes are."""
    good = gzip.decompress(written(named(*EXAMPLE)))
    rng = random.Random(1)
    for _ in range(400):
        damaged = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        for data in (bytes(damaged), good[: rng.randrange(len(good))]):
            try:
                read(data)
            except FormatError:
                continue


def test_all_members_of_a_compressed_file_are_read() -> None:
    data = gzip.decompress(written(named(*EXAMPLE)))
    members = b"".join(gzip.compress(part, mtime=0) for part in (data[:40], data[40:]))
    assert stacks_of(read(members)) == stacks_of(read(members + b"\0\0")) == stacks_of(named(*EXAMPLE))


@pytest.mark.dear
def test_many_members_take_no_time_each_for_all_that_follow() -> None:
    members = gzip.compress(b"", mtime=0) * 200_000  # 4 MB
    assert stacks_of(read(members + written(named(*EXAMPLE)))) == stacks_of(named(*EXAMPLE))


def test_a_negative_length_counts_as_none() -> None:
    assert read(of_another_profiler() + integer(10, (1 << 64) - 1)).seconds == read(of_another_profiler() + integer(10, 0)).seconds


MEMBER = gzip.compress(b"abc", mtime=0)


@pytest.mark.parametrize(
    ("data", "why"), [(b"\x1f\x8bnothing", "gzip"), (MEMBER[:-4], "it is cut off"), (MEMBER + b"more", "gzip")]
)
def test_damaged_compression(data: bytes, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        read(data)


def test_times_off_the_cpu_are_read_as_times() -> None:
    profile = named(stack("main@program read@libc.so.6", 2_500_000))
    profile.event, profile.frequency, profile.unit = "time off the CPU", 0, Unit.MICROSECONDS
    reason = NamedFrame(off_cpu_label(OffCpu.LOCK), "", "", None, FrameKind.OFF_CPU)
    profile.add(stack("main@program")._replace(frames=(*stack("main@program").frames, reason), samples=7))
    data = written(group_stacks(profile, "comm"))
    again = read(data)
    assert (again.event, again.backend, again.unit, again.notes) == ("time off the CPU", "bpf", Unit.MICROSECONDS, [])
    assert stacks_of(again) == stacks_of(profile)
    with pytest.raises(FormatError, match="one profile has times, another one samples"):
        read(data, written(named(*EXAMPLE)))


def test_control_groups_and_rates_are_read_again() -> None:
    profile = named(*EXAMPLE)
    profile.cgroups[7], profile.event, profile.frequency = "/system.slice", "page-faults", 10
    again = read(written(profile))
    assert again.frequency == 10
    assert counts_of_groups(group_stacks(again, "cgroup")) == counts_of_groups(group_stacks(profile, "cgroup"))


HUGE = 1 << 17


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x30\x00" * 4, "a number stands where a text"),
        (
            of_another_profiler(samples=message(2, packed_numbers(1, [9] * 4000) * 3)),
            "more than 4,096 numbers",
        ),
        (
            message(4, integer(1, 5) + message(4, b"") * HUGE)
            + of_another_profiler(samples=message(2, packed_numbers(1, [5, 5]) + packed_numbers(2, [5, 50]))),
            "too many frames",
        ),
        (b"\x78\x00" * ((1 << 23) + 1), "more than 8,388,608 fields"),
    ],
)
def test_small_files_that_would_take_much_memory_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(FormatError, match=why):
        read(data)


def test_a_number_of_lost_samples_that_is_none_is_a_note() -> None:
    line = f"lost: {'9' * 5000} samples: why"
    profile = named(*EXAMPLE)
    profile.notes.append(line)
    again = read(written(profile))
    assert (again.notes, again.lost) == ([line], Counter())
