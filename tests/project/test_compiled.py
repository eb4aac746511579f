"""The compiled modules: their attributes are typed, what they share is compiled once, with the limited API.

What is read in the sources for it, tools/lint/compiled.py reads.
"""

from __future__ import annotations

import re
from array import array
from importlib import import_module
from pathlib import Path
from types import GetSetDescriptorType
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from sframegen.format.columns import COMPILED, Functions
from sframegen.program.build import MODULES, SHARED_MODULE
from tools.lint.compiled import declared

# What the headers of the limited API of Python 3.11 use of names that begin with _Py.
PRIVATE = {
    f"_Py_{name}" for name in ("Dealloc", "EllipsisObject", "FalseStruct", "NoneStruct", "NotImplementedStruct", "TrueStruct")
}
PRIVATE |= {"_PyObject_CallFunction_SizeT", "_PyObject_CallMethod_SizeT", "_PyObject_GC_New"}

pytestmark = pytest.mark.skipif(not COMPILED, reason="interpreted")


def test_attributes_are_columns_not_python_objects() -> None:
    wrong = []
    for module, name, attributes in declared():
        kind = getattr(import_module(module), name)
        seen = {one for one, is_seen in attributes.items() if is_seen}
        wrong += [f"{module}.{name}.{one}" for one in seen if type(vars(kind).get(one)) is not GetSetDescriptorType]
        wrong += [f"{module}.{name}: a dictionary"] if getattr(kind, "__dictoffset__", 0) else []
    assert wrong == []


def test_a_column_of_another_type_is_refused() -> None:
    wide, narrow, kinds = array("Q"), array("I"), array("H")
    Functions(wide, narrow, kinds, narrow, narrow, narrow)
    with pytest.raises(ValueError, match="Buffer dtype mismatch"):
        Functions(narrow, narrow, kinds, narrow, narrow, narrow)


def test_compiled_modules_share_one_and_use_the_limited_api() -> None:
    """Where each has what all need, it takes three times as long to compile them. Names tell of the limited API: cythonize() of
    Cython 3.1 forgets the macro of the shared module, which then needs one Python, and gives it the name of a temporary folder."""
    files = {name: Path(import_module(name).__file__ or "") for name in (*MODULES, SHARED_MODULE)}
    assert [name for name, file in files.items() if b"View.MemoryView" in file.read_bytes()] == [SHARED_MODULE]
    assert re.findall(rb"[\w./]*compiled_shared\.pyx", files[SHARED_MODULE].read_bytes()) == [b"compiled_shared.pyx"]
    if ".abi3." not in files[SHARED_MODULE].name:
        pytest.skip("free-threaded Python has no limited API")
    private = {}
    for name, file in files.items():
        with file.open("rb") as stream:
            symbols: Any = ELFFile(stream).get_section_by_name(".dynsym")
            private[name] = {one.name for one in symbols.iter_symbols() if one.name.startswith("_Py")} - PRIVATE
    assert {name: names for name, names in private.items() if names} == {}
