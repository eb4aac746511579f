"""Where the result of a change goes, and how it gets there: what adding, converting and removing do alike."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, TypeVar

from linker.apply import copy_file
from linker.replace import losses, relink, write_atomically

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from sframegen.elf import ElfFile


class Report(Protocol):
    output: str
    warnings: list[str]


R = TypeVar("R", bound=Report)


class Target(NamedTuple):
    source: Path
    path: Path
    verify: bool
    dry_run: bool
    preserve_timestamps: bool = False
    hard_links: Sequence[Path] = ()  # other names of the file, which follow it

    @classmethod
    def of(
        cls,
        path: str | os.PathLike[str],
        output: str | os.PathLike[str] | None,
        verify: bool,
        dry_run: bool,
        preserve_timestamps: bool,
        hard_links: Sequence[str | os.PathLike[str]],
    ) -> Target:
        """`output` None: in place."""
        return cls(
            Path(path), Path(path if output is None else output), verify, dry_run, preserve_timestamps, [*map(Path, hard_links)]
        )

    def copy(self, elf: ElfFile, report: R) -> R:
        """Nothing changes in the file; another one becomes a copy."""
        if self.path != self.source and not self.dry_run:
            self._write(report, partial(copy_file, elf), None)
        return report

    def write(self, report: R, write: Callable[[BinaryIO], None], check: Callable[[Path], None]) -> R:
        """Unless it is a dry run; `check` raises to stop."""
        if not self.dry_run:
            if self.verify:
                import linker.verify  # noqa: F401, PLC0415 - before there is a temporary file: an interrupted import of LIEF ends the process
            links = self._write(report, write, check if self.verify else None)
            for name in self.hard_links:
                relink(self.path, name)
            left = links - len(self.hard_links)
            if left:
                names = "name" if left == 1 else "names"
                report.warnings.append(f"{left} other {names} (hard links) of {self.path} keep the old file")
        return report

    def _write(self, report: Report, write: Callable[[BinaryIO], None], check: Callable[[Path], None] | None) -> int:
        links = write_atomically(self.path, write, check, source=self.source, preserve_timestamps=self.preserve_timestamps)
        report.output = str(self.path)
        if self.path != self.source:
            report.warnings += losses(self.source, self.path)
        return links
