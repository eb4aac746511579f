"""The proposed system calls: read the memory of the calling process, check the arguments, register code or refuse with an errno."""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from sframegen.base.errors import FormatError
from sframegen.format.decode import open_section
from sframegen.format.layouts import HEADER_SIZE
from sframegen.registry.jit_tables import ADDRESSES, JitDescriber
from sframegen.registry.regions import Region, RegistryError, SectionDescriber
from sframegen.registry.structures import CodeJitInfo, SframeSetup, decode_struct, struct_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.format.abi import Abi
    from sframegen.format.decode import SframeSection
    from sframegen.registry.regions import Memory, Registry
    from sframegen.registry.structures import R

MAX_STRUCT_BYTES = 4096  # a page, as in similar calls of the kernel
MAX_SECTION_BYTES = 1 << 28  # read into our memory; the largest section of the corpus has 5 MB


class Caller(NamedTuple):
    """The calling process, with its registry."""

    registry: Registry
    memory: Memory
    abi: Abi

    def read(self, address: int, size: int) -> bytes:
        """Read memory. Raises RegistryError: EFAULT."""
        raw = self.memory.read(address, size) if size and 0 <= address <= ADDRESSES - size else b""
        if len(raw) != size:
            raise RegistryError(errno.EFAULT, f"{size} bytes at {address:#x} cannot be read")
        return raw

    def copy_struct(self, kind: type[R], address: int, size: int) -> R:
        """Return the structure of `size` bytes at an address. Missing fields are 0; unknown ones must be 0, else E2BIG."""
        if size > MAX_STRUCT_BYTES:
            raise RegistryError(errno.E2BIG, f"a structure of {size} bytes")
        if size < 0:
            refuse_call(f"a structure of {size} bytes")
        raw = self.read(address, size)
        known = struct_size(kind)
        if any(raw[known:]):
            raise RegistryError(errno.E2BIG, f"fields after the first {known} bytes are not 0")
        return decode_struct(kind, raw[:known].ljust(known, b"\0"), self.abi.byte_order)

    def section(self, start: int, size: int) -> SframeSection:
        """Return the section at an address. Raises RegistryError: EFAULT, or EINVAL for an invalid one."""
        if not start or not HEADER_SIZE <= size <= MAX_SECTION_BYTES or start + size > ADDRESSES:
            refuse_call(f"no section has {size} bytes at {start:#x}")
        try:
            section = open_section(self.read(start, size), start)
        except FormatError as error:
            refuse_call(str(error))
        if section.abi.sframe_id != self.abi.sframe_id:
            refuse_call(f"a section for {section.abi.name}")
        return section


def text_range(start: int, end: int) -> tuple[int, int]:
    """Return (start, end) if valid. Raises RegistryError: EINVAL if the range is empty, at 0, or wraps around."""
    if not 0 < start < end <= ADDRESSES:
        refuse_call(f"no code at {start:#x} to {end:#x}")
    return start, end


def refuse_call(message: str) -> NoReturn:
    raise RegistryError(errno.EINVAL, message)


# --- The system calls sframe_register and sframe_unregister


def sframe_register(caller: Caller, data: int, size: int) -> Region:
    """Register a section. `data`: address of a struct sframe_setup of `size` bytes.

    Raises RegistryError: E2BIG or EFAULT for the structure, EFAULT or EINVAL for the ranges and the section, EEXIST for an overlap.
    """
    setup = caller.copy_struct(SframeSetup, data, size)
    start, end = text_range(setup.text_start, setup.text_start + setup.text_size)
    section = caller.section(setup.sframe_start, setup.sframe_size)
    return caller.registry.register(Region(start, end, ("sframe", setup.sframe_start), SectionDescriber(section)))


def sframe_unregister(caller: Caller, data: int, size: int) -> list[Region]:
    """Remove all regions of a section. The structure is that of `sframe_register`, with sframe_start only."""
    setup = caller.copy_struct(SframeSetup, data, size)
    if any(setup[1:]):
        refuse_call("only sframe_start may be set")
    return caller.registry.unregister(("sframe", setup.sframe_start))


# --- The system call codectl, for code made at run time: sections of ELF files are registered with sframe_register


class CodeOption(IntEnum):
    REGISTER_JIT = 1
    UNREGISTER = 2


def codectl(caller: Caller, option: int, info: int, info_size: int, flags: int = 0) -> list[Region]:
    """Register or unregister code made at run time; return the regions that were added or removed.

    `info`: the address of a structure of `info_size` bytes; to unregister, the text_start itself.

    Raises RegistryError: EINVAL for an unknown option or a flag, and what the option's function raises.
    """
    if flags or option not in OPTIONS:
        refuse_call(f"option {option}, flags {flags:#x}")
    return OPTIONS[CodeOption(option)](caller, info, info_size)


def _register_jit(caller: Caller, address: int, size: int) -> list[Region]:
    info = caller.copy_struct(CodeJitInfo, address, size)
    start, end = text_range(info.text_start, info.text_end)
    if not info.unwind_head:
        refuse_call("no table")
    describer = JitDescriber(caller.memory, info, caller.abi)
    try:
        describer.refresh()
    except FormatError as error:
        refuse_call(str(error))
    return [caller.registry.register(Region(start, end, ("codectl", start), describer))]


def _unregister(caller: Caller, text_start: int, size: int) -> list[Region]:
    if size:
        refuse_call("there is no structure to unregister by")
    return caller.registry.unregister(("codectl", text_start))


OPTIONS: dict[CodeOption, Callable[[Caller, int, int], list[Region]]] = {
    CodeOption.REGISTER_JIT: _register_jit,
    CodeOption.UNREGISTER: _unregister,
}
