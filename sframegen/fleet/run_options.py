"""Defines the options of a run, computes the keys of results from them, and declares the interface of engines.

A result is stored under a key, by which a later run with the same options finds it. An engine has processes work on packages.
"""

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

    SURVEY = "survey"  #: only report how large and complete sections would be
    REWRITE = "rewrite"  #: write a new package, whose files have sections
    CHECK = "check"  #: only report faults of existing sections


@dataclass(frozen=True)
class RunOptions:
    """The options that results depend on, and the limits for one package."""

    mode: Mode = Mode.SURVEY
    add_keywords: Mapping[str, Any] = field(default_factory=dict)  #: keyword arguments for add_section, besides those of the mode
    timeout: float = 900.0  #: seconds for one package
    memory: int = 4 << 30  #: bytes of address space

    @property
    def force(self) -> bool:
        """Return True if signed packages and files are accepted: because they may be changed, or are only read."""
        return self.mode is Mode.CHECK or bool(self.add_keywords.get("force"))

    def make_key(self, *parts: str) -> str:
        """Return a hexadecimal key for `parts` that also depends on sframegen's version and on all options that affect results."""
        defaults = signature(add_section).parameters
        options = {name: value for name, value in self.add_keywords.items() if value != defaults[name].default}
        parts = (__version__, self.mode, json.dumps(options, sort_keys=True), *parts)
        return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def make_identity_key(self, item: Item, identity: str) -> str:
        """Return the key under which the key of an item's result is stored, before the content is read; "" without an identity."""
        return self.make_key("seen", item.name, identity) if identity else ""

    def make_key_without_content(self, item: Item) -> str:
        """Return the key for an item that was refused, or that failed, before its content was known."""
        return self.make_key("no content", item.name, item.path_or_url, item.refused)

    def to_json(self) -> dict[str, Any]:
        return {"mode": self.mode, **self.add_keywords, "timeout": self.timeout, "memory": self.memory}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunOptions:
        add_keywords = {name: value for name, value in values.items() if name not in ("mode", "timeout", "memory")}
        return cls(Mode(values["mode"]), add_keywords, values["timeout"], values["memory"])


NumberedItem = tuple[int, Item]  # the number is the item's position in the list of the run
NumberedResult = tuple[int, Item, Finished]


class EngineError(SframegenError):
    """Raised if the run cannot go on; finished results are kept."""


class Job(NamedTuple):
    """The data of a run that an engine needs."""

    options: RunOptions
    output: OutputDirectory
    token: str  #: a random text in run.json, by which other machines recognise the output directory
    note: Callable[[str], object]  #: called with a line that does not report a failure


class Engine(Protocol):
    """A context manager whose processes work on packages: OneMachine, or DaskCluster."""

    def submit(self, pending: Iterable[NumberedItem]) -> Iterator[NumberedResult]:
        """Yield the packages and their results as they end. Raises EngineError, OSError."""
