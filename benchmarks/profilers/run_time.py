"""How long BPF programs run, as the kernel measures it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sframegen.profile.bpf.libbpf import library

if TYPE_CHECKING:
    from collections.abc import Iterator

STATS_RUN_TIME = 0


@contextmanager
def run_time_measured() -> Iterator[None]:
    """Within the block, the kernel measures all programs. Raises LoadError."""
    fd = library().functions.bpf_enable_stats(STATS_RUN_TIME)
    if fd < 0:
        raise library().make_error("the kernel does not measure programs", -fd)
    try:
        yield
    finally:
        os.close(fd)
