"""The keywords of the public functions as option values, which are checked when they are created.

A ValueError names an unknown or impossible value, a TypeError one of the wrong type. The docstrings of the public functions say
what the keywords mean. Nothing compares or prints these values: without functions for that, they take half the time to import.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from linker.files.target import Target
from linker.inject.kernel_versions import KernelChange, changes_accepted_by
from sframegen.base.quick_typing import TYPE_CHECKING, Any, NamedTuple
from sframegen.format.layouts import V3, WRITABLE
from sframegen.program.workers import Running
from sframegen.tables.levels import LEVELS

if TYPE_CHECKING:
    from sframegen.format.layouts import FormatVersion, Layout
    from sframegen.tables.levels import Level, LevelName

    StrPath = str | os.PathLike[str]


@dataclass(frozen=True, eq=False, repr=False)
class Making:
    """Options about the contents of the section."""

    version: FormatVersion
    optimize: LevelName = "fast"
    debug_file: StrPath | None = None
    synthesize: bool = False

    def __post_init__(self) -> None:
        check_flags(synthesize=self.synthesize)
        if self.version not in WRITABLE:
            raise ValueError(f"SFrame version {self.version!r} is not written, only {_all(WRITABLE)}")
        if self.optimize not in LEVELS:
            raise ValueError(f"unknown level {self.optimize!r}, only {_all(LEVELS)}")

    @property
    def layout(self) -> Layout:
        return WRITABLE[self.version]

    @property
    def level(self) -> Level:
        return LEVELS[self.optimize]


@dataclass(frozen=True, eq=False, repr=False)
class Writing:
    """Options about the output, how it is written, and which changes are allowed."""

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
    def safe(self) -> frozenset[KernelChange]:
        """Return the changes that all kernels accept on which the result must run."""
        return changes_accepted_by(self.min_kernel)

    @property
    def forced(self) -> frozenset[KernelChange]:
        """Return the changes that are made although some of these kernels may not accept them."""
        return frozenset([KernelChange.SEGMENT_IN_A_LOADER] if self.force else ()) - self.safe

    def target(self, path: StrPath) -> Target:
        return Target(
            path,
            self.output,
            verify=self.verify,
            dry_run=self.dry_run,
            hard_links=self.hard_links,
        )


class Adding(NamedTuple):
    """All options of `add_section`."""

    making: Making
    writing: Writing
    running: Running = Running()

    @property
    def keywords(self) -> dict[str, Any]:
        """Return the options as keywords of `add_section`."""
        return vars(self.making) | vars(self.writing) | vars(self.running)


@dataclass(frozen=True, eq=False, repr=False)
class Conversion:
    """Options of `convert`. `version` None: keep the section's own; `optimize` None: "fast", and it need not get smaller."""

    version: FormatVersion | None = None
    optimize: LevelName | None = None

    def __post_init__(self) -> None:
        if not self._given:
            raise ValueError("give a version, or a level for optimize")
        _ = self._making  # raises ValueError for unknown values

    @property
    def _given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def _making(self) -> Making:
        return Making(**{"version": 3, **self._given})

    @property
    def level(self) -> Level:
        return self._making.level

    def layout_for(self, versions: Iterable[int]) -> Layout:
        """Return the layout of the new section for sections of these versions."""
        return self._making.layout if "version" in self._given else WRITABLE.get(max(versions), V3)


def check_flags(**flags: bool) -> None:
    """Raise TypeError for a flag that is neither True nor False, such as "no"."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} is {flag!r}: give True or False")


def check_paths(name: str, paths: Iterable[StrPath]) -> None:
    """Raise TypeError unless `paths` is a list of paths: each character of a single path would be taken for a path."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError(f"{name} is one path, {os.fspath(paths)!r}: give a list of paths")
    if not isinstance(paths, Iterable):
        raise TypeError(f"{name} is {paths!r}: give a list of paths")


def check_path(name: str, path: StrPath) -> None:
    """Raise TypeError if the value is not a path."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"{name} is {path!r}: give a path")


def _all(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
