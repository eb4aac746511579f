"""Whether `check` says of damaged sections what their readers do: `python -m tests.checks.readers.compare --help`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from sframegen.checks.consumers import CONSUMERS, Effect, find_unmet_demands
from sframegen.checks.specification.wellformed import SectionFacts, examine_section
from tests.checks.readers import libsframe
from tests.checks.readers.glibc import GivenUpError, Glibc, NotFoundError, NotUsedError
from tests.checks.readers.kernel import EFAULT, U64, Kernel, KernelError
from tests.checks.readers.libsframe import LibSframe
from tests.checks.readers.memory import Memory, OutOfBoundsError, claims
from tests.checks.readers.mutate import Base, bases, mutant
from tests.support.peers import Peers

MAX_PCS = 400
BIASES = (0, 0x7F00_0000_0000)  # a program at its link-time addresses; a library where Linux puts it
FOUND = {"period", "fre-type", "no-rows"}  # demands that hide no function from a look-up: what is said of these alone is met
FROM_LIBSFRAME = {
    "": None, libsframe.FAILS: Effect.FAILS, libsframe.CRASHES: Effect.CRASHES, libsframe.READS_OUT: Effect.READS_OUT,
    libsframe.REJECTS: Effect.REJECTS,
}  # fmt: skip


class Verdict(NamedTuple):
    consumer: str
    said: Effect | None  # by check; None: nothing is wrong
    done: Effect | None  # by the reader
    rules: tuple[str, ...]
    turned: bool = False  # libsframe turned the section's bytes around first

    @property
    def agrees(self) -> bool:
        """Rejection is the same; a reader does nothing worse than what was said. What was said may go unnoticed by the look-ups.

        While it turns a section around libsframe can die of what it would reject, or reject what it would die of later.
        """
        if self.turned:
            if self.done is None:
                return True
            return self.said is not None and (self.done <= self.said or (self.done is Effect.REJECTS and self.said > Effect.FAILS))
        if Effect.REJECTS in (self.said, self.done):
            return self.said == self.done
        if self.said is Effect.CRASHES and {rule.removeprefix(f"{self.consumer}-") for rule in self.rules} <= FOUND:
            return self.done is Effect.CRASHES
        return self.done is None or (self.said is not None and self.done <= self.said)


def worst(effects: Iterator[Effect]) -> Effect | None:
    return max(effects, default=None)


def look_ups(base: Base, data: bytes) -> list[int]:
    try:
        return sorted(set(claims(Memory(data, base.order), base.address)))[:MAX_PCS]
    except OutOfBoundsError:
        return []


def kernel(base: Base, data: bytes, *, validating: bool = False) -> Effect | None:
    """The worst that happens, wherever the file is loaded."""
    return worst(effect for bias in BIASES if (effect := _kernel(base, data, bias, validating=validating)) is not None)


def _kernel(base: Base, data: bytes, bias: int, *, validating: bool) -> Effect | None:
    first, last = base.code
    try:
        section = Kernel(data, base.address + bias, base.order, (first + bias, last + bias))
        if validating:
            section.validate()
    except KernelError:
        return Effect.REJECTS

    def effects() -> Iterator[Effect]:
        for pc in look_ups(base, data):
            try:
                section.find((pc + bias) & U64)
            except KernelError as error:
                yield Effect.DROPS if error.code == EFAULT else Effect.FAILS
            except ZeroDivisionError:
                yield Effect.CRASHES

    return worst(effects())


def glibc(base: Base, data: bytes) -> Effect | None:
    try:
        section = Glibc(data, base.order)
    except (NotUsedError, OutOfBoundsError):
        return Effect.REJECTS

    def effects() -> Iterator[Effect]:
        for pc in look_ups(base, data):
            try:
                section.find(pc - base.address)
            except NotFoundError:
                yield Effect.FAILS
            except GivenUpError:
                yield Effect.GIVES_UP
            except OutOfBoundsError:
                yield Effect.READS_OUT
            except ZeroDivisionError:
                yield Effect.CRASHES

    return worst(effects())


def verdicts(base: Base, data: bytes, gnu: LibSframe | None) -> Iterator[Verdict]:
    facts = examine_section(data, base.address, executable=[base.code], byte_order=base.order)
    done = {"kernel": kernel(base, data), "glibc": glibc(base, data)}
    if gnu:
        pcs = [pc - base.address for pc in look_ups(base, data)]
        done["gnu"] = FROM_LIBSFRAME[gnu.outcome(data, pcs)]
    for consumer, effect in done.items():
        yield _verdict(facts, consumer, effect)
    rules = tuple(
        demand.name for demand in find_unmet_demands(facts, "kernel") if demand.validated or demand.effect is Effect.REJECTS
    )
    rejected = Effect.REJECTS if rules or not _is_read(facts, "kernel") else None
    validated = kernel(base, data, validating=True)
    yield Verdict("validating kernel", rejected, validated if validated is Effect.REJECTS else None, rules)


def _is_read(facts: SectionFacts, consumer: str) -> bool:
    return facts.layout is None or facts.layout.version in CONSUMERS[consumer].versions


def _verdict(facts: SectionFacts, consumer: str, done: Effect | None) -> Verdict:
    if not _is_read(facts, consumer):
        return Verdict(consumer, Effect.REJECTS, done, (f"{consumer}-version",))
    demands = find_unmet_demands(facts, consumer)
    turned = consumer == "gnu" and facts.byte_order != sys.byteorder
    return Verdict(consumer, worst(demand.effect for demand in demands), done, tuple(demand.name for demand in demands), turned)


def compare(given: list[Base], count: int, seed: int, gnu: LibSframe | None) -> Iterator[tuple[Base, bytes, Verdict]]:
    """Each mutant, and what is said and done, for every reader."""
    random = Random(seed)
    for _ in range(count):
        base = random.choice(given)
        data = mutant(random, base)
        for verdict in verdicts(base, data, gnu):
            yield base, data, verdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checks.readers.compare", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=5, help="disagreements that are printed")
    options = parser.parse_args()
    figures: Counter[tuple[str, str, str]] = Counter()
    unnoticed: Counter[tuple[str, tuple[str, ...]]] = Counter()
    wrong = 0
    with LibSframe(Peers().libsframe()) as gnu:
        for base, data, verdict in compare(bases(), options.count, options.seed, gnu):
            said, done = (effect.name if effect is not None else "-" for effect in (verdict.said, verdict.done))
            figures[verdict.consumer, said, done] += 1
            if verdict.said is not None and verdict.done is None:
                unnoticed[verdict.consumer, verdict.rules] += 1
            if not verdict.agrees:
                wrong += 1
                if wrong <= options.show:
                    print(f"{base.name}: {verdict}\n  {data.hex()}")
    for (consumer, says, does), number in sorted(figures.items()):
        print(f"{consumer:18} check says {says:10} reader does {does:10} {number:6}")
    print("said, but unnoticed by the look-ups:")
    for (consumer, rules), number in unnoticed.most_common(options.show * 4):
        print(f"  {number:5} {consumer}: {', '.join(rules)}")
    print(f"{options.count} sections, seed {options.seed}: {wrong} disagreements")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
