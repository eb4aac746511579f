"""The options of a run, and the keys of results that depend on them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sframegen import __version__
from sframegen.api.adding import add_section
from sframegen.base.errors import SframegenError
from sframegen.fleet.result_rows import Finished
from sframegen.fleet.sources.items import Item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sframegen.fleet.output_directory import OutputDirectory


class Mode(StrEnum):
    """The mode of a run: the work to do on each package."""

    SURVEY = "survey"  #: only results: what a section would be
    REWRITE = "rewrite"  #: a new package, whose files have sections
    CHECK = "check"  #: only results: what is wrong with existing sections


@dataclass(frozen=True)
class RunOptions:
    """The options that results depend on, and the limits for one package."""

    mode: Mode = Mode.SURVEY
    adding: Mapping[str, Any] = field(default_factory=dict)  #: keywords of add_section, besides those of the mode
    timeout: float = 900.0  #: seconds
    memory: int = 4 << 30  #: bytes of address space

    @property
    def force(self) -> bool:
        """Return True if signed packages and files may be changed, or are only read."""
        return self.mode is Mode.CHECK or bool(self.adding.get("force"))

    def make_key(self, *parts: str) -> str:
        """Return a hexadecimal key that differs if the tool's version, or an option that results depend on, does."""
        defaults = signature(add_section).parameters
        given = {name: value for name, value in self.adding.items() if value != defaults[name].default}
        what = [__version__, self.mode, json.dumps(given, sort_keys=True), *parts]
        return sha256("\0".join(what).encode("utf-8", "surrogatepass")).hexdigest()

    def make_identity_key(self, item: Item, identity: str) -> str:
        """Return the key for an item whose content has a known identity before it is read; "" without one."""
        return self.make_key("seen", item.name, identity) if identity else ""

    def make_key_without_content(self, item: Item) -> str:
        return self.make_key("no content", item.name, item.place, item.refused)

    def to_json(self) -> dict[str, Any]:
        return {"mode": self.mode, **self.adding, "timeout": self.timeout, "memory": self.memory}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunOptions:
        adding = {name: value for name, value in values.items() if name not in ("mode", "timeout", "memory")}
        return cls(Mode(values["mode"]), adding, values["timeout"], values["memory"])


NumberedItem = tuple[int, Item]
NumberedResult = tuple[int, Item, Finished]


class EngineError(SframegenError):
    """Raised if the run cannot go on; finished results are kept."""


class Job(NamedTuple):
    """The data that all packages of a run share."""

    options: RunOptions
    output: OutputDirectory
    token: str  #: in the output directory's run.json: another machine sees that it is the same directory
    note: Callable[[str], object]  #: called with a line that is no failure


class Engine(Protocol):
    def submit(self, waiting: Iterable[NumberedItem]) -> Iterator[NumberedResult]:
        """Yield the packages and their results as they end. Raises EngineError, OSError."""
