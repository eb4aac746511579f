"""The options of a run, for each package."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any

from sframegen import __version__


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
    force: bool = False  #: also change signed packages and files
    timeout: float = 900.0  #: seconds
    memory: int = 4 << 30  #: bytes of address space

    def key_of(self, *parts: str) -> str:
        """Hexadecimal; another one if the tool, or an option that results depend on, is another."""
        what = [__version__, self.mode, str(self.force), *parts]
        return sha256("\0".join(what).encode("utf-8", "surrogatepass")).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunOptions:
        return cls(**values | {"mode": Mode(values["mode"])})
