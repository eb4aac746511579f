"""What does the work of a run: processes of this machine (`one_machine`), or workers of other machines (`dask_cluster`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from cfi.errors import SframegenError
from sframegen.fleet.result_rows import Finished
from sframegen.fleet.sources.items import Item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sframegen.fleet.output_directory import OutputDirectory
    from sframegen.fleet.run_options import RunOptions

NumberedItem = tuple[int, Item]
NumberedResult = tuple[int, Item, Finished]


class EngineError(SframegenError):
    """The run cannot go on. What is done is kept."""


class Job(NamedTuple):
    """What all packages of a run share."""

    options: RunOptions
    output: OutputDirectory
    token: str  #: in the output directory's run.json: another machine sees that it is the same directory
    note: Callable[[str], object]  #: called with a line that is no failure


class Engine(Protocol):
    def submit(self, waiting: Iterable[NumberedItem]) -> Iterator[NumberedResult]:
        """The packages and their results, in the order in which they end. Raises EngineError, OSError."""
