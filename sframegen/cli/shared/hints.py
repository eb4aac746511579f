"""The option that allows a refused change."""

from __future__ import annotations

from linker.files.refusals import Refusal, RefusedError
from linker.inject.kernel_versions import SAFE_SINCE, KernelChange

HINTS = {
    Refusal.SIGNED: "--force changes it anyway: sign it again afterwards",
    Refusal.OTHER_SECTION: "--replace puts that in its place",
    Refusal.FOREIGN_SECTION: "--force takes it out",
    Refusal.DYNAMIC_LOADER: f"--min-kernel {SAFE_SINCE[KernelChange.SEGMENT_IN_A_LOADER]} allows it, as does add-section --force",
    Refusal.OLD_KERNELS: f"--min-kernel {SAFE_SINCE[KernelChange.TABLE_AT_THE_END]} puts them at the end of the file",
    Refusal.NO_ROOM_LOADED: "--unloaded adds a section for tools that read the file",
    Refusal.NO_ROOM_IN_PLACE: "sframegen add-section --replace makes a new one",
    Refusal.NO_LINKER: "--linker names another",
    Refusal.NO_MEMORY_TO_VERIFY: "--no-verify does without",
}


def hint_of(error: Exception) -> str | None:
    """Return the option that allows what was refused, if there is one."""
    return HINTS.get(error.reason) if isinstance(error, RefusedError) else None
