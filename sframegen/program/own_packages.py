"""Checks that no module of another project hides our packages, and reads the public names of our packages."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from sframegen.program.build import packages_directory

TYPE_CHECKING = False  # like typing's, which takes a while to import
if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = ("cfi", "linker")  # installed next to this package
MARK = b"A package of sframegen."  # a line in their __init__.py


def refuse_foreign_packages() -> None:
    """Raise ImportError, with a message of one line, if `import cfi` or `import linker` would import another project's module."""
    ours = packages_directory()
    for name in PACKAGES:
        path = _find_file(name)
        if os.path.dirname(os.path.realpath(path)) != os.path.join(ours, name):  # noqa: PTH118, PTH120
            message = f"{path} hides sframegen's own package {name}: rename it, or take its directory off sys.path"
            raise ImportError(message, name=name, path=path)
        with open(path, "rb") as file:  # noqa: PTH123 - here and above: pathlib takes as long to import as all of this
            if MARK not in file.read(1000):
                message = f"another distribution has overwritten {path}: install sframegen again, in an environment of its own"
                raise ImportError(message, name=name, path=path)


def _find_file(name: str) -> str:
    """Return the file that `import` has taken, or would take, for a module; empty without one. The module is not executed."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None) or "a module without a file"
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None)
        if spec is not None:
            return spec.origin or "a directory without __init__.py"
    return ""


def public_names(package: str) -> tuple[list[str], Callable[[str], object]]:
    """Return the names that a package's `__init__.pyi` imports, one a line, and a `__getattr__` that imports them on demand."""
    stub = os.path.join(packages_directory(), *package.split("."), "__init__.pyi")  # noqa: PTH118
    with open(stub, encoding="utf-8") as file:  # noqa: PTH123
        module_of = {words[-1]: words[1] for words in map(str.split, file) if words[:1] == ["from"]}

    def get(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    return list(module_of), get
