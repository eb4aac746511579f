"""The comparison with other profilers: how their outputs are read, and a small round of each measurement."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from benchmarks.profilers import complete, document, map_memory, overhead, per_sample, readers
from benchmarks.profilers.complete import Stacks, count
from benchmarks.profilers.endings import Mapped, Place, is_outermost, linked_place, mapped_place, mappings
from benchmarks.profilers.readers import Sampled
from benchmarks.profilers.samplers import BY_FRAME_POINTERS, OURS, SAMPLERS, missing
from benchmarks.profilers.targets import TARGETS
from sframegen.elf.file import open_elf
from tests.support.kernel_events import needs_bpf

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.peers import Compiler

pytestmark = pytest.mark.once

MAPS = """\
55a0-55b0 r--p 00000000 fe:00 11                         /usr/bin/one
55b0-55e0 r-xp 00000010 fe:00 11                         /usr/bin/one
7f00-7f40 r-xp 00002000 fe:00 12                         /lib/two words.so
7ff0-7fff r-xp 00000000 00:00 0                          [vdso]
"""
MAPPED = [Mapped(0x55B0, 0x55E0, 0x10, "/usr/bin/one"), Mapped(0x7F00, 0x7F40, 0x2000, "/lib/two words.so")]


def test_executable_mappings_of_files() -> None:
    assert mappings(MAPS) == MAPPED
    assert mapped_place(0x55BF, MAPPED) == Place("/usr/bin/one", 0x1F)
    assert mapped_place(0x55E0, MAPPED) is None


def test_perf_script_has_a_block_for_each_sample() -> None:
    text = """\
10/12
\t        ffffffff81003f12 ([kernel.kallsyms])
\t            55b4 (/usr/bin/one+0x11bc)
\t            7f07 (/lib/two words.so+0x107)

10/10
\tffffffff81003f12 ([kernel.kallsyms])

10/10
\t    7ffec8fdca2c ([unknown])

"""
    assert list(readers.perf_script(text.splitlines())) == [
        Sampled(2, Place("/lib/two words.so", 0x107)),
        Sampled(0, None),
        Sampled(1, Place("[unknown]", 0x7FFEC8FDCA2C)),
    ]


def test_eu_stackprof_has_a_line_for_each_frame() -> None:
    text = """\
Starting stack profile collection pid 10

find_dwfl newly seen pid 10 (one): hdr_size=84 size=81 pc=55b4 sp=7d8+0
* frame 0: rel_pc=b4 raw_pc=55b4 sp=7d8+0 [initial]
* pid 10 build_id=9emodule=/usr/bin/one mainfile=/usr/bin/one debugfile=<none>
* frame 1: rel_pc=1f7 raw_pc=7f07 sp=7d8+8 [eh_frame]

find_dwfl pid 10 (cached) (one): hdr_size=84 size=81 pc=55b5 sp=7d8+0

=== pid / sample counts ===
10 one -- max 2 frames, received 2 samples, lost 0 samples (0.0%) (last eh_frame, worst eh_frame)
"""
    found = list(readers.eu_stackprof(text.splitlines(), MAPPED))
    assert found == [Sampled(2, Place("/lib/two words.so", 0x2007)), Sampled(0, None)]


def test_bpftrace_counts_equal_stacks() -> None:
    text = """\
Attaching 1 probe...


@[
55b4
7f01
]: 97
@[
55b4
3030303034310033
]: 1
@[
]: 5
"""
    assert list(readers.bpftrace(text.splitlines(), MAPPED)) == [
        Sampled(2, Place("/lib/two words.so", 0x2001), 97),
        Sampled(2, None),
        Sampled(0, None, 5),
    ]


@pytest.fixture
def program(compile_c: Compiler) -> Path:
    return compile_c("int main(void) { return 0; }")


def test_whole_stacks_end_in_start(program: Path) -> None:
    elf = open_elf(program)
    start = linked_place(str(program), elf.header.e_entry + 8)
    assert is_outermost(start)
    assert linked_place(str(program), elf.header.e_entry + 8, relative=True) == start  # its lowest address is 0
    code = elf.section(".text")
    assert code is not None
    assert not is_outermost(linked_place(str(program), code.header.sh_addr + code.header.sh_size - 1))
    assert not is_outermost(Place("[unknown]", 0x1000))
    assert linked_place(str(program), 1 << 40) is None


def test_samply_has_tables_of_stacks_and_frames(program: Path, tmp_path: Path) -> None:
    thread = {
        "pid": "10.1",
        "samples": {"stack": [1, None, 2, 3], "weight": [1, 1, 3, 1]},
        "stackTable": {"prefix": [None, 0, 0, None], "frame": [0, 1, 2, 3]},
        "frameTable": {"address": [open_elf(program).header.e_entry + 4, 8, -1, 9], "func": [0, 0, 1, 1]},
        "funcTable": {"resource": [0, -1]},
        "resourceTable": {"lib": [0]},
    }
    profile = {"libs": [{"path": str(program)}], "threads": [thread, {**thread, "pid": "11"}]}
    packed = tmp_path / "profile.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(profile).encode()))
    found = list(readers.firefox_profile(packed, {10}))
    start = linked_place(str(program), open_elf(program).header.e_entry + 4)
    assert found == [Sampled(2, start), Sampled(0, None), Sampled(2, start, 3), Sampled(1, None)]
    assert count("one", "samply", found) == Stacks("one", "samply", 6, 4, 9, Counter())
    packed.write_text(json.dumps(profile))
    assert list(readers.firefox_profile(packed, {10})) == found


def test_our_own_json_says_why_stacks_are_incomplete(program: Path, tmp_path: Path) -> None:
    entry = open_elf(program).header.e_entry
    profile = {
        "frames": [
            {"kind": "user", "path": str(program), "address": entry + 4},
            {"kind": "user", "path": str(program), "address": entry},
            {"kind": "missing", "path": "", "address": None},
            {"kind": "kernel", "path": "", "address": 1 << 63},
        ],
        "stacks": [
            {"pid": 10, "complete": True, "end": "the outermost frame", "samples": 5, "frames": [0, 1, 1, 3]},
            {"pid": 10, "complete": False, "end": "no rule", "samples": 2, "frames": [2, 0]},
            {"pid": 11, "complete": True, "end": "the outermost frame", "samples": 9, "frames": [0]},
        ],
        "lost": {"the ring buffer was full": 1, "nothing": 0},
    }
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    stacks = count("one", "sframegen", readers.own_json(tmp_path / "profile.json", {10}))
    assert stacks == Stacks("one", "sframegen", 8, 5, 17, Counter({"no rule": 2, "lost: the ring buffer was full": 1}))


@pytest.mark.full
@needs_bpf
@pytest.mark.skipif(os.geteuid() != 0, reason="no BPF: this is not root")
def test_a_small_round_of_each_measurement(tmp_path: Path) -> None:
    """With what is here of the other profilers."""
    failures: list[str] = []
    samplers = [one for one in SAMPLERS if one in (OURS, BY_FRAME_POINTERS) and not missing(one)]
    deep = [one for one in TARGETS if one.name == "deep recursion"]
    for name in ("stacks", "costs", "samples", "memory"):
        (tmp_path / name).mkdir()
    for seconds in (1.0, 4.0, 16.0):  # longer, if the program got too little of a busy machine's CPUs
        (tmp_path / "stacks" / str(seconds)).mkdir()
        stacks = list(complete.measure(deep, samplers, seconds, tmp_path / "stacks" / str(seconds), failures))
        [ours] = [one for one in stacks if one.sampler == OURS.name]
        if ours.samples:
            break
    assert 0 < ours.complete == ours.samples
    assert ours.frames / ours.samples > 200  # 400 at the deepest
    costs = list(overhead.measure(samplers, 1, 0.1, tmp_path / "costs", failures))
    assert {(one.frequency, one.sampler) for one in costs if one.overhead} == {
        (frequency, one.name) for frequency in overhead.FREQUENCIES for one in samplers
    }
    samples = list(per_sample.depths(1.0, tmp_path / "samples", failures))
    assert failures == []
    assert [one.frames for one in samples if one.sampler == OURS.name] == pytest.approx(list(per_sample.DEPTHS), rel=0.1)
    assert all(one.nanoseconds > 0 for one in samples)
    [memory] = map_memory.small_libraries(0.5, tmp_path / "memory", failures)
    assert memory.files >= 200
    assert failures == []
    text = document.markdown(document.Results(stacks, costs, samples, [], [memory]), ["a note."], "the command")
    assert "| deep recursion | 100.0 % |" in text
    assert "One run: the command.\n\n- a note.\n" in text
