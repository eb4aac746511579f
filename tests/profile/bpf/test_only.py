"""Of all tasks that could be sampled, those with a name: each page fault of a program is a sample, or none is."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from sframegen.profile.bpf.kernel_records import Statistic
from sframegen.profile.events.names import find_event
from sframegen.profile.sampling_plan import ProfilePlan
from tests.support.kernel_events import needs_bpf
from tests.support.processes.kernel_walks import Sampled
from tests.support.processes.live import HOLD

if TYPE_CHECKING:
    from tests.support.peers import Compiler

pytestmark = needs_bpf

PAGES = 50
PROGRAM = (
    HOLD
    + f"""
#include <sys/mman.h>
int main(void) {{
    hold();
    char *pages = mmap(0, {PAGES} * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(pages, {PAGES} * 4096, MADV_NOHUGEPAGE);
    for (int at = 0; at < {PAGES}; at++) pages[at * 4096] = 1;
    hold();
}}
"""
)


def samples(program: str, comm: str) -> int:
    plan = ProfilePlan(event=find_event("page-faults"), frequency=1, comm=comm)
    pipe = subprocess.PIPE
    with subprocess.Popen([program], stdin=pipe, stdout=pipe, start_new_session=True) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.stdout.readline() == b"here\n"
            with Sampled({process.pid}, plan) as sampled:
                sampled.publish(process.pid)
                sampled.walker.attach()
                os.write(process.stdin.fileno(), b".")
                assert process.stdout.readline() == b"here\n"
                sampled.end()
                return sampled.walker.statistics()[Statistic.SAMPLES]
        finally:
            os.killpg(process.pid, 9)


def test_filters_of_tasks(compile_c: Compiler) -> None:
    program = str(compile_c(PROGRAM, "-O1"))
    for comm, are_sampled in (("a.out", True), ("a.ou", False)):
        found = samples(program, comm)
        assert PAGES <= found < 2 * PAGES if are_sampled else found == 0, comm
