"""Options of prctl: {key, section's address, its length} to register, {key} to unregister.

They never got numbers, so these are the arguments after the option. Unused ones must be 0.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.registry.interface import refuse_call, text_range
from sframegen.registry.regions import Region, RegistryError, SectionDescriber

if TYPE_CHECKING:
    from sframegen.format.decode import SframeSection
    from sframegen.registry.interface import Caller


def prctl_register(caller: Caller, key: int, address: int, length: int, arg5: int = 0) -> Region:
    """Register a section. Its code goes from its first function to the end of its last.

    Raises RegistryError: EFAULT or EINVAL by the section, EINVAL for an unused argument, EEXIST for a key that is in use or an
    overlap.
    """
    if arg5:
        refuse_call("the last argument is not used")
    section = caller.section(address, length)
    region = Region(*_described(section), ("prctl", key), SectionDescriber(section))
    if any(other.key == region.key for other in caller.registry):
        raise RegistryError(errno.EEXIST, f"key {key:#x} is in use")
    return caller.registry.register(region)


def prctl_unregister(caller: Caller, key: int, *unused: int) -> list[Region]:
    """Unregister a section. Raises RegistryError: EINVAL for an unknown key or an unused argument."""
    if any(unused):
        refuse_call("the last arguments are not used")
    return caller.registry.unregister(("prctl", key))


def _described(section: SframeSection) -> tuple[int, int]:
    try:
        table = section.table
    except FormatError as error:
        refuse_call(str(error))
    if not len(table):
        refuse_call("the section describes no function")
    return text_range(min(table.start), max(map(int.__add__, table.start, table.size)))
