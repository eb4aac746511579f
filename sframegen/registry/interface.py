"""What all interfaces do alike: read the memory of the process that calls, check what it says, refuse with an errno."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

from cfi.errors import FormatError
from sframegen.format.decode import open_section
from sframegen.format.records import HEADER_SIZE
from sframegen.registry.regions import RegistryError
from sframegen.registry.structures import decode, size_of

if TYPE_CHECKING:
    from sframegen.format.abi import Abi
    from sframegen.format.decode import SframeSection
    from sframegen.registry.regions import Registry
    from sframegen.registry.structures import R

ADDRESSES = 1 << 64
MAX_STRUCT_BYTES = 4096  # as the kernel's calls of this kind have it: a page
MAX_SECTION_BYTES = 1 << 28  # read into our memory; the largest section of the corpus has 5 MB


class Memory(Protocol):
    """The memory of a process."""

    def read(self, address: int, size: int) -> bytes:
        """The bytes at an address; fewer where readable memory ends. Never raises."""


class Caller(NamedTuple):
    """The process that calls, and what it has registered."""

    registry: Registry
    memory: Memory
    abi: Abi

    def read(self, address: int, size: int) -> bytes:
        """Raises RegistryError: EFAULT."""
        raw = self.memory.read(address, size) if size and 0 <= address <= ADDRESSES - size else b""
        if len(raw) != size:
            raise RegistryError(errno.EFAULT, f"{size} bytes at {address:#x} cannot be read")
        return raw

    def copy_struct(self, kind: type[R], address: int, size: int) -> R:
        """The structure of `size` bytes at an address. Fields that it lacks are 0; what it has beyond ours must be, else E2BIG."""
        if size > MAX_STRUCT_BYTES:
            raise RegistryError(errno.E2BIG, f"a structure of {size} bytes")
        if size < 0:
            refuse(f"a structure of {size} bytes")
        raw = self.read(address, size)
        known = size_of(kind)
        if any(raw[known:]):
            raise RegistryError(errno.E2BIG, f"fields after the first {known} bytes are not 0")
        return decode(kind, raw[:known].ljust(known, b"\0"), self.abi.byte_order)

    def section(self, start: int, size: int) -> SframeSection:
        """The section at an address. Raises RegistryError: EFAULT, or EINVAL for one that is bad."""
        if not start or not HEADER_SIZE <= size <= MAX_SECTION_BYTES or start + size > ADDRESSES:
            refuse(f"no section has {size} bytes at {start:#x}")
        try:
            section = open_section(self.read(start, size), start)
        except FormatError as error:
            refuse(str(error))
        if section.abi.sframe_id != self.abi.sframe_id:
            refuse(f"a section for {section.abi.name}")
        return section


def text_range(start: int, end: int) -> tuple[int, int]:
    """Raises RegistryError: EINVAL for a range that is empty, at 0, or wraps around."""
    if not 0 < start < end <= ADDRESSES:
        refuse(f"no code at {start:#x} to {end:#x}")
    return start, end


def refuse(message: str) -> NoReturn:
    raise RegistryError(errno.EINVAL, message)
