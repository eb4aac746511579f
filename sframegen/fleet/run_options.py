"""The options of a run, for each package."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from inspect import signature
from typing import TYPE_CHECKING, Any

from sframegen import __version__
from sframegen.api.adding import add_section
from sframegen.fleet.policy import Patterns

if TYPE_CHECKING:
    from collections.abc import Mapping


class Mode(StrEnum):
    """The mode: what is done with a package."""

    SURVEY = "survey"  #: nothing is written; the results say what a section would be
    DETACHED = "detached"  #: sections go into a store of their own
    UNLOADED = "unloaded"  #: a new package, whose files have sections that no segment has
    REWRITE = "rewrite"  #: a new package, whose files have sections


WRITES_PACKAGES = frozenset({Mode.UNLOADED, Mode.REWRITE})


@dataclass(frozen=True)
class RunOptions:
    """Those that the results depend on, and the limits of one package."""

    mode: Mode = Mode.SURVEY
    adding: Mapping[str, Any] = field(default_factory=dict)  #: keywords of `add_section`, besides those that the mode stands for
    files: Patterns = field(default_factory=Patterns)  #: by their paths in a package
    timeout: float = 900.0  #: seconds
    memory: int = 4 << 30  #: bytes of address space

    @property
    def force(self) -> bool:
        """Also change signed packages and files."""
        return bool(self.adding.get("force"))

    def key_of(self, *parts: str) -> str:
        """Hexadecimal; another one if the tool, or an option that results depend on, is another. A default is not given."""
        defaults = signature(add_section).parameters
        given = {name: value for name, value in self.adding.items() if value != defaults[name].default}
        what = [__version__, self.mode, json.dumps([given, self.files], sort_keys=True), *parts]
        return sha256("\0".join(what).encode("utf-8", "surrogatepass")).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {"mode": self.mode, **self.adding, "files": self.files._asdict(), "timeout": self.timeout, "memory": self.memory}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunOptions:
        adding = {name: value for name, value in values.items() if name not in ("mode", "files", "timeout", "memory")}
        files = Patterns(**{name: tuple(patterns) for name, patterns in values["files"].items()})
        return cls(Mode(values["mode"]), adding, files, values["timeout"], values["memory"])
