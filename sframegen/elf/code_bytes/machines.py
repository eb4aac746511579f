"""The machines whose padding and calls are recognised, a row for each."""

from __future__ import annotations

from sframegen.elf.code_bytes import aarch64, s390x, x86_64
from sframegen.elf.records import EM_AARCH64, EM_S390, EM_X86_64

# By e_machine.
MACHINES = {EM_X86_64: x86_64.CODE_BYTES, EM_AARCH64: aarch64.CODE_BYTES, EM_S390: s390x.CODE_BYTES}
