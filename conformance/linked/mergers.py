"""What linkers get, and what the section of the linked file has to say: addresses are theirs, so places are symbols."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.features.flexible import FROM_CFA, control
from conformance.features.usual import BODY, BY_FP, SIZE, entry, frame, frame_by_fp, usual_rows
from conformance.linked.objects import Code, Object
from conformance.machines import AARCH64, AMD64, S390X
from conformance.rules import NONE, OUTERMOST, Rule, rule
from conformance.writer import FRAME_POINTER, PCREL, Function, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.machines import Machine

M = AMD64
CALL_SITE = 0x10
LINKED = ("-e", "main", "-o", "OUT")


class Place(NamedTuple):
    """`symbol`: of a function, or the name of a section."""

    symbol: str
    offset: int
    answers: tuple[Rule, ...]


class Link(NamedTuple):
    """`steps`: arguments of the linker, in turn; the last writes OUT. `refusable`: it may fail instead, or write no section."""

    name: str
    inputs: dict[str, bytes]
    steps: tuple[tuple[str, ...], ...]
    places: tuple[Place, ...]
    why: str
    refusable: bool = False
    machine: Machine = M

    def as_json(self) -> dict[str, Any]:
        places = [
            {"symbol": place.symbol, "offset": place.offset, "answers": [answer.as_json() for answer in place.answers]}
            for place in self.places
        ]
        return {
            "name": self.name,
            "abi": self.machine.name,
            "why": self.why,
            "refusable": self.refusable,
            "steps": [list(step) for step in self.steps],
            "places": places,
        }


def code(name: str, *calls: str, machine: Machine = M, comdat: bool = False, function: Function | None = None) -> Code:
    return Code(name, function or Function(0, SIZE, usual_rows(machine)), calls, comdat)


def usual(name: str, machine: Machine = M, *others: Rule) -> list[Place]:
    """What is said of a function made by `code`. `others`: that may be said instead."""
    rules = ((0, entry(machine)), (BODY, frame(machine)), (BY_FP, frame_by_fp(machine)), (SIZE - 1, entry(machine)))
    return [Place(name, at, (answer, *others)) for at, answer in rules]


Steps = tuple[tuple[str, ...], ...]


def link(
    name: str, objects: dict[str, Object], places: list[Place], why: str, *,
    steps: Steps = (), flags: tuple[str, ...] = (), refusable: bool = False, machine: Machine = M,
) -> Link:  # fmt: skip
    """`steps` of nothing: all objects at once, with `flags`."""
    inputs = {file: one.bytes() for file, one in objects.items()}
    return Link(name, inputs, steps or ((*flags, *LINKED, *objects),), tuple(places), why, refusable, machine)


@cache
def all_links() -> tuple[Link, ...]:
    return (*plain_links(), *lost_links(), *odd_links(), *refusable_links())


def plain_links() -> Iterator[Link]:
    for machine in (AMD64, AARCH64, S390X):
        pair = {f"{name}.o": Object(machine, [code(name, machine=machine)]) for name in ("main", "f")}
        places = usual("main", machine) + usual("f", machine)
        yield link(f"two-objects-{machine.name}", pair, places, "two objects with a function each", machine=machine)
    pair = {"main.o": Object(M, [code("main")]), "f.o": Object(M, [code("f"), code("g")])}
    places = usual("main") + usual("f") + usual("g")
    yield link("three-functions", pair, places, "the functions of an object are in sections of their own")
    first = {"f.o": pair["f.o"], "main.o": pair["main.o"]}
    yield link("other-order", first, places, "the same in the other order")
    steps = (("-r", "-o", "both.o", "main.o", "f.o"), (*LINKED, "both.o"))
    yield link("relocatable", pair, places, "linked with -r, and then again", steps=steps)
    version_2 = {name: Object(M, one.codes, version=2) for name, one in pair.items()}
    yield link("version-2", version_2, places, "objects of Version 2 only", refusable=True)
    yield link("attributes", *attributes(), "types, marks and widths of functions stay as they are")


def attributes() -> tuple[dict[str, Object], list[Place]]:
    flexible = (Row(0, (control(7), 24, FROM_CFA, -8)), Row(8, (control(10), 16)))
    wide = (Row(0, (8,)), Row(8, (70000,), width=4))
    functions = {
        "signal": Function(0, SIZE, usual_rows(M), signal=True),
        "flexible": Function(0, SIZE, flexible, flex=True),
        "last": Function(0, SIZE, (Row(0, (8,)), Row(4))),
        "silent": Function(0, SIZE),
        "repeated": Function(0, SIZE, (Row(0, (8,)), Row(11, (16,))), mask=True, rep_size=16),
        "wide": Function(0, SIZE, wide, 4),
    }
    codes = [code(name, function=function) for name, function in functions.items()]
    objects = {"main.o": Object(M, [code("main")]), "f.o": Object(M, codes)}
    places = [
        *usual("main"), Place("signal", BODY, (frame(M)._replace(signal=True),)),
        Place("flexible", 0, (rule(M, "sp+24", "*(cfa-8)"),)), Place("flexible", 8, (rule(M, "r10+16"),)),
        Place("last", 0, (entry(M),)), Place("last", 4, (OUTERMOST,)), Place("silent", 0, (OUTERMOST,)),
        Place("repeated", 0x1A, (entry(M),)), Place("repeated", 0x1B, (rule(M, "sp+16"),)),
        Place("wide", 8, (rule(M, "sp+70000"),)),
    ]  # fmt: skip
    return objects, places


def lost_links() -> Iterator[Link]:
    """Functions that the linked file does not have."""
    inline = code("inline", comdat=True)
    for name, inside in (("comdat", False), ("comdat-pieces", True)):
        objects = {f"{other}.o": Object(M, [code(other, "inline"), inline], pieces_in_groups=inside) for other in ("main", "f")}
        where = "a member of the group" if inside else "outside of the group"
        places = [*usual("inline"), Place("main", CALL_SITE, (frame(M),)), Place("f", CALL_SITE, (frame(M),))]
        yield link(name, objects, places, f"an inline function in two objects, its section {where}")
    objects = {"main.o": Object(M, [code("main", "used"), code("unused")]), "f.o": Object(M, [code("used"), code("other")])}
    places = [*usual("used"), Place("main", CALL_SITE, (frame(M),))]
    yield link("gc-sections", objects, places, "unused functions are dropped with --gc-sections", flags=("--gc-sections",))
    steps = (("-r", "-o", "both.o", *objects), ("--gc-sections", *LINKED, "both.o"))
    yield link("relocatable-gc-sections", objects, places, "linked with -r first, then with --gc-sections", steps=steps)


def odd_links() -> Iterator[Link]:
    """Inputs that a linker meets, and has to take as they are."""
    main = Object(M, [code("main")])
    named: tuple[tuple[str, Object, str], ...] = (
        ("empty-section", Object(M, [code("f")], empty=True), "a section of no bytes, as some crt1.o have"),
        ("no-section", Object(M, [code("f")], sframe=False), "an object without a section"),
    )
    for name, other, why in named:
        yield link(name, {"main.o": main, "f.o": other}, [*usual("main"), Place("f", 0, (NONE,))], why)
        yield link(f"{name}-first", {"f.o": other, "main.o": main}, [*usual("main"), Place("f", 0, (NONE,))], f"{why}, comes first")
    shared = [code("f"), Code("g", Function(0, SIZE, (), shares=0))]
    inputs: tuple[tuple[str, Object, str], ...] = (
        ("shared-rows", Object(M, shared), "two functions of an object have one block of rows"),
        ("relocations-descend", Object(M, [code("f"), code("g")], descending=True), "relocations in another order than functions"),
        ("padded-rows", Object(M, [code("f"), code("g")], padding=bytes(5)), "zeros at the end of the rows"),
        ("auxiliary-header", Object(M, [code("f"), code("g")], auxiliary=bytes(4)), "an object has an auxiliary header"),
    )
    for name, other, why in inputs:
        yield link(name, {"main.o": main, "f.o": other}, usual("main") + usual("f") + usual("g"), why)
    nothing = Object(M, [], header={})
    yield link("no-functions", {"main.o": main, "none.o": nothing}, usual("main"), "a section without functions")
    library = {"main.o": Object(M, [code("main", "f")]), "f.o": Object(M, [code("f")])}
    steps = (("-shared", "-o", "libf.so", "f.o"), (*LINKED, "main.o", "libf.so"))
    places = [Place("main", CALL_SITE, (frame(M),)), Place(".plt", 16, (entry(M), NONE))]
    yield link(
        "plt", library, places, "the first instruction of an entry of the PLT, if the linker says anything of it", steps=steps
    )


def refusable_links() -> Iterator[Link]:
    """Inputs that do not go together: a linker may refuse them or leave one out, but say nothing wrong."""
    main = Object(M, [code("main")])
    other = "*(cfa-16)"
    different: tuple[tuple[str, Object, tuple[Rule, ...], str], ...] = (
        ("mixed-versions", Object(M, [code("f")], version=2), (), "an object of Version 3, one of Version 2"),
        ("mixed-flags", Object(M, [code("f")], flags=0), (), "starts count from their own field, and from the section"),
        ("mixed-abis", Object(M, [code("f")], header={"abi": 2}), (), "a section for another ABI than that of its object"),
    )
    for name, one, others, why in different:
        places = usual("main", M, NONE) + usual("f", M, NONE, *others)
        yield link(name, {"main.o": main, "f.o": one}, places, why, refusable=True)
        yield link(f"{name}-first", {"f.o": one, "main.o": main}, places, f"{why}, which comes first", refusable=True)
    fixed = Object(M, [code("f", function=Function(0, SIZE, (Row(0, (24,)),)))], header={"fixed_ra": -16})
    places = [*usual("main", M, NONE), Place("f", 0, (rule(M, "sp+24", other), NONE))]
    yield link("mixed-fixed-ra", {"main.o": main, "f.o": fixed}, places, "return addresses at other offsets", refusable=True)
    pointers = Object(M, [code("f")], version=2, flags=PCREL | FRAME_POINTER)
    plain = Object(M, [code("main")], version=2)
    places = usual("main", M, NONE) + usual("f", M, NONE)
    yield link(
        "frame-pointer-flag", {"main.o": plain, "f.o": pointers}, places, "one of two keeps the frame pointer", refusable=True
    )
