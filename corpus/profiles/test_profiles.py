"""A small run of what corpus/profiles shows; and that its judge sees differences."""

from __future__ import annotations

import platform
import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from corpus.profiles.held_samples import HeldSamples, Walked
from corpus.profiles.report import markdown
from corpus.profiles.trial import Trial
from corpus.profiles.verdict import Row, Verdict, as_stack
from corpus.profiles.workloads import WORKLOADS
from corpus.stacks.code import Code
from corpus.stacks.compare import Stack
from corpus.stacks.debugger import Gdb
from sframegen.profile.following.mapped_file import MappedFiles
from sframegen.profile.packed_frames import FileFrame as Packed
from sframegen.program.helper import NoAnswerError
from sframegen.stack.walking.ends import End
from sframegen.stack.walking.frames import Frame, How
from tests.support.kernel_events import needs_bpf

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.profile.following.mapped_file import FileKey, MappedPlace
    from sframegen.stack.live.open_aside import OpenedAside

pytestmark = [pytest.mark.once, pytest.mark.full]

SAMPLES = 5
LATE = 3  # attempts
BY_NAME = {workload.name: workload for workload in WORKLOADS}
NO_CODE = Code("")  # where nothing has CFI
BIAS = 0x7000


class Described(Code):
    """Where all code has CFI, and SFrame can say it."""

    def __init__(self) -> None:
        super().__init__("")

    def without_cfi(self, _: int) -> str:
        return ""


def traced(pc: int, *, exact: bool = False) -> Frame:
    return Frame(pc, None, None, How.SFRAME, exact)


THREAD = [traced(BIAS + 0x10, exact=True), traced(BIAS + 0x20), traced(BIAS + 0x30, exact=True)]
SEEN = Stack([(frame.pc, None) for frame in THREAD], "outermost", complete=True)


def walked(*addresses: int, end: End = End.OUTERMOST, guessed: int = -1) -> Walked:
    return Walked(tuple(Packed(1, address, at == guessed).packed() for at, address in enumerate(addresses)), end)


def judged(ours: Walked, code: Code) -> Row:
    verdict = Verdict(Row("made up"))
    verdict.add(ours, finished=True, in_call=False, process="none")
    stack = as_stack(ours, [[BIAS + (frame & 0xFFFF)] for frame in ours.frames], THREAD)
    verdict.judge_gdb(stack, ours.end, SEEN, code)
    verdict.judge_guesses(stack, code)
    return verdict.row


def test_equal_stacks() -> None:
    """A packed frame is within the instruction that calls, and at the one that a signal interrupted."""
    row = judged(walked(0x10, 0x1F, 0x30), Described())
    assert (row.equal_gdb, row.frames_gdb, row.differences, row.complete, row.frames) == (1, 3, [], 1, 3)


@pytest.mark.parametrize(
    "addresses", [(0x11, 0x1F, 0x30), (0x10, 0x20, 0x30), (0x10, 0x1F, 0x2F), (0x10, 0x1F), (0x10, 0x1F, 0x30, 0x40)]
)
def test_other_frames_are_a_difference(addresses: tuple[int, ...]) -> None:
    assert len(judged(walked(*addresses), Described()).differences) == 1


def test_who_ends_with_a_reason_is_not_wrong() -> None:
    row = judged(walked(0x10, 0x1F, end=End.TOO_DEEP), Described())
    assert row.differences == []
    assert row.ends == {"there are more frames than are walked": 1}
    assert row.reasons == {"we end: there are more frames than are walked": 1}
    assert len(judged(walked(0x10, 0x1F, end=End.UNREADABLE), Described()).differences) == 1
    assert judged(walked(0x10, 0x1F, end=End.NO_RULE), NO_CODE).differences == []


def test_a_guess_where_there_is_cfi_is_a_difference() -> None:
    assert len(judged(walked(0x10, 0x1F, 0x30, guessed=1), Described()).differences) == 1
    assert judged(walked(0x10, 0x1F, 0x30, guessed=1), NO_CODE).differences == []


def test_of_several_mappings_the_one_that_the_thread_is_in_counts() -> None:
    ours = walked(0x10)
    assert as_stack(ours, [[0x10, BIAS + 0x10]], THREAD).frames == [(BIAS + 0x10, None)]
    assert as_stack(ours, [[0x10, 0x9010]], THREAD).frames == [(0x10, None)]


def test_a_copy_is_judged_against_the_kernel_program() -> None:
    whole, short = walked(1, 2, 3), walked(1, 2, end=End.COPY_TOO_SHORT)
    guess = walked(1, 2, end=End.GUESS_FAILED)

    def differences(copy: Walked, ours: Walked, *, new_code: bool = False) -> int:
        verdict = Verdict(Row("made up"))
        verdict.judge_copy(copy, ours, new_code=new_code)
        return len(verdict.row.differences)

    assert differences(whole, whole) == differences(short, whole) == differences(whole, guess, new_code=True) == 0
    assert differences(walked(1, 4, end=End.COPY_TOO_SHORT), whole) == differences(whole, guess) == 1
    assert differences(walked(1, 2), whole) == differences(walked(1, 4, 3), guess, new_code=True) == 1


@needs_bpf
def test_samples(tmp_path: Path) -> None:
    for program in ("gdb", "gcc"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine")
    if platform.machine() != "x86_64":
        pytest.skip("the programs, and what they are to show, are for x86-64")
    rows = []
    with Gdb() as gdb, HeldSamples() as held:
        for name in ("signal handlers", "deep recursion"):
            BY_NAME[name].prepare(tmp_path)
            row = Trial(BY_NAME[name], tmp_path, 1, held).run(gdb, SAMPLES)
            assert row.differences == []
            assert row.samples == row.copies == SAMPLES
            assert row.finished > 0
            assert row.complete + row.ends.total() == SAMPLES
            rows.append(row)
    assert f"{2 * SAMPLES} samples, " in markdown(rows, "made up", [])


@needs_bpf
def test_files_that_are_opened_late_cost_samples_and_are_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("gdb", "gcc"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine")
    if platform.machine() != "x86_64":
        pytest.skip("the program is for x86-64")
    opened, refused = MappedFiles.open, Counter[str]()

    def late(self: MappedFiles, key: FileKey, place: MappedPlace) -> OpenedAside:
        if refused[place.path] == LATE:
            return opened(self, key, place)
        refused[place.path] += 1
        raise NoAnswerError

    monkeypatch.setattr(MappedFiles, "open", late)
    BY_NAME["deep recursion"].prepare(tmp_path)
    with Gdb() as gdb, HeldSamples() as held:
        row = Trial(BY_NAME["deep recursion"], tmp_path, 1, held).run(gdb, SAMPLES)
    assert any("does not answer" in why for why in row.left_out)
    assert (row.differences, row.samples) == ([], SAMPLES)


@pytest.mark.parametrize(("how", "pc"), [(None, BIAS + 0x10), (How.SFRAME, BIAS + 0xF)])
def test_where_stack_has_no_rule_a_call_may_end(how: How | None, pc: int) -> None:
    """The kernel program may have a proven one there, and packs the address before."""
    frame = traced(BIAS + 0x10, exact=True)._replace(how=how)
    assert as_stack(walked(0xF), [[BIAS + 0xF]], [frame]).frames == [(pc, None)]
