"""The machines whose padding and calls are recognised, a row for each."""

from __future__ import annotations

from sframegen.elf.code_bytes import aarch64, s390x, x86_64
from sframegen.elf.records import EM

# By e_machine.
MACHINES = {EM.X86_64: x86_64.CODE_BYTES, EM.AARCH64: aarch64.CODE_BYTES, EM.S390: s390x.CODE_BYTES}
