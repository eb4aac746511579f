"""The results of a survey, as docs/measured/survey.json has them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from pyarrow import parquet

from sframegen.fleet.result_rows import FileRow, PackageRow, RowOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from pathlib import Path

    from corpus.survey.survey_packages import FetchedGroup

    Record = dict[str, object]

Row = TypeVar("Row")

WITH_SECTION = (RowOutcome.ADDED, RowOutcome.UNCHANGED)
CODE = "code"  # the fate of code without CFI in FileRow.no_cfi
GOOD_COVERAGE = 0.999
SHOWN = 12  # records of a list that could have many
STEPS = {"fetching": "fetch", "reading": "unpack", "converting": "convert", "writing": "pack"}  # of a package
NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|\d[\d,]{2,})\b", re.IGNORECASE)
KEYS: dict[str, Callable[[FileRow], str]] = {  # of files
    "language": lambda row: row.language or "unknown",
    "compiler": lambda row: f"{row.producer} {row.producer_version.partition('.')[0]}".strip() or "unknown",
    "machine": lambda row: row.machine or "unknown",
}


def packages_of(run: Path) -> list[PackageRow]:
    columns = [field.name for field in fields(PackageRow)]
    return [PackageRow(**row) for row in parquet.read_table(run / "packages.parquet", columns=columns).to_pylist()]


def files_of(run: Path) -> list[FileRow]:
    columns = [field.name for field in fields(FileRow)]
    rows = parquet.read_table(run / "files.parquet", columns=columns).to_pylist()
    return [FileRow(**row | {name: dict(row[name]) for name in ("left_out", "no_cfi")}) for row in rows]


def summed(groups: Sequence[FetchedGroup], packages: Sequence[PackageRow], files: Sequence[FileRow]) -> Record:
    """`groups`: of the manifest."""
    group_of = {package.file.name: package.group for group in groups for package in group.packages}
    packages_in = Counter(group_of[base(package.package)] for package in packages)
    described = [row for row in files if row.code_bytes and row.outcome in WITH_SECTION]
    incomplete = [row for row in files if row.section_bytes and share_covered(row) < GOOD_COVERAGE]
    larger = sorted((row for row in files if row.section_bytes > eh_frame_bytes(row) > 0), key=lambda row: -excess(row))
    left_out: Counter[str] = Counter()
    for row in files:
        left_out.update(row.left_out)
    by_group = grouped(files, lambda row: group_of[base(row.package)])
    return {
        "packages": len(packages),
        "package_bytes": sum(package.package_bytes for package in packages),
        "unpacked_bytes": sum(package.unpacked_bytes for package in packages),
        "lost": [name for group in groups for name in group.lost],
        **sums(files),
        "covered_bytes": sum(row.covered_bytes for row in described),
        "wholly_covered_files": sum(row.covered_bytes == row.code_bytes for row in described),
        "executable_bytes": sum(row.executable_bytes for row in files),
        "bytes_without_cfi": {name: silent(rows) for name, rows in grouped(files, KEYS["language"]).items() if silent(rows)},
        "groups": [{"group": name, "packages": packages_in[name], **sums(by_group.get(name, []))} for name in packages_in],
        **{f"by_{name}": by(name, files) for name in KEYS},
        "left_out_bytes": dict(left_out.most_common()),
        "incomplete": [record(row, code_bytes=row.code_bytes, left_out=row.code_bytes - row.covered_bytes)
                       for row in sorted(incomplete, key=share_covered)],
        "without_section": without_section(packages, files),
        "larger_sections": len(larger),
        "larger_section_bytes": sum(row.section_bytes for row in larger),
        "larger_eh_frame_bytes": sum(map(eh_frame_bytes, larger)),
        "larger": [record(row, section_bytes=row.section_bytes, eh_frame_bytes=eh_frame_bytes(row)) for row in larger[:SHOWN]],
        "time": time(packages),
    }  # fmt: skip


def sums(files: Sequence[FileRow]) -> Record:
    """`covered`, `without_cfi`: percentages; `of_eh_frame`: the section's size in proportion to .eh_frame + .eh_frame_hdr."""
    done = [row for row in files if row.outcome in WITH_SECTION]
    code, covered, section = (sum(getattr(row, f"{name}_bytes") for row in done) for name in ("code", "covered", "section"))
    frames, without_cfi = sum(map(eh_frame_bytes, done)), silent(files)
    return {
        "elf_files": len(files),
        "with_section": len(done),
        "code_bytes": code,
        "covered": int(1e5 * covered / code) / 1e3 if code else None,  # never rounded up to 100
        "without_cfi": round(100 * without_cfi / (without_cfi + code), 1) if without_cfi + code else None,
        "section_bytes": section,
        "of_eh_frame": round(section / frames, 3) if frames else None,
    }


def by(name: str, files: Iterable[FileRow]) -> list[Record]:
    most = sorted(grouped(files, KEYS[name]).items(), key=lambda item: -sum(row.executable_bytes for row in item[1]))
    return [{name: key, **sums(rows)} for key, rows in most[:SHOWN]]


def without_section(packages: Iterable[PackageRow], files: Iterable[FileRow]) -> list[Record]:
    """Reasons that differ only in an address or a size count together."""
    rows = [("file", str(row.outcome), row.reason, row.file_bytes, row.path) for row in files if row.outcome not in WITH_SECTION]
    rows += [("package", str(row.outcome), row.reason, row.package_bytes, row.package) for row in packages if row.reason]
    groups = grouped(rows, lambda row: (*row[:2], NUMBER.sub("…", row[2])))
    most = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1])))
    return [
        dict(zip(("of", "outcome", "reason"), key, strict=True))
        | {"number": len(found), "bytes": sum(row[3] for row in found), "such_as": base(found[0][4])}
        for key, found in most
    ]


def growth(packages: Iterable[PackageRow]) -> list[Record]:
    """Of the packages that were rewritten, packed as they were before."""
    found: list[Record] = []
    for kind, of_kind in sorted(grouped((row for row in packages if row.new_package_bytes), lambda row: row.kind).items()):
        ordered = sorted(row.new_package_bytes / row.package_bytes - 1 for row in of_kind)
        before, after = sum(row.package_bytes for row in of_kind), sum(row.new_package_bytes for row in of_kind)
        median = round(ordered[len(ordered) // 2], 4)
        found.append({"kind": kind, "packages": len(of_kind), "bytes": before, "new_bytes": after, "median_growth": median})
    return found


def time(packages: Iterable[PackageRow]) -> list[Record]:
    """Seconds of one process for 1 GB of packages."""
    found: list[Record] = []
    for kind, of_kind in sorted(grouped(packages, lambda row: row.kind or "unknown").items()):
        size = sum(row.package_bytes for row in of_kind)
        seconds = {text: sum(getattr(row, f"seconds_{step}") for row in of_kind) for step, text in STEPS.items()}
        shares: Record = {f"{text}_seconds": round(used / size * 1e9) for text, used in seconds.items()}
        found.append({"kind": kind, "packages": len(of_kind), "bytes": size} | shares)
    return found


def grouped(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def record(row: FileRow, **values: int) -> Record:
    """With the package's name without its version, and the machine that it is for."""
    name = base(row.package)
    package = f"{name.partition('-' if name.endswith('.whl') else '_')[0]}, {row.machine}"
    return {"file": base(row.path), "package": package, **values}


def base(path: str) -> str:
    return path.rpartition("/")[2]


def silent(files: Iterable[FileRow]) -> int:
    """Bytes of code without CFI."""
    return sum(row.no_cfi.get(CODE, 0) for row in files)


def eh_frame_bytes(row: FileRow) -> int:
    return row.eh_frame_bytes + row.eh_frame_hdr_bytes


def excess(row: FileRow) -> int:
    return row.section_bytes - eh_frame_bytes(row)


def share_covered(row: FileRow) -> float:
    return row.covered_bytes / row.code_bytes if row.code_bytes else 1.0
