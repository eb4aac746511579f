"""Replaces the `cython` module where Cython is not installed, so that the compiled modules also run as plain Python."""

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


def declare(_kind: str, **_options: str) -> Any:  # noqa: ANN401 - Cython's contract
    return None


def prefetch(_address: object) -> None:
    """Stand in for the compiler's prefetch, which modules declare in their `.pxd`; interpreted code never calls this."""


def cclass(kind: T) -> T:
    return kind


boundscheck = exceptval
cfunc = final = cclass
