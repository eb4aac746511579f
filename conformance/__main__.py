"""Writes the suite: `python -m conformance DIRECTORY`. The same bytes each time; beside the folder the same as a tarball."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import shutil
import sys
import tarfile
from pathlib import Path

from conformance import VERSION
from conformance.c_cases import c_source
from conformance.known_readers import known
from conformance.linked.elf import linked_file
from conformance.linked.mergers import all_links
from conformance.suite import all_cases

HERE = Path(__file__).parent
SHIPPED = ("README.md", "../LICENSE", "schema.json", *(f"runners/{name}" for name in (
    "run.py", "run_links.py", "reference_reader.py", "sframe_conformance.c", "sframe_conformance.h")))  # fmt: skip


def as_text(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def write_suite(directory: Path) -> None:
    for folder in ("cases", "files", "links"):
        (directory / folder).mkdir(parents=True)
    for name in SHIPPED:
        shutil.copyfile(HERE / name, directory / Path(name).name)
    (directory / "sframe_cases.c").write_text(c_source(all_cases()), encoding="utf-8")
    for case in all_cases():
        (directory / "cases" / f"{case.name}.json").write_text(as_text(case.as_json(known(case))), encoding="utf-8")
        (directory / "files" / f"{case.name}.elf").write_bytes(linked_file(case.machine, case.section, case.address, case.code))
    for link in all_links():
        place = directory / "links" / link.name
        place.mkdir()
        (place / "link.json").write_text(as_text(link.as_json()), encoding="utf-8")
        for name, data in link.inputs.items():
            (place / name).write_bytes(data)


def write_tarball(directory: Path, tarball: Path) -> None:
    """Names in order, no times, no owners."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file in sorted(directory.rglob("*")):
            if file.is_file():
                member = tarfile.TarInfo(f"sframe-conformance-{VERSION}/{file.relative_to(directory).as_posix()}")
                member.size = file.stat().st_size
                with file.open("rb") as stream:
                    archive.addfile(member, stream)
    # Unlike gzip.compress(), the same header with each Python.
    with tarball.open("wb") as out, gzip.GzipFile("", "wb", 9, out, mtime=0) as packed:
        packed.write(plain.getvalue())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.add_argument("directory", type=Path, help="it must not exist")
    options = parser.parse_args()
    if options.directory.exists():
        sys.exit(f"conformance: {options.directory} exists")
    write_suite(options.directory)
    tarball = options.directory.with_name(options.directory.name + ".tar.gz")
    write_tarball(options.directory, tarball)
    print(
        f"{options.directory}: {len(all_cases())} sections, {len(all_links())} links; {tarball}: {tarball.stat().st_size:,} bytes"
    )


if __name__ == "__main__":
    main()
