"""`sframegen link`: what linkers write gets a section; what they do is passed on; no failure of ours stops a build."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sframegen import Severity, check, read, remove
from sframegen.cli.commands import cli
from sframegen.cli.linking.link_output import expand_response_files, find_output, split_words
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers

SOURCE = """
int puts(const char *);
__attribute__((noinline)) int twice(int n) { return n * 2; }
#ifdef LIBRARY
int say(void) { return puts("twice"); }
#else
int main(void) { return twice(0); }
#endif
"""
TOOL = (sys.executable, "-m", "sframegen", "link")
OTHERS = {"newest bfd": "ld.bfd", "lld": "ld.lld"}


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], check=False, text=True, capture_output=True, **options)


def good(file: Path) -> bool:
    return all(finding.severity is Severity.NOTE for finding in check(file).findings)


@pytest.fixture(scope="module")
def shims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("build") / "a directory, it's odd"
    assert run(*TOOL, "--install", directory).returncode == 0
    return directory


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("source.c").write_text(SOURCE)
    return tmp_path


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


@for_each(
    ("arguments", "output"),
    [
        ("main.o", "a.out"),
        ("-o prog main.o", "prog"),
        ("main.o -oprog", "prog"),
        ("--output prog", "prog"),
        ("--output=prog", "prog"),
        ("--outp=prog", "prog"),
        ("-o first -o second", "second"),
        ("-o prog -O2 -e -ostart -soname -ob.so --wrap -oc", "prog"),
        ("--soname=-x -o prog", "prog"),
        ("--oformat binary -o prog", "prog"),
        ("-plugin-opt -opt -o prog", "prog"),
        ("-O -o prog", "prog"),
        ("-z now -o prog", "prog"),
        ("-o", "a.out"),
        ("-e", "a.out"),
    ],
)
def test_output_by_arguments(arguments: str, output: str) -> None:
    assert find_output(arguments.split()) == output


def test_words_of_response_files() -> None:
    words = split_words("""-o 'a b'\t"c\\"d" e\\ f g'h'"i"j\n'' \\\\ 'open""")
    assert words == ["-o", "a b", 'c"d', "e f", "ghij", "", "\\", "open"]


def test_response_files_are_nested_or_stay_what_they_are(here: Path) -> None:
    (here / "outer").write_text("one @inner @missing")
    (here / "inner").write_text("-o 'in file'")
    (here / "endless").write_text("@endless")
    os.mkfifo("pipe")
    assert list(expand_response_files(["@outer", "@pipe"])) == ["one", "-o", "in file", "@missing", "@pipe"]
    assert list(expand_response_files(["@endless"])) == ["@endless"]
    assert find_output(["@outer", "two"]) == "in file"


@pytest.mark.parametrize("linker", ["bfd", "gold", "mold"])
@pytest.mark.parametrize("flags", [(), ("-shared", "-fPIC", "-DLIBRARY"), ("-flto", "-O2"), ("-no-pie",)])
def test_gcc_with_the_shims(here: Path, shims: Path, linker: str, flags: tuple[str, ...]) -> None:
    if not (shims / f"ld.{linker}").exists():
        pytest.skip(f"no ld.{linker} on this machine")
    done = run("gcc", "-B", shims, f"-fuse-ld={linker}", *flags, "source.c")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert good(here / "a.out")
    assert "-shared" in flags or run("./a.out").returncode == 0


@pytest.mark.parametrize("name", OTHERS)
def test_one_linker_as_ld(here: Path, peers: Peers, name: str) -> None:
    linker = peers.tool(OTHERS[name])
    done = run(*TOOL, "--install", "shims", "--", linker)
    assert (done.returncode, done.stdout) == (0, f"shims/ld: {linker}\n")
    assert [file.name for file in Path("shims").iterdir()] == ["ld"]
    done = run("gcc", "-B", "shims/", "-o", "prog", "source.c")
    assert (done.returncode, done.stderr) == (0, "")
    assert good(here / "prog")
    assert run("./prog").returncode == 0


def test_a_compiler_as_the_linker(here: Path) -> None:
    """As Cargo and Bazel link, which run `cc`, or a program that they are told."""
    gcc = shutil.which("gcc")
    for name, linker in (("cc", ()), ("compiler", ("--", gcc))):
        done = run(*TOOL, "--install", name, "--as", name, *linker)
        assert (done.returncode, done.stdout) == (0, f"{name}/{name}: {gcc if linker else shutil.which('cc')}\n")
        assert [file.name for file in Path(name).iterdir()] == [name]
        done = run(f"{name}/{name}", "-o", "prog", "source.c")
        assert (done.returncode, done.stderr) == (0, "")
        assert good(here / "prog")
        (here / "prog").unlink()


@for_each("options", ["--oops", "--no-verify --sframe-version 1", "--fatally --install"])
def test_wrong_options_of_the_environment(options: str, here: Path, shims: Path) -> None:
    """One line, and the section is there; but who asks for --strict gets no program."""
    env = os.environ | {"SFRAMEGEN_LINK_OPTIONS": options}
    done = run("gcc", "-B", shims, "-o", "prog", "source.c", env=env)
    assert done.returncode == 0
    assert done.stderr.startswith("sframegen: warning: SFRAMEGEN_LINK_OPTIONS is ignored: ")
    assert done.stderr.count("\n") == 1
    assert good(here / "prog")
    (here / "prog").unlink()
    done = run("gcc", "-B", shims, "-o", "prog", "source.c", env=env | {"SFRAMEGEN_LINK_OPTIONS": f"--strict {options}"})
    assert done.returncode
    assert not (here / "prog").exists()


def test_static_programs_and_options_of_the_environment(here: Path, shims: Path) -> None:
    env = os.environ | {"SFRAMEGEN_LINK_OPTIONS": "--sframe-version 2 --no-verify"}
    done = run("gcc", "-B", shims, "-static", "-o", "prog", "source.c", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert read(here / "prog").header.version == 2
    assert run("./prog").returncode == 0


def test_a_section_of_objects_gives_way(here: Path, peers: Peers) -> None:
    directory = Path(peers.tool("as")).parent
    (here / "plain.c").write_text("int plain(void) { return 7; }")
    subprocess.run(["gcc", "-c", "plain.c"], check=True)
    run(*TOOL, "--install", "shims", "--", peers.tool("ld"))
    done = run("gcc", "-B", "shims/", "-B", directory, "-Wa,--gsframe", "-o", "prog", "source.c", "plain.o")
    assert done.returncode == 0
    assert good(here / "prog")


@pytest.fixture
def object_file(here: Path, compile_c: Compiler) -> str:
    shutil.copy(compile_c(SOURCE, "-c", name="main.o"), here / "main.o")
    return "main.o"


def link(*arguments: object, options: tuple[str, ...] = (), **keywords: Any) -> subprocess.CompletedProcess[str]:
    return run(*TOOL, *options, "--", "ld", "-e", "main", *arguments, **keywords)


@for_each("name", ["prog", "with space", "-o", "--", "ö'\"$x*", "@odd", "\udcff"])
def test_outputs_with_odd_names(here: Path, object_file: str, name: str) -> None:
    assert link(object_file, "-o", name).returncode == 0
    assert good(here / name)


def test_same_bytes_each_time_and_a_fresh_section_for_other_code(here: Path, object_file: str) -> None:
    link(object_file)
    first = (here / "a.out").read_bytes()
    link(object_file)
    assert (here / "a.out").read_bytes() == first
    remove(here / "a.out")
    subprocess.run(["ld", "-e", "main", object_file, "-o", "plain"], check=True)
    assert (here / "a.out").read_bytes() == (here / "plain").read_bytes()
    (here / "more.c").write_text("int more(int n) { return n; }")
    subprocess.run(["gcc", "-c", "more.c"], check=True)
    link(object_file, "more.o")
    assert (here / "a.out").read_bytes() != first
    assert good(here / "a.out")
    assert len(read(here / "a.out").table) > 0


@pytest.mark.parametrize("options", [("-r",), ("--oformat", "binary")])
def test_other_outputs_stay_as_they_are(here: Path, object_file: str, options: tuple[str, ...]) -> None:
    done = link(object_file, *options, "-o", "prog", options=("--strict",))
    assert (done.returncode, done.stderr) == (0, "")
    subprocess.run(["ld", "-e", "main", object_file, *options, "-o", "plain"], check=True)
    assert (here / "prog").read_bytes() == (here / "plain").read_bytes()


def test_a_file_that_was_there_stays_as_it_is(here: Path, object_file: str) -> None:
    subprocess.run(["ld", "-e", "main", object_file], check=True)
    before = (here / "a.out").read_bytes()
    done = run(*TOOL, "ld", "--version")
    assert (done.returncode, done.stdout) == (0, run("ld", "--version").stdout)
    assert run(*TOOL, "--", "true").returncode == 0
    assert (here / "a.out").read_bytes() == before


def test_devices_are_left_alone(object_file: str) -> None:
    script(Path("linker"), "exit 0")
    done = run(*TOOL, "--", "./linker", object_file, "-o", "/dev/null")
    assert (done.returncode, done.stderr) == (0, "")


def test_status_output_and_open_files_are_passed_on(here: Path) -> None:
    linker = script(here / "linker", "cat; echo out; echo error >&2; echo token >&7; exit 42")
    done = run("sh", "-c", 'exec "$@" 7>&1', "sh", *TOOL, "--", linker, "-o", "prog", input="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (42, "in\nout\ntoken\n", "error\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT])
def test_a_signal_that_ends_the_linker(here: Path, number: signal.Signals) -> None:
    assert run(*TOOL, "--", script(here / "linker", f"kill -{int(number)} $$")).returncode == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_us_is_one_to_the_linker(here: Path, number: signal.Signals) -> None:
    linker = script(here / "linker", f"trap 'echo caught; exit 5' {int(number)}; kill -{int(number)} $PPID; read x")
    with subprocess.Popen([*TOOL, "--", linker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert (process.stdout.read(), process.wait()) == ("caught\n", 5)


def test_a_signal_that_is_ignored_stays_so(here: Path) -> None:
    linker = script(here / "linker", "kill -HUP $PPID; kill -HUP $$; echo goes on")
    done = run("sh", "-c", 'trap "" HUP; exec "$@"', "sh", *TOOL, "--", linker)
    assert (done.returncode, done.stdout) == (0, "goes on\n")


def test_a_refused_file_is_a_warning_or_fatal_if_asked_for(here: Path, object_file: str) -> None:
    damage = "printf 'x' | dd of=prog bs=1 seek=54 conv=notrunc status=none"  # e_phentsize
    refused = script(here / "linker", f"ld -e main {object_file} -o prog && {damage} && cp prog plain")
    done = run(*TOOL, "--", refused, "-o", "prog")
    assert done.returncode == 0
    assert done.stderr.startswith("sframegen: warning: prog: ")
    assert done.stderr.count("\n") == 1
    assert (here / "prog").read_bytes() == (here / "plain").read_bytes()
    done = run(*TOOL, "--strict", "--", refused, "-o", "prog")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("sframegen: prog: ")
    assert not (here / "prog").exists()


FAULT = "sframegen fault, please report it: KeyError: 'bug' (PLACE); SFRAMEGEN_TRACEBACK=1 prints more"


@pytest.mark.parametrize(
    ("work", "line"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "a.out: sframegen was killed"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "a.out: sframegen was killed"),
        ("raise MemoryError", "a.out: not enough memory"),
        ("raise KeyError('bug')", f"a.out: {FAULT}"),
        ("raise OSError(28, 'No space left', 'there')", "there: No space left"),
    ],
)
@pytest.mark.parametrize("fatal", [False, True])
def test_whatever_happens_the_link_stands(here: Path, object_file: str, work: str, line: str, fatal: bool) -> None:
    code = f"""
import os, signal, sys
from sframegen.api import adding
from sframegen.cli.start import main
def add(*_, **__):
    {work}
adding.add = add
sys.argv[1:] = ["link", *{["--strict"] * fatal}, "--", "ld", "-e", "main", {object_file!r}]
main()
"""
    done = run(sys.executable, "-c", code)
    said = re.sub(r"\([\w.]+:\d+\)", "(PLACE)", done.stderr)
    if fatal:
        assert (done.returncode, said) == (1, f"sframegen: {line}\n")
        assert not (here / "a.out").exists()
    else:
        assert (done.returncode, said) == (0, f"sframegen: warning: {line}; linked without a new section\n")
        assert run("readelf", "-h", "a.out").returncode == 0


@pytest.mark.parametrize("linker", ["no-such-linker", "./no-such-linker", "."])
def test_no_linker(here: Path, linker: str) -> None:  # noqa: ARG001
    done = run(*TOOL, "--", linker, "-o", "prog")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (127, "", 1)
    assert done.stderr.startswith(f"sframegen: {linker}: ")


def test_a_linker_that_runs_itself(here: Path) -> None:
    linker = here / "linker"
    script(linker, f"exec {shlex.join([*TOOL, '--', str(linker)])}")
    done = run(linker)
    assert (done.returncode, done.stderr) == (1, f"sframegen: {linker}: this linker is itself a shim for sframegen link\n")


@pytest.mark.parametrize("arguments", [(), ("--nosuch", "--", "ld"), ("--install", "x", "--", "ld", "-o"), ("--as", "cc", "ld")])
def test_wrong_usage(here: Path, arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(cli, ["link", *arguments]).exit_code == 2
    assert [file.name for file in here.iterdir()] == ["source.c"]


def test_shims_stand_for_linkers_and_not_for_shims(here: Path, shims: Path) -> None:
    env = os.environ | {"PATH": f"{shims}:{here / 'new'}:{os.environ['PATH']}"}
    (here / "new").mkdir()
    for _ in range(2):  # the second time, over those of the first
        done = run(*TOOL, "--install", "new", env=env)
        assert done.returncode == 0
        assert f"new/ld: {shutil.which('ld')}\n" in done.stdout
    assert run("new/ld", "--version").stdout == run("ld", "--version").stdout


def test_a_linker_is_not_overwritten(here: Path) -> None:
    for name in ("linker", "fifo"):
        (here / name).mkdir()
    linker = script(here / "linker/ld", "exit 0")
    os.mkfifo(here / "fifo/ld")
    for name in ("linker", "fifo"):
        done = run(*TOOL, "--install", name, timeout=60)
        assert (done.returncode, done.stderr) == (1, f"sframegen: {name}/ld: not replaced: not a shim of sframegen\n")
    assert linker.read_text() == "#!/bin/sh\nexit 0"


@pytest.mark.usefixtures("here")
def test_a_fifo_that_comes_in_the_place_of_the_output(object_file: str) -> None:
    """After the look at what the linker wrote, and before that is read."""
    code = """
import os, sys
from sframegen.cli import link
from sframegen.cli.commands import cli
def state_of(path):
    state = real(path)
    if state:
        os.unlink(path)
        os.mkfifo(path)
    return state
real, link.file_state = link.file_state, state_of
cli.main(["link", *sys.argv[1:]])
"""
    done = run(sys.executable, "-c", code, "ld", "-r", "-o", "prog", object_file, timeout=60)
    assert done.stderr == "sframegen: warning: prog: not a regular file; linked without a new section\n"


def test_a_response_file_that_names_itself_costs_no_more_than_16_mib(here: Path) -> None:
    (here / "self").write_text("@self " + f"{'object' * 1000}.o " * 300)
    length, last = 0, ["", ""]
    for word in expand_response_files(["@self", "-o", "out"]):
        length, last = length + len(word), [last[1], word]
    assert 0 < length < 16 << 20
    assert last == ["-o", "out"]


def test_response_files_that_become_a_fifo(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(here / "response")
    answers = iter([True, False])  # before it is opened, and afterwards
    monkeypatch.setattr(stat, "S_ISREG", lambda _: next(answers))
    assert list(expand_response_files(["@response"])) == ["@response"]


@pytest.mark.parametrize("linker", ["no-such-linker", "shims/ld"])
def test_no_linker_to_install(here: Path, linker: str) -> None:
    run(*TOOL, "--install", "shims")
    done = run(*TOOL, "--install", "new", "--", linker)
    assert (done.returncode, done.stderr) == (1, f"sframegen: {linker}: no such linker (shims do not count)\n")
    assert not (here / "new").exists()


def test_a_shim_without_sframegen_is_the_linker_with_a_warning_unless_strict(here: Path, object_file: str) -> None:
    run(*TOOL, "--install", "shims")
    shim = here / "shims" / "ld"
    shim.write_text(shim.read_text().replace("__init__.py", "gone.py"))
    done = run(shim, "-e", "main", object_file)
    assert (done.returncode, done.stderr) == (0, "sframegen: warning: sframegen has been uninstalled; linked without the section\n")
    subprocess.run(["ld", "-e", "main", object_file, "-o", "plain"], check=True)
    assert (here / "a.out").read_bytes() == (here / "plain").read_bytes()
    (here / "a.out").unlink()
    done = run(shim, "-e", "main", object_file, env=os.environ | {"SFRAMEGEN_LINK_OPTIONS": "--sframe-version 3 --strict"})
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "sframegen: sframegen has been uninstalled\n")
    assert not (here / "a.out").exists()


def test_the_launcher_is_put_before_any_command(here: Path, shims: Path) -> None:
    launcher = shims / "sframegen-link"
    done = run(launcher, "gcc", "-o", "a program", "source.c")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert good(here / "a program")
    launcher = script(here / "launcher", launcher.read_text().replace("__init__.py", "gone.py"))
    assert run(launcher, "sh", "-c", 'printf "%s|" "$@"; exit 3', "", "a b", "*").stdout == "a b|*|"
    assert run(launcher, "sh", "-c", "exit 3").returncode == 3


def test_shims_work_whatever_the_environment_of_a_build(here: Path, shims: Path) -> None:
    for module in ("click", "cfi", "linker", "sframegen"):
        (here / f"{module}.py").write_text("raise ImportError")
    environment = {"PATH": os.environ["PATH"], "HOME": str(here / "none"), "PYTHONPATH": str(here)}
    done = run("gcc", "-B", shims, "source.c", env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert good(here / "a.out")
