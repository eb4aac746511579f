"""The shape of the project, held by tests: who may import whom, where versions and ABIs may be told apart, how long a file is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sframegen.api
from sframegen.cli.commands import COMMANDS
from sframegen.code.isa import machines as code_machines
from sframegen.elf.code_bytes import machines as byte_machines
from sframegen.format.abi import ABIS
from sframegen.program.build import MODULES
from sframegen.stack.abi import machines as stack_machines
from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.once

PACKAGES = ("cfi", "sframegen", "linker")
MAX_LINES = 450
# Two subjects, the cursor and the machine that reads with it: Cython's quick calls do not cross modules.
LONGER = {"cfi/machine.py": 650}
MAX_FUNCTION_LINES = 60
# Each with why it is longer. Loops over bytes or rows are compiled: a call for each would cost as much as the work.
LONGER_FUNCTIONS = {
    "cfi/machine.py:run": "a reading loop: an arm for each instruction of CFI",
    "cfi/scan.py:scan_entries": "a reading loop: CIEs and FDEs",
    "sframegen/code/decoding/instruction_columns.py:read": "a reading loop: instructions",
    "sframegen/format/unpack.py:number_all": "a reading loop: FREs",
}

# By folder or file, the longest match counts: which of our packages it may import besides its own.
MAY_IMPORT = {
    "cfi": set(),
    "linker": {"cfi", "sframegen"},
    "sframegen": {"cfi"},
    "sframegen/api": {"cfi", "linker"},
    "sframegen/cli": {"cfi", "linker"},
    "sframegen/fleet": {"cfi", "linker"},
    "sframegen/packages": {"cfi", "linker"},
    "sframegen/profile": {"cfi", "linker"},
}
# These stand on linker, so that linker may not stand on them.
UPPER_HALF = {"sframegen.api", "sframegen.cli", "sframegen.fleet", "sframegen.packages", "sframegen.profile"}

# Only these tell one SFrame version or one ABI from another; all other code asks their tables.
TELLS_VERSIONS_APART = {"sframegen/format/layouts.py", "sframegen/format/abi.py"}
# Of objcopy, GNU as, perf, ld, and the dynamic loader.
OPTIONS_OF_OTHERS = {
    *("--decompress-debug-sections", "--gsframe", "--call-graph", "--build-id", "--no-as-needed", "--version-script", "--list"),
}
VERSION_NAMES = {"version", "abi", "abi_arch"}
# What only one machine has lies in these folders, in files of the same names. The tables there name ABIs, and nothing else does.
MACHINE_FOLDERS = ("sframegen/elf/code_bytes", "sframegen/stack/abi", "sframegen/code/isa")
MACHINE_FILES = {"x86_64.py", "aarch64.py", "s390x.py", "machines.py"}
NAMES_ABIS = {"sframegen/format/abi.py", *(f"{folder}/machines.py" for folder in MACHINE_FOLDERS)}
MACHINE_NAME = re.compile(r"x86|\bx64\b|amd64|aarch64|arm64|s390", re.IGNORECASE)
ABI_NAME = re.compile(r"\.(EM_\w+|AMD64|AARCH64(_BE)?|S390X)$")

IN_EACH_ROOM = {"__init__.py", "__main__.py", "columns.py", "machines.py"}
ROOMS_OF_MACHINES = ("sframegen/code/isa", "sframegen/stack/abi")
MAX_PARAMETERS = 8
MORE_PARAMETERS = {"sframegen/api/", "sframegen/cli/"}  # whose options are parameters

FORBIDDEN_TEXT = {
    "a path of one machine": re.compile(r"(?<!\w)/(?:home|work)/\w|/tmp/(?:peers|dev)\b"),
    "a host of packages": re.compile(r"\b(?:deb|ftp|security|snapshot|archive)\.(?:\w+\.)?(?:debian|ubuntu)\.\w"),
}


def modules(*folders: str) -> list[str]:
    return [file.relative_to(ROOT).as_posix() for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]


OUR_MODULES = modules(*PACKAGES)
ALL_MODULES = OUR_MODULES + modules("conformance", "tests", "benchmarks", "corpus")


@cache
def tree_of(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_bytes())


def our_trees() -> Iterator[tuple[str, ast.Module]]:
    return ((path, tree_of(path)) for path in OUR_MODULES)


def name_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(path: str, tree: ast.Module) -> Iterator[str]:
    """Full names of what a module imports, at its top or anywhere inside."""
    package = path.rpartition("/")[0].split("/")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*parents, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def branches_on_version(tree: ast.Module) -> Iterator[int]:
    """Lines where a version or an ABI is compared with a constant; `version in TABLE` is a look-up, and fine."""

    def is_version(node: ast.expr) -> bool:
        return (node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)) in VERSION_NAMES

    def is_constant(node: ast.expr) -> bool:
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        return isinstance(node, ast.Constant) or name.isupper()

    for node in ast.walk(tree):
        if isinstance(node, ast.Match) and is_version(node.subject):
            yield node.lineno
        elif isinstance(node, ast.Compare) and any(map(is_version, operands := [node.left, *node.comparators])):
            equality = any(isinstance(op, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)) for op in node.ops)
            literal = any(isinstance(operand, (ast.Tuple, ast.List, ast.Set)) for operand in operands)
            if literal or (equality and any(map(is_constant, operands))):
                yield node.lineno


def tracked_files() -> list[Path]:
    """What git has or would add; a skip where there is no git."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"git does not list this folder: {error}")
    return [file for name in filter(None, listing.split("\0")) if (file := ROOT / name).is_file()]


@pytest.mark.parametrize("path", OUR_MODULES)
def test_imports_only_what_its_layer_may(path: str) -> None:
    layer = max((key for key in MAY_IMPORT if path == key or path.startswith(key + "/")), key=len)
    allowed = MAY_IMPORT[layer] | {path.partition("/")[0]}
    names = set(imported(path, tree_of(path)))
    assert {name for name in names if name.split(".")[0] in set(PACKAGES) - allowed} == set()
    if layer == "linker":
        assert {name for name in names if ".".join(name.split(".")[:2]) in UPPER_HALF} == set()


def test_importing_sframegen_is_cheap() -> None:
    command = [sys.executable, "-c", "import sys, sframegen; print(*sys.modules)"]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert set(loaded) & {"linker", "lief", "click"} == set()


def test_no_module_hides_a_public_name() -> None:
    """`import sframegen.find` would make the function `sframegen.find` a module."""
    assert {Path(path).stem for path in OUR_MODULES if Path(path).parent.name == "sframegen"} & set(sframegen.api.__all__) == set()


@pytest.mark.parametrize("path", [path for path in OUR_MODULES if not path.startswith("sframegen/cli/")])
def test_no_message_of_the_library_has_options_of_the_command_line(path: str) -> None:
    """Callers in Python have parameters: `RefusedError.reason` is what the command line makes an option of."""
    nodes = [node for node in ast.walk(tree_of(path)) if not isinstance(node, ast.Expr)]  # docstrings are expressions
    texts = [child.value for node in nodes for child in ast.iter_child_nodes(node) if isinstance(child, ast.Constant)]
    options = {option for text in texts if isinstance(text, str) for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text)}
    assert options - OPTIONS_OF_OTHERS == set()


@pytest.mark.parametrize("path", [path for path in OUR_MODULES if path.startswith(("sframegen/", "linker/"))])
def test_versions_and_abis_are_rows_of_tables(path: str) -> None:
    if path not in TELLS_VERSIONS_APART:
        assert list(branches_on_version(tree_of(path))) == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("if version == 3: pass", True),
        ("x = header.version != V2", True),
        ("abi_arch in (1, 2)", True),
        ("match section.abi:\n case 3: pass", True),
        ("version not in LAYOUTS", False),
        ("version == other.version", False),
        ("size == 3", False),
    ],
)
def test_the_search_for_branches_finds_them(code: str, found: bool) -> None:
    assert bool(list(branches_on_version(ast.parse(code)))) is found


@pytest.mark.parametrize("path", OUR_MODULES)
def test_only_tables_name_an_abi(path: str) -> None:
    named = [name for name in imported(path, tree_of(path)) if ABI_NAME.search(name)]
    assert bool(named) is (path in NAMES_ABIS)


def names_in(tree: ast.Module) -> Iterator[str]:
    """Names and texts, except docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield text
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                yield name


@pytest.mark.parametrize("path", [path for path in OUR_MODULES if path not in NAMES_ABIS and not path.startswith(MACHINE_FOLDERS)])
def test_what_names_a_machine_is_listed_for_ports(path: str) -> None:
    listed = path == "sframegen/elf/records.py" or f"`{path}`" in (ROOT / "docs/porting.md").read_text()
    assert listed or [name for name in names_in(tree_of(path)) if MACHINE_NAME.search(name)] == []


def test_files_that_ports_change_are_there() -> None:
    text = (ROOT / "docs/porting.md").read_text().partition("## 5. Elsewhere")[2].partition("\n## ")[0]
    assert [path for path in re.findall(r"`(\w+/[\w/.]+)`", text) if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("folder", MACHINE_FOLDERS)
def test_each_folder_of_machines_has_a_file_for_each(folder: str) -> None:
    assert {path.name for path in (ROOT / folder).glob("*.py")} >= MACHINE_FILES


def test_each_table_of_machines_has_a_row_for_each_abi() -> None:
    names = {abi.name for abi in ABIS}
    assert set(code_machines.MACHINES) == set(stack_machines.MACHINES) == names
    assert set(byte_machines.MACHINES) == {abi.machine for abi in ABIS}


@pytest.mark.parametrize("path", ALL_MODULES)
def test_annotations_are_not_evaluated(path: str) -> None:
    statements = [node for node in tree_of(path).body if not isinstance(node, ast.Expr)]
    if statements:
        assert isinstance(statements[0], ast.ImportFrom)
        assert (statements[0].module, statements[0].names[0].name) == ("__future__", "annotations")


def test_no_file_is_so_long_that_it_has_a_second_subject() -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in OUR_MODULES}
    assert {path: length for path, length in lengths.items() if length > LONGER.get(path, MAX_LINES)} == {}


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines without the docstring and decorators."""
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    documented = (first.end_lineno or 0) - first.lineno + 1 if is_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - documented


def test_functions_are_short_but_for_a_list_that_only_shrinks() -> None:
    """A function of the list that has become short is to leave it."""
    functions = (
        (f"{path}:{node.name}", node)
        for path, tree in our_trees()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    assert {name for name, node in functions if length(node) > MAX_FUNCTION_LINES} == LONGER_FUNCTIONS.keys()


def test_add_section_only_looks_up_what_to_do() -> None:
    [function] = [node for node in tree_of("sframegen/api/adding.py").body if getattr(node, "name", "") == "add_section"]
    assert isinstance(function, ast.FunctionDef)
    assert length(function) <= 40


def test_a_name_stands_for_one_module() -> None:
    """Except in cli/, with a file each command, and for machines and compiled code: a file or a table in each room."""
    places: dict[str, list[str]] = {}
    for path in OUR_MODULES:
        room, _, file = path.rpartition("/")
        if room not in ("sframegen/cli", *ROOMS_OF_MACHINES) and file not in IN_EACH_ROOM:
            places.setdefault(file, []).append(room)
    assert {file: rooms for file, rooms in places.items() if len(rooms) > 1} == {}


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many a caller passes."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def with_many_parameters(tree: ast.Module) -> list[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return [function.name for function in functions if parameters(function) > MAX_PARAMETERS]


def test_functions_take_tables_not_twenty_columns() -> None:
    found = {path: names for path, tree in our_trees() if (names := with_many_parameters(tree))}
    assert [path for path in found if not path.startswith(tuple(MORE_PARAMETERS))] == []
    assert [place for place in sorted(MORE_PARAMETERS) if not any(path.startswith(place) for path in found)] == []


def test_compiled_modules_are_those_that_speak_cython() -> None:
    speaking = {name_of(path) for path, tree in our_trees() if "cython" in imported(path, tree)}
    assert sorted(MODULES) == sorted(speaking)


@pytest.mark.parametrize("what", FORBIDDEN_TEXT)
def test_no_file_names(what: str) -> None:
    pattern = FORBIDDEN_TEXT[what]
    texts = {file: file.read_text(errors="replace") for file in tracked_files()}
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_readme_shows_every_command() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name for name in COMMANDS if f"sframegen {name}" not in readme] == []
