"""Demangles names of C++ and Rust with LLVM's demanglers, if the library pycxxfilt is installed.

A separate process with limits demangles, because a short name can expand until it fills the memory or the stack.
"""

from __future__ import annotations

import atexit
import re
import signal
import sys
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sframegen.elf.symbols import MANGLED
from sframegen.program.forked import (
    ForkedProcess,
    die_with_parent,
    keep_only_descriptors,
    limit_memory,
    redirect_to_null,
    reuse_or_start,
)
from sframegen.program.forker import Forker

if TYPE_CHECKING:
    from collections.abc import Iterable

LIBRARY = "pycxxfilt"
RUST_HASH = re.compile("::h[0-9a-f]{16}$")
# `..` for ::, `$LT$` for <, `$u7b$` for { by its code. If a part of the path begins with a sign, _ comes before it.
RUST_SIGN = re.compile(r"\.\.|(?:(?<=::)_|^_)?\$([A-Z]{1,2}|u([0-9a-f]{2,6}))\$")
RUST_SIGNS = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}
MAX_TEXT = 1 << 16  # characters, because longer names are useless
MAX_MEMORY = 1 << 26  # bytes beyond what the process has after loading the library
MAX_SECONDS = 0.25  # of CPU time for a name
MAX_BATCH = 256  # names that are sent at once; texts of the greatest length then take a quarter of that memory
MAX_DEATHS = 4  # processes that a single name may end; after these, names stay mangled


@cache
def can_demangle() -> bool:
    return find_spec(LIBRARY) is not None


class _Demangler:
    """The process that demangles. It is started with `begin` or for the first name, and again after a name has ended it."""

    def __init__(self) -> None:
        self._forker = Forker(_demangle_names, _limit_process)
        self._process: ForkedProcess | None = None
        self._deaths = 0

    def demangle(self, names: list[str]) -> list[str]:
        """Return the demangled names, in order, with an empty text for each name that could not be demangled."""
        texts: list[str] = []
        batch_size = MAX_BATCH
        while len(texts) < len(names) and self._deaths < MAX_DEATHS:
            batch = names[len(texts) : len(texts) + batch_size]
            try:
                process = self._running_process()
                process.ask((batch,))
                texts += process.answer().value
            except OSError:
                self._end()
                if len(batch) == 1:
                    self._deaths += 1
                    texts.append("")
                batch_size = MAX_BATCH if len(batch) == 1 else 1  # one by one, to find the name that ended it
        return texts + [""] * (len(names) - len(texts))

    def begin(self) -> None:
        """Start the process now, because it and its successors get a copy of this one's memory. Raises OSError."""
        self._forker.begin()
        self._running_process()

    def close(self) -> None:
        self._end()
        self._forker.close()

    def _running_process(self) -> ForkedProcess:
        """Return the process, which is started unless it runs. Raises OSError."""
        self._process = reuse_or_start(self._process, self._forker.start_process)
        return self._process

    def _end(self) -> None:
        if self._process:
            self._process.end()
            self._process = None


# The functions from here to _demangle_name run in the process that demangles.


def _limit_process(pipe: int) -> None:
    """Give up all descriptors but the pipe, and limit the memory."""
    die_with_parent(ignore_signals=True)
    redirect_to_null(1, 2)
    keep_only_descriptors(pipe)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _demangle_name("")  # loads the library before the limit
    limit_memory(MAX_MEMORY)


def _demangle_names(names: list[str]) -> list[str]:
    """Return the demangled names. A name that exceeds a limit ends the process."""
    texts = []
    for name in names:
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        texts.append(_demangle_name(name))
    signal.setitimer(signal.ITIMER_PROF, 0)
    return texts


def _demangle_name(name: str) -> str:
    """Return the name demangled; an empty text if it is not mangled, or its text is too long."""
    from pycxxfilt import demangle as by_library  # noqa: PLC0415 - for this process only

    try:
        text: str = by_library(name) or ""
    except ValueError:
        return ""
    return text if len(text) <= MAX_TEXT else ""


_DEMANGLER = _Demangler()
atexit.register(_DEMANGLER.close)


def begin_demangling() -> None:
    """Start the process that demangles while this one has little memory, of which the fork keeps a copy. Raises OSError."""
    if can_demangle():
        _DEMANGLER.begin()


def demangle_all(names: Iterable[str]) -> dict[str, str]:
    """Return {name: demangled name} for many names together, which is quicker. Other names stay as they are."""
    results = {name: name for name in names}
    mangled = [name for name in results if name.startswith(MANGLED)]
    if mangled and can_demangle():
        for name, text in zip(mangled, _DEMANGLER.demangle(mangled), strict=True):
            results[name] = _clean_rust_path(text) or name
    return results


def _clean_rust_path(text: str) -> str:
    """Return a name without Rust's hash at its end, and with the signs that Rust's older mangling spells out."""
    path = RUST_HASH.sub("", text)
    is_rust = path != text
    return RUST_SIGN.sub(_decode_sign, path) if is_rust and ("$" in path or ".." in path) else path


def _decode_sign(match: re.Match[str]) -> str:
    if match[0] == "..":
        return "::"
    if match[2] is None:
        return RUST_SIGNS.get(match[1], match[0])
    code = int(match[2], 16)
    return chr(code) if code < sys.maxunicode and chr(code).isprintable() else match[0]
