"""Profiles in files: written for intervals, shown again, compared; and outputs that cannot be written."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from sframegen.cli import profile_report
from sframegen.cli.commands import cli
from sframegen.cli.shared import profile_output
from sframegen.cli.shared.output import Run
from sframegen.profile.report.formats.file_formats import write_profile
from sframegen.profile.stored import read_pprof
from sframegen.profile.stored.intervals import name_of
from sframegen.profile.units import Unit
from tests.support.kernel_events import needs_bpf
from tests.support.named_stacks import EXAMPLE, named

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

    from sframegen.profile.report.named import Named

BEGAN = 1_795_476_000.0  # seconds since 1970
# Until there are three files, and a second of CPU time has been used.
BUSY = """
import sys, time
from pathlib import Path
while len([*Path(sys.argv[1]).glob("*.pb.gz")]) < 3 or time.process_time() < 1: sum(range(100000))
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Profiles of three minutes."""
    for minute in range(3):
        write_profile(named(*EXAMPLE), str(tmp_path / name_of(BEGAN + 60 * minute, 60)))
    return tmp_path


def test_a_report_of_files(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "all.html"
    done = run("profile", "report", "-o", page, "--by", "pid", folder)
    assert (done.exit_code, done.stdout) == (0, "")
    assert "30 samples of cpu-clock, 99 Hz in 6.0 s" in done.stderr
    assert "program (pid 8)" in page.read_text()
    assert "spin" in run("profile", "report", folder).stdout


def test_what_is_no_file_in_a_directory_is_refused(folder: Path) -> None:
    fifo = folder / name_of(BEGAN - 60, 60)
    os.mkfifo(fifo)  # reading it would wait for ever
    done = run("profile", "report", "--json", folder)
    assert (done.exit_code, done.stderr) == (1, f"sframegen: {fifo}: not a regular file\n")
    assert json.loads(done.stdout)["samples"] == 30


def test_a_file_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_report, "MAX_BYTES", 1000)
    monkeypatch.setattr(read_pprof, "MAX_BYTES", 1000)
    done = run("profile", "report", "/dev/zero")
    assert (done.exit_code, done.stderr) == (1, "sframegen: /dev/zero: pprof: more than 1,000 bytes\n")


def test_a_copy_that_finds_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def parts(_named: Named) -> Iterator[bytes]:
        yield b"part" * 10_000
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr(profile_output, "KEPT_IN", (str(kept),))
    monkeypatch.setattr("sframegen.profile.report.formats.pprof.pprof", parts)
    outputs = profile_output.Outputs(Run(), (str(tmp_path / "out.pb.gz"),), as_json=False, keeps=True)
    outputs.write(named(*EXAMPLE))
    assert outputs.run.status == 1
    assert "the profile cannot be kept" in capsys.readouterr().err
    assert (list(kept.iterdir()), [path.name for path in tmp_path.iterdir()]) == ([], ["kept"])


def test_a_format_without_times_is_refused_for_times(tmp_path: Path) -> None:
    waits = named(*EXAMPLE)
    waits.event, waits.unit = "time off the CPU", Unit.MICROSECONDS
    source = tmp_path / "in.pb.gz"
    write_profile(waits, str(source))
    done = run("profile", "report", "-o", tmp_path / "out.firefox.json", source)
    assert (done.exit_code, [path.name for path in tmp_path.iterdir()]) == (2, ["in.pb.gz"])
    assert "shows samples, not time" in done.stderr


def test_a_report_of_a_time(folder: Path) -> None:
    begin = datetime.fromtimestamp(BEGAN + 90).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    assert json.loads(run("profile", "report", "--json", "--from", begin, folder).stdout)["samples"] == 20
    assert json.loads(run("profile", "report", "--json", max(folder.iterdir())).stdout)["samples"] == 10
    done = run("profile", "report", "--to", "1999-01-01", folder)
    assert (done.exit_code, done.stderr) == (1, f"sframegen: {folder}: no profiles of intervals are in it, or none of that time\n")


def test_what_is_no_profile_is_told(tmp_path: Path) -> None:
    (tmp_path / "no.pb.gz").write_bytes(b"\x1f\x8bnothing")
    done = run("profile", "report", tmp_path / "no.pb.gz", tmp_path / "missing")
    assert done.exit_code == 1
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [str(tmp_path / "no.pb.gz"), str(tmp_path / "missing")]
    assert "Traceback" not in done.stderr


def test_two_profiles_are_compared(folder: Path, tmp_path: Path) -> None:
    before, after, *_ = sorted(folder.iterdir())
    assert "POINTS" in run("profile", "diff", before, after).stdout
    assert json.loads(run("profile", "diff", "--json", before, folder).stdout)["after"] == 30
    assert run("profile", "diff", "-o", tmp_path / "d.html", before, after).exit_code == 0
    assert '"before"' in (tmp_path / "d.html").read_text()
    assert run("profile", "diff", "-o", tmp_path / "d.txt", before, after).exit_code == 2
    assert run("profile", "diff", before, tmp_path / "missing").exit_code == 1


def test_a_program_with_that_name_can_still_be_profiled() -> None:
    done = run("profile", "--", "report", "DIR")
    assert done.exit_code == 2
    assert "report: neither a process id nor a program" in done.stderr or "not allowed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--every", "60"], "--every needs one directory"),
        (["--keep", "24h"], "--keep is for --every"),
        (["--every", "60 s", "-o", "DIR"], "is not a length of time"),
        (["--every", "60", "--json", "-o", "DIR"], "exclude each other"),
        (["--every", "60", "--debuginfod", "-o", "DIR"], "exclude each other"),
        (["--every", "60", "--perf-data", "FILE", "-o", "DIR"], "exclude each other"),
    ],
)
def test_wrong_usage(arguments: list[str], why: str) -> None:
    done = run("profile", "--system", *arguments) if "--perf-data" not in arguments else run("profile", *arguments)
    assert done.exit_code == 2
    assert why in done.stderr


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file on a disk that is full when it is written. Temporary files are in `kept`."""
    path, kept = tmp_path / "full.html", tmp_path / "kept"
    kept.mkdir()

    def write(profile: Named, name: str) -> None:
        if name == str(path):
            raise OSError(errno.ENOSPC, "No space left on device", name)
        write_profile(profile, name)

    monkeypatch.setattr(profile_output, "write_profile", write)
    monkeypatch.setattr("tempfile.tempdir", str(kept))
    return path


def test_an_output_that_cannot_be_written_keeps_the_profile(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other outputs are written, the table is printed, and a copy is kept."""
    folded = full.with_name("out.folded")
    outputs = profile_output.Outputs(Run(), (str(full), str(folded)), as_json=False, keeps=True)
    outputs.write(named(*EXAMPLE))
    [copy] = (full.parent / "kept").iterdir()
    printed = capsys.readouterr()
    assert outputs.run.status == 1
    assert printed.err.splitlines() == [
        f"sframegen: {full}: No space left on device",
        f"sframegen: the profile is kept in {copy}: sframegen profile-report shows it, or writes it in another format",
    ]
    assert "SELF %" in printed.out
    assert folded.read_text()
    assert json.loads(run("profile", "report", "--json", copy).stdout)["samples"] == 10


@pytest.mark.sampled
@needs_bpf
def test_a_new_profile_that_cannot_be_written_is_kept(full: Path) -> None:
    done = run("profile", "-F", 999, "-o", full, "--", sys.executable, "-c", "sum(range(1_000_000))")
    assert done.exit_code == 1
    [copy] = (full.parent / "kept").iterdir()
    assert str(copy) in done.stderr
    assert json.loads(run("profile", "report", "--json", copy).stdout)["samples"]


def test_a_report_that_cannot_be_written_leaves_no_copy(full: Path) -> None:
    """The profile is in the files that it was read from."""
    source = full.with_name("in.pb.gz")
    write_profile(named(*EXAMPLE), str(source))
    done = run("profile", "report", "-o", full, source)
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [f"sframegen: {full}: No space left on device"]
    assert "SELF %" in done.stdout
    assert not list((full.parent / "kept").iterdir())


def test_a_report_of_a_pipe_that_cannot_be_written_keeps_a_copy(full: Path) -> None:
    source, pipe = full.with_name("in.pb.gz"), full.with_name("pipe")
    write_profile(named(*EXAMPLE), str(source))
    os.mkfifo(pipe)
    with subprocess.Popen(["dd", f"if={source}", f"of={pipe}", "status=none"]) as writer:
        done = run("profile", "report", "-o", full, pipe)
        writer.wait()
    assert done.exit_code == 1
    [copy] = (full.parent / "kept").iterdir()
    assert json.loads(run("profile", "report", "--json", copy).stdout)["samples"] == 10


def test_a_closed_standard_output_is_refused_before_sampling(tmp_path: Path) -> None:
    source, output = tmp_path / "in.pb.gz", tmp_path / "out.folded"
    write_profile(named(*EXAMPLE), str(source))
    commands: list[list[object]] = [["profile", "--", "true"]]
    commands += [["profile-report", source], ["profile-report", "--json", "-o", output, source]]
    commands += [["profile-diff", source, source], ["profile-diff", "--json", source, source]]
    for words in (*commands, ["profile-report", "-o", output, source]):
        command = [sys.executable, "-P", "-m", "sframegen", *map(str, words)]
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: os.close(1))
        if words in commands:
            assert done.returncode == 2
            assert done.stderr.splitlines()[-1] == "Error: standard output is closed; name a file with --output"
            assert not output.exists()
        else:
            assert done.returncode == 0, done.stderr
            assert output.read_text()


@pytest.mark.sampled
@needs_bpf
def test_intervals_of_a_process(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    arguments = ["--every", "1", "-F", "999", "-o", folder, "--", sys.executable, "-c", BUSY, folder]
    command = [sys.executable, "-m", "sframegen", "profile", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    files = sorted(folder.iterdir())
    assert len(files) >= 3
    profiles = [json.loads(run("profile", "report", "--json", file).stdout) for file in files]
    whole = json.loads(run("profile", "report", "--json", folder).stdout)
    assert whole["samples"] == sum(one["samples"] for one in profiles) > 300
    assert all(one["samples"] for one in profiles[:3])
    shares = [one["complete"] / one["samples"] for one in profiles if one["samples"] > 20]
    assert min(shares) > 0.8
