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
    """`text`: lines of a caller and its callees; one without a line calls none."""
    rows = [line.split() for line in text.strip().splitlines()]
    callees = {name: frozenset[str]() for row in rows for name in row} | {caller: frozenset(names) for caller, *names in rows}
    return Calls(callees, frozenset(roots.split()), frozenset(anywhere.split()))


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
    handler inside
    inside leaf
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
    """,
    "main ping pong",
)
GENERATORS = _calls(
    """
    main work outer inner
    work resumes leaf
    resumes outer inner
    outer outer inner resumes leaf
    inner inner leaf
    """,
    "main",
)
INTERPRETER = _calls(
    """
    main run
    run op_push op_add op_call op_loop op_end
    op_add leaf
    op_call helper
    helper leaf run
    """,
    "main",
)
JUMPS = _calls(
    """
    main attempts
    attempts deep leaf
    deep deep leaf
    outer inside
    inside leaf inner
    inner leaf leaves
    leaves leaf
    """,
    "main",
    "outer",
)
VFORKS = _calls(
    """
    main spawns in_parent
    spawns in_child
    in_child deep
    deep deep leaf
    in_parent leaf
    """,
    "main",
)
RECURSION = _calls(
    """
    main
    in_thread even
    even odd bottom
    odd even
    """,
    "main in_thread",
)
OPENED = _calls(
    """
    main uses
    uses enter
    enter one_outer two_outer
    one_outer one_inner
    two_outer two_inner
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
    """,
    "main.main main.inGoroutine",
)
CGO = _calls(
    """
    main.main main.work
    main.work main.callsC
    main.callsC main._Cfunc_c_calls main._Cfunc_c_calls.abi0
    main._Cfunc_c_calls main.goBack
    main._Cfunc_c_calls.abi0 main.goBack
    main.goBack main._Cfunc_c_leaf main._Cfunc_c_leaf.abi0
    c_calls c_deep goBack
    c_deep c_deep c_leaf
    goBack main.goBack
    """,
    "main.main",
)
PYTHON = _calls(
    """
    repeats work
    work deep generates by_callback
    deep deep leaf
    generates leaf
    by_callback key
    key leaf
    """,
    "repeats",
)

# Subject, source, calls, and the compilers' words.
COMPILED = (
    ("C++", "throws.cc", CPP, [f"{compiler} -O{level}" for compiler in ("g++", "clang++") for level in "023"]),
    ("coroutines", "coroutines.c", COROUTINES, ["gcc -O0", "gcc -O2", "clang -O2"]),
    ("C++20 coroutines", "coroutines.cc", GENERATORS, [f"{cc}++ -std=c++20 -O{level}" for cc in ("g", "clang") for level in "02"]),
    ("tail calls", "interpreter.c", INTERPRETER, ["gcc -O2", "gcc -O2 -fno-omit-frame-pointer", "clang -O0", "clang -O2"]),
    ("siglongjmp", "jumps.c", JUMPS, ["gcc -O0", "gcc -O2", "clang -O2", "musl-gcc -static -O2"]),
    ("vfork", "vforks.c", VFORKS, ["gcc -O0", "gcc -O2", "clang -O2", "musl-gcc -static -O2"]),
    ("deep recursion", "recursion.c", RECURSION, ["gcc -O0 -pthread", "gcc -O2 -pthread", "clang -O2 -pthread"]),
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
    for subject, source, calls, compilers in COMPILED:
        yield from (Build(subject, words, calls, _compiled(source, *words.split())) for words in compilers)
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
    for subject, source, calls in (("Go", "calls.go", GO), ("cgo", "calls_c.go", CGO)):
        prepare = (("cp", _source(source), "."), ("go", "mod", "init", "program"))
        yield Build(subject, "go", calls, (*prepare, go))
        yield Build(subject, "go, stripped", calls, (*prepare, (*go, "-ldflags", "-s -w")))
        yield Build(subject, "go, PIE", calls, (*prepare, (*go, "-buildmode=pie")))
    yield Build("Python", "python3.12 -X perf", PYTHON, (("python3.12", "-c", ""), ("cp", _source("calls.py"), OUTPUT)))
