"""Asks whether a file is a package, here and nowhere else: the library takes ELF files, objects and archives."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from sframegen.base.errors import FormatError
from sframegen.elf.file import beginning_of
from sframegen.packages.kinds import BEGINNING, kind_of
from sframegen.packages.unhandled import IMAGE, LAYOUT

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

# A public function: the one that takes packages.
OF_PACKAGES = {"add_section": "add_to_package", "remove": "remove_from_package", "check": "check_package"}


def packages_too(of_file: Callable[..., R]) -> Callable[..., R]:
    """A public function, and for packages the one that takes these; if there is none, they are refused."""

    def work(path: str, **options: Any) -> R:  # noqa: ANN401 - as the public function has them
        if of_file.__name__ not in OF_PACKAGES:
            refuse_package(path)
        if not is_package(path):
            return of_file(path, **options)
        from sframegen.packages import package_api  # noqa: PLC0415 - only for packages

        of_package: Callable[..., R] = getattr(package_api, OF_PACKAGES[of_file.__name__])
        return of_package(path, **options)

    return work


def is_package(path: str) -> bool:
    """Raises FormatError for what is near to a package and not handled. A file that cannot be read is left to what reads it."""
    try:
        beginning = beginning_of(path, path, BEGINNING)
    except IsADirectoryError:
        if os.path.lexists(f"{path}/{LAYOUT}"):
            raise FormatError(IMAGE, file=path) from None
        return False
    except (FormatError, OSError):
        return False
    return kind_of(path, beginning) is not None


def refuse_package(path: str) -> None:
    """Raises FormatError for a package, also for one that is not handled."""
    if is_package(path):
        raise FormatError("a package: add-section, remove and check take packages; unpack it, and give the files in it", file=path)
