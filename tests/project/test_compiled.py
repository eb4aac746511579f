"""Classes whose types are in a `.pxd`: the file and the class agree, and compiled, every attribute is a typed one."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from array import array
from importlib import import_module
from pathlib import Path
from types import GetSetDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from elftools.elf.elffile import ELFFile

from sframegen.format.columns import COMPILED, Functions
from sframegen.program.build import MODULES, SHARED_MODULE

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
CLASS = re.compile(r"^cdef class (\w+)(?:\(\w+\))?:\n((?:    .*\n)+)", re.MULTILINE)
ATTRIBUTES = re.compile(r"^    cdef (public |readonly |)[^(#\n]*[\w\]] (\w+(?:, \w+)*)(?:  #.*)?$", re.MULTILINE)
FROM = re.compile(r"^from [\w.]+ cimport (.+)$", re.MULTILINE)

# What the headers of the limited API of Python 3.11 use of names that begin with _Py.
PRIVATE = {
    f"_Py_{name}" for name in ("Dealloc", "EllipsisObject", "FalseStruct", "NoneStruct", "NotImplementedStruct", "TrueStruct")
}
PRIVATE |= {"_PyObject_CallFunction_SizeT", "_PyObject_CallMethod_SizeT", "_PyObject_GC_New"}

# Writes the C code of modules into a folder, and says which file is of which module.
WRITE_C = """
import sys
from setuptools import Extension
from Cython.Build import cythonize
folder, shared, *names = sys.argv[1:]
modules = [Extension(name, [name.replace(".", "/") + ".py"]) for name in names]
for one in cythonize(modules, build_dir=folder, shared_utility_qualified_name=shared, language_level=3, quiet=True):
    print(one.name, one.sources[0])
"""

ONLY_INLINE = ("cfi.search", "sframegen.format.fre_bytes")  # such a .pxd has bodies, compiled into the modules that use them


class Declared(NamedTuple):
    module: str
    name: str
    attributes: dict[str, bool]  # whether Python sees them, too


def types_of(module: str) -> str:
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".pxd").read_text() if path.with_suffix(".pxd").exists() else ""


def tree_of(module: str) -> ast.Module:
    return ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_bytes())


def attributes_of(body: str) -> dict[str, bool]:
    return {name: access != "" for access, names in ATTRIBUTES.findall(body) for name in names.split(", ")}


DECLARED = [Declared(module, name, attributes_of(body)) for module in MODULES for name, body in CLASS.findall(types_of(module))]


def test_every_types_file_belongs_to_a_compiled_module() -> None:
    files = [path for package in ("cfi", "linker", "sframegen") for path in (ROOT / package).rglob("*.pxd")]
    modules = {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in files}
    assert modules
    assert modules <= {*MODULES, *ONLY_INLINE}


@pytest.mark.parametrize("declared", DECLARED, ids=lambda one: f"{one.module}.{one.name}")
def test_what_the_constructor_sets_is_what_is_declared(declared: Declared) -> None:
    [node] = [node for node in tree_of(declared.module).body if isinstance(node, ast.ClassDef) and node.name == declared.name]
    stored = {
        target.attr
        for target in ast.walk(node)
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store) and ast.unparse(target.value) == "self"
    }
    assert stored == set(declared.attributes) != set()


@pytest.mark.once
@pytest.mark.skipif(not COMPILED, reason="interpreted")
@pytest.mark.parametrize("declared", DECLARED, ids=lambda one: f"{one.module}.{one.name}")
def test_attributes_are_columns_not_python_objects(declared: Declared) -> None:
    kind = getattr(import_module(declared.module), declared.name)
    seen = {name for name, is_seen in declared.attributes.items() if is_seen}
    assert {name for name in seen if type(vars(kind).get(name)) is not GetSetDescriptorType} == set()
    assert not hasattr(kind, "__dictoffset__") or kind.__dictoffset__ == 0


@pytest.mark.parametrize("module", MODULES)
def test_signatures_name_types_that_the_compiler_knows(module: str) -> None:
    """Without the cimport the parameter is any object, and each access in a loop costs a look-up in a dictionary."""
    classes = {one.name for one in DECLARED}
    own = types_of(module)
    known = {name for name, _ in CLASS.findall(own)} | {name.strip() for names in FROM.findall(own) for name in names.split(",")}
    used = {
        argument.annotation.id
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.FunctionDef)
        for argument in node.args.args
        if isinstance(argument.annotation, ast.Name)
    }
    assert used & classes - known == set()


@pytest.mark.once
def test_compiled_functions_get_no_members_of_enumerations_for_numbers() -> None:
    """Compiled with Cython 3.1, as in Debian's package, a parameter `int` takes no subclass of int: every stack was a TypeError."""
    trees = [ast.parse(path.read_bytes()) for package in ("cfi", "linker", "sframegen") for path in (ROOT / package).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    kinds = {"IntEnum", "IntFlag"}
    numbers = {node.name for node in nodes if isinstance(node, ast.ClassDef) and kinds & {ast.unparse(base) for base in node.bases}}
    parameters = dict(pair for module in MODULES for pair in parameters_of(tree_of(module)))
    calls = [
        node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in parameters
    ]
    assert "End" in numbers
    assert "StackCursor" in {ast.unparse(call.func) for call in calls}
    assert [ast.unparse(call) for call in calls if numbers & set(given_for_ints(call, parameters[ast.unparse(call.func)]))] == []


def parameters_of(tree: ast.Module) -> Iterator[tuple[str, dict[str, bool]]]:
    """By name of a function, or of a class with a constructor: its parameters, and whether they are of the type int."""
    for node in tree.body:
        found = [
            one
            for one in ast.walk(node)
            if isinstance(one, ast.FunctionDef) and one.name in {"__init__", getattr(node, "name", "")}
        ]
        for function in found[:1]:
            arguments = [one for one in function.args.args if one.arg != "self"]
            yield str(getattr(node, "name", "")), {one.arg: ast.unparse(one.annotation or one) == "int" for one in arguments}


def given_for_ints(call: ast.Call, parameters: dict[str, bool]) -> Iterator[str]:
    """What a parameter `int` gets, without the attribute: `End` for `End.LOOP`."""
    named = [*zip(parameters, call.args, strict=False), *((word.arg or "", word.value) for word in call.keywords)]
    for name, value in named:
        if parameters.get(name) and isinstance(value, ast.Attribute):
            yield ast.unparse(value.value)


@pytest.mark.once
@pytest.mark.skipif(not COMPILED, reason="interpreted")
def test_a_column_of_another_type_is_refused() -> None:
    wide, narrow, kinds = array("Q"), array("I"), array("H")
    Functions(wide, narrow, kinds, narrow, narrow, narrow)
    with pytest.raises(ValueError, match="Buffer dtype mismatch"):
        Functions(narrow, narrow, kinds, narrow, narrow, narrow)


@pytest.mark.once
@pytest.mark.skipif(not COMPILED, reason="interpreted")
def test_what_all_compiled_modules_need_is_compiled_once() -> None:
    """Where each has its own, it takes three times as long to compile them all."""
    files = {name: Path(import_module(name).__file__ or "") for name in (*MODULES, SHARED_MODULE)}
    assert [name for name, file in files.items() if b"View.MemoryView" in file.read_bytes()] == [SHARED_MODULE]


@pytest.mark.once
@pytest.mark.skipif(not COMPILED, reason="interpreted")
@pytest.mark.parametrize("module", [*MODULES, SHARED_MODULE])
def test_compiled_modules_use_the_limited_api(module: str) -> None:
    """Their names say so. cythonize() of Cython 3.1 forgets the macro of the shared module, which then needs one Python."""
    file = Path(import_module(module).__file__ or "")
    if ".abi3." not in file.name:
        pytest.skip("free-threaded Python has no limited API")
    with file.open("rb") as stream:
        symbols: Any = ELFFile(stream).get_section_by_name(".dynsym")
        assert {one.name for one in symbols.iter_symbols() if one.name.startswith("_Py")} - PRIVATE == set()


@pytest.mark.once
@pytest.mark.full
@pytest.mark.skipif(not COMPILED, reason="interpreted")
def test_no_module_lacks_what_it_needs_without_the_global_lock(tmp_path: Path) -> None:
    """Cython 3.3 has macros for critical sections, and does not write them where only bytearray.append() needs them.

    In a process of its own: setuptools and Cython bring distutils, and which one depends on what was imported before.
    """
    pytest.importorskip("Cython", reason="installed without Cython")
    command = [sys.executable, "-c", WRITE_C, str(tmp_path), SHARED_MODULE, *MODULES]
    written = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    files = dict(line.split() for line in written)
    assert sorted(files) == sorted(MODULES)
    for module, file in files.items():
        text = Path(file).read_text()
        used, defined = (set(re.findall(rf"{before}(__Pyx_\w+_CRITICAL_SECTION\w*)", text)) for before in ("", "#define "))
        assert used == defined, module


@pytest.mark.once
@pytest.mark.skipif(not COMPILED, reason="interpreted")
def test_the_shared_module_names_no_folder_of_its_build() -> None:
    """Cython 3.1 gives it the name of a temporary one: two builds of Debian's package had other bytes."""
    file = Path(import_module(SHARED_MODULE).__file__ or "")
    assert re.findall(rb"[\w./]*compiled_shared\.pyx", file.read_bytes()) == [b"compiled_shared.pyx"]
