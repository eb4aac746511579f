"""The command line: all commands have the same names for the same things; what they import, refuse, complete and end with."""

from __future__ import annotations

import inspect
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import sframegen
from sframegen.base.errors import FormatError
from sframegen.cli import commands
from sframegen.cli.commands import COMMANDS, GROUPS, cli
from sframegen.cli.removed_names import REMOVED, RENAMED
from sframegen.cli.shared.adding_options import KEYWORD_OPTIONS
from sframegen.cli.shared.command import MAX_WITHOUT_HEADINGS, Command
from sframegen.cli.shared.output import Run
from sframegen.program import build
from tests import ROOT
from tests.packages.package_makers import needs
from tests.support.commands import run, start
from tests.support.loops import for_each
from tests.support.peers import Compiler


def test_help_has_the_commands_in_groups_also_where_no_command_is_given() -> None:
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)
    for text in (run("--help").stdout, run().stderr):
        parts = [text.partition(f"\n{group}:\n")[2].partition("\n\n")[0].splitlines() for group in GROUPS]
        assert [[line.split()[0] for line in part if line[2] != " "] for part in parts] == [
            list(group) for group in GROUPS.values()
        ]
        assert len({line.index(line.split()[1], 3) for part in parts for line in part if line[2] != " "}) == 1


def test_an_unknown_command_is_answered_with_those_like_it() -> None:
    likely = {"chek": " Did you mean 'check'?", "add": " Did you mean 'add-section' or 'add-tree'?", "": ""}
    for name, meant in likely.items():
        result = run(name, "file")
        assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"Error: No such command '{name}'.{meant}")


@for_each("arguments", [("check",), ("add-section",), ("add-section", "-o"), ("add-tree",)])
def test_a_path_that_is_too_long_is_not_printed_whole(arguments: tuple[str, ...]) -> None:
    done = start(*arguments, *["/bin/sh"] * ("-o" in arguments), "x" * 10_000)
    assert done.returncode in (1, 2)
    last = done.stderr.splitlines()[-1]
    assert "characters] ..." in last
    assert len(last) < 1100


@for_each("arguments", [("check", "file"), ("add-section", "file"), ("add-section", "-o", "out", "/bin/sh"), ("remove", "file")])
def test_that_the_current_directory_is_gone_is_no_fault_of_a_file(arguments: tuple[str, ...], tmp_path: Path) -> None:
    script = 'mkdir "$1" && cd "$1" && rmdir "$1" && shift && exec "$@"'
    command = ["sh", "-c", script, "sh", str(tmp_path / "gone"), sys.executable, "-P", "-m", "sframegen", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "sframegen: the current directory has been removed: change to one that exists\n"


def test_help_imports_no_command() -> None:
    code = """
import sys
from click.testing import CliRunner
from sframegen.cli.commands import cli
assert CliRunner().invoke(cli, ["--help"]).exit_code == 0
print(*[name for name, module in sys.modules.items()
        if name.startswith(("sframegen.", "linker", "cfi", "lief")) and not hasattr(module, "__path__")])
"""
    cli_modules = ["sframegen.cli.shared.command", "sframegen.cli.shared.early_end", "sframegen.cli.commands"]
    light = ["sframegen.base.quick_typing", "sframegen.base.text", "sframegen.program.signals", *cli_modules]
    done = subprocess.run([sys.executable, "-c", code], check=True, text=True, capture_output=True)
    assert sorted(done.stdout.split()) == sorted(light)


NOT_AT_START = {"json", "subprocess", "pathlib", "shutil", "tempfile", "multiprocessing", "importlib.metadata"}
NOT_AT_START |= {"lief", "capstone", "elftools"}


@for_each(("line", "most"), [("--version", 6), ("lookup FILE 0", 52), ("stack 4194304", 91)])
def test_a_short_command_imports_little(line: str, most: int, tmp_path: Path) -> None:
    """What click and Python import themselves, which depends on their releases, is not counted, nor Cython's own parts."""
    with_section = tmp_path / "sh"
    sframegen.add_section("/bin/sh", output=with_section, verify=False)
    program = f"""
import sys, click, __future__
before = set(sys.modules)
import atexit
sys.argv = {["sframegen", *line.replace("FILE", str(with_section)).split()]!r}
atexit.register(lambda: print(*sorted(set(sys.modules) - before), file=sys.stderr))
from sframegen.cli.start import main
main()
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], check=False, capture_output=True, text=True)
    imported = set(done.stderr.splitlines()[-1].split())
    assert NOT_AT_START.isdisjoint(imported)
    assert ("sframegen.cli.commands" in imported) is (line != "--version")
    cython = {"sframegen.base.cython_shadow", build.SHARED_MODULE}
    ours = {name for name in imported if name.partition(".")[0] in ("sframegen", "linker", "cfi")} - cython
    assert len(ours) <= most, ours


@for_each(
    ("code", "needed", "not_needed"),
    [
        (
            "sframegen.add_section('/bin/true', output=sys.argv[1])",
            {"elftools.elf.structs", "linker.inject.verify"},
            {"lief", "elftools.dwarf", "capstone", "multiprocessing", "linker.objects.change_objects"},
        ),
        (
            "sframegen.merge; import linker.merge.merge_objects",
            {"sframegen.api.merging"},
            {"cfi.reader", "sframegen.conversion.convert", "sframegen.checks.check", "sframegen.api.adding"},
        ),
    ],
)
def test_a_function_imports_what_it_needs(code: str, needed: set[str], not_needed: set[str], tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", f"import sys, sframegen; {code}; print(*sys.modules)", str(tmp_path / "true")]
    imported = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert imported >= needed
    assert imported.isdisjoint(not_needed)
    assert len([name for name in imported if name.partition(".")[0] in ("sframegen", "linker", "cfi")]) < 120


def test_wrong_usage_is_status_2() -> None:
    for words in ("--nosuch", "add-tree absent", "add-section -o out a b", "add-section --min-coverage 101 a"):
        result = run(*words.split())
        assert (result.exit_code, result.stdout, "Usage: " in result.stderr) == (2, "", True), words


def test_a_dash_is_a_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("dump", "-").stderr == "sframegen: -: No such file or directory\n"


# -- one line and status 1 for what is wrong with a file; the program's own end


def throw(error: Exception) -> None:
    raise error


@for_each(
    ("error", "line"),
    [
        (FormatError("too short", ".eh_frame", 4), "sframegen: app: .eh_frame+0x4: too short\n"),
        (FormatError("too short", file="app.debug"), "sframegen: app.debug: too short\n"),
        (FileNotFoundError(2, "No such file or directory", "dir/app"), "sframegen: dir/app: No such file or directory\n"),
        (OSError("no reflink"), "sframegen: app: no reflink\n"),
        (FormatError("two\nlines\x1b[0m"), "sframegen: app: two\\nlines\\x1b[0m\n"),
    ],
)
def test_errors_of_a_file_are_one_line(error: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = Run()
    with files.working_on("app"):
        throw(error)
    assert files.status == 1
    assert capsys.readouterr() == ("", line)


@for_each(
    ("raised", "status"), [(KeyboardInterrupt(), 130), (click.Abort(), 130), (click.UsageError("so not"), 2), (None, 0), (1, 1)]
)
def test_status_of_the_process(monkeypatch: pytest.MonkeyPatch, raised: BaseException | int | None, status: int) -> None:
    def command(**_options: Any) -> int | None:
        if isinstance(raised, BaseException):
            raise raised
        return raised

    monkeypatch.setattr(cli, "main", command)
    assert commands.run_command() == status


def test_a_name_in_the_last_error_is_in_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "main", lambda **_: throw(OSError(5, "bad", "two\nlines\x1b[0m")))
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    assert commands.run_command() == 1
    assert capfd.readouterr().err == "sframegen: two\\nlines\\x1b[0m: bad\n"


@pytest.fixture(scope="module")
def program(compile_c: Compiler) -> Path:
    source = "\n".join(f"int f{n}(int x) {{ return x + {n}; }}" for n in range(3000)) + "\nint main(void) { return f1(1); }"
    return compile_c(source, "-O1", "-Wa,--gsframe", peer_binutils=True)


def test_closed_pipe_is_no_error(program: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "sframegen", "dump", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as ours:
        assert ours.stdout is not None
        assert ours.stderr is not None
        assert ours.stdout.readline() == "Contents of the SFrame section .sframe:\n"
        ours.stdout.close()
        assert ours.stderr.read() == ""
    assert ours.returncode == 1


def test_full_disk_is_one_line(program: Path) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        result = start("dump", program, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (1, "sframegen: standard output: No space left on device\n")


@for_each("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_closed_streams_change_nothing_else(closed: tuple[int, ...], compile_c: Compiler, tmp_path: Path) -> None:
    """Files would be opened with the numbers of those that are closed, and messages written into them."""
    files = [shutil.copy(compile_c("int f(void) { return 1; }", "-shared"), tmp_path / name) for name in ("one", "two")]
    done = start("add-section", "-j2", *files, tmp_path / "none", preexec_fn=lambda: [*map(os.close, closed)])
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 2 * (1 not in closed))
    assert done.stderr == f"sframegen: {tmp_path / 'none'}: No such file or directory\n" * (2 not in closed)
    assert all(sframegen.read(file).header.num_fdes for file in files)


def test_file_names_go_out_as_they_came_in(program: Path, tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.symlink(program, odd)  # noqa: PTH211 - no str holds this name
    result = subprocess.run([sys.executable, "-m", "sframegen", "dump", odd, odd], check=True, capture_output=True)
    assert result.stdout.count(b"\nFile: " + odd + b"\n") == 2


def walked(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            part = context.command.get_command(context, name)
            assert part is not None
            yield from walked(click.Context(part, info_name=name, parent=context))


CONTEXTS = {one.command_path: one for one in walked(click.Context(cli, info_name="sframegen", **cli.context_settings))}
# Before a command runs without its group, which would leave it without -h.
OPTIONS = {path: [one for one in it.command.get_params(it) if isinstance(one, click.Option)] for path, it in CONTEXTS.items()}
ALL = for_each("path", CONTEXTS)


def command_of(path: str) -> Command:
    command = CONTEXTS[path].command
    assert isinstance(command, Command)
    return command


EXAMPLES = [(path, example.line) for path in CONTEXTS for example in command_of(path).examples]
EXCLUSIVE = [
    (path, one, other) for path in CONTEXTS for group in command_of(path).exclusive for one, other in combinations(group, 2)
]


def invoke(path: str, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [*path.split()[1:], *arguments])
    return result.exit_code, result.stderr


def test_an_option_has_the_same_short_name_everywhere() -> None:
    shorts: dict[str, set[tuple[str, ...]]] = {}
    longs: dict[str, set[str]] = {}
    for path in CONTEXTS:
        for option in OPTIONS[path]:
            short = tuple(name for name in option.opts if not name.startswith("--"))
            for name in set(option.opts) - set(short):
                shorts.setdefault(name, set()).add(short)
                for one in short:
                    longs.setdefault(one, set()).add(name)
    assert {name: found for name, found in shorts.items() if len(found) > 1} == {}
    assert {name: found for name, found in longs.items() if len(found) > 1} == {}


@ALL
def test_help_has_examples_and_then_each_option_once_below_headings_if_they_are_many(path: str) -> None:
    shown = CONTEXTS[path].get_help().partition("\nExamples:\n")[2]
    lines = [line for one in command_of(path).examples for line in (f"  {one.purpose}:", f"      {one.line}")]
    assert shown.startswith("\n".join([*lines, "", ""]))
    assert max(map(len, lines)) <= 80
    options = [max(one.opts, key=len) for one in OPTIONS[path] if not one.hidden]
    assert ("\nOptions:\n" in shown) == (len(options) <= MAX_WITHOUT_HEADINGS)
    assert sorted(re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown, re.MULTILINE)) == sorted(options)


def test_options_of_add_section_are_its_keywords() -> None:
    keywords = inspect.signature(sframegen.add_section).parameters
    for row in KEYWORD_OPTIONS:
        for command in row.commands:
            assert row.keyword in keywords
            assert row.keyword in {option.name for option in OPTIONS[f"sframegen {command}"]}


def test_a_mistyped_name_suggests_a_near_one_or_none() -> None:
    typed = {"check --instructoins": "--instructions", "check --instr": "--instructions", "add-section --optimise": "--optimize"}
    for words, meant in {**typed, "remove --forced": "--force", "check --nope": "", "link --version": ""}.items():
        command, option = words.split()
        status, said = invoke(f"sframegen {command}", option, "file")
        assert (status, "Did you mean" in said) == (2, bool(meant))
        assert re.findall(r"Did you mean '?([\w-]+)'?\?", said) == [meant] * bool(meant)


def parts_of(line: str) -> list[list[str]]:
    words = list(shlex.shlex(line, posix=True, punctuation_chars="();<>|&"))
    starts = [number for number, word in enumerate(words) if word == "sframegen"]
    ends = [next((n for n in range(start, len(words)) if set(words[n]) <= set("();<>|&")), len(words)) for start in starts]
    return [words[start + 1 : end] for start, end in zip(starts, ends, strict=True)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for directory in ("build/root/usr/bin", "store", "pool"):
        (tmp_path / directory).mkdir(parents=True)
    return tmp_path


@pytest.mark.usefixtures("place")
@for_each(("path", "line"), EXAMPLES)
def test_examples_are_of_their_command_and_have_its_options(path: str, line: str) -> None:
    found = [part for part in (parts_of(line) or [shlex.split(line.partition("$(sframegen ")[2].partition(")")[0])]) if part]
    assert found
    names = path.split()[1:]
    assert any(part[: len(names)] == names for part in found)
    for part in found:
        if "--help" not in part:
            depth = 2 if part[0] == "fleet" else 1
            command_of(f"sframegen {' '.join(part[:depth])}").make_context("name", part[depth:])


# They need a process of that number, a kernel that allows it, a linker's map, a package, a page or a tool, or print help.
NOT_RUN = ("stack", "profile", "--map", "fleet", "--sections", "cmake", "--probe", "jq", "heaptrack")


@pytest.mark.parametrize("line", [line for _, line in EXAMPLES if not any(word in line for word in NOT_RUN)])
def test_examples_work(line: str, place: Path, compile_c: Compiler) -> None:
    source = "int f(int x) { return x + 1; }\nint main(void) { return f(0) - 1; }\n"
    program = compile_c(source, "-O1", "-Wl,--build-id")
    for name in ("prog", "lib.so", "build/root/usr/bin/prog"):
        shutil.copy(program, place / name)
    for name in ("a", "b"):
        shutil.copy(compile_c(f"int {name}(void) {{ return 1; }}", "-c", name=f"{name}.o"), place / f"{name}.o")
    (place / "main.c").write_text("int main(void) { return 0; }\n")
    start = "void _start(void) { for (;;); }"
    shutil.copy(compile_c(start, "-c", name="main.o"), place / "main.o")
    shutil.copy(compile_c(start, "-nostdlib", "-static", name="image"), place / "vmlinux.tmp")
    sframegen = f"{shlex.quote(sys.executable)} -P -m sframegen"
    setup = f"{sframegen} add-section -q a.o b.o"
    if not line.startswith("sframegen add"):
        setup += " prog lib.so build/root/usr/bin/prog && tar -cf pool/packed.deb prog"
    script = f"{setup} && {re.sub(r'(?<![-/.])sframegen (?=[a-z-])', sframegen + ' ', line)}"
    done = subprocess.run(["sh", "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("place")
@for_each(("path", "one", "other"), EXCLUSIVE)
def test_options_that_exclude_each_other_are_wrong_usage(path: str, one: str, other: str) -> None:
    """Each could only be dropped silently. Both are named."""
    by_name = {name: option for option in OPTIONS[path] for name in option.opts}
    given = {"--duration": "1", "--count": "1", "--interval": "1", "--frequency": "1"}
    given |= {"--jobs": "1", "--tid": "1", "--backend": "copies", "--output": "out.html"}
    given |= {"--scheduler": "tcp://127.0.0.1:1", "--event": "page-faults", "--object": "sframe.o"}
    words = [word for name in (one, other) for word in [name, *([] if by_name[name].is_flag else [given.get(name, "store")])]]
    required = {"convert": ["--optimize", "fast"], "merge": ["-o", "out"], "fleet run": ["--output", "out"], "link": ["--", "ld"]}
    extra = required.get(path.removeprefix("sframegen "), [])
    operands = ["build/root"] if path.endswith("-tree") else ["1"] if path == "sframegen stack" else ["/bin/true"]
    status, said = invoke(path, *words, *extra, *operands)
    assert (status, said.splitlines()[-1]) == (2, f"Error: {one} and {other} exclude each other")


def test_wherever_there_is_verbose_and_quiet_they_exclude_each_other() -> None:
    """As other pairs that mean the opposite, or two forms of the same output."""
    pairs = (("--verbose", "--quiet"), ("--json", "--folded"))
    held = {(path, frozenset(pair)) for path, *pair in EXCLUSIVE}
    for path in CONTEXTS:
        names = {name for option in OPTIONS[path] for name in option.opts}
        for pair in pairs:
            if names.issuperset(pair):
                assert (path, frozenset(pair)) in held


@ALL
def test_without_operands_it_is_wrong_usage_or_none_are_needed(path: str) -> None:
    status, said = invoke(path)
    none_needed = path in ("sframegen doctor", "sframegen integration")
    assert status == (0 if none_needed else 2)
    assert none_needed or said.startswith("Usage: ")


@for_each(
    ("path", "lacking"), [("add-section", {"--replace", "--detached", "--object", "--recursive"}), ("remove", {"--recursive"})]
)
def test_commands_for_trees_lack_only_what_is_for_one_file(path: str, lacking: set[str]) -> None:
    lacking |= {"--output"}
    tree = {"add-section": "add-tree"}.get(path, f"{path}-tree")
    of_one, of_tree = ({name for option in OPTIONS[f"sframegen {one}"] for name in option.opts} for one in (path, tree))
    assert {name for name in of_one - of_tree if name.startswith("--")} == lacking


@for_each(
    ("words", "option", "why"),
    [
        ("profile --system --frequency 0", "'-F' / '--frequency'", "0 is out of range (minimum 1)"),
        ("profile --system --frequency 1.5", "'-F' / '--frequency'", "'1.5' is not a whole number"),
        ("profile --system --frequency 1000001", "'-F' / '--frequency'", "1000001 is out of range (maximum 1,000,000)"),
        ("profile -d nan 1", "'-d' / '--duration'", "nan is not a finite number"),
        ("profile -d 0 1", "'-d' / '--duration'", "0 is out of range (must be more than 0)"),
        ("profile -e '' -- true", "'-e' / '--event'", "the name is empty"),
        ("profile -e bogus -- true", "'-e' / '--event'", "bogus: unknown event"),
        ("add-section --min-coverage nan f", "'--min-coverage'", "nan is not a finite number"),
        ("check -j 5000000 f", "'-j' / '--jobs'", "5000000 is out of range (maximum 4,194,304)"),
    ],
)
def test_a_value_that_is_not_allowed_is_said_in_words(words: str, option: str, why: str) -> None:
    status, said = invoke("sframegen", *shlex.split(words))
    assert status == 2
    last = said.splitlines()[-1].partition(": unknown event")
    assert "".join(last[:2]) == f"Error: Invalid value for {option}: {why}"


def test_a_name_that_is_gone_ends_in_one_line_that_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("weave", "check --colour", "fleet run --colour", "convert --optimize rainbow"):
        monkeypatch.setitem(REMOVED, name, "another thing")
    wrong = {}
    for name, instead in REMOVED.items():
        result = CliRunner().invoke(cli, name.split())
        says = instead if instead.startswith(": ") else f"; use {instead}"
        if (result.exit_code, result.output) != (2, f"Error: {name} was removed{says}\n") or "nothing" in instead:
            wrong[name] = result.output
    assert wrong == {}


def test_an_old_name_works_and_a_note_has_the_new_one() -> None:
    values = {"--format": ["2"]}
    for name, present in RENAMED.items():
        command, _, old = name.rpartition(" ")
        for words in ([old, *values.get(old, [])], ["=".join([old, *values.get(old, [])])]):
            note, *rest = CliRunner().invoke(cli, [*command.split(), *words, "--nope"]).stderr.splitlines()
            assert note == f"sframegen: {old} is now {present}; the old name works until 1.1"
            assert rest[-1].startswith("Error: No such option")
            assert "--nope" in rest[-1]


def test_options_of_a_linker_are_no_old_names() -> None:
    result = CliRunner().invoke(cli, ["link", "false", "--format=binary", "--fatal"])
    assert (result.exit_code, result.stderr) == (1, "")


INSTALLING = (ROOT / "docs" / "installing.md").read_text()
PROMPT = "ready> "
TYPED = [  # up to TAB, and what stands there then
    ("sframegen add-s", "sframegen add-section"),
    ("sframegen check --cons", "sframegen check --consumer"),
    ("sframegen check --consumer ke", "sframegen check --consumer kernel"),
    ("sframegen check libr", "sframegen check library.so"),
    ("sframegen merge --map prog", "sframegen merge --map program.map"),
]
INTERACTIVE = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "unsetopt zle_bracketed_paste promptsp; bindkey -e; autoload -U compinit; compinit -D -u;"),
}


def documented(shell: str) -> str:
    line: str
    [line] = re.findall(rf"^\| {shell}\b.*\| `([^`]*{shell}_source[^`]*)` \|$", INSTALLING.split("## Man pages")[0], re.MULTILINE)
    return line.replace("\\|", "|")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """For a shell in a directory with two files, that finds the sframegen under test."""
    (tmp_path / "library.so").touch()
    (tmp_path / "program.map").touch()
    monkeypatch.chdir(tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "PS1": PROMPT, "LC_ALL": "C.UTF-8"}


@pytest.mark.parametrize("shell", INTERACTIVE)
def test_tab(shell: str, environment: dict[str, str]) -> None:
    needs(shell)
    command, prepare = INTERACTIVE[shell]
    terminal, theirs = pty.openpty()
    with subprocess.Popen(["setsid", "--ctty", *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        screen = ""

        def wait_for(text: str) -> str:
            nonlocal screen
            while text not in screen:
                screen += os.read(terminal, 4096).decode()
            before, _, screen = screen.partition(text)
            return before

        try:
            wait_for(PROMPT)
            os.write(terminal, f"{prepare} {documented(shell)}; echo pre''pared\r".encode())
            wait_for("prepared\r\n")
            for typed, completed in TYPED:
                wait_for(PROMPT)
                os.write(terminal, f"{typed}\t\x01echo '<\x05>'\r".encode())
                wait_for("\n<")
                assert wait_for(">").rstrip() == completed
        finally:
            process.kill()
            os.close(terminal)


def test_fish(environment: dict[str, str]) -> None:
    needs("fish")
    for typed, completed in TYPED:
        script = f"{documented('fish')}; complete -C '{typed}'"
        done = subprocess.run(["fish", "--no-config", "-c", script], env=environment, check=True, capture_output=True, text=True)
        words = [line.split("\t")[0] for line in done.stdout.splitlines()]
        assert completed.split()[-1] in words
