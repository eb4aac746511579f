"""Boots Debian's kernels under qemu-system, and compares what sframegen profile and sframegen stack see there: corpus/README.md.

Needs qemu-system-x86_64, qemu-system-aarch64, gcc for both machines, and an archive of Debian. Exit status 1: a stack differs, or a
kernel is refused that should not be, or is not refused that should be.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from corpus import measured
from corpus.fetch.__main__ import FetchError
from corpus.kernels.debian_kernels import KERNELS, fetch_kernel
from corpus.kernels.guest_root import make_initramfs
from corpus.kernels.report import Outcome, record
from corpus.kernels.virtual_machine import boot

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
    parser = measured.argument_parser("corpus.kernels", __doc__)
    parser.add_argument("--only", choices=[kernel.name for kernel in KERNELS], action="append", help="may be given again")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for each boot (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="boots at the same time (default %(default)s)")
    options = parser.parse_args()

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
    measured.write(options.json, {"kernels": list(map(record, outcomes))})
    return int(any(outcome.fault for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
