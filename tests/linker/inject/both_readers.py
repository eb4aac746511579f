"""What both readers of written files say of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linker.files.read_back import READERS
from linker.inject.verify import verify_injection

if TYPE_CHECKING:
    from pathlib import Path

    from linker.inject.plan import InjectionPlan
    from sframegen.elf.file import ElfFile


def findings(plan: InjectionPlan, original: ElfFile, result: Path) -> list[str]:
    """The same of each reader, except who cannot read it."""
    first, *others = (
        [one.replace(reader, "the reader") for one in verify_injection(plan, original, result, reader)] for reader in READERS
    )
    assert all(first == other for other in others)
    return first
