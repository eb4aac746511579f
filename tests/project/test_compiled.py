"""The compiled modules: their attributes are typed, what they share is compiled once, with the limited API.

What is read in the sources for it, tools/lint/compiled.py reads.
"""

from __future__ import annotations

import re
import subprocess
import sys
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
from tools.rooms import ROOT

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


@pytest.mark.full
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
