"""Modules of other people that have the name of one of our packages."""

from __future__ import annotations

import os
import sys

from sframegen.program.build import packages_directory

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
