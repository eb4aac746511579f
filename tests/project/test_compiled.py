"""Classes whose types are in a `.pxd`: the file and the class agree, and compiled, every attribute is a typed one."""

from __future__ import annotations

import ast
import re
from array import array
from importlib import import_module
from pathlib import Path
from types import GetSetDescriptorType
from typing import NamedTuple

import pytest

from sframegen.format.columns import COMPILED, Functions
from sframegen.program.build import MODULES, SHARED_MODULE

ROOT = Path(__file__).parents[2]
CLASS = re.compile(r"^cdef class (\w+)(?:\(\w+\))?:\n((?:    .*\n)+)", re.MULTILINE)
ATTRIBUTES = re.compile(r"^    cdef (public |readonly |)[^(#\n]*[\w\]] (\w+(?:, \w+)*)(?:  #.*)?$", re.MULTILINE)
FROM = re.compile(r"^from [\w.]+ cimport (.+)$", re.MULTILINE)

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
