"""Demangles C++ names with the C++ library of this machine; Rust names too, if they are mangled like C++ names.

A short name can expand until it fills the memory: a separate process with limits demangles.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import resource
import signal
import struct
from bisect import bisect_right
from functools import cache, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from sframegen.stack.names.rust import demangle_v0

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import BinaryIO

LIBRARY = "libstdc++.so.6"
RUST_HASH = re.compile("::h[0-9a-f]{16}$")
LENGTH = struct.Struct("=I")
MAX_TEXT = 1 << 16  # bytes: longer names are useless
MAX_MEMORY = 1 << 26  # bytes more than the process has at its start
MAX_SECONDS = 0.25  # of CPU time for a name
MAX_SENT = (
    1 << 15
)  # bytes of names that are sent before the answers are read: they fit into a pipe, so neither process waits forever
MAX_PART = 1024  # names, the same
MAX_DEATHS = 4  # of such processes; after these, names stay mangled


@cache
def _functions() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Return the demangler and the function that frees its results; None without the library."""
    try:
        demangler, free = ctypes.CDLL(LIBRARY)["__cxa_demangle"], ctypes.CDLL(None)["free"]
    except (OSError, AttributeError):
        return None
    demangler.restype = ctypes.c_void_p
    demangler.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    free.argtypes = (ctypes.c_void_p,)
    return demangler, free


class _Helper:
    """The process; started for the first name, and again after a name ended it."""

    def __init__(self) -> None:
        self._pid = 0
        self._deaths = 0
        self._names: BinaryIO
        self._texts: BinaryIO

    def ask_all(self, names: list[bytes]) -> list[bytes]:
        """Return the demangled names, in order; empty without an answer."""
        texts: list[bytes] = []
        while len(texts) < len(names) and self._deaths < MAX_DEATHS:
            part = names[len(texts) : len(texts) + MAX_PART]
            sizes = accumulate(LENGTH.size + len(name) for name in part)
            part = part[: max(1, bisect_right(list(sizes), MAX_SENT))]
            try:
                if not self._pid:
                    self._start()
                _send(self._names, *part)
                texts.extend(_receive(self._texts) for _ in part)
            except (OSError, EOFError):  # the first name without an answer ended the process
                self._deaths += 1
                self.end()
                texts.append(b"")
        return texts + [b""] * (len(names) - len(texts))

    def end(self) -> None:
        if self._pid:
            self._names.close()
            self._texts.close()
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _start(self) -> None:
        names, to_names = os.pipe()
        from_texts, texts = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(to_names)
                os.close(from_texts)
                _serve(open(names, "rb"), open(texts, "wb"))  # noqa: SIM115, PTH123 - until it ends
            finally:
                os._exit(0)
        os.close(names)
        os.close(texts)
        self._pid, self._names, self._texts = pid, open(to_names, "wb", 0), open(from_texts, "rb")  # noqa: SIM115, PTH123


_HELPER = _Helper()
atexit.register(_HELPER.end)


def _send(file: BinaryIO, *texts: bytes) -> None:
    file.write(b"".join(LENGTH.pack(len(text)) + text for text in texts))
    file.flush()


def _receive(file: BinaryIO) -> bytes:
    """Raises EOFError."""
    head = file.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    size = LENGTH.unpack(head)[0]
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _serve(names: BinaryIO, texts: BinaryIO) -> None:
    """Demangle until there are no more names, or one exceeds a limit."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent may still need names: this process ends with it
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    functions = _functions()
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MAX_MEMORY,) * 2)
    while True:
        name = _receive(names)
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        found = functions[0](name, None, None, None) if functions else None
        text = ctypes.string_at(found, _length(found)) if found else b""
        if functions and found:
            functions[1](found)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _send(texts, text)


def _length(address: int) -> int:
    """Return the length of the text; 0 if it is too long."""
    return size if (size := ctypes.CDLL(None)["strnlen"](ctypes.c_void_p(address), MAX_TEXT + 1)) <= MAX_TEXT else 0


@lru_cache(1 << 14)
def demangle(name: str) -> str:
    """Demangle a name. It stays unchanged if it is not mangled, cannot be demangled here, or would be too long."""
    return demangle_all([name])[name]


def demangle_all(names: Iterable[str]) -> dict[str, str]:
    """Demangle many names together, which is quicker: {name: text}."""
    found = {name: (name.startswith("_R") and demangle_v0(name)) or name for name in names}
    mangled = [name for name in found if name.startswith("_Z")]
    if mangled and _functions():  # the library takes as long to load as the names of a large program
        for name, text in zip(mangled, _HELPER.ask_all([name.encode() for name in mangled]), strict=True):
            found[name] = RUST_HASH.sub("", text.decode(errors="replace")) or name
    return found
