"""Records a digest of all that sframegen writes for real files, to see whether a change of the code changes the output.

    python -m corpus.outputs --json before.json [--sframegen PROGRAM] [PATH...]
    python -m corpus.outputs --json after.json --against before.json [PATH...]

Without PATHs: the corpus, and every linked ELF file of /usr/bin. Digests are kept for add-section at all levels, in versions 2
and 3, with --synthesize and of objects; for convert, remove, and merge with and without a map. Exit status 1: a digest differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.linked_files import linked_files
from tests.support.peers import cache_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEVELS = ("none", "fast", "size")
FILES_AT_A_TIME = 200
SYNTHESIZED_BYTES = 4 << 20  # reading the instructions of larger files takes minutes
MAIN = '#include <stdio.h>\nint twice(int); int main(void) { return printf("%d\\n", twice(21)) < 0; }'
TWICE = "int twice(int x) { volatile char room[64]; room[0] = (char)x; return 2 * room[0]; }"


class Step(NamedTuple):
    """A command that writes a file of the same name for each of its files."""

    name: str
    arguments: tuple[str, ...]
    after: str = ""  # the step whose output it is given


STEPS = (
    *(Step(f"add {level}", ("add-section", "--no-verify", "--optimize", level)) for level in LEVELS),
    Step("add version 2", ("add-section", "--no-verify", "--sframe-version", "2")),
    Step("convert to 2", ("convert", "--no-verify", "--sframe-version", "2"), "add none"),
    Step("convert to 3", ("convert", "--no-verify", "--sframe-version", "3"), "add version 2"),
    Step("remove", ("remove", "--no-verify"), "add fast"),
    Step("synthesize", ("add-section", "--no-verify", "--synthesize")),
)


class Recorder:
    """Runs a sframegen, and keeps the digests of what it writes."""

    def __init__(self, sframegen: str, scratch: Path) -> None:
        self.sframegen = sframegen
        self.scratch = scratch
        self.digests: dict[str, dict[str, str]] = {}

    def run(self, *arguments: object) -> None:
        """Refused files are part of what is compared: they have no digest."""
        done = subprocess.run([self.sframegen, *map(str, arguments)], capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            sys.exit(f"{self.sframegen} {arguments[0]}: exit status {done.returncode}: {done.stderr.strip()}")

    def keep(self, step: str, files: Iterable[Path]) -> None:
        digests = self.digests.setdefault(step, {})
        for file in files:
            if file.is_file():
                with file.open("rb") as opened:
                    digests[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()

    def follow_steps(self, files: Sequence[Path], steps: Iterable[Step]) -> None:
        """All steps for files of different names."""
        for step in steps:
            given = [self.scratch / step.after / file.name for file in files] if step.after else files
            given = [
                file
                for file in given
                if file.is_file() and ("--synthesize" not in step.arguments or file.stat().st_size < SYNTHESIZED_BYTES)
            ]
            output = self.scratch / step.name
            output.mkdir()
            if given:
                self.run(*step.arguments, *(shutil.copy(file, output) for file in given))
            self.keep(step.name, sorted(output.iterdir()))
        for step in steps:
            shutil.rmtree(self.scratch / step.name)

    def merge(self, linker: str, compiler: str) -> None:
        """A program of two objects with sections: merged by its map, and made one object."""
        for name, source in (("main", MAIN), ("twice", TWICE)):
            (self.scratch / f"{name}.c").write_text(source)
            subprocess.run([compiler, "-c", "-O2", f"{name}.c"], cwd=self.scratch, check=True)
        objects = [self.scratch / "main.o", self.scratch / "twice.o"]
        self.run("add-section", "--no-verify", *objects)
        self.keep("add to objects", objects)
        program, table = self.scratch / "program", self.scratch / "program.map"
        subprocess.run([compiler, "-static", *objects, f"-Wl,-Map={table}", "-o", program], check=True)
        for level in LEVELS:
            merged = self.scratch / f"merged-{level}"
            self.run("merge", "--no-verify", "--optimize", level, "--map", table, "-o", merged, program, *objects)
            one = self.scratch / f"one-{level}.o"
            self.run("merge", "--linker", linker, "--optimize", level, "-o", one, *objects)
            self.keep("merge", [merged, one])


def batches(files: Iterable[Path], scratch: Path) -> Iterable[list[Path]]:
    """Links to the files under names of their own, a limited number at a time."""
    batch: list[Path] = []
    for number, file in enumerate(files):
        link = scratch / f"{number:05}-{file.name}"
        link.symlink_to(file.resolve())
        batch.append(link)
        if len(batch) == FILES_AT_A_TIME:
            yield batch
            batch = []
    if batch:
        yield batch


def differences(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> list[str]:
    found = []
    for step in before.keys() | after.keys():
        old, new = before.get(step, {}), after.get(step, {})
        found += [f"{step}: {name}" for name in old.keys() | new.keys() if old.get(name) != new.get(name)]
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m corpus.outputs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True, help="the file to write the digests to")
    parser.add_argument("--against", type=Path, help="digests of an earlier run to compare with")
    parser.add_argument(
        "--sframegen", default=str(Path(sys.executable).with_name("sframegen")), help="the program to run [%(default)s]"
    )
    parser.add_argument("paths", nargs="*", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        recorder = Recorder(given.sframegen, scratch)
        (scratch / "given").mkdir()
        for batch in batches(given.paths or linked_files([cache_directory() / "corpus", Path("/usr/bin")]), scratch / "given"):
            recorder.follow_steps(batch, STEPS)
        recorder.merge("ld", "gcc")
    given.json.write_text(json.dumps(recorder.digests, indent=1, sort_keys=True))
    for step, digests in recorder.digests.items():
        print(f"{step}: {len(digests)} files")
    if not given.against:
        return 0
    found = differences(json.loads(given.against.read_text()), recorder.digests)
    print(*found, f"{len(found)} differences", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
