"""C++ names as people write them, by the C++ library of this machine; Rust's too, where they are mangled as C++'s are."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LIBRARY = "libstdc++.so.6"
RUST_HASH = re.compile("::h[0-9a-f]{16}$")


@cache
def _functions() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """The demangler, and what frees its results; None where there is no such library."""
    try:
        demangler, free = ctypes.CDLL(LIBRARY)["__cxa_demangle"], ctypes.CDLL(None)["free"]
    except (OSError, AttributeError):
        return None
    demangler.restype = ctypes.c_void_p
    demangler.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    free.argtypes = (ctypes.c_void_p,)
    return demangler, free


def demangle(name: str) -> str:
    """The name itself where it is not mangled, or nobody here can read it."""
    functions = _functions() if name.startswith("_Z") else None
    if functions is None:
        return name
    demangler, free = functions
    found = demangler(name.encode(), None, None, None)
    if not found:
        return name
    text = ctypes.string_at(found).decode(errors="replace")
    free(found)
    return RUST_HASH.sub("", text)
