"""Outputs of profiles, and files that cannot be written; the last line of a command says what people do next."""

from __future__ import annotations

import errno
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from sframegen.cli.commands import cli
from sframegen.cli.shared import output as module
from sframegen.cli.shared import profile_output
from sframegen.cli.shared.output import Run, suggest_command, suggest_viewer
from sframegen.cli.shared.profile_output import Outputs
from sframegen.profile.report.formats.file_formats import write_profile
from sframegen.profile.report.formats.flamegraph import encode_flamegraph
from sframegen.profile.report.named import NamedProfile
from tests.support.commands import start
from tests.support.named_stacks import EXAMPLE, named
from tests.support.peers import Compiler
from tests.support.pprof_messages import stacks_of


@pytest.mark.parametrize("quiet", [False, True])
def test_notes_are_on_the_terminal_unless_it_is_to_be_quiet(
    quiet: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = named(*EXAMPLE)
    profile.notes = ["a file is damaged"] * 2
    for files in ((), (str(tmp_path / "out.html"),)):
        profile_output.Outputs(Run(), files, as_json=False, quiet=quiet).write(profile)
        printed = capsys.readouterr()
        notes = printed.err if files else printed.out[printed.out.index("SELF %") :]
        assert notes.endswith("notes:\n  - a file is damaged\n") is not quiet
        assert bool(printed.err) is bool(files and not quiet)
        assert bool(printed.out) is not bool(files)


def test_a_page_has_what_was_sampled_where_and_when_as_its_title(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    end = f", {os.uname().nodename}, 2023-11-14 22:13"
    for arguments, comm, what in (
        (("make", "-j", "a b"), None, "make -j 'a b'"),
        (("7", "99"), None, "program [7], process [99]"),
        ((), "worker", "threads named worker"),
        ((), None, "all processes"),
    ):
        profile = named(*EXAMPLE)
        profile.title = profile_output.compose_title(profile, arguments, comm)
        assert profile.title == what + end
        assert f'"title": "{profile.title}"' in "".join(encode_flamegraph(profile))


def test_a_copy_that_finds_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def parts(_named: NamedProfile) -> Iterator[bytes]:
        yield b"part" * 10_000
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr(profile_output, "FALLBACK_DIRECTORIES", (str(kept),))
    monkeypatch.setattr("sframegen.profile.report.formats.pprof.encode_pprof", parts)
    outputs = profile_output.Outputs(Run(), (str(tmp_path / "out.pb.gz"),), as_json=False)
    outputs.write(named(*EXAMPLE))
    assert outputs.run.status == 1
    assert "the profile cannot be kept" in capsys.readouterr().err
    assert (list(kept.iterdir()), [path.name for path in tmp_path.iterdir()]) == ([], ["kept"])


def test_an_output_that_cannot_be_written_keeps_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other outputs are written, the table is printed, and a copy is kept."""
    full, folded, kept = (tmp_path / name for name in ("full.html", "out.folded", "kept"))
    kept.mkdir()

    def write(profile: NamedProfile, name: str) -> None:
        if name == str(full):
            raise OSError(errno.ENOSPC, "No space left on device", name)
        write_profile(profile, name)

    monkeypatch.setattr(profile_output, "write_profile", write)
    monkeypatch.setattr("tempfile.tempdir", str(kept))
    outputs = profile_output.Outputs(Run(), (str(full), str(folded)), as_json=False)
    outputs.write(named(*EXAMPLE))
    [copy] = kept.iterdir()
    printed = capsys.readouterr()
    assert outputs.run.status == 1
    assert printed.err.splitlines() == [
        f"sframegen: {full}: No space left on device",
        f"sframegen: the profile is kept in {copy}: go tool pprof shows it",
    ]
    assert "SELF %" in printed.out
    assert folded.read_text()
    assert sum(stacks_of(copy.read_bytes()).values()) == 10


def test_a_closed_standard_output_is_refused_before_sampling(tmp_path: Path) -> None:
    for words in (["--", "true"], ["--json", "-o", tmp_path / "out.folded", "--", "true"]):
        done = start("profile", *words, preexec_fn=lambda: os.close(1))
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == "Error: standard output is closed; name a file with --output"
    assert not list(tmp_path.iterdir())


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """For this line only: click's runner has its own standard error, which is none."""
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True), stdout=sys.stdout))


def said(*arguments: str) -> list[str]:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == ("missing" in arguments), done.output
    return [line for line in done.stderr.splitlines() if line.startswith("next: ")]


def test_success_ends_with_what_to_do_next(
    compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """On a terminal: not to pipes, not after a refusal, and not where it helps nobody."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "root").mkdir()
    program = compile_c("int main(void) { return 0; }", "-Wl,--build-id").read_bytes()
    for name in ("prog", "-prog", "other", "a file", "root/prog"):
        (tmp_path / name).write_bytes(program)
    (tmp_path / "one.o").write_bytes(compile_c("int one(void) { return 1; }", "-c", name="one.o").read_bytes())
    assert said("add-section", "-o", "piped", "prog") == []
    request.getfixturevalue("on_terminal")
    said("add-section", "-q", "one.o")
    expected = {
        "add-section --dry-run prog": [],
        "add-section --quiet -o quiet prog": [],
        "add-section --json -o json prog": [],
        "add-section -o 'a copy' prog": ["next: sframegen check 'a copy'"],
        "add-section --detached 'a store' prog": ["next: sframegen check --sections 'a store' prog"],
        "add-section other missing": [],
        "add-section prog": ["next: sframegen check prog"],
        "add-section -- -prog 'a file'": ["next: sframegen check ./-prog 'a file'"],
        "merge -o all.o one.o": ["next: sframegen check all.o"],
        "convert --sframe-version 2 -o prog.v2 prog": ["next: sframegen check prog.v2"],
        "add-tree --dry-run root": [],
        "add-tree root": ["next: sframegen check --quiet root"],
    }
    assert {line: said(*shlex.split(line)) for line in expected} == expected


@pytest.mark.usefixtures("on_terminal")
def test_a_profile_that_is_written_is_shown_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for files, as_json, lines in (
        (("p.html",), False, ["next: xdg-open p.html"]),
        (("p.txt", "p.pb.gz"), False, ["next: go tool pprof -http=: p.pb.gz"]),
        (("p.folded",), False, []),
        (("p.html",), True, []),
        ((), False, []),
    ):
        Outputs(Run(), files, as_json).write(named(*EXAMPLE))
        assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("next: ")] == lines, files


@pytest.mark.usefixtures("on_terminal")
@pytest.mark.parametrize("names", [[], ["\x1b[2J"], ["a", "b", "c", "d"]])
def test_names_that_nobody_types_are_left_out(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    suggest_command("sframegen check {}", *names)
    suggest_viewer(names)
    assert capsys.readouterr().err == ""
