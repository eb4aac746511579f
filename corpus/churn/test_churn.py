"""The parts of the study, each for a moment."""

from __future__ import annotations

import mmap
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from corpus.churn import profiled, remains
from corpus.churn.churn_report import Results, faults_of, markdown
from corpus.churn.corrupt import KINDS as CORRUPT
from corpus.churn.corrupt import corrupt
from corpus.churn.hostile_user import hostile
from corpus.churn.killing import Killed, interrupt, interrupt_twice, kill
from corpus.churn.long_run import growth, long_run
from corpus.churn.restless import compile_all, restless, short_lived
from corpus.churn.truth import is_possible, judge
from corpus.churn.two_at_once import two_at_once
from tests.support.kernel_events import needs_bpf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once
needs_bpftool = pytest.mark.skipif(not shutil.which("bpftool"), reason="no bpftool")
SECONDS = 2.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("churn")
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)  # nobody's processes are run there
    compile_all(folder)
    return folder


def frames(*names: str, object_name: str = "restless") -> list[dict[str, Any]]:
    """Frames, the outermost first: `function` or `function@object`."""
    pairs = [name.partition("@") for name in names]
    return [{"function": name, "object": where or object_name, "kind": "user", "guessed": False} for name, _, where in pairs]


@pytest.mark.parametrize(
    ("complete", "names", "possible"),
    [
        (True, ["_start@libc.so.6", "main", "run", "do_busy", "busy_outer", "busy_middle"], True),
        (True, ["_start@libc.so.6", "main", "run", "do_busy", "busy_middle"], False),
        (False, ["busy_outer", "busy_middle"], True),
        (True, ["busy_outer", "busy_middle"], False),
        (False, ["p1_enter@plugin1.so", "p1_middle@plugin1.so", "p1_inner@plugin1.so", "p1_outer"], True),
        (False, ["p2_inner@plugin2.so", "p1_outer"], False),
        (True, ["_start@libc.so.6", "main", "run", "do_fork", "fork@libc.so.6"], True),
        (True, ["_start@libc.so.6", "main", "read@libc.so.6", "do_fork"], False),
    ],
)
def test_which_stacks_can_be(complete: bool, names: list[str], possible: bool) -> None:
    assert is_possible(frames(*names), complete=complete) is possible


def test_a_wrong_stack_is_a_fault() -> None:
    stack = {"frames": [0, 1], "samples": 3, "complete": False, "end": "the PC is in no known mapping"}
    verdict = judge({"frames": frames("main", "busy_inner"), "stacks": [stack], "lost": {"the ring buffer was full": 1}})
    assert verdict.wrong == {"main;busy_inner": 3}
    assert verdict.share_lost == 1


@pytest.mark.dear
@pytest.mark.full
@needs_bpf
def test_restless_processes(folder: Path) -> None:
    for row in restless(folder, SECONDS, ["plugins", "fork"]):
        assert row.run.fault == ""
        assert row.verdict.faults == []
        assert row.verdict.samples


@pytest.mark.full
@needs_bpf
def test_plugins_while_records_are_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffers are so small that many records find no room: samples are lost then, but none is walked in another plugin."""
    small = (
        "from sframegen.profile.following import follower; from sframegen.cli.start import main; follower.RING_PAGES = 2; main()"
    )
    monkeypatch.setattr(profiled, "PROFILE", (sys.executable, "-P", "-c", small, "profile"))
    run = profiled.profile("--", folder / "restless", 2 * SECONDS, folder, "fork", *["plugins"] * 3)
    assert run.fault == ""
    assert judge(run.profile).faults == []


@pytest.mark.dear
@needs_bpf
@pytest.mark.full
def test_short_lived_processes(folder: Path) -> None:
    rows = short_lived(folder, 100)
    assert not [row.run.fault for row in rows if row.run.fault]
    assert all(row.verdict.complete for row in rows)


@needs_bpf
@needs_bpftool
@pytest.mark.full
def test_processes_that_damage_what_is_read(folder: Path) -> None:
    rows = corrupt(folder, SECONDS)
    assert [row.kind for row in rows] == [*CORRUPT]
    assert not [fault for row in rows for fault in row.faults]


def test_signals_that_all_came_before_sampling_are_a_fault() -> None:
    assert faults_of(Results(killed=Killed(3, 0, []), interrupted=Killed(3, 1, []), twice=Killed(3, 0, []))) == [
        "killed: none of 3 while it sampled"
    ]


def test_files_that_other_programs_use_are_not_left_by_a_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask's processes had semaphores in shared memory while profilers were killed."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    for folder in (shared, own):
        folder.mkdir()
    monkeypatch.setattr(remains, "SHARED_MEMORY", shared)
    used, left, new = shared / "sem.mp-used", shared / "sem.mp-left", shared / "new"
    for path in (new, left, own / "any"):
        path.write_bytes(b"1")
    paths = {str(left), str(used), str(own / "any")}
    with new.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        new.rename(used)  # as a semaphore is mapped before it has its name
        assert paths - remains.temporary_files(own) == {str(used)}
    assert paths <= remains.temporary_files(own)


@needs_bpf
@needs_bpftool
@pytest.mark.full
def test_signals_at_random_moments() -> None:
    runs = [run(2) for run in (kill, interrupt, interrupt_twice)]
    assert not [fault for run in runs for fault in run.faults]
    assert [run.seen for run in runs[:2]] == [2, 2]


@needs_bpf
@pytest.mark.full
def test_two_profilers(folder: Path) -> None:
    assert not [fault for row in two_at_once(folder, 3 * SECONDS) for fault in row.faults]


@needs_bpf
@pytest.mark.full
def test_a_hostile_user(folder: Path) -> None:
    if not shutil.which("setpriv"):
        pytest.skip("no setpriv")
    assert not [fault for row in hostile(folder, 1) for fault in row.faults]


@needs_bpf
@needs_bpftool
@pytest.mark.full
def test_a_long_run() -> None:
    found = long_run(3)
    assert found.status == 0
    assert growth(found.uses)["maps"] <= 1  # less where it is measured while it ends
    results = Results(long=found)
    assert faults_of(results) == []
    assert "minutes of the whole machine" in markdown(results, "", 0)
