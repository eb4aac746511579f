# What mypy needs to know of the names that the compiled modules use; Cython ships no stubs for them.
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")

compiled: bool

bint = bool
int = int
longlong = int
ulonglong = int
Py_ssize_t = int

def locals(**types: str) -> Callable[[_T], _T]: ...
def declare(kind: str, *, visibility: str = ...) -> Any: ...
def exceptval(value: int) -> Callable[[_T], _T]: ...
def final(cls: _T) -> _T: ...
def cfunc(function: _T) -> _T: ...
def cclass(cls: _T) -> _T: ...
