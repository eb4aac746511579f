"""sframegen preload: it runs the command as it is, with LD_PRELOAD, and says which objects have no section."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sframegen
from sframegen.backtrace import preloading as module
from sframegen.backtrace.library_files import PRELOAD
from sframegen.backtrace.preloading import (
    HERE,
    STATISTICS,
    NotPreloadedError,
    find_preload_object,
    find_program,
    list_objects,
    make_environment,
)
from sframegen.base.errors import FormatError, SframegenError
from sframegen.detached.stores import VARIABLE
from tests.support.commands import start
from tests.support.peers import Compiler

MAIN = "int main(void) { return 7; }\n"


def library() -> Path:
    """The test is skipped without it."""
    if not (HERE / PRELOAD).exists():
        pytest.skip("this installation has no libsframe-backtrace: no C compiler made it")
    return Path(make_environment({})["LD_PRELOAD"])


def preload(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    library()
    return start("preload", *words, env=os.environ | environ)


def shown(name: str) -> tuple[str, ...]:
    return "--", "sh", "-c", f'echo "${name}"'


def test_the_command_has_the_library_first() -> None:
    assert preload(*shown("LD_PRELOAD")).stdout == f"{library()}\n"
    done = preload(*shown("LD_PRELOAD"), LD_PRELOAD="libm.so.6")
    assert (done.stdout, done.stderr, done.returncode) == (f"{library()}:libm.so.6\n", "", 0)


def test_the_exit_status_is_that_of_the_command() -> None:
    assert preload("--", "sh", "-c", "exit 3").returncode == 3
    assert preload("--", "sh", "-c", "kill -9 $$").returncode == -9
    for words, why in (("/no/such/program", "No such file or directory"), ("", "")):
        done = preload("--", words)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(f"Error: {words}: not a program: {why}")


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C.UTF-8"}])
def test_the_command_has_the_locale_and_the_signals_of_its_user(given: dict[str, str]) -> None:
    """Python itself sets LC_CTYPE where the locale is C, and ignores signals."""
    library()
    command = ("preload", "--", "sh", "-c", "env; grep SigIgn: /proc/self/status")
    *variables, ignored = start(*command, check=True, env={"PATH": os.environ["PATH"], **given}).stdout.splitlines()
    assert ("LC_CTYPE=C.UTF-8" in variables) == bool(given)
    assert int(ignored.split()[1], 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1) == 0


def test_the_loader_that_an_argument_names_is_not_run(compile_c: Compiler, tmp_path: Path) -> None:
    """Only the command is to be run: `sframegen preload -- file ./suspect` runs nothing of ./suspect."""
    loader = tmp_path / "loader"
    loader.write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
    loader.chmod(0o755)
    suspect = compile_c(MAIN, f"-Wl,--dynamic-linker={loader}")
    done = preload("--verbose", "--", "true", suspect)
    assert done.returncode == 0
    assert f"{suspect}: its loader differs from the command, which is not run" in done.stderr
    assert not (tmp_path / "was-run").exists()


def test_stores_are_those_of_options_then_of_the_environment(tmp_path: Path) -> None:
    assert preload("--sections", tmp_path, *shown(VARIABLE), **{VARIABLE: "/a:/b"}).stdout == f"{tmp_path}:/a:/b\n"
    assert preload(*shown(VARIABLE), **{VARIABLE: ""}).stdout == "\n"


def test_objects_without_a_section_are_named(compile_c: Compiler) -> None:
    program = compile_c(MAIN)
    done = preload("--verbose", "--", program)
    assert done.returncode == 7
    assert f"sframegen: {program}: no section\n" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("sframegen: no section in 3 of 3 objects: ")
    assert done.stderr.endswith("; --detached DIR makes their sections\n")
    program = compile_c(MAIN, "-static", "-nostartfiles", "-Wl,-e,main")
    for also in ((), ("--also", program)):  # what hinders only the list does not hinder the command
        done = preload("--verbose", *also, "--", program)
        said = f"sframegen: {program}: a static program: it has no loader that reads LD_PRELOAD"
        assert done.stderr.splitlines() == [said] * (1 + len(also) // 2)


def test_detached_makes_the_missing_sections_once(compile_c: Compiler, tmp_path: Path) -> None:
    program = tmp_path / "program"
    sframegen.add_section(compile_c(MAIN, "-Wl,--build-id"), output=program)
    store = tmp_path / "store"
    done = preload("--detached", store, "--verbose", "--", program)
    assert done.returncode == 7
    made = {path: path.stat().st_mtime_ns for path in store.rglob("*.sframe")}
    assert len(made) == 2  # libc and ld.so
    assert f"sframegen: {program}: section\n" in done.stderr
    assert done.stderr.count(": in a store\n") == 2
    again = preload("--detached", store, "--", program)
    assert (again.returncode, again.stderr) == (7, "")
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*.sframe")} == made
    assert preload("--detached", store, *shown(VARIABLE)).stdout == f"{store}\n"


def test_programs_among_the_arguments_and_other_libraries(compile_c: Compiler, tmp_path: Path) -> None:
    """Of a script that starts a program, and of a library that is loaded later."""
    program, text = compile_c(MAIN), tmp_path / "text"
    text.write_text("no program\n")
    folder = tmp_path / "plugins/below"
    folder.mkdir(parents=True)
    plugin = folder / "plugin.so"
    plugin.write_bytes(compile_c("int f(void) { return 1; }", "-shared", "-fPIC", name="plugin.so").read_bytes())
    (folder / "plugin.so.txt").write_text("no library\n")
    for also in (folder.parent, plugin):
        done = preload("--verbose", "--also", also, "--", "sh", "-c", '"$0"', program, text)
        assert done.returncode == 7
        assert f"sframegen: {program}: no section\n" in done.stderr
        assert f"sframegen: {plugin}: no section\n" in done.stderr
        assert f"{text}: " not in done.stderr


def test_objects_of_a_script_are_those_of_its_interpreter(tmp_path: Path) -> None:
    for first in ("#!/bin/sh", "#! /usr/bin/env sh", "#!/usr/bin/env -S sh", "#!/usr/bin/env -S A=b sh -e"):
        script = tmp_path / "script"
        script.write_text(f"{first}\nexit\n")
        script.chmod(0o755)
        assert find_program(str(script)) == os.path.realpath("/bin/sh")
    script.write_text(f"#!{script}\n")
    with pytest.raises(FormatError, match="scripts that interpret scripts"):
        find_program(str(script))
    with pytest.raises(FileNotFoundError):
        find_program("no-such-program-anywhere")
    os.mkfifo(tmp_path / "fifo", 0o755)
    with pytest.raises(FormatError, match="not a regular file"):
        find_program(str(tmp_path / "fifo"))


def test_objects_of_a_program(compile_c: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile_c(MAIN)
    first, *others = list_objects(str(program))
    assert first == str(program)
    assert {Path(path).name.partition(".")[0] for path in others} == {"libc", "ld-linux-x86-64"}
    private = tmp_path / "private"
    private.write_bytes(program.read_bytes())
    private.chmod(0o4755)
    assert list_objects(str(private))[1:] == others  # the user's own
    monkeypatch.setattr(os, "getuid", lambda: private.stat().st_uid + 1)
    with pytest.raises(NotPreloadedError, match="of another user or group ignores LD_PRELOAD"):
        list_objects(str(private))


def test_an_installation_without_it_says_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "HERE", tmp_path)
    with pytest.raises(SframegenError, match="install a C compiler, then sframegen again from its sources"):
        find_preload_object()
    colon = tmp_path / "a:place"
    colon.mkdir()
    (colon / PRELOAD).touch()
    monkeypatch.setattr(module, "HERE", colon)
    with pytest.raises(SframegenError, match="not accept paths with colons and semicolons: copy the file elsewhere"):
        make_environment({})


def test_an_installation_in_a_path_with_a_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library()
    spaced = tmp_path / "a place"
    spaced.mkdir()
    shutil.copy(HERE / PRELOAD, spaced)
    monkeypatch.setattr(module, "HERE", spaced)
    variables = make_environment({"LD_PRELOAD": "libm.so.6", "LD_LIBRARY_PATH": "/nowhere"})
    assert variables == {"LD_PRELOAD": f"{PRELOAD}:libm.so.6", "LD_LIBRARY_PATH": f"{spaced}:/nowhere"}
    environment = os.environ | make_environment({}) | {STATISTICS: "1"}
    done = subprocess.run([sys.executable, "-S", "-c", ""], check=True, capture_output=True, text=True, env=environment)
    assert re.fullmatch(r"sframegen preload: process .*\n", done.stderr)
