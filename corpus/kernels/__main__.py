"""Boots Debian's kernels under qemu-system, and compares what sframegen profile and sframegen stack see there: corpus/README.md.

The head of the report, docs/reports/kernels.md, says what is run and compared. Needs qemu-system-x86_64, qemu-system-aarch64, gcc
for both machines, and an archive of Debian. Exit status 1: a stack differs, or a kernel is refused that should not be, or is not
refused that should be.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.fetch.__main__ import FetchError
from corpus.kernels.debian_kernels import KERNELS, fetch_kernel
from corpus.kernels.guest_root import make_initramfs
from corpus.kernels.report import Outcome, markdown
from corpus.kernels.virtual_machine import boot
from corpus.report_pages import write_or_print

if TYPE_CHECKING:
    from corpus.kernels.debian_kernels import Kernel

TIMEOUT = 600


def tried(kernel: Kernel, initramfs: Path, timeout: float) -> Outcome:
    try:
        found = boot(kernel.architecture, fetch_kernel(kernel), initramfs, timeout)
    except (FetchError, OSError, subprocess.CalledProcessError) as error:
        found = {"failed": str(error)}
    outcome = Outcome(kernel, found)
    print(f"{kernel.name}: {outcome.fault or 'as it should be'}; {found}", file=sys.stderr, flush=True)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m corpus.kernels", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=[kernel.name for kernel in KERNELS], action="append", help="may be given again")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for each boot (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="boots at the same time (default %(default)s)")
    parser.add_argument("--report", type=Path, help="write the report to this file, not to standard output")
    options = parser.parse_args()

    started = time.monotonic()
    chosen = [kernel for kernel in KERNELS if not options.only or kernel.name in options.only]
    with (
        tempfile.TemporaryDirectory(prefix="corpus-kernels-") as scratch,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        initramfs = {
            architecture: make_initramfs(architecture, Path(scratch))
            for architecture in sorted({kernel.architecture for kernel in chosen})
        }
        outcomes = list(pool.map(lambda kernel: tried(kernel, initramfs[kernel.architecture], options.timeout), chosen))
    text = markdown(outcomes, f"`python -m corpus.kernels --jobs {options.jobs}`, {time.monotonic() - started:.0f} s:")
    write_or_print(options.report, text)
    return int(any(outcome.fault for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
