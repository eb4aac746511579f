"""Every system call that touches the files fails, or is the last of the process, in turn: nothing is lost, nothing left over."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sframegen import add_section
from tests.support.peers import Compiler, Peers
from tests.support.processes.answering import Answering

HERE = Path(__file__).parent / "faults"
NOTHING, ERROR, FULL, SHORT, KILL, HALF_KILL, TERM = range(7)  # as in faults.c
FAULTS = {"I/O error": (ERROR, errno.EIO), "disk full from there on": (FULL, 0), "SIGKILL after it or half of it": (HALF_KILL, 0)}
MORE_FAULTS = FAULTS | {
    "SIGKILL before it": (KILL, 0),
    "SIGTERM": (TERM, 0),
    "interrupted": (ERROR, errno.EINTR),
    "half of it done": (SHORT, 0),
}
KILLED = -signal.SIGKILL
MODE = 0o4751
COPIED_MODE = 0o751  # set-user-ID bits of others' files are not copied

# Everything that is used to read, write, keep and replace.
CALLS = {"flock", "mmap64", "open64", "openat64", "lseek64", "copy_file_range", "ftruncate64", "write"}
CALLS |= {"flistxattr", "fgetxattr", "fsetxattr", "fchown", "fchmod", "fsync", "linkat", "renameat", "close"}


class Scenario(NamedTuple):
    """What is run in a directory with `files`, links to the first of the same source; which names are new after it."""

    arguments: list[str]
    files: dict[str, str]
    changed: list[str]
    faults: dict[str, tuple[int, int]] = FAULTS
    mode: int = MODE  # of files before and after
    poor: bool = False  # a file system that has no nameless files and copies nothing itself


ADD = ["add-section", "-j1", "--no-verify"]
IN_PLACE = Scenario([*ADD, "program"], {"program": "program"}, ["program"], MORE_FAULTS)
SCENARIOS = {
    "in place": IN_PLACE,
    "in place, poor file system": IN_PLACE._replace(poor=True),
    "new output": Scenario([*ADD, "-o", "output", "program"], {"program": "program"}, ["output"], mode=COPIED_MODE),
    "output that exists": Scenario(
        [*ADD, "-o", "output", "program"], {"program": "program", "output": "other"}, ["output"], mode=COPIED_MODE
    ),
    "two files": Scenario([*ADD, "program", "other"], {"program": "program", "other": "other"}, ["program", "other"]),
    "hard links": Scenario([*ADD, "program", "link"], {"program": "program", "link": "program"}, ["program", "link"]),
    "convert": Scenario(
        ["convert", "--no-verify", "--sframe-version", "2", "converted"], {"converted": "converted"}, ["converted"]
    ),
    "replace": Scenario([*ADD, "--replace", "--sframe-version", "2", "converted"], {"converted": "converted"}, ["converted"]),
    "remove": Scenario(["remove", "--no-verify", "converted"], {"converted": "converted"}, ["converted"]),
    "object": Scenario([*ADD, "object.o"], {"object.o": "object"}, ["object.o"], MORE_FAULTS),
    "object with a section": Scenario(
        [*ADD, "--replace", "--sframe-version", "2", "filled.o"], {"filled.o": "filled"}, ["filled.o"]
    ),
    "section taken out of an object": Scenario(["remove", "--no-verify", "filled.o"], {"filled.o": "filled"}, ["filled.o"]),
    "archive": Scenario([*ADD, "lib.a"], {"lib.a": "archive"}, ["lib.a"], MORE_FAULTS),
    "section taken out of an archive": Scenario(["remove", "--no-verify", "full.a"], {"full.a": "full"}, ["full.a"]),
    "verified": Scenario(["add-section", "program"], {"program": "program"}, ["program"]),
}


def run_with(server: Answering, scenario: Scenario, directory: Path, call: int, fault: tuple[int, int]) -> dict[str, Any]:
    names = {*scenario.files, *scenario.changed, "new"}
    arguments = [str(directory / word) if word in names else word for word in scenario.arguments]
    action, error = fault
    request = {"arguments": arguments, "below": str(directory), "call": call, "action": action, "error": error}
    answer: dict[str, Any] = server.ask(request | {"poor": scenario.poor})
    return answer


@pytest.fixture(scope="module")
def server(compile_c: Compiler) -> Iterator[Answering]:
    """Runs the command line with faults: tests/hostile/faults."""
    library = compile_c((HERE / "faults.c").read_text(), "-shared", "-fPIC", name="faults.so")
    environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
    with Answering([sys.executable, str(HERE / "server.py"), str(library)], environment) as process:
        yield process


@pytest.fixture(scope="module")
def sources(compile_c: Compiler, peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    files = {
        "program": compile_c("int main(void) { return 0; }", "-O2", name="program"),
        "other": compile_c("int main(void) { return 1; }", "-O2", name="other"),
    }
    directory = tmp_path_factory.mktemp("with-section")
    files["object"] = compile_c("int f(int); int g(int x) { return f(x) + 1; }", "-O2", "-c", name="object.o")
    files["archive"] = directory / "lib.a"
    subprocess.run([peers.tool("ar"), "rcs", files["archive"], files["object"]], check=True)
    for name, source in {"converted": "program", "filled": "object", "full": "archive"}.items():
        files[name] = directory / name
        add_section(files[source], output=files[name], verify=False)
    return files


def set_up(directory: Path, scenario: Scenario, sources: dict[str, Path]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    made: dict[str, Path] = {}
    for name, source in scenario.files.items():
        path = directory / name
        if source in made:
            path.hardlink_to(made[source])
            continue
        made[source] = path
        shutil.copyfile(sources[source], path)
        if os.geteuid() == 0:
            os.chown(path, 12345, 23456)
        path.chmod(scenario.mode)
        os.setxattr(path, "user.note", b"kept")


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.full
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_fault_loses_anything(
    name: str, server: Answering, sources: dict[str, Path], tmp_path: Path, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario, directory = SCENARIOS[name], tmp_path / "directory"

    def run(call: int, fault: tuple[int, int]) -> tuple[dict[str, Any], dict[str, bytes]]:
        set_up(directory, scenario, sources)
        return run_with(server, scenario, directory, call, fault), contents(directory)

    answer, new = run(0, (NOTHING, 0))
    assert (answer["status"], answer["stderr"]) == (0, "")
    assert set(new) == {*scenario.files, *scenario.changed}
    old = {file: sources[source].read_bytes() for file, source in scenario.files.items()}
    calls = answer["calls"]
    outcomes: Counter[str] = Counter()
    for (kind, fault), call in ((item, call) for item in scenario.faults.items() for call in range(1, len(calls) + 1)):
        answer, after = run(call, fault)
        status, lines = answer["status"], answer["stderr"].splitlines()
        outcomes[kind] += 1
        where = (kind, call, calls[call - 1], answer)
        # every file is as before, or as after a run without fault; names that were to be made may be missing
        for file in old.keys() | new.keys():
            if file in after:
                assert after[file] in (old.get(file), new[file]), where
                assert stat.S_IMODE((directory / file).stat().st_mode) == scenario.mode, where
            else:
                assert file not in old, where
        stray = after.keys() - old.keys() - new.keys()
        assert not stray or (status == KILLED and all(Path(file).name.startswith(".sframegen.") for file in stray)), where
        if status == 0:
            assert after == new, where
            assert not lines, where
        elif status == 1:
            assert 1 <= len(lines) <= len(scenario.changed), where
            assert all(line.startswith(f"sframegen: {directory}/") for line in lines), where
            assert after != new or "replaced, but" in lines[0], where
        else:
            assert status == {KILL: KILLED, HALF_KILL: KILLED, TERM: 128 + signal.SIGTERM}[fault[0]], where
            assert not lines, where
    record_property("faults", outcomes.total())
    with capsys.disabled():
        print(f"\n{name}: {len(calls)} calls, {outcomes.total()} faults tried")


def test_every_call_is_counted(server: Answering, sources: dict[str, Path], tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    set_up(tmp_path / "directory", IN_PLACE, sources)
    assert set(run_with(server, IN_PLACE, tmp_path / "directory", 0, (NOTHING, 0))["calls"]) - {"unlinkat"} == CALLS
