"""The Python packages that sframegen needs: what for, in which releases, and how they are imported."""

from __future__ import annotations

import re
import sys
from importlib import import_module

from sframegen.base.quick_typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

PROJECT = re.compile(r"[\w.-]+")  # the name at the start of a requirement, such as `click>=8.1`


class Library(NamedTuple):
    """A package that pip installs, with the module that it provides."""

    project: str
    module: str
    use: str  #: the commands and features that need it
    debian: str = ""  #: the name of Debian's package; empty if there is none


DEPENDENCIES = (
    Library("click", "click", "every command except doctor", "python3-click"),
    Library("capstone", "capstone", "synthesizing rows, and checking instructions", "python3-capstone"),
    Library("lief", "lief", "reading back hundreds of files"),
    Library("pyelftools", "elftools", "reading back, and a second reading of the CFI in check", "python3-pyelftools"),
    *[Library("backports.zstd", "backports.zstd", "what Zstandard has compressed")] * (sys.version_info < (3, 14)),  # else built in
)
ON_A_CLUSTER = "fleet run on a cluster"
FLEET = (
    Library("distributed", "distributed", ON_A_CLUSTER),
    Library("fsspec", "fsspec", "fleet run"),
    Library("pyarrow", "pyarrow", "fleet run"),
    Library("python-debian", "debian", "fleet run"),
)
SYMBOLIC = Library("symbolic", "symbolic", "source lines and inlined functions of profile")
CXXFILT = Library("pycxxfilt", "pycxxfilt", "names of functions in C++ and Rust")
SYMBOL_LIBRARIES = (CXXFILT, SYMBOLIC)


def requirements() -> dict[str, str]:
    """Return this installation's pip requirements by project; empty if it has no metadata."""
    from importlib import metadata  # noqa: PLC0415 - takes longer than most commands to start

    try:
        lines = metadata.requires("sframegen") or ()
    except metadata.PackageNotFoundError:
        return {}
    needed = ("".join(line.partition(";")[0].split()) for line in lines)  # without environment markers and spaces
    return {PROJECT.match(requirement)[0]: requirement for requirement in needed}  # type: ignore[index] # each begins with a name


def pip_requirements(projects: Iterable[str]) -> list[str]:
    """Return the arguments with which pip installs these projects in the required releases."""
    by_project = requirements()
    return [by_project.get(project, project) for project in projects]


def find_library(module: str | None) -> Library | None:
    """Return the library that provides a module such as `elftools.elf.elffile`."""
    libraries = (*DEPENDENCIES, *FLEET, *SYMBOL_LIBRARIES)
    return next((library for library in libraries if f"{module or ''}.".startswith(f"{library.module}.")), None)


def import_library(module: str, *names: str) -> Any:  # noqa: ANN401 - a module without types, for one
    """Import and return a library's module. `names`: attributes without which it is damaged, or another project's module.

    Raises ImportError for all errors but MemoryError.
    """
    try:
        imported = import_module(module)
        for name in names:
            getattr(imported, name)
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, ImportError) and find_library(error.name):
            raise
        from sframegen.base.one_file import is_lost_memory_error  # noqa: PLC0415 - `doctor` has to start without other packages

        if is_lost_memory_error(error):
            raise MemoryError from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ImportError(f"{module} cannot be imported: {reason}", name=module) from error
    return imported
