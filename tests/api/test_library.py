"""What users of the package get: names, documented parameters and fields."""

from __future__ import annotations

import ast
import errno
import io
import json
import mmap
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from importlib.metadata import version
from inspect import Parameter, getsource, isclass, isfunction, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

import sframegen
import sframegen.api
from sframegen import Refusal
from sframegen.base import errors
from sframegen.base.errors import name_file_in_errors
from sframegen.cli.shared.output import describe_error
from sframegen.elf.file import open_elf
from tests import ROOT
from tests.support.loops import for_each
from tests.support.peers import Compiler

PUBLIC = {name: getattr(sframegen, name) for name in sframegen.api.__all__}  # type: ignore[attr-defined]
LIBRARY = (ROOT / "docs" / "library.md").read_text()


def test_all_public_names_are_listed() -> None:
    assert sframegen.__all__ == sframegen.api.__all__ == list(dict.fromkeys(sframegen.__all__))  # type: ignore[attr-defined]
    functions = [name for name in sframegen.__all__ if isfunction(PUBLIC[name])]
    assert sframegen.__all__[: len(functions)] == functions  # they come first
    assert dir(sframegen) == sorted([*sframegen.__all__, "__all__", "__version__"])
    assert sframegen.__version__ == version("sframegen")
    everything: dict[str, object] = {}
    exec("from sframegen import *", everything)
    assert everything.keys() - {"__builtins__"} == set(sframegen.__all__)


def test_no_other_name_is_public() -> None:
    with pytest.raises(AttributeError, match=r"^module 'sframegen' has no attribute 'open_elf'$"):
        sframegen.open_elf  # type: ignore[attr-defined] # noqa: B018


STRANGERS = {"linker": "linker.py", "cfi": "cfi/__init__.py"}


def with_strangers(directory: Path, *names: str) -> Path:
    for name in names:
        file = directory / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("raise SystemExit('a stranger ran')\n")
    return directory


def python(*arguments: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd, env=environment)


@for_each("name", STRANGERS)
def test_a_stranger_with_the_name_of_a_package_is_named_in_one_line(name: str, tmp_path: Path) -> None:
    file = with_strangers(tmp_path, STRANGERS[name]) / STRANGERS[name]
    line = f"{file} hides sframegen's own package {name}: rename it, or take its directory off sys.path"
    for code in ("import sframegen; sframegen.check", "from sframegen import check", "from sframegen import api"):
        done = python("-c", code, cwd=tmp_path)
        assert done.stderr.splitlines()[-1] == f"ImportError: {line}"
    done = python("-P", "-m", "sframegen", "check", "/bin/true", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"sframegen: cannot start: {line}\n")


def test_a_package_that_another_distribution_has_overwritten_is_named_in_one_line(tmp_path: Path) -> None:
    """As pip does it, without a word: both are in one directory."""
    for name in ("sframegen", "cfi", "linker"):
        (tmp_path / name).mkdir()
    for name in ("__init__.py", "program/own_packages.py", "program/build.py", "program/__init__.py"):
        (tmp_path / "sframegen" / name).parent.mkdir(exist_ok=True)
        shutil.copy(Path(sframegen.__file__).parent / name, tmp_path / "sframegen" / name)
    (tmp_path / "cfi/__init__.py").write_text('"""A package of sframegen."""\n')
    (tmp_path / "linker/__init__.py").write_text("raise SystemExit('a stranger ran')\n")
    done = python("-c", "import sframegen; sframegen.check", cwd=tmp_path)
    place = tmp_path / "linker/__init__.py"
    line = f"another distribution has overwritten {place}: install sframegen again, in an environment of its own"
    assert done.stderr.splitlines()[-1] == f"ImportError: {line}"


def test_a_stranger_that_was_imported_before(tmp_path: Path) -> None:
    (tmp_path / "linker.py").touch()
    done = python("-c", "import linker, sframegen; sframegen.check", cwd=tmp_path)
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {tmp_path / 'linker.py'} hides sframegen's own package linker: ")


def test_run_as_a_module_it_ignores_the_current_directory(tmp_path: Path) -> None:
    with_strangers(tmp_path, *STRANGERS.values(), "click.py", "lief.py", "capstone.py")
    done = python("-m", "sframegen", "add-section", "/bin/true", "-o", tmp_path / "true", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@for_each("name", [name for name, value in PUBLIC.items() if isfunction(value)])
def test_functions_document_parameters_and_errors(name: str) -> None:
    text = PUBLIC[name].__doc__ or ""
    parameters = signature(PUBLIC[name]).parameters.values()
    keywords = [parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY]
    assert [keyword for keyword in keywords if f"`{keyword}`" not in text] == []
    assert "Raises FormatError" in text
    assert f"| `{name}(" in LIBRARY
    assert re.search(rf"sframegen\.{name}\(", LIBRARY)


@for_each("name", [name for name, value in PUBLIC.items() if isclass(value)])
def test_values_document_fields(name: str) -> None:
    assert PUBLIC[name].__doc__
    source = source_of(name)
    [body] = [node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    lines = source.splitlines()
    fields = [node.lineno for node in body if isinstance(node, (ast.AnnAssign, ast.Assign))]
    internal = ("layout: Layout",)  # of SframeSection
    undocumented = [line.strip() for line in (lines[number - 1] for number in fields) if "  #: " not in line]
    assert [line for line in undocumented if line.partition("  #")[0] not in internal and not line.startswith("__module__")] == []


def source_of(name: str) -> str:
    if PUBLIC[name].__module__ != "sframegen":
        return getsource(PUBLIC[name])
    text = getsource(errors)
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    return ast.get_source_segment(text, classes[name]) or ""


@pytest.fixture
def results(compile_c: Compiler, tmp_path: Path) -> SimpleNamespace:
    program, made = compile_c("int main(void) { return 0; }", "-O2", "-g"), compile_c("int f(void) { return 1; }", "-c", name="f.o")
    out, objects = tmp_path / "out", [tmp_path / "f.o"]
    shutil.copy(made, objects[0])
    sframegen.add_section(objects[0])
    planned = sframegen.add_section(program, output=out, dry_run=True)
    added = sframegen.add_section(program, output=out)
    return SimpleNamespace(
        planned=planned,
        added=added,
        unchanged=sframegen.add_section(out),
        checked=sframegen.check(out),
        converted=sframegen.convert(out, 2, output=tmp_path / "v2"),
        removed=sframegen.remove(objects[0], dry_run=True, output=tmp_path / "never"),
        restored=sframegen.remove(out),
        merged=sframegen.merge(objects, tmp_path / "merged.o"),
    )


def test_outcomes(results: SimpleNamespace, tmp_path: Path) -> None:
    outcomes = [result.outcome for result in (results.planned, results.added, results.unchanged)]
    assert outcomes == [sframegen.Outcome.ADDED, sframegen.Outcome.ADDED, sframegen.Outcome.UNCHANGED]
    again = sframegen.add_section(tmp_path / "f.o")
    assert (again.outcome, again.note) == (sframegen.Outcome.UNCHANGED, "nothing to add")


def test_results_are_values(results: SimpleNamespace) -> None:
    for result in vars(results).values():
        with pytest.raises(FrozenInstanceError):
            result.file = "another"
        assert not [name for name, value in vars(result).items() if isinstance(value, list)]
        plain = result.to_json()
        assert json.loads(json.dumps(plain)) == plain
        assert plain.keys() == {field.name for field in fields(result)}


def test_plans_say_where_the_section_comes(results: SimpleNamespace, tmp_path: Path) -> None:
    plan = results.planned.plan
    assert plan is not None
    assert plan == results.added.plan
    assert results.planned.to_json()["plan"] == list(plan.lines) == str(plan).splitlines() != []
    assert (results.unchanged.plan, results.restored.plan, results.merged.plan) == (None, None, None)
    converted = results.converted.plan
    assert converted is not None
    assert (converted.section_address, converted.section_offset) == (plan.section_address, plan.section_offset)
    section = sframegen.read(tmp_path / "v2")
    assert section.address == plan.section_address
    assert (tmp_path / "v2").read_bytes()[plan.section_offset or 0 :].startswith(bytes(section.data))


FORKS = """
import os, sys, sframegen
forks, fork = [], os.fork
def counted():
    forks.append(1)
    return fork()
os.fork = counted
program, out, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
more = {"jobs": jobs} if jobs else {}
sframegen.add_section(program, output=out, synthesize=True, **more)
sframegen.check(out, instructions=True, **more)
sframegen.convert(out, 2)
sframegen.remove(out)
print(len(forks))
"""


@pytest.mark.parametrize(("jobs", "forks"), [(0, False), (1, False), (2, True)])
def test_functions_fork_only_if_asked_to(jobs: int, forks: bool, corpus_file: Callable[[str], Path], tmp_path: Path) -> None:
    done = python("-P", "-c", FORKS, corpus_file("bash"), tmp_path / "out", jobs, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (int(done.stdout) > 0) is forks


def test_each_recipe_is_a_program() -> None:
    recipes = LIBRARY.partition("\n## Recipes\n")[2].partition("\n## ")[0]
    assert len(re.findall("^### ", recipes, re.MULTILINE)) == len(re.findall("^```python$", recipes, re.MULTILINE)) == 14


ERRORS = [
    sframegen.FormatError("bad", ".sframe", 4),
    sframegen.VerificationError("bad"),
    sframegen.RefusedError(Refusal.SIGNED, "bad"),
]


@pytest.mark.verification_fails
@for_each("error", ERRORS)
def test_errors_say_where_also_from_another_process(error: sframegen.SframegenError) -> None:
    assert isinstance(error, sframegen.SframegenError)
    assert not isinstance(error, (ValueError, OSError))
    with pytest.raises(type(error), match=r"^file: "), name_file_in_errors("file"):
        raise error
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_a_limit_is_named_not_the_file_that_met_it() -> None:
    line = describe_error(OSError(errno.EMFILE, "Too many open files", "/sys/devices/system/cpu/online"), "")
    assert line == "too many open files: raise the limit with `ulimit -n`"
    assert describe_error(OSError(errno.ENOMEM, "Cannot allocate memory"), "a file") == "a file: not enough memory"
    assert [describe_error(MemoryError(), path) for path in ("a file", "")] == ["a file: not enough memory", "not enough memory"]


@for_each("reason", Refusal)
def test_the_command_line_names_the_option_that_a_refusal_needs(reason: Refusal) -> None:
    """The parameters that the reason's comment has are options of add-section, merge or remove."""
    [comment] = [line.partition("#: ")[2] for line in getsource(Refusal).splitlines() if f"    {reason.name} = " in line]
    line = describe_error(sframegen.RefusedError(reason, "no"), "file")
    options = {f"--{name.replace('_', '-')}" for name in re.findall(r"`(\w+)(?:=\S+)?`", comment) if name != "add_section"}
    assert line.startswith("file: no")
    assert {option.replace("--verify", "--no-verify") for option in options} == set(re.findall(r"--[a-z][\w-]*", line))


TOGETHER = "executable and map_file go together: the map is that of the executable's link"
NEITHER = "detached leaves the file unchanged: it takes neither output nor unloaded"


@for_each(
    ("name", "arguments", "keywords", "error", "why"),
    [
        ("add_section", ["none"], {"version": 1}, ValueError, "SFrame version 1 is not written, only 2, 3"),
        ("add_section", ["none"], {"optimize": "best"}, ValueError, "unknown level 'best', only none, fast, size"),
        ("convert", ["none", 4], {}, ValueError, "SFrame version 4 is not written, only 2, 3"),
        (
            "check",
            ["none"],
            {"consumer": "nobody"},
            ValueError,
            "unknown consumer 'nobody', only kernel, glibc, gnu, arm64-kernel, all",
        ),
        ("add_section", ["none"], {"jobs": 0}, ValueError, "jobs is 0: at least 1, at most 4,194,304"),
        ("check", ["none"], {"jobs": 1 << 70}, ValueError, f"jobs is {1 << 70}: at least 1, at most 4,194,304"),
        ("merge", [[], "none/o"], {}, ValueError, "no objects to merge"),
        ("merge", [["a.o"], "none/o"], {"executable": "a"}, ValueError, TOGETHER),
        ("merge", [["a.o"], "none/o"], {"map_file": "a.map"}, ValueError, TOGETHER),
        ("add_section", ["none"], {"detached": "store", "output": "out"}, ValueError, NEITHER),
        ("add_section", ["none"], {"detached": "store", "unloaded": True}, ValueError, NEITHER),
        # The library that reads back is not chosen.
        ("add_section", ["none"], {"verify": "lief"}, TypeError, "verify is 'lief': give True or False"),
        ("convert", ["none", 3], {"verify": "lief"}, TypeError, "verify is 'lief': give True or False"),
        ("remove", ["none"], {"verify": "lief"}, TypeError, "verify is 'lief': give True or False"),
        # Each character of a path would be one in a list of paths.
        ("merge", ["a.o", "none/o"], {}, TypeError, "objects is one path, 'a.o': give a list of paths"),
        ("add_section", ["none"], {"hard_links": "other"}, TypeError, "hard_links is one path, 'other': give a list of paths"),
        ("read", ["none"], {"sections": "store"}, TypeError, "sections is one path, 'store': give a list of paths"),
        ("check", ["none"], {"sections": "store"}, TypeError, "sections is one path, 'store': give a list of paths"),
        ("add_section", ["none"], {"jobs": None}, TypeError, "jobs is None: give a whole number"),
        ("check", ["none"], {"jobs": float("nan")}, TypeError, "jobs is nan: give a whole number"),
        ("add_section", ["none"], {"min_kernel": 5.18}, TypeError, "min_kernel is 5.18: give a string such as '5.18'"),
        ("check", ["none"], {"second_reader": "no"}, TypeError, "second_reader is 'no': give True or False"),
        ("add_section", ["none"], {"synthesize": 2}, TypeError, "synthesize is 2: give True or False"),
        ("read", ["none"], {"sections": 5}, TypeError, "sections is 5: give a list of paths"),
        ("merge", [["a.o"], None], {}, TypeError, "output is None: give a path"),
    ],
)
@pytest.mark.usefixtures("empty_folder")
def test_impossible_arguments_are_refused_before_any_file_is_opened(
    name: str, arguments: list[Any], keywords: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=f"^{re.escape(why)}$") as caught:
        PUBLIC[name](*arguments, **keywords)
    assert not isinstance(caught.value, sframegen.SframegenError)


def test_objects_of_a_merge_are_read_once_where_they_are_an_iterator(compile_c: Compiler, tmp_path: Path) -> None:
    sframegen.add_section(compile_c("int f(int x) { return x + 1; }", "-c"), output=tmp_path / "with.o")
    sframegen.merge([tmp_path / "with.o"], tmp_path / "list.o")
    sframegen.merge(iter([tmp_path / "with.o"]), tmp_path / "iterator.o")
    assert (tmp_path / "iterator.o").read_bytes() == (tmp_path / "list.o").read_bytes()


@pytest.mark.usefixtures("empty_folder")
def test_types_of_parameters_are_public() -> None:
    types = {name: get_args(value) for name, value in PUBLIC.items() if get_args(value)}
    assert types.keys() == {"Consumer", "FormatVersion", "LevelName"}
    for name, call in (("FormatVersion", "version"), ("LevelName", "optimize")):
        for value in types[name]:
            with pytest.raises(FileNotFoundError):
                sframegen.add_section("none", **{call: value})


def test_values_print_briefly(compile_c: Compiler, tmp_path: Path) -> None:
    rule = sframegen.Rule(sframegen.Where(7, 16), sframegen.Where(None, -8, deref=True), ra_signed=True)
    assert str(rule) == "(cfa, ra, fp) = (r7 + 16, *(cfa - 8) signed, fp)"
    assert repr([rule]) == f"[<Rule {rule}>]"
    assert str(sframegen.Rule(None)) == "outermost frame: ra undefined"
    out = tmp_path / "out"
    sframegen.add_section(compile_c("int main(void) { return 0; }"), output=out, verify=False)
    section = sframegen.read(out)
    rule = section.table.rules[0]
    assert rule.cfa is not None
    assert str(rule) == f"(cfa, ra, fp) = (r7 + {rule.cfa.offset}, *(cfa - 8), fp)"
    assert section.equation(rule) == f"(cfa, ra, fp) = (rsp + {rule.cfa.offset}, *(cfa - 8), rbp)"
    assert len(repr(section.table)) < 80


def test_errors_are_of_the_package_that_users_import() -> None:
    code = "import sframegen; sframegen.read(b'x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("sframegen.FormatError: ")
    for name in ("SframegenError", "FormatError", "VerificationError", "RefusedError"):
        assert getattr(sframegen, name).__module__ == "sframegen"


# -- what read gives people: names, registers, functions, tables; and what read and check take

SOURCE = """
int leaf(int x) { return x + 1; }
int caller(int x) { volatile char room[x]; room[0] = leaf(x); return room[0]; }
int main(void) { return caller(3) - 4; }
"""
SHT_SYMTAB, SH_OFFSET = 2, 24


@pytest.fixture
def program(compile_c: Compiler, tmp_path: Path) -> Path:
    file = tmp_path / "program"
    sframegen.add_section(compile_c(SOURCE, "-O1", "-fno-inline"), output=file)
    return file


def test_rules_are_found_by_name_as_by_address(program: Path) -> None:
    section = sframegen.read(program)
    start = section.address_of("caller")
    assert section.rule_at("caller") == section.rule_at(start) is not None
    assert section.rule_at("caller+0x1") == section.rule_at("caller+1") == section.rule_at(start + 1)
    assert section.rule_at("caller+1000000") is None


@pytest.mark.parametrize("name", ["nobody", "", "0x1139", "main+", "main-1", "main\x1b"])
def test_a_name_that_no_function_has_is_refused(program: Path, name: str) -> None:
    with pytest.raises(sframegen.FormatError, match=r"no function is named ") as caught:
        sframegen.read(program).rule_at(name)
    assert caught.value.file == str(program)
    assert "\x1b" not in str(caught.value)


def test_a_name_that_several_functions_have_is_refused(compile_c: Compiler, tmp_path: Path) -> None:
    """Each object may have a static function of that name."""
    other = compile_c("static int f(int x) { return x * 3; } int (*other)(int) = f;", "-c", name="other.o")
    program = compile_c("static int f(int x) { return x; } int (*one)(int) = f; int main(void) { return 0; }", str(other))
    sframegen.add_section(program, output=tmp_path / "with")
    with pytest.raises(sframegen.FormatError, match=r"2 functions are named f: 0x\w+, 0x\w+"):
        sframegen.read(tmp_path / "with").address_of("f")


def test_registers_have_names(program: Path) -> None:
    section = sframegen.read(program)
    rule = section.rule_at("leaf")
    assert rule is not None
    assert rule.cfa is not None
    assert section.base(rule.cfa) == section.abi.register_names[section.abi.sp]
    assert section.base(sframegen.Where(None, 0)) == "cfa"
    assert section.equation(rule).startswith(f"(cfa, ra, fp) = ({section.base(rule.cfa)}")


def test_functions_have_names_and_rows(program: Path) -> None:
    section = sframegen.read(program)
    found = list(section.functions())
    assert [(one.start, one.size) for one in found] == list(zip(section.table.start, section.table.size, strict=True))
    [caller] = [one for one in found if one.start <= section.address_of("caller") < one.start + one.size]
    for row in caller.rows:
        assert section.rule_at(caller.start + row.offset) == row.rule
    assert "leaf" in [one.name for one in found]


def contents(program: Path) -> dict[str, Any]:
    data = program.read_bytes()
    with program.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {
        "str": str(program),
        "bytes": data,
        "bytearray": bytearray(data),
        "memoryview": memoryview(data),
        "mapped": memoryview(mapped),
        "stream": io.BytesIO(data),
    }


@pytest.mark.parametrize("kind", ["str", "bytes", "bytearray", "memoryview", "mapped", "stream"])
def test_content_is_read_as_a_file_is(program: Path, kind: str) -> None:
    section = sframegen.read(contents(program)[kind])
    assert section.data == sframegen.read(program).data
    assert section.address_of("main") == sframegen.read(program).address_of("main")
    assert sframegen.check(contents(program)[kind]).findings == sframegen.check(program).findings


def test_an_object_in_memory_is_checked(compile_c: Compiler, tmp_path: Path) -> None:
    file = tmp_path / "with.o"
    sframegen.add_section(compile_c("int f(int x) { return x + 1; }", "-c"), output=file)
    assert sframegen.check(file.read_bytes()).findings == sframegen.check(file).findings


@for_each("call", [sframegen.read, sframegen.check])
@for_each(
    ("given", "error", "why"),
    [
        (b"", sframegen.FormatError, "<bytes>: the file is empty"),
        (io.BytesIO(), sframegen.FormatError, "<file>: the file is empty, or was read to its end before"),
        (b"\x7fELF", sframegen.FormatError, "<bytes>: "),
        (io.StringIO("text"), TypeError, "<file> does not return bytes; open it in binary mode ('rb')"),
        (5, TypeError, "path is 5: give a path, bytes, or a file object"),
        (None, TypeError, "path is None: give a path, bytes, or a file object"),
    ],
)
def test_what_is_no_content_is_named(call: Any, given: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(why)}"):
        call(given)


def test_what_was_read_does_not_change_with_the_file(program: Path) -> None:
    """Neither the section nor the names: a file that becomes shorter while it is mapped would end this process."""
    section = sframegen.read(program)
    expected = sframegen.read(program).address_of("main")
    os.truncate(program, 1)
    assert section.address_of("main") == expected
    assert section.rule_at("main") is not None


def test_a_damaged_symbol_table_does_not_hide_the_section(program: Path) -> None:
    elf = open_elf(program)
    [table] = [one.number for one in elf.sections if one.header.sh_type == SHT_SYMTAB]
    data = bytearray(program.read_bytes())
    struct.pack_into("<Q", data, elf.header.e_shoff + table * elf.header.e_shentsize + SH_OFFSET, 1 << 62)
    section = sframegen.read(data)
    assert section.rule_at(section.table.start[0]) is not None
    with pytest.raises(sframegen.FormatError, match=r"reach past the end of the file"):
        section.rule_at("main")
