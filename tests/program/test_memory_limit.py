from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from sframegen.program.forked import ForkedProcess, limit_memory


def address_space() -> int:
    limit_memory(1 << 26)
    return resource.getrlimit(resource.RLIMIT_AS)[1]


@pytest.mark.sampled
@pytest.mark.parametrize("spare", [1 << 24, 1 << 30])
def test_a_lower_limit_of_the_user_stays(spare: int) -> None:
    """With `ulimit -v`, the process that demangles names ended before its first answer, and all names stayed mangled."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    allowed = size + spare

    def prepare(_: int) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
        if os.geteuid() == 0:
            os.setuid(65534)  # root may raise it

    process = ForkedProcess(address_space, prepare)
    process.ask(())
    limit = process.answer().value
    process.end()
    assert limit == allowed if spare == 1 << 24 else limit < allowed
