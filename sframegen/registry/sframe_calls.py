"""The system calls sframe_register and sframe_unregister."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.registry.interface import refuse_call, text_range
from sframegen.registry.regions import Region, SectionDescriber
from sframegen.registry.structures import SframeSetup

if TYPE_CHECKING:
    from sframegen.registry.interface import Caller


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
