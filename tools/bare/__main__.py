"""README's commands where nothing is installed: `make test-bare`. Exit status 1: one of them failed.

Each root is a minimal Debian, made for the run, in which README says what to install. Needs root, and mmdebstrap.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = "apt,gcc,git,make,python3,python3-venv"  # in-chroot's: a variant of mmdebstrap, and all that README does not install


# About 150 tests that meet what differs between roots: tools, users, modes, the names of folders.
SMOKE = "tests/linker/files tests/cli/test_outputs.py tests/cli/test_add_section.py tests/program tests/project/test_install.py"


class Root(NamedTuple):
    suite: str
    user: str
    folder: str  # of the checkout
    umask: str

    def __str__(self) -> str:
        return f"{self.suite}, {self.user}, umask {self.umask}, in {self.folder!r}"


ROOTS = (
    Root("sid", "someone", "sframegen", "022"),
    Root("bookworm", "root", "sframegen", "022"),
    Root("trixie", "someone", "a check out/sframegen", "077"),
)
LAST, WIDTH = 12, 160  # lines and characters of a root that failed, once more at the end: others print between its lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.bare", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="roots with TEXT in their line")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--first", action="store_true", help="only what leads to the first section and flame graph")
    what.add_argument("--release", action="store_true", help="all of `make test`, and wheels, instead of a few tests")
    parser.add_argument("--turn", type=int, metavar="N", help="one of the roots: each in turn")
    options = parser.parse_args()
    roots = ROOTS if options.turn is None else (ROOTS[options.turn % len(ROOTS)],)
    chosen = [root for root in roots if options.only in str(root)]
    extent = "first" if options.first else "release" if options.release else SMOKE
    with ThreadPoolExecutor(len(ROOTS)) as pool:  # each waits for downloads, and for a single processor
        ends = list(pool.map(partial(tried, extent=extent), chosen))
    for root, lines in zip(chosen, ends, strict=True):
        if lines:
            print(f"failed: {root}", *lines, sep="\n", file=sys.stderr)
    return 1 if any(ends) or not chosen else 0


def tried(root: Root, extent: str) -> list[str]:
    """`extent`: for inside.py. Returns the last lines if something failed. What is committed is tried."""
    print(f"== {root}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bare-", dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:  # noqa: S108 - on a disk
        Path(folder).chmod(0o755)
        clone = Path(folder, root.folder)
        subprocess.run(["git", "-c", "safe.directory=*", "clone", "--quiet", "--no-hardlinks", CHECKOUT, clone], check=True)
        settings, paths = pip_settings()
        Path(folder, "pip.conf").write_text(settings)
        binds = [f"--bind={path}" for path in paths]
        inside = ["python3", f"{root.folder}/tools/bare/inside.py", root.user, root.folder, root.umask, extent]
        command: list[str | Path] = [CHECKOUT / "tools/in-chroot", *binds, root.suite, PACKAGES, folder, *inside]
        last: deque[str] = deque(maxlen=LAST)
        with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            for line in process.stdout or ():
                last.append(line.rstrip()[:WIDTH])
                print(f"{root.suite}: {line}", end="", flush=True)
    print(f"== {root}: {'done' if process.returncode == 0 else 'failed'} after {time.monotonic() - began:.0f} s", flush=True)
    return [*last, f"exit status {process.returncode}"] if process.returncode else []


def pip_settings() -> tuple[str, list[str]]:
    """Return the machine's, as a configuration file, and the files and folders that they name."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=False, text=True, capture_output=True).stdout
    values: dict[str, str] = {}
    for name, value in re.findall(r"^(?:global|install|:env:)\.([\w-]+)=(.*)$", listed, re.MULTILINE):
        values[name] = str(ast.literal_eval(value))
    words = " ".join(values.values()).split()
    # Beside an index are the files that it names.
    paths = [word for word in words if word.startswith("/")] + [
        str(Path(word.removeprefix("file://")).parent) for word in words if word.startswith("file:///")
    ]
    settings = "[global]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())
    return settings, [path for path in dict.fromkeys(paths) if Path(path).exists()]


if __name__ == "__main__":
    sys.exit(main())
