"""Stands in for the `cython` module where Cython is not installed: the compiled modules then run as the plain Python they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

compiled = False


def locals(**_types: str) -> Callable[[T], T]:  # noqa: A001 - Cython's name
    return lambda function: function


def exceptval(_value: int) -> Callable[[T], T]:
    return lambda function: function


def boundscheck(_checked: bool) -> Callable[[T], T]:
    return lambda function: function


def declare(_kind: str, **_options: str) -> Any:  # noqa: ANN401 - Cython's contract
    return None


def prefetch(_address: object) -> None:
    """Prefetch the memory at an address. Never called: modules that use it declare the real one in their `.pxd`."""


def cclass(kind: T) -> T:
    return kind


cfunc = final = cclass
