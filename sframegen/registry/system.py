"""The calls of a real kernel. A process registers its own code, and cannot register another's."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sframegen.registry.regions import RegistryError
from sframegen.registry.structures import SframeSetup, encode, struct_size

if TYPE_CHECKING:
    from sframegen.elf.records import ByteOrder
    from sframegen.registry.codectl_calls import CodeOption

ORDER: ByteOrder = sys.byteorder
BTF, SYMBOLS = Path("/sys/kernel/btf/vmlinux"), Path("/proc/kallsyms")
ENTRY = rb"__[a-z0-9]+_sys_%b"  # the function of a system call; its name has that of the machine, too


def sframe_register(setup: SframeSetup, number: int) -> None:
    """Register a section. Raises RegistryError: ENOSYS if the kernel has no such call, whatever call has the number."""
    _sframe("sframe_register", number, setup)


def sframe_unregister(sframe_start: int, number: int) -> None:
    """Unregister a section. Raises RegistryError, like `sframe_register`."""
    _sframe("sframe_unregister", number, SframeSetup(sframe_start, 0, 0, 0))


def prctl(option: int, *arguments: int) -> None:
    """Call prctl. `option`: its number, which was never assigned; then {key, address, length}, or {key}. Raises RegistryError."""
    words = [*arguments, 0, 0, 0, 0][:4]
    _check("prctl", option, _LIBC.prctl(ctypes.c_int(option), *map(ctypes.c_ulong, words)))


def codectl(number: int, option: CodeOption, info: bytes | int, flags: int = 0) -> None:
    """Call codectl. `info`: a structure, or the text_start to unregister. Raises RegistryError: ENOSYS without the call."""
    if isinstance(info, int):
        _call("codectl", number, option, info, 0, flags)
    else:
        buffer = ctypes.create_string_buffer(info, len(info))
        _call("codectl", number, option, ctypes.addressof(buffer), len(info), flags)


def has_call(name: str) -> bool | None:
    """True if this kernel has a call of that name; None where it shows neither its types nor its symbols."""
    entry = ENTRY % name.encode()
    is_known = False
    with suppress(OSError):
        data = BTF.read_bytes()
        is_known = bool(data)
        if re.search(rb"\0%b\0" % entry, data):
            return True
    with suppress(OSError), SYMBOLS.open("rb") as lines:
        for line in lines:  # address, kind, name, and perhaps a module
            is_known = True
            if re.fullmatch(entry, b"".join(line.split()[2:3])):
                return True
    return False if is_known else None


_LIBC = ctypes.CDLL(None, use_errno=True)


def _sframe(name: str, number: int, setup: SframeSetup) -> None:
    buffer = ctypes.create_string_buffer(encode(setup, ORDER), struct_size(SframeSetup))
    _call(name, number, ctypes.addressof(buffer), struct_size(SframeSetup))


def _call(name: str, number: int, *arguments: int) -> None:
    """Nothing is asked of a kernel without the call: the number is then another call's, or none's."""
    if has_call(name) is False:
        raise RegistryError(errno.ENOSYS, f"{name}: this kernel has no such system call, whatever has number {number}")
    _check(name, number, _LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments)))


def _check(name: str, number: int, result: int) -> None:
    if result != -1:
        return
    code = ctypes.get_errno()
    why = f"this kernel has no system call {number}" if code == errno.ENOSYS else os.strerror(code)
    raise RegistryError(code, f"{name}: {why}")
