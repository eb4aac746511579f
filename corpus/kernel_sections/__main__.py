"""Adds sections to kernels and their modules, and judges them from outside: corpus/README.md.

Exit status 1: a rule is wrong or missing, or something is not as it should be.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random

from corpus import measured
from corpus.kernel_sections import build, image, modules
from corpus.kernel_sections.debian import FLAVOURS, fetched
from tests.support.peers import Peers

PARTS = ("modules", "image", "build")
MODULES, PCS = 100, 100_000


def main() -> int:
    parser = measured.argument_parser("corpus.kernel_sections", __doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be given again")
    parser.add_argument("--unpacked", type=Path, action="append", help="Debian's packages, unpacked, instead of those fetched")
    parser.add_argument("--modules", type=int, default=MODULES, help="of each kernel (default %(default)s)")
    parser.add_argument("--pcs", type=int, default=PCS, help="to look up (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    parser.add_argument("--builds", type=Path, default=Path("kernel-builds"), help="where kernels are built (default %(default)s)")
    options = parser.parse_args()
    parts = options.only or PARTS

    random = Random(options.seed)  # noqa: S311 - the same modules and PCs at each run
    peers, found = Peers(), {}
    with tempfile.TemporaryDirectory(prefix="corpus-kernel-sections-") as scratch:
        folder = Path(scratch)
        roots = options.unpacked or [fetched(one) for one in FLAVOURS.values() if {"modules", "image"} & set(parts)]
        if "modules" in parts:
            pcs = -(-options.pcs // len(roots))
            found["modules"] = [
                {"kernel": name, **modules.results(root, options.modules, pcs, random, folder / name, peers)}
                for name, root in ((next(root.glob("usr/lib/modules/*")).name, root) for root in roots)
            ]
        if "image" in parts:
            found["image"] = image.results(roots[0], options.pcs, random, folder, peers)
        if "build" in parts:
            found["build"] = build.results(options.builds, options.pcs, random, folder, peers)
    faults = [fault for part in found.values() for one in part for fault in one["faults"]]
    measured.write(options.json, {"seed": options.seed, **found, "faults": len(faults)})
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
