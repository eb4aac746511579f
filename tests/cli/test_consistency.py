"""All commands, with those of two words, have the same names for the same things: these tests go through click's tree."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
import subprocess
import sys
from itertools import combinations
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

import sframegen
from sframegen.cli.commands import cli
from sframegen.cli.removed_names import REMOVED, RENAMED
from sframegen.cli.shared.adding_options import KEYWORD_OPTIONS
from sframegen.cli.shared.command import Command
from tests.support.loops import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from tests.support.peers import Compiler


def walked(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            part = context.command.get_command(context, name)
            assert part is not None
            yield from walked(click.Context(part, info_name=name, parent=context))


CONTEXTS = {one.command_path: one for one in walked(click.Context(cli, info_name="sframegen", **cli.context_settings))}
ALL = for_each("path", CONTEXTS)


def options_of(path: str) -> list[click.Option]:
    return [one for one in CONTEXTS[path].command.get_params(CONTEXTS[path]) if isinstance(one, click.Option)]


def command_of(path: str) -> Command:
    command = CONTEXTS[path].command
    assert isinstance(command, Command)
    return command


EXAMPLES = [(path, example.line) for path in CONTEXTS for example in command_of(path).examples]
EXCLUSIVE = [
    (path, one, other) for path in CONTEXTS for group in command_of(path).exclusive for one, other in combinations(group, 2)
]


def run(path: str, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [*path.split()[1:], *arguments])
    return result.exit_code, result.stderr


def test_an_option_has_the_same_short_name_everywhere() -> None:
    shorts: dict[str, set[tuple[str, ...]]] = {}
    longs: dict[str, set[str]] = {}
    for path in CONTEXTS:
        for option in options_of(path):
            short = tuple(name for name in option.opts if not name.startswith("--"))
            for name in set(option.opts) - set(short):
                shorts.setdefault(name, set()).add(short)
                for one in short:
                    longs.setdefault(one, set()).add(name)
    assert {name: found for name, found in shorts.items() if len(found) > 1} == {}
    assert {name: found for name, found in longs.items() if len(found) > 1} == {}


def test_options_of_add_section_are_its_keywords() -> None:
    keywords = inspect.signature(sframegen.add_section).parameters
    for row in KEYWORD_OPTIONS:
        for command in row.commands:
            assert row.keyword in keywords
            assert row.keyword in {option.name for option in options_of(f"sframegen {command}")}


def test_a_mistyped_name_suggests_a_near_one_or_none() -> None:
    typed = {"check --instructoins": "--instructions", "check --instr": "--instructions", "add-section --optimise": "--optimize"}
    for words, meant in {**typed, "remove --forced": "--force", "check --nope": "", "link --version": ""}.items():
        command, option = words.split()
        status, said = run(f"sframegen {command}", option, "file")
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
    by_name = {name: option for option in options_of(path) for name in option.opts}
    given = {"--duration": "1", "--count": "1", "--interval": "1", "--frequency": "1"}
    given |= {"--jobs": "1", "--tid": "1", "--backend": "copies", "--output": "out.html"}
    given |= {"--scheduler": "tcp://127.0.0.1:1", "--event": "page-faults", "--object": "sframe.o"}
    words = [word for name in (one, other) for word in [name, *([] if by_name[name].is_flag else [given.get(name, "store")])]]
    required = {"convert": ["--optimize", "fast"], "merge": ["-o", "out"], "fleet run": ["--output", "out"], "link": ["--", "ld"]}
    extra = required.get(path.removeprefix("sframegen "), [])
    operands = ["build/root"] if path.endswith("-tree") else ["1"] if path == "sframegen stack" else ["/bin/true"]
    status, said = run(path, *words, *extra, *operands)
    assert (status, said.splitlines()[-1]) == (2, f"Error: {one} and {other} exclude each other")


def test_wherever_there_is_verbose_and_quiet_they_exclude_each_other() -> None:
    """As other pairs that mean the opposite, or two forms of the same output."""
    pairs = (("--verbose", "--quiet"), ("--json", "--folded"))
    held = {(path, frozenset(pair)) for path, *pair in EXCLUSIVE}
    for path in CONTEXTS:
        names = {name for option in options_of(path) for name in option.opts}
        for pair in pairs:
            if names.issuperset(pair):
                assert (path, frozenset(pair)) in held


@ALL
def test_without_operands_it_is_wrong_usage_or_none_are_needed(path: str) -> None:
    status, said = run(path)
    none_needed = path in ("sframegen doctor", "sframegen integration")
    assert status == (0 if none_needed else 2)
    assert none_needed or said.startswith("Usage: ")


@for_each(
    ("path", "lacking"), [("add-section", {"--replace", "--detached", "--object", "--recursive"}), ("remove", {"--recursive"})]
)
def test_commands_for_trees_lack_only_what_is_for_one_file(path: str, lacking: set[str]) -> None:
    lacking |= {"--output"}
    tree = {"add-section": "add-tree"}.get(path, f"{path}-tree")
    of_one, of_tree = ({name for option in options_of(f"sframegen {one}") for name in option.opts} for one in (path, tree))
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
    status, said = run("sframegen", *shlex.split(words))
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
