"""Container images of Debian packages, with sections in one more layer, beside the same without: corpus/README.md.

Exit status 1: something is not as it has to be.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from corpus.images.image_report import markdown
from corpus.images.image_trial import PROGRAMS, try_layout
from corpus.images.layered import debian, make_layout
from corpus.report_pages import write_or_print


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m corpus.images", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--keep", type=Path, help="a directory for the image and the archives it is made of, which the next run takes from there"
    )
    parser.add_argument("--report", type=Path, help="write the report to this file, not to standard output")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="corpus-images-") as scratch:
        kept = options.keep or Path(scratch, "kept")
        kept.mkdir(parents=True, exist_ok=True)
        layout = kept / "layout"
        if not layout.exists():
            make_layout(Path(scratch, "layout"), Path(scratch), debian(kept))
            shutil.move(Path(scratch, "layout"), layout)
        trials = []
        for trial in try_layout(layout, Path(scratch), PROGRAMS):
            trials.append(trial)
            print(f"{trial.name}: {trial.given} of {trial.elf_files} given a section in {trial.seconds:.1f} s", file=sys.stderr)
            for fault in trial.faults:
                print(f"    {fault}", file=sys.stderr)
    text = markdown(trials, time.monotonic() - started)
    write_or_print(options.report, text)
    return int(any(trial.faults for trial in trials))


if __name__ == "__main__":
    sys.exit(main())
