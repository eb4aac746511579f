"""Our own packages: that no module of other people hides them, and which public names they have."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from sframegen.program.build import packages_directory

TYPE_CHECKING = False  # like typing's, which takes a while to import
if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("cfi", "linker")  # installed next to this package
MARK = b"A package of sframegen."  # in their __init__.py


def refuse_strangers() -> None:
    """Raises ImportError, in one line, where `import cfi` or `import linker` would give a module of another project."""
    ours = packages_directory()
    for name in NAMES:
        place = _place_of(name)
        if os.path.dirname(os.path.realpath(place)) != os.path.join(ours, name):  # noqa: PTH118, PTH120
            message = f"{place} hides sframegen's own package {name}: rename it, or take its directory off sys.path"
            raise ImportError(message, name=name, path=place)
        with open(place, "rb") as file:  # noqa: PTH123 - here and above: pathlib takes as long to import as all of this
            if MARK not in file.read(1000):
                message = f"another distribution has overwritten {place}: install sframegen again, in an environment of its own"
                raise ImportError(message, name=name, path=place)


def _place_of(name: str) -> str:
    """The file that `import` takes for a module of that name, or has taken; it is not executed. Empty where there is none."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None) or "a module without a file"
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None)
        if spec is not None:
            return spec.origin or "a directory without __init__.py"
    return ""


def public_names(package: str) -> tuple[list[str], Callable[[str], object]]:
    """The names that a package's `__init__.pyi` imports, one a line, and the package's `__getattr__`, which imports one of them."""
    stub = os.path.join(packages_directory(), *package.split("."), "__init__.pyi")  # noqa: PTH118
    with open(stub, encoding="utf-8") as file:  # noqa: PTH123
        module_of = {words[-1]: words[1] for words in map(str.split, file) if words[:1] == ["from"]}

    def get(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    return list(module_of), get
