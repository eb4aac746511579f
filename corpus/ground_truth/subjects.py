"""The programs, how each is built, and which function of each calls which: no other stacks are possible."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROGRAMS = Path(__file__).with_name("programs")
OUTPUT = "program"


class Calls(NamedTuple):
    """`callees`: by function. `roots`: called by the C library or a runtime. `anywhere`: interrupt any function."""

    callees: Mapping[str, frozenset[str]]
    roots: frozenset[str]
    anywhere: frozenset[str] = frozenset()


class Build(NamedTuple):
    """`commands` make ./program in an empty directory."""

    subject: str
    name: str
    calls: Calls
    commands: tuple[tuple[str, ...], ...]


def _calls(text: str, roots: str, anywhere: str = "") -> Calls:
    """`text`: lines of a caller and its callees."""
    rows = (line.split() for line in text.strip().splitlines())
    return Calls({caller: frozenset(callees) for caller, *callees in rows}, frozenset(roots.split()), frozenset(anywhere.split()))


C = _calls(
    """
    main work
    in_thread work
    work by_pointer sorts many
    by_pointer one_kind other_kind aligned
    one_kind leaf
    other_kind deep
    deep deep leaf
    aligned wide
    wide leaf
    many leaf
    sorts compare
    compare
    handler inside
    inside leaf
    leaf
    """,
    "main in_thread",
    "handler",
)
CPP = _calls(
    """
    main catches
    catches rethrows
    rethrows recurses
    recurses recurses with_cleanup Guarded::~Guarded
    with_cleanup throws Guarded::~Guarded
    throws
    Guarded::~Guarded
    """,
    "main",
)
COROUTINES = _calls(
    """
    main turn
    turn give_way spin
    give_way spin
    ping ping_inner
    ping_inner spin give_way
    pong pong_inner
    pong_inner pong_inner give_way
    spin
    """,
    "main ping pong",
)
OPENED = _calls(
    """
    main uses
    uses enter
    enter one_outer two_outer
    one_outer one_inner
    two_outer two_inner
    one_inner
    two_inner
    """,
    "main",
)
ASSEMBLY = _calls(
    """
    main calls_assembly
    calls_assembly asm_described
    asm_described asm_framed
    asm_framed asm_leaf asm_pushes
    asm_pushes asm_leaf
    asm_leaf
    """,
    "main",
)
SQUARE, CIRCLE = ("<program::Square as program::Shape>::area", "<program::Circle as program::Shape>::area")
RUST = Calls(
    {
        "program::main": frozenset({"program::work"}),
        "program::work": frozenset({"program::by_trait", "program::catches"}),
        "program::by_trait": frozenset({SQUARE, CIRCLE}),
        SQUARE: frozenset({"program::leaf"}),
        CIRCLE: frozenset({"program::deep"}),
        "program::deep": frozenset({"program::deep", "program::leaf"}),
        "program::catches": frozenset({"program::panics"}),
        "program::panics": frozenset(),
        "program::leaf": frozenset(),
    },
    frozenset({"program::main"}),
)
GO = _calls(
    """
    main.main main.inGoroutine
    main.inGoroutine main.work
    main.work main.(*square).area main.square.area main.(*circle).area main.circle.area main.recovers
    main.(*square).area main.square.area
    main.(*circle).area main.circle.area
    main.square.area main.leaf
    main.circle.area main.deep
    main.deep main.deep main.leaf
    main.recovers main.panics main.recovers.func1
    main.panics main.recovers.func1
    main.recovers.func1
    main.leaf
    """,
    "main.main main.inGoroutine",
)


def _source(name: str) -> str:
    return str(PROGRAMS / name)


def _compiled(source: str, *words: str) -> tuple[tuple[str, ...], ...]:
    compiler, *flags = words
    return ((compiler, *flags, "-o", OUTPUT, _source(source)),)


def builds() -> Iterator[Build]:
    frames = {"frame pointers": "-fno-omit-frame-pointer", "none": "-fomit-frame-pointer"}
    places = {"PIE": ("-fPIE", "-pie"), "fixed": ("-fno-pie", "-no-pie")}
    for compiler, level, (frame, flag), (place, flags) in product(("gcc", "clang"), "0123", frames.items(), places.items()):
        name = f"{compiler} -O{level}, {frame}, {place}"
        yield Build("C", name, C, _compiled("calls.c", compiler, f"-O{level}", flag, *flags, "-pthread"))
    for words in (("gcc", "-static"), ("gcc", "-static-pie"), ("musl-gcc",), ("musl-gcc", "-static")):
        yield Build("C", " ".join(words), C, _compiled("calls.c", *words, "-O2", "-pthread"))
    for compiler, level in product(("g++", "clang++"), "023"):
        yield Build("C++", f"{compiler} -O{level}", CPP, _compiled("throws.cc", compiler, f"-O{level}"))
    for compiler, level in (("gcc", "0"), ("gcc", "2"), ("clang", "2")):
        yield Build("coroutines", f"{compiler} -O{level}", COROUTINES, _compiled("coroutines.c", compiler, f"-O{level}"))
    for level in "02":
        libraries = [
            (
                "gcc",
                f"-O{level}",
                "-shared",
                "-fPIC",
                f"-DNAME={name}",
                f"-DROOM={room}",
                "-o",
                f"lib{name}.so",
                _source("library.c"),
            )
            for name, room in (("one", 64), ("two", 160))
        ]
        commands = (*libraries, *_compiled("opens.c", "gcc", f"-O{level}"))
        yield Build("dlopen", f"gcc -O{level}", OPENED, commands)
    assembly = ("gcc", "-O2", "-o", OUTPUT, _source("assembly.c"), _source("frames.S"))
    yield Build("assembly", "gcc -O2", ASSEMBLY, (assembly,))
    for flag in ("-O", "-g"):
        yield Build("Rust", f"rustc {flag}", RUST, (("rustc", flag, "--crate-name", "program", "-o", OUTPUT, _source("calls.rs")),))
    go = ("go", "build", "-o", OUTPUT)
    prepare = (("cp", _source("calls.go"), "."), ("go", "mod", "init", "program"))
    yield Build("Go", "go", GO, (*prepare, go))
    yield Build("Go", "go, stripped", GO, (*prepare, (*go, "-ldflags", "-s -w")))
    yield Build("Go", "go, PIE", GO, (*prepare, (*go, "-buildmode=pie")))
