"""The keywords of the public functions, grouped into option values that check themselves when they are created.

They raise ValueError for an unknown or impossible value and TypeError for a wrong type. The docstrings of the public functions
explain the keywords. The dataclasses omit comparison and printing, which nothing uses, because that halves their import time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from linker.files.target import Target
from linker.inject.kernel_versions import KernelChange, changes_accepted_by
from sframegen.base.quick_typing import TYPE_CHECKING, Any, NamedTuple
from sframegen.format.layouts import V3, WRITABLE
from sframegen.program.workers import JobOptions
from sframegen.tables.levels import LEVELS

if TYPE_CHECKING:
    from sframegen.format.layouts import FormatVersion, Layout
    from sframegen.tables.levels import Level, LevelName

    StrPath = str | os.PathLike[str]


@dataclass(frozen=True, eq=False, repr=False)
class SectionOptions:
    """Options that determine the contents of the section."""

    version: FormatVersion
    optimize: LevelName = "fast"
    debug_file: StrPath | None = None
    synthesize: bool = False

    def __post_init__(self) -> None:
        check_flags(synthesize=self.synthesize)
        if self.version not in WRITABLE:
            raise ValueError(f"SFrame version {self.version!r} is not written, only {_join_values(WRITABLE)}")
        if self.optimize not in LEVELS:
            raise ValueError(f"unknown level {self.optimize!r}, only {_join_values(LEVELS)}")

    @property
    def layout(self) -> Layout:
        return WRITABLE[self.version]

    @property
    def level(self) -> Level:
        return LEVELS[self.optimize]


@dataclass(frozen=True, eq=False, repr=False)
class WriteOptions:
    """Options that say where the output goes, how it is written, and which changes are allowed."""

    output: StrPath | None = None  # None: in place
    verify: bool = True
    dry_run: bool = False
    hard_links: Sequence[StrPath] = ()
    force: bool = False
    replace: bool = False
    min_kernel: str | None = None
    unloaded: bool = False
    detached: StrPath | None = None
    object_file: StrPath | None = None

    def __post_init__(self) -> None:
        if self.object_file is not None and (self.unloaded or self.detached is not None or self.output is not None):
            raise ValueError("object_file leaves the file unchanged: it takes neither output, unloaded nor detached")
        names = ("verify", "dry_run", "force", "replace", "unloaded")
        check_flags(**{name: getattr(self, name) for name in names})
        check_paths("hard_links", self.hard_links)
        changes_accepted_by(self.min_kernel)
        if self.detached is not None and (self.unloaded or self.output is not None):
            raise ValueError("detached leaves the file unchanged: it takes neither output nor unloaded")

    @property
    def safe_changes(self) -> frozenset[KernelChange]:
        """Return the changes that every kernel from `min_kernel` on accepts."""
        return changes_accepted_by(self.min_kernel)

    @property
    def forced_changes(self) -> frozenset[KernelChange]:
        """Return the changes that `force` allows although one of these kernels may not accept them."""
        return frozenset([KernelChange.SEGMENT_IN_A_LOADER] if self.force else ()) - self.safe_changes

    def target(self, path: StrPath) -> Target:
        """Return the target that reads `path` and writes the result as these options say."""
        return Target(path, self.output, verify=self.verify, dry_run=self.dry_run, hard_links=self.hard_links)


class AddOptions(NamedTuple):
    section: SectionOptions
    writing: WriteOptions
    running: JobOptions = JobOptions()

    @property
    def keywords(self) -> dict[str, Any]:
        """Return the options as keywords of `add_section`."""
        return vars(self.section) | vars(self.writing) | vars(self.running)


@dataclass(frozen=True, eq=False, repr=False)
class ConversionOptions:
    """Options of `convert`. Without `version` the section keeps its own; without `optimize` it is "fast", and may grow."""

    version: FormatVersion | None = None
    optimize: LevelName | None = None

    def __post_init__(self) -> None:
        if not self._given_values:
            raise ValueError("give a version, or a level for optimize")
        _ = self._section_options  # evaluated because it raises ValueError for an unknown version or level

    @property
    def _given_values(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def _section_options(self) -> SectionOptions:
        return SectionOptions(**{"version": 3, **self._given_values})

    @property
    def level(self) -> Level:
        return self._section_options.level

    def layout_for(self, versions: Iterable[int]) -> Layout:
        """Return the layout of the new section. `versions`: those of the file's sections, used if the caller gave none."""
        return self._section_options.layout if "version" in self._given_values else WRITABLE.get(max(versions), V3)


def check_flags(**flags: bool) -> None:
    """Raise TypeError for a flag that is neither True nor False, such as "no"."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} is {flag!r}: give True or False")


def check_paths(name: str, paths: Iterable[StrPath]) -> None:
    """Raise TypeError for a single path instead of a list, because each of its characters would be taken for a path."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(f"{name} is one path, {os.fspath(paths)!r}: give a list of paths")
    if not isinstance(paths, Iterable):
        raise TypeError(f"{name} is {paths!r}: give a list of paths")


def check_path(name: str, path: StrPath) -> None:
    """Raise TypeError if the value is not a path."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{name} is {path!r}: give a path")


def _join_values(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
