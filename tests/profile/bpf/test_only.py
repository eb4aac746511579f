"""Of all tasks that could be sampled, those with a name or of a user: each page fault of a program is a sample, or none is."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from sframegen.profile.bpf.kernel_records import Statistic
from sframegen.profile.bpf.sampling_settings import Only, Sampling
from sframegen.profile.events.names import event_named
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


def samples(program: str, only: Only) -> int:
    faults = event_named("page-faults")
    sampling = Sampling((faults.type, faults.config), 0, 1, only=only)
    pipe = subprocess.PIPE
    with subprocess.Popen([program], stdin=pipe, stdout=pipe, start_new_session=True) as process:
        assert process.stdin
        assert process.stdout
        try:
            assert process.stdout.readline() == b"here\n"
            with Sampled({process.pid}, sampling) as sampled:
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
    user = os.geteuid()
    for only, are_sampled in (
        (Only(comm="a.out"), True), (Only(comm="a.ou"), False), (Only(user=user), True), (Only(user=user + 54321), False),
    ):  # fmt: skip
        found = samples(program, only)
        assert PAGES <= found < 2 * PAGES if are_sampled else found == 0, only
