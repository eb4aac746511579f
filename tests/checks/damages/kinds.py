"""What a kind of damage is, and what it is done to."""

from __future__ import annotations

from array import array
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sframegen.format.encode import Encoder
from sframegen.format.model import OUTERMOST, FdeType, FunctionTable, Kind, Rule, Where
from sframegen.format.words import encode_rule
from tests.checks.damages.subject import NotHereError, NowhereError, Site, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from sframegen.format.abi import Abi

    Do = Callable[["Copy", Random], int]

T = TypeVar("T")
TRIES = 100


class Copy:
    """A copy of a section's table, which can be damaged."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.abi: Abi = subject.abi

    @cached_property
    def table(self) -> FunctionTable:
        return FunctionTable(**{name: column[:] for name, column in vars(self.subject.table).items()})

    def file(self) -> bytearray:
        """The damaged file. NotHereError where the section does not fit, or its version has no words for the damage."""
        encoder = Encoder(self.table, self.abi, self.subject.layout, share=self.abi.shares_rows)
        section = bytes(encoder.encode(self.subject.section.address))
        return self.subject.file(section.ljust(len(self.subject.section.data), b"\0"))

    # -- drawing

    def functions(self, random: Random, fits: Callable[[int], object]) -> int:
        """A function that fits."""
        return draw(random, range(len(self.subject.table)), fits)

    def site(self, random: Random, fits: Callable[[Site], object]) -> Site:
        return draw(random, self.subject.sites, fits)

    # -- changing the table

    def set_rows(self, function: int, rows: list[tuple[int, Rule]]) -> None:
        """Other rows for a function, which becomes flexible where they need it."""
        table = self.table
        kind = table.kinds[table.kind[function]]
        for fde_type in (kind.fde_type, FdeType.FLEX):
            said = all(encode_rule(rule, fde_type, self.abi, self.subject.layout) for _, rule in rows)
            if said and (fde_type is FdeType.DEFAULT or self.subject.layout.flex):
                break
        else:
            raise NotHereError
        self.set_kind(function, kind._replace(fde_type=fde_type))
        first, end = table.first_row[function], table.first_row[function + 1]
        for _, rule in rows:
            if rule not in table.rules:
                table.rules.append(rule)
        table.row_start[first:end] = array("I", [offset for offset, _ in rows])
        table.row_rule[first:end] = array("I", [table.rules.index(rule) for _, rule in rows])
        for number in range(function + 1, len(table.first_row)):
            table.first_row[number] += len(rows) - (end - first)

    def set_rule(self, site: Site, rule: Rule) -> int:
        """Another rule for a row. NotHereError where it means the same."""
        if not self.differ(site.rule, rule):
            raise NotHereError
        rows = self.table.rows(site.function)
        rows[site.row] = (rows[site.row][0], rule)
        self.set_rows(site.function, rows)
        return site.start

    def set_kind(self, function: int, kind: Kind) -> None:
        table = self.table
        if kind not in table.kinds:
            table.kinds.append(kind)
        table.kind[function] = table.kinds.index(kind)

    def usual_rule(self) -> Rule:
        """One of the section's own, with a CFA that default FDEs can say."""
        plain = (site.rule for site in self.subject.sites if site.rule.cfa is not None and not site.rule.cfa.deref)
        return next(rule for rule in plain if rule.cfa and rule.cfa.register == self.abi.sp)

    def differ(self, one: Rule | None, other: Rule | None) -> bool:
        """True if these rules mean different things."""
        return one is not None and other is not None and values(one, self.abi) != values(other, self.abi)


def draw(random: Random, among: Sequence[T], fits: Callable[[T], object]) -> T:
    """One that fits; NowhereError where none does."""
    for _ in range(min(TRIES, len(among))):
        one = random.choice(among)
        if fits(one):
            return one
    start = random.randrange(len(among)) if among else 0
    for number in range(len(among)):
        one = among[(start + number) % len(among)]
        if fits(one):
            return one
    raise NowhereError


def values(rule: Rule, abi: Abi) -> object:
    """What a rule says of a made-up machine: equal for rules that mean the same, for nearly no others."""
    if rule == OUTERMOST or rule.cfa is None:
        return None

    def value(where: Where | None, cfa: int, own: int) -> int:
        if where is None:
            return noise(own)
        address = (cfa if where.register is None else noise(where.register)) + where.offset
        return noise(address) if where.deref else address

    cfa = value(rule.cfa, 0, 0)
    return cfa, value(rule.ra, cfa, abi.ra), value(rule.fp, cfa, abi.fp), rule.ra_signed


def noise(number: int) -> int:
    """A register's value, or that of memory."""
    number = (number + 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9 % (1 << 64)
    return (number ^ number >> 29) * 0x94D049BB133111EB % (1 << 64)


class Damage(NamedTuple):
    """`do`: damages a copy, and says at which address. `rule` finds it there."""

    name: str
    do: Do
    rule: str
    versions: tuple[int, ...]

    @property
    def leaves_gap(self) -> bool:
        """True if code is no longer covered: that is a note, and other rules may be broken besides."""
        return self.rule == "cfi-absent"


class Kinds:
    """A part of the table of damages."""

    def __init__(self) -> None:
        self.all: list[Damage] = []

    def add(self, name: str, do: Do, rule: str, versions: tuple[int, ...] = (2, 3)) -> None:
        self.all.append(Damage(name, do, rule, versions))

    def __call__(self, rule: str) -> Callable[[Do], Do]:
        """As `add`, by the name of a function."""

        def add(do: Do) -> Do:
            self.add(do.__name__.replace("_", " "), do, rule)
            return do

        return add
