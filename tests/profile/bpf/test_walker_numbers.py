"""walker.h and the Python modules have the same numbers, and the kernel program says when it cannot be used."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from sframegen.profile.bpf import kernel_needs, kernel_records, kernel_walker, libbpf, object_files
from sframegen.profile.bpf.kernel_needs import DEADLOCKING, MINIMUM, check_kernel
from sframegen.profile.bpf.kernel_records import Statistic
from sframegen.profile.bpf.kernel_walker import MIB, choose_ring_size
from sframegen.profile.bpf.libbpf import LoadError
from sframegen.profile.limits import MAX_DEPTH, MAX_FILES
from sframegen.profile.machines import BPF_TARGETS
from sframegen.profile.packed_frames import (
    FILE_SHIFT,
    GUESSED,
    KERNEL_FILE,
    NO_FILE,
    OFF_CPU_FILE,
    OFF_CPU_HASH_FACTOR,
    OffCpu,
    off_cpu_label,
)
from sframegen.stack.walking.frames import End
from sframegen.stack.walking.step import GUESS_REACH, REGISTERS
from tests import ROOT

if TYPE_CHECKING:
    from pathlib import Path

HEADER = (ROOT / "sframegen/profile/bpf/walker.h").read_text()
NUMBERS = {name: int(value, 0) for name, value in re.findall(r"\b([A-Z_0-9]+) = (0x[0-9a-f]+|\d+)\b", HEADER)}


def test_ends_and_frames_have_the_same_numbers() -> None:
    first = {end.name: end.value for end in End if end < Statistic.SAMPLES}
    ends = {name: value for name, value in first.items() if name != "COPY_TOO_SHORT"}  # only copies can be too short
    assert {name.removeprefix("END_"): value for name, value in NUMBERS.items() if name.startswith("END_")} == ends
    assert NUMBERS["ENDS"] == max(ends.values()) + 1
    said = {name: NUMBERS[name] for name in ("FILE_SHIFT", "NO_FILE", "KERNEL_FILE", "MAX_DEPTH")}
    assert said == {"FILE_SHIFT": FILE_SHIFT, "NO_FILE": NO_FILE, "KERNEL_FILE": KERNEL_FILE, "MAX_DEPTH": MAX_DEPTH}
    assert "#define GUESSED (1ull << 63)" in HEADER
    assert GUESSED == 1 << 63
    assert NUMBERS["GUESS_REACH"] == GUESS_REACH


def test_records_and_statistics_have_the_same_numbers() -> None:
    records = ("STACK", "UNFINISHED", "AREA")
    assert [NUMBERS[f"RECORD_{name}"] for name in records] == [getattr(kernel_records, f"RECORD_{name}") for name in records]
    assert (NUMBERS["STOPPED_EXACT"], NUMBERS["STOPPED_GUESSED"]) == (kernel_records.STOPPED_EXACT, kernel_records.STOPPED_GUESSED)
    assert NUMBERS["REGISTERS"] == REGISTERS
    reasons = {name.removeprefix("OFF_"): value for name, value in NUMBERS.items() if name.startswith("OFF_")}
    assert reasons.pop("CPU_FILE") == OFF_CPU_FILE == MAX_FILES + 1
    assert reasons == {reason.name: reason.value for reason in OffCpu}
    labels = {off_cpu_label(reason) for reason in OffCpu}
    assert "[off CPU: waiting for a CPU]" in labels
    assert len(labels) == len(OffCpu)
    assert f"#define OFF_CPU_HASH_FACTOR {OFF_CPU_HASH_FACTOR:#x}ull" in HEADER
    statistics = {name.removeprefix("STAT_"): value for name, value in NUMBERS.items() if name.startswith("STAT_")}
    assert statistics == {statistic.name: statistic.value for statistic in Statistic}
    assert NUMBERS["STATS"] == max(Statistic) + 1
    states = [NUMBERS[f"FILE_{name}"] for name in ("PENDING", "WITHOUT", "READY")]
    assert states == [kernel_walker.PENDING, kernel_walker.WITHOUT, kernel_walker.READY]


def test_an_older_kernel_is_refused() -> None:
    with pytest.raises(LoadError, match=r"the kernel is 5\.10\.0-33-amd64, and the kernel program needs 5\.15"):
        check_kernel("5.10.0-33-amd64")
    with pytest.raises(LoadError, match="this one lacks the user registers of a task"):
        check_kernel("5.14.21")
    assert MINIMUM == (5, 15)


def test_the_page_names_the_kernels() -> None:
    page = " ".join((ROOT / "docs/profile.md").read_text().split())
    assert f"Linux {MINIMUM[0]}.{MINIMUM[1]} or newer" in page
    exceptions = (f"{a}.{b} before {a}.{b}.{stable}" if stable else f"{a}.{b}" for (a, b), stable in DEADLOCKING.items())
    assert f"that may lock up: {', '.join(exceptions)}" in page


def test_an_installation_without_the_program_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libbpf, "HERE", tmp_path)
    with pytest.raises(LoadError, match=r"no kernel program for \w+: install clang, then sframegen again"):
        libbpf.read_object()


def test_without_clang_nothing_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert object_files.compile_objects(object_files.HERE, tmp_path, BPF_TARGETS) == "there is no clang"
    assert not list(tmp_path.iterdir())


def test_the_size_of_the_ring_buffer_follows_what_is_sampled() -> None:
    """62.4 MiB are needed of the first; then there are the most, the least, and page faults."""
    sizes = {(999, 2): 64 * MIB, (99, 2): 8 * MIB, (999, 64): 64 * MIB, (1, 1): MIB, (0, 1): 8 * MIB}
    assert {asked: choose_ring_size(*asked) for asked in sizes} == sizes


def test_a_kernel_that_may_lock_up_is_refused_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_needs, "BTF", tmp_path)
    monkeypatch.setattr(kernel_needs, "PID_NAMESPACE", tmp_path / "no proc")
    cases = [
        ("6.0.19-generic", "#1 SMP", "6.4"),
        ("5.19.0-50-generic", "#50-Ubuntu SMP", "6.4"),
        ("6.1.35", "#1 SMP", "6.1.36"),
        ("6.3.9-200.fc38.x86_64", "#1 SMP", "6.3.10"),
        ("6.1.0-9-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.27-1 (2023-05-08)", "6.1.36"),
        ("6.1.0-1036-oem", "#36-Ubuntu SMP", "6.1.36"),  # which stable release it has is not said
        ("5.15.0-100-generic", "#110-Ubuntu SMP", ""),
        ("6.1.36", "#1 SMP", ""),
        ("6.1.127-135.201.amzn2023.x86_64", "#1 SMP", ""),
        ("6.1.0-50-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-01)", ""),
        ("6.4.0", "#1 SMP", ""),
        ("7.2.13+deb14-arm64", "#1 SMP Debian 7.2.13-1", ""),
    ]
    wrong = {}
    for release, version, corrected in cases:
        said = ""
        try:
            check_kernel(release, version)
        except LoadError as error:
            said = error.message
        expected = rf"the kernel is {re.escape(release)}: it may lock up .*; {corrected} and newer do not" if corrected else ""
        if not re.fullmatch(expected, said):
            wrong[release, version] = said
    assert wrong == {}
