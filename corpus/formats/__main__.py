"""Gives sections to Arch Linux, conda and Alpine packages and images, which their own tools then try: corpus/README.md.

No registry at hand has such packages. So their own tools make them from the files of Debian packages, which a hash of the names
chooses. Needs root, makepkg, pacman, umoci and skopeo. Exit status 1: something is not as it has to be.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.fetch.__main__ import APT_SUITE, download
from corpus.kept_folders import kept
from corpus.report_pages import write_or_print

from . import building, judging

if TYPE_CHECKING:
    from collections.abc import Callable

SUITE = "trixie"
LARGEST = 1_000_000  # bytes of a Debian package
STANZA = re.compile(r"^(Package|Size|Depends|Section): (.*)$", re.MULTILINE)
HEAD = Path(__file__).with_name("head.md")
DATA_HASH = re.compile(rb"^datahash = .*$", re.MULTILINE)


class Format(NamedTuple):
    build: Callable[[str, Path, Path], Path]
    judge: Callable[[Path, Path], list[str]]


FORMATS = {
    "arch": Format(building.arch, judging.by_pacman),
    "conda 1": Format(partial(building.conda, ending=".tar.bz2"), judging.by_conda),
    "conda 2": Format(partial(building.conda, ending=".conda"), judging.by_conda),
    "apk": Format(building.apk, judging.by_reading_apk),
    "image": Format(building.image, judging.by_skopeo),
}
SHOWN = {"arch": "Arch Linux", "apk": "Alpine, version 2", "image": "OCI image"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m corpus.formats", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=30, help="number of packages of each format")
    parser.add_argument("--format", choices=FORMATS, action="append", help="only these formats")
    parser.add_argument("--report", type=Path, help="write the page here")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="corpus-formats-") as temporary:
        scratch = Path(temporary)
        scratch.chmod(0o755)
        for number, deb in enumerate(chosen(options.count)):
            name = deb.name.partition("_")[0]
            tree = scratch / f"{number}"
            subprocess.run(["dpkg-deb", "-x", deb, tree], check=True)
            for form in options.format or FORMATS:
                folder = scratch / f"{number}-{form.replace(' ', '-')}"
                folder.mkdir()
                found = tried(FORMATS[form], name, tree, folder, counts)
                counts[f"{form}: packages"] += 1
                counts[f"{form}: findings"] += len(found)
                lines += [f"- {form}: {name}: {finding}" for finding in found]
                print(f"{form}: {name}: {'; '.join(found) or 'as it has to be'}", flush=True)
    write_or_print(options.report, page(options.format or list(FORMATS), counts, lines))
    return int(any(count for what, count in counts.items() if what.endswith("findings")))


def page(formats: list[str], counts: Counter[str], findings: list[str]) -> str:
    columns = ("packages", "ELF files", "sections", "restored", "findings")
    rows = [("format", *columns[:3], "restored by remove", "findings"), ("---",) * (len(columns) + 1)]
    rows += [(SHOWN.get(form, form), *(f"{counts[f'{form}: {column}']:,}" for column in columns)) for form in formats]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join([HEAD.read_text().rstrip(), table, *findings]) + "\n"


def chosen(count: int) -> list[Path]:
    """Small Debian packages with programs or libraries, in the order of a hash of their names."""
    listed = subprocess.run([APT_SUITE, SUITE, "apt-cache", "dumpavail"], check=True, capture_output=True, text=True).stdout
    names = []
    for stanza in listed.split("\n\n"):
        fields = dict(STANZA.findall(stanza))
        is_program = "libc6 " in fields.get("Depends", "") and "debug" not in fields["Section"]
        if is_program and int(fields["Size"]) <= LARGEST:
            names.append(fields["Package"])
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    folder = kept(f"formats/{SUITE}-{count}", lambda folder: download(names[:count], SUITE, folder / "debs"))
    return sorted((folder / "debs").glob("*.deb"))


def tried(form: Format, name: str, tree: Path, folder: Path, counts: Counter[str]) -> list[str]:
    """Build, give sections, judge, and remove them again."""
    label = next(label for label, one in FORMATS.items() if one is form)
    given = form.build(name, tree, folder)
    found = [f"before: {finding}" for finding in form.judge(given, _new(folder / "judged-before"))]
    after = _new(folder / "after") / given.name
    ran = _sframegen("add-section", "--json", "--output-dir", after.parent, given)
    if ran.returncode:
        return [*found, f"add-section: {ran.stderr[-300:]}"]
    [said] = json.loads(ran.stdout)
    counts[f"{label}: ELF files"] += said["package"]["elf_files"]
    counts[f"{label}: sections"] += said["package"]["changed"]
    found += form.judge(after, _new(folder / "judged"))
    if said["package"]["changed"] and (ran := _sframegen("check", "--quiet", after)).returncode:
        found.append(f"check: {(ran.stdout + ran.stderr)[-300:]}")
    ran = _sframegen("remove", "--output-dir", _new(folder / "back"), after)
    if ran.returncode:
        return [*found, f"remove: {ran.stderr[-300:]}"]
    if _contents(folder / "back" / given.name) != _contents(given):
        found.append("remove: other contents than before")
    else:
        counts[f"{label}: restored"] += 1
    return found


def _sframegen(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([Path(sys.executable).with_name("sframegen"), *arguments], check=False, capture_output=True, text=True)


def _contents(package: Path) -> dict[str, str]:
    """Every file of a package with its hash, as bsdtar reads it; of conda's version 2, as cph does. Of an image, its digest."""
    if package.is_dir():
        [manifest] = json.loads((package / "index.json").read_bytes())["manifests"]
        return {"": manifest["digest"]}
    with tempfile.TemporaryDirectory(prefix="corpus-formats-") as folder:
        if package.suffix == ".conda":
            subprocess.run(
                [building.tools() / "python", "-m", "conda_package_handling", "extract", package, "--dest", folder],
                check=True,
                capture_output=True,
            )
        else:
            subprocess.run(["bsdtar", "-xf", package, "-C", folder], check=True)
        files = {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file() and not path.is_symlink()}
        # Alpine's datahash is of compressed files, and .MTREE is compressed: both have other bytes when they are compressed again.
        plain = {path: DATA_HASH.sub(b"", data) for path, data in files.items() if path.name != ".MTREE"}
        return {str(path.relative_to(folder)): hashlib.sha256(data).hexdigest() for path, data in plain.items()}


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
