"""A proposed system call -> whether this kernel has it, by name: its number may be another call's."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

BTF, SYMBOLS = Path("/sys/kernel/btf/vmlinux"), Path("/proc/kallsyms")
ENTRY = "__{}_sys_{}"  # the function of a system call
MACHINES = ("x64", "arm64", "s390x")


def has_call(name: str) -> bool | None:
    """None where the kernel shows neither its types nor its symbols."""
    entries = {ENTRY.format(machine, name).encode() for machine in MACHINES}
    is_known = False
    with suppress(OSError):
        data = BTF.read_bytes()
        is_known = bool(data)
        if any(b"\0" + entry + b"\0" in data for entry in entries):
            return True
    with suppress(OSError), SYMBOLS.open("rb") as lines:
        for line in lines:  # address, kind, name, and perhaps a module
            is_known = True
            if line.split()[2:3] and line.split()[2] in entries:
                return True
    return False if is_known else None
