"""The code byte tables (padding, calls) of each supported machine, by e_machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sframegen.elf.records import MACHINE_NAMES

if TYPE_CHECKING:
    from sframegen.elf.code_bytes.forms import CodeBytes

MACHINES: dict[int, CodeBytes] = {
    machine: import_module(f"sframegen.elf.code_bytes.{name}").CODE_BYTES for machine, name in MACHINE_NAMES.items()
}
