"""A profile with named stacks, which is the input of all formats: one tree of frame locations, whose rows count samples."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.columns import zeros
from sframegen.profile.collected import Unit
from sframegen.profile.report.tree_passes import count_labels, count_samples_by_end, flag_subtrees, max_node_depth
from sframegen.profile.stacks.call_tree import CallTree
from sframegen.profile.stacks.growing import Room
from sframegen.profile.stacks.numbered import Numbered
from sframegen.profile.stacks.tasks import SampledTasks
from sframegen.stack.walking.frames import End

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.base.columns import Column

GUESSED_SUFFIX = " [guess]"  # after the name of a frame that was found by a frame pointer
INLINED_SUFFIX = " [inlined]"  # after the name of a function that the compiler inlined into its caller
CALLERS_UNKNOWN = "[callers unknown]"
MAX_NAMED_FRAMES = 1 << 13  # of a stack, including frames of inlined functions
NO_ADDRESS = (1 << 64) - 1  # in a column of addresses: the address is unknown


class FrameKind(Enum):
    USER = "user"
    KERNEL = "kernel"
    RUNTIME = "made at run time"
    OFF_CPU = "off the CPU"  # a frame that shows why a thread does not run
    MISSING = "missing"  # a frame instead of the callers that a walk did not reach


class NamedFrame(NamedTuple):
    """A frame with names. `function`: its name, else `[object+0xstart]`, else `[object]`. `object`: the base name of `path`.

    `address`: of the instruction that runs or calls: its link-time address, or its run-time address if the code is in no file; None
    if unknown. `source`, `line`: of that instruction; empty and 0 if unknown. `inlined`: the function is inlined into its caller,
    which has the same address. `start`: the link-time start of the function, or of the outermost one around it if it is inlined.
    """

    function: str
    object: str
    path: str
    address: int | None
    kind: FrameKind
    guessed: bool = False
    source: str = ""
    line: int = 0
    inlined: bool = False
    start: int | None = None

    @property
    def name(self) -> str:
        return self.function + GUESSED_SUFFIX if self.guessed else self.function

    @property
    def label(self) -> str:
        return self.name + INLINED_SUFFIX if self.inlined else self.name


MISSING = NamedFrame(CALLERS_UNKNOWN, "", "", None, FrameKind.MISSING)


class FrameLocations:
    """Numbers the locations of a tree's frames. A location is an address and a site; a site is a NamedFrame without its address."""

    def __init__(self, room: Room) -> None:
        self.sites: list[NamedFrame] = []
        self.numbered = Numbered(room)  # (address, number of the site)
        self.outer: dict[int, int] = {}  # by location of an inlined function: the location of its caller
        self._site_numbers: dict[NamedFrame, int] = {}

    def __len__(self) -> int:
        return self.numbered.count

    def number_location(self, frame: NamedFrame) -> int:
        """Return the number of a frame's location, which is added if it is new. Raises OSError, MemoryError."""
        return self.numbered.number_of(NO_ADDRESS if frame.address is None else frame.address, self.number_site(frame))

    def number_site(self, frame: NamedFrame) -> int:
        """Return the number of a frame's site, which is added if it is new."""
        site = frame._replace(address=None)
        number = self._site_numbers.setdefault(site, len(self.sites))
        if number == len(self.sites):
            self.sites.append(site)
        return number

    def number_locations(self, frames: Iterable[NamedFrame]) -> list[int]:
        """Return the numbers of the locations of `frames`, which begin with the outermost, and record callers in `outer`."""
        numbers: list[int] = []
        for frame in frames:
            number = self.number_location(frame)
            if frame.inlined and numbers:
                self.outer.setdefault(number, numbers[-1])  # the first stays, as a function inlined into itself would make a cycle
            numbers.append(number)
        return numbers


@dataclass(eq=False)
class NamedProfile:
    """A profile with names: the fields of Collected that users see, and the stacks.

    `groups`: names of the outermost level in flame graphs and tables. `group_of`: for each row of the tree its index in `groups`.
    """

    event: str
    backend: str
    frequency: int
    started: float  # seconds since 1970
    seconds: float
    unit: Unit = Unit.SAMPLES  # of all counts
    lost: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    build_ids: dict[str, str] = field(default_factory=dict)  # by path, in hexadecimal digits
    programs: set[str] = field(default_factory=set)  # paths of the files that are programs, not libraries
    tasks: SampledTasks = field(default_factory=SampledTasks)
    room: Room = field(default_factory=Room)
    by_line: bool = False  # the lines of a function are separate frames
    title: str = ""  # of a flame graph
    by: str = ""
    groups: list[str] = field(default_factory=list)
    group_of: array[int] = field(default_factory=lambda: array("I"))

    def __post_init__(self) -> None:
        self.tree = CallTree(self.room)
        self.locations = FrameLocations(self.room)

    def rows(self) -> Iterator[int]:
        """Yield the rows that have samples."""
        samples = self.tree.samples
        return (row for row in range(self.tree.rows.count) if samples[row])

    def label(self, site: NamedFrame) -> str:
        """Return the label of a site. Flame graphs and folded stacks merge frames of equal labels."""
        return f"{site.label}:{site.line}" if self.by_line and site.line else site.label

    @property
    def main_program(self) -> str:
        """Return the path of the program with the most samples; empty if there is none."""
        paths = sorted(self.programs)
        numbers = {path: number for number, path in enumerate(paths, 1)}
        label_of = array("I", [numbers.get(site.path, 0) for site in self.locations.sites])
        own, total = (array("Q", bytes(8 * len(paths) + 8)) for _ in range(2))
        self.count_labels(label_of, own, total)
        return max(paths, key=lambda path: total[numbers[path]], default="")

    def count_labels(self, label_of: Column, own: Column, total: Column) -> None:
        """Add to `own` the samples in which a label is innermost, to `total` all that contain it. `label_of`: by site."""
        last = zeros("I", len(own))
        for part in self.room.parts(self.tree.rows.count):
            count_labels(self.tree, self.locations.numbered, label_of, own, total, last, part)

    @cached_property
    def max_depth(self) -> int:
        """Return an upper bound of the frames in a stack, once all stacks are counted."""
        if not self.locations.outer:  # without inlined functions, MAX_DEPTH bounds the frames
            return MAX_NAMED_FRAMES
        depths = self.room.new_column("I")
        self.room.grow(depths, self.tree.nodes.count)
        parts = self.room.parts(self.tree.nodes.count, 1)
        depth = max((max_node_depth(self.tree.nodes, depths.view, part) for part in parts), default=0)
        self.room.drop(depths)
        return depth

    @cached_property
    def ends(self) -> Counter[End]:
        """Return the number of samples by the end of their walks, once all stacks are counted."""
        return self._ends_and_guessed[0]

    @cached_property
    def samples(self) -> int:
        """Return the number of samples in the profile, once all stacks are counted."""
        return self.ends.total()

    @property
    def guessed(self) -> int:
        """Return the number of samples with a frame that was found by a frame pointer."""
        return self._ends_and_guessed[1]

    @cached_property
    def _ends_and_guessed(self) -> tuple[Counter[End], int]:
        by_end = array("Q", bytes(8 * (max(End) + 1)))
        flags = bytearray(self.tree.nodes.count)
        guessed_site = bytes(site.guessed for site in self.locations.sites)
        for part in self.room.parts(self.tree.nodes.count, 1):
            flag_subtrees(self.tree.nodes, self.locations.numbered, guessed_site, flags, part)
        guessed = sum(count_samples_by_end(self.tree, flags, by_end, part) for part in self.room.parts(self.tree.rows.count))
        return Counter({End(number): count for number, count in enumerate(by_end) if count}), guessed
