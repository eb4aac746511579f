"""Constants of the machines that `profile` supports, by their names in uname. setup.py runs this file.

Stack conventions are in sframegen/stack/abi, and the registers that the kernel program reads in bpf/machine.h.
"""

from __future__ import annotations

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "s390x": 331}  # the number of the system call
BPF_TARGETS = {"x86_64": "x86", "aarch64": "arm64"}  # libbpf's names of the machines that have a kernel program
ARCHITECTURES = ("x86-64", "AArch64")  # names for messages
LINK_REGISTER = 30  # of AArch64: the only register in which a decoded rule may expect the return address; x86-64 has none
