"""The common part of all interfaces: read the memory of the calling process, check the arguments, refuse with an errno."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

from sframegen.base.errors import FormatError
from sframegen.format.decode import open_section
from sframegen.format.layouts import HEADER_SIZE
from sframegen.registry.regions import RegistryError
from sframegen.registry.structures import decode_struct, struct_size

if TYPE_CHECKING:
    from sframegen.format.abi import Abi
    from sframegen.format.decode import SframeSection
    from sframegen.registry.regions import Registry
    from sframegen.registry.structures import R

ADDRESSES = 1 << 64
MAX_STRUCT_BYTES = 4096  # a page, as in similar calls of the kernel
MAX_SECTION_BYTES = 1 << 28  # read into our memory; the largest section of the corpus has 5 MB


class Memory(Protocol):
    """The memory of a process."""

    def read(self, address: int, size: int) -> bytes:
        """Return the bytes at an address, fewer if readable memory ends. Never raises."""


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
    """Return the range. Raises RegistryError: EINVAL if it is empty, at 0, or wraps around."""
    if not 0 < start < end <= ADDRESSES:
        refuse_call(f"no code at {start:#x} to {end:#x}")
    return start, end


def refuse_call(message: str) -> NoReturn:
    raise RegistryError(errno.EINVAL, message)
