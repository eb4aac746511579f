"""Asks whether a file is a package, here and nowhere else: the library takes ELF files, objects and archives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from cfi.errors import FormatError
from sframegen.elf.opening import beginning_of
from sframegen.packages.kinds import BEGINNING, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

# A public function: the one that takes packages.
OF_PACKAGES = {"add_section": "add_to_package", "remove": "remove_from_package", "check": "check_package"}


def packages_too(of_file: Callable[..., R]) -> Callable[..., R]:
    """A public function, and for packages the one that takes these. If there is none, what is not handled is still named."""

    def work(path: str, **options: Any) -> R:  # noqa: ANN401 - as the public function has them
        if not is_package(path) or of_file.__name__ not in OF_PACKAGES:
            return of_file(path, **options)
        from sframegen.packages import package_api  # noqa: PLC0415 - only for packages

        of_package: Callable[..., R] = getattr(package_api, OF_PACKAGES[of_file.__name__])
        return of_package(path, **options)

    return work


def is_package(path: str) -> bool:
    """Raises FormatError for what is near to a package and not handled. A file that cannot be read is left to what reads it."""
    try:
        beginning = beginning_of(path, path, BEGINNING)
    except (FormatError, OSError):
        return False
    return kind_of(path, beginning) is not None
