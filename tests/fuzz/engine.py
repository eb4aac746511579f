"""Runs inputs of one target in a child process, keeps those that take new branches, and finds those that end it."""

from __future__ import annotations

import mmap
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.fuzz.limits import address_space, ending, let_timers_kill, limited
from tests.fuzz.mutate import MAX_SIZE, mutated
from tests.fuzz.recipes import Recipe, edited, parse

SHARED_BYTES = 1 << 22
MEASURED_EVERY = 64  # inputs between two looks at how much memory the process has mapped: what is kept is not an input's
MAX_EDITS = 400  # of a kept input: those of many generations take long to write down
MAX_BUGS = 20


class Bug(NamedTuple):
    """`what`: how it ended, and for an exception where it was raised; the same for all inputs that find the same bug."""

    what: str
    details: str
    recipe: Recipe


@dataclass
class Fuzzer:
    """One target. `taken`: flags that branches set, empty where none do. `first`: recipes to begin with, as with the seeds.

    Inputs that are worth it are kept in `directory`.
    """

    run: Callable[[bytes], None]
    seeds: Mapping[str, bytes]
    first: list[Recipe]
    directory: Path
    taken: bytearray
    random_seed: int
    cpu_seconds: float
    inputs: int = 0
    bugs: dict[str, Bug] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.queue = [(recipe, self._data(recipe)) for recipe in [*map(Recipe, self.seeds), *self.first]]
        self.kept: list[tuple[Recipe, bytes]] = []
        self.known: set[str] = set()
        self.seen = mmap.mmap(-1, len(self.taken) or 1)  # shared with the child, as is what it is doing
        self.doing = mmap.mmap(-1, SHARED_BYTES)
        self._tell(0, self.queue[0][0])

    @property
    def branches(self) -> int:
        return len(self.seen) - self.seen[:].count(0)

    def fuzz(self, max_inputs: int, seconds: float) -> None:
        """Until this many inputs were tried, or so much time has passed."""
        end = time.monotonic() + seconds
        while self.inputs < max_inputs and time.monotonic() < end and len(self.bugs) < MAX_BUGS:
            self._load()
            what, details = in_child(lambda: self._work(max_inputs, end))
            self.inputs, recipe = self._done()
            if not what:
                break
            self._report(what, details, recipe)
        self._load()

    def _load(self) -> None:
        """What the directory holds, of earlier runs or of a child that has ended."""
        for file in sorted(self.directory.glob("*.txt")):
            if file.name not in self.known:
                self.known.add(file.name)
                recipe = parse(file.read_text())
                if recipe.seed in self.seeds:
                    self.kept.append((recipe, self._data(recipe)))

    def _data(self, recipe: Recipe) -> bytes:
        return edited(self.seeds[recipe.seed], recipe.edits)

    def _tell(self, number: int, recipe: Recipe) -> None:
        text = f"{number}\n{recipe}\0".encode()
        self.doing[: len(text)] = text

    def _done(self) -> tuple[int, Recipe]:
        number, _, text = self.doing[: self.doing.find(b"\0")].decode().partition("\n")
        return int(number), parse(text)

    def _work(self, max_inputs: int, end: float) -> None:
        mapped = 0
        first = self.queue + self.kept
        for number in range(self.inputs, max_inputs):
            if number % MEASURED_EVERY == 0 or not mapped:
                mapped = address_space()
                if time.monotonic() > end:
                    return
            recipe, data = first[number] if number < len(first) else self._made(number)
            self._tell(number + 1, recipe)
            with limited(len(data), mapped, self.cpu_seconds):
                self.run(data)
            if self._is_new() and number >= len(first):
                self._keep(recipe, data)
                mapped = 0

    def _made(self, number: int) -> tuple[Recipe, bytes]:
        """The input of that number: of a kept one or a seed, the later ones preferred."""
        random = Random(self.random_seed << 32 | number)
        count = len(self.queue) + len(self.kept)

        def choose() -> tuple[Recipe, bytes]:
            at = random.randrange(count) if random.random() < 0.5 else max(random.randrange(count), random.randrange(count))
            return self.queue[at] if at < len(self.queue) else self.kept[at - len(self.queue)]

        (base, data), (_, other) = choose(), choose()
        edits = mutated(random, data, other)
        return Recipe(base.seed, (*base.edits, *edits)), edited(data, edits)

    def _is_new(self) -> bool:
        taken = int.from_bytes(self.taken[: len(self.seen)], "little")
        if not taken:
            return False
        self.taken[:] = bytes(len(self.taken))
        seen = int.from_bytes(self.seen[:], "little")
        if not taken & ~seen:
            return False
        self.seen[:] = (taken | seen).to_bytes(len(self.seen), "little")
        return True

    def _keep(self, recipe: Recipe, data: bytes) -> None:
        if len(recipe.edits) <= MAX_EDITS and len(data) <= MAX_SIZE:
            self.kept.append((recipe, data))
            text = str(recipe) + "\n"
            name = sha256(text.encode()).hexdigest()[:16] + ".txt"
            (self.directory / name).write_text(text)

    def _report(self, what: str, details: str, recipe: Recipe) -> None:
        """Counts only what happens again, alone in a process; then with as few edits as it takes."""
        if what in self.bugs:
            return
        again, details_again = self.ending(recipe)
        if again != what:
            what, details = f"only once: {what}", details or details_again
        else:
            recipe = self._smaller(recipe, what)
        self.bugs[what] = Bug(what, details, recipe)

    def ending(self, recipe: Recipe) -> tuple[str, str]:
        """How the target ends on an input: empty strings where it ends as it should."""
        data = self._data(recipe)

        def once() -> None:
            with limited(len(data), address_space(), self.cpu_seconds):
                self.run(data)

        return in_child(once)

    def _smaller(self, recipe: Recipe, what: str) -> Recipe:
        size = len(recipe.edits)
        while size:
            at = 0
            while at < len(recipe.edits):
                shorter = recipe._replace(edits=recipe.edits[:at] + recipe.edits[at + size :])
                if self.ending(shorter)[0] == what:
                    recipe = shorter
                else:
                    at += size
            size //= 2
        return recipe


def in_child(work: Callable[[], None]) -> tuple[str, str]:
    """How a child process ends that does the work: (what, traceback), both empty where it ends as it should."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 0
        try:
            let_timers_kill()
            work()
        except BaseException as error:  # noqa: BLE001 - whatever the target raises is what is looked for
            status = 1
            place = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__} in {Path(place.filename).name}, {place.name}, line {place.lineno}"
            os.write(writer, f"{what}\n{''.join(traceback.format_exception(error))[-4000:]}".encode(errors="replace"))
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        what, _, details = pipe.read().decode().partition("\n")
    _, status = os.waitpid(child, 0)
    return what or ending(status), details
