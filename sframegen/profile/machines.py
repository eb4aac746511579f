"""What `profile` needs of each machine besides its stacks (sframegen/stack/abi), by uname's name for it. setup.py runs this file.

The registers that the kernel program reads are in bpf/machine.h.
"""

from __future__ import annotations

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "s390x": 331}  # the number of the system call
BPF_TARGETS = {"x86_64": "x86", "aarch64": "arm64"}  # as libbpf's headers call those with a kernel program
PROFILED = ("x86-64", "AArch64")  # those whose samples are walked, for people
LINK_REGISTER = 30  # AArch64's: the only register in which walks of tables expect a return address; on x86-64 no rule does
