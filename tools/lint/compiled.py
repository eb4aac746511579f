"""Rules on the modules that Cython compiles: classes, signatures and numbers agree with those in their `.pxd`."""

from __future__ import annotations

import ast
import re
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.program.build import MODULES
from tools.lint.sources import files, nodes_of, text_of, tree_of
from tools.rooms import PACKAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

CLASS = re.compile(r"^cdef class (\w+)(?:\(\w+\))?:\n((?:    .*\n)+)", re.MULTILINE)
ATTRIBUTES = re.compile(r"^    cdef (public |readonly |)[^(#\n]*[\w\]] (\w+(?:, \w+)*)(?:  #.*)?$", re.MULTILINE)
FROM = re.compile(r"^from [\w.]+ cimport (.+)$", re.MULTILINE)
# Its comment names the enumeration or module with the same numbers. Names may have a prefix, as END_ for members of End.
ENUMERATION = re.compile(r"^cdef enum:  # (?:none: .*|([\w.]+))\n((?:    .*\n)+)", re.MULTILINE)
PREFIX = re.compile(r"^(?:CODE|END|RULE|SEARCH)_")
# Such a .pxd has bodies and constants, compiled into the modules that use them.
ONLY_INLINE = ("cfi.search", "sframegen.code.function.marks", "sframegen.code.isa.effects", "sframegen.format.fre_bytes")
Parameters = dict[str, bool]  # by name: whether it is of the type int


class Declared(NamedTuple):
    """A class of a `.pxd`."""

    module: str
    name: str
    attributes: dict[str, bool]  # whether Python sees them, too


def file_of(module: str, ending: str = ".py") -> str:
    return module.replace(".", "/") + ending


def types_of(module: str) -> str:
    path = ROOT / file_of(module, ".pxd")
    return path.read_text() if path.exists() else ""


def declared() -> list[Declared]:
    return [
        Declared(module, name, {one: access != "" for access, names in ATTRIBUTES.findall(body) for one in names.split(", ")})
        for module in MODULES
        for name, body in CLASS.findall(types_of(module))
    ]


def compiled_modules_are_those_that_speak_cython() -> Iterator[str]:
    speaking = {name for name in files(*PACKAGES) if any(_is_cython(node) for node in nodes_of(name))}
    listed = {file_of(module) for module in MODULES}
    yield from (f"{name}: imports cython; sframegen/program/build.py does not list it" for name in speaking - listed)
    yield from (f"{name}: sframegen/program/build.py lists it; it does not import cython" for name in listed - speaking)
    typed = {name.removesuffix(".pxd").replace("/", ".") for name in files(*PACKAGES, ending=".pxd")}
    yield from (f"{file_of(module, '.pxd')}: belongs to no compiled module" for module in typed - {*MODULES, *ONLY_INLINE})


def numbers_of_enumerations_are_those_of_python() -> Iterator[str]:
    """The order of members counts where values are texts."""
    for name in files(*PACKAGES, ending=".pxd"):
        blocks = ENUMERATION.findall(text_of(name))
        if len(blocks) != text_of(name).count("cdef enum:"):
            yield f"{name}: a `cdef enum:` has no comment that names its enumeration"
        for source, body in blocks:
            members: Any = resolve_name(source) if source else None
            for key, number in re.findall(r"(\w+) = (-?\w+)", body) if members else ():
                known = getattr(members, PREFIX.sub("", key), None)
                value = known if isinstance(known, int) or known is None else [*members].index(known)
                if value != int(number, 0):
                    yield f"{name}: {key} is {number}, {source} has {known}"


def _is_cython(node: ast.AST) -> bool:
    return isinstance(node, ast.Import) and any(alias.name == "cython" for alias in node.names)


def constructors_set_what_is_declared() -> Iterator[str]:
    for module, name, attributes in declared():
        nodes = [node for node in tree_of(file_of(module)).body if isinstance(node, ast.ClassDef) and node.name == name]
        stored = {
            target.attr
            for node in nodes
            for target in ast.walk(node)
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store) and ast.unparse(target.value) == "self"
        }
        if stored != set(attributes) or not stored:
            yield f"{file_of(module)}: {name} sets {sorted(stored)}, its .pxd declares {sorted(attributes)}"


def signatures_name_types_that_the_compiler_knows() -> Iterator[str]:
    """Without the cimport the parameter is any object, and each access in a loop costs a look-up in a dictionary."""
    classes = {one.name for one in declared()}
    for module in MODULES:
        own = types_of(module)
        known = {name for name, _ in CLASS.findall(own)} | {
            name.strip() for names in FROM.findall(own) for name in names.split(",")
        }
        for node in nodes_of(file_of(module)):
            if isinstance(node, ast.FunctionDef):
                used = {one.annotation.id for one in node.args.args if isinstance(one.annotation, ast.Name)}
                unknown = used & classes - known
                yield from (f"{file_of(module)}:{node.lineno}: the .pxd does not cimport {one}" for one in unknown)


def compiled_functions_get_numbers_for_numbers() -> Iterator[str]:
    """Compiled with Cython 3.1, as in Debian's package, a parameter `int` takes no subclass of int: every stack was a TypeError."""
    names = files(*PACKAGES)
    kinds = {"IntEnum", "IntFlag"}
    classes = [node for name in names for node in nodes_of(name) if isinstance(node, ast.ClassDef)]
    enumerations = {node.name for node in classes if kinds & {ast.unparse(base) for base in node.bases}}
    parameters = dict(pair for module in MODULES for pair in _parameters(tree_of(file_of(module))))
    for name in names:
        for node in nodes_of(name):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in parameters:
                given = enumerations & set(_given_for_ints(node, parameters[node.func.id]))
                yield from (f"{name}:{node.lineno}: {node.func.id} gets a member of {one} for an int" for one in given)


def _parameters(tree: ast.Module) -> Iterator[tuple[str, Parameters]]:
    """By name of a function, or of a class with a constructor."""
    for node in tree.body:
        own = {"__init__", getattr(node, "name", "")}
        found = [one for one in ast.walk(node) if isinstance(one, ast.FunctionDef) and one.name in own]
        for function in found[:1]:
            arguments = [one for one in function.args.args if one.arg != "self"]
            yield str(getattr(node, "name", "")), {one.arg: ast.unparse(one.annotation or one) == "int" for one in arguments}


def _given_for_ints(call: ast.Call, parameters: Parameters) -> Iterator[str]:
    """What a parameter `int` gets, without the attribute: `End` for `End.LOOP`."""
    named = [*zip(parameters, call.args, strict=False), *((word.arg or "", word.value) for word in call.keywords)]
    for name, value in named:
        if parameters.get(name) and isinstance(value, ast.Attribute):
            yield ast.unparse(value.value)


RULES = (
    compiled_modules_are_those_that_speak_cython,
    constructors_set_what_is_declared,
    signatures_name_types_that_the_compiler_knows,
    compiled_functions_get_numbers_for_numbers,
    numbers_of_enumerations_are_those_of_python,
)
