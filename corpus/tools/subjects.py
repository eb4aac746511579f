"""The files: those of packages, and those that are compiled here; each with a command that asks it for an answer."""

from __future__ import annotations

import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from corpus.run.behaviour import ALONE, ENVIRONMENT, Behaviour, Outcome, nature_of, run
from corpus.tools.obtaining import unpacked
from sframegen.elf.file import open_elf
from sframegen.elf.records import PT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from corpus.tools.obtaining import Provider

PROGRAMS = Path(__file__).parent / "programs"
SOURCES = {"C": ("gcc", "answers.c"), "C++": ("g++", "answers.cc")}
ET_EXEC = 2


class Subject(NamedTuple):
    """A file. Its command has `{file}`, or {folder}, where it then is."""

    name: str
    kind: str
    file: Path
    command: tuple[str, ...]
    environ: Mapping[str, str]

    def answer(self, file: Path, folder: Path) -> Outcome:
        """What it says when it runs in `folder`, an empty one."""
        words = {"file": str(file), "folder": str(file.parent)}
        file.chmod(0o755)
        environ = [f"{name}={value.format(**words)}" for name, value in (ENVIRONMENT | dict(self.environ)).items()]
        outcome = run([*surroundings(), *environ, *(word.replace("{file}", words["file"]) for word in self.command)], folder)
        return Outcome(outcome.status, outcome.output.replace(str(file.parent).encode(), b"."))


@cache
def surroundings() -> tuple[str, ...]:
    """Namespaces, where the system gives them."""
    return ALONE if Behaviour().may_run else ("env", "-i")


def kind_of(file: Path, *, is_library: bool) -> str:
    elf = open_elf(file)
    has_interpreter = any(s.p_type == PT.INTERP for s in elf.segments)
    if is_library:
        return "library"
    if elf.header.e_type == ET_EXEC:
        return "non-PIE" if has_interpreter else "static"
    return "PIE" if has_interpreter or not nature_of(file).is_program else "static-PIE"


def of_packages(manifest: Mapping[str, Any]) -> Iterator[Subject]:
    common = manifest["programs"]
    packages = {entry["package"] for entry in manifest["program"]} | set(common["also"])
    root = unpacked(common["suite"], packages, without=common["without"])
    environ = dict(common["environ"]) | {"LD_LIBRARY_PATH": common["libraries"]}
    for entry in manifest["program"]:
        file = (root / entry["file"]).resolve(strict=True)
        command = tuple(word.replace("{root}", str(root)) for word in entry["command"])
        kind = kind_of(file, is_library="{file}" not in command)
        own = {name: value.replace("{root}", str(root)) for name, value in environ.items()}
        name = Path(entry["file"]).name  # by which libraries are found
        if kind == "library":
            name = file.name
            own["LD_PRELOAD"] = f"{{folder}}/{name}"
        yield Subject(name, kind, file, command, own)


LINKERS = {"": (), "gold": ("-fuse-ld=gold",), "lld": ("-fuse-ld=lld", "-B{linkers}"), "mold": ("-fuse-ld=mold", "-B{linkers}")}
RPATH = "-Wl,-rpath,/a/directory/that/does/not/exist"  # of C programs and the library; C++ programs have none
FLAGS: dict[str, tuple[str, ...]] = {
    "-no-pie": ("-no-pie",),
    "-no-pie -rdynamic": ("-no-pie", "-rdynamic"),
    "-no-pie -z relro -z now": ("-no-pie", "-Wl,-z,relro,-z,now"),
    "-pie": ("-pie", "-fPIE"),
    "-pie -rdynamic": ("-pie", "-fPIE", "-rdynamic"),
    "-static": ("-static",),
    "-static-pie": ("-static-pie", "-fPIE"),
    "-shared": ("-shared", "-fPIC", "-DLIBRARY"),
}
NOT_LINKED = {("gold", "-static-pie")}  # gold writes one that crashes


def compiled(linkers: Provider, folder: Path, wanted: Callable[[str], bool]) -> Iterator[Subject]:
    """C and C++, each linked in each way, and a C++ library: those of which `KIND: NAME` is wanted."""
    where = folder / "linkers"
    where.mkdir()
    for name in ("ld.lld", "mold"):
        script = where / ("ld." + name.removeprefix("ld."))
        script.write_text(f'#!/bin/sh\nexec {shlex.join(linkers.commands[name])} "$@"\n')
        script.chmod(0o755)
    user = folder / "user"
    for name, linker, language, flags in ways():
        kind = linked_kind(flags)
        if not wanted(f"{kind}: {name}"):
            continue
        words = [word.format(linkers=where) for word in (*flags, *LINKERS[linker])]
        is_library = kind == "library"
        file = folder / name.replace(" ", "_") / ("libanswers.so" if is_library else "program")
        if is_library and not user.exists():
            compile_one("C++", ("-DUSER",), user)
        if compile_one(language, words, file):
            yield Subject(name, kind, file, (str(user),) if is_library else ("{file}",), {"LD_LIBRARY_PATH": "{folder}"})


def ways() -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """(name, linker, language, flags)."""
    for language in SOURCES:
        for linker in LINKERS:
            for kind, flags in FLAGS.items():
                if (linker, kind) in NOT_LINKED or (kind == "-shared" and language == "C"):
                    continue
                own = ("-DSTATIC",) if "static" in kind else (RPATH,) if language == "C" or kind == "-shared" else ()
                yield f"{language} {kind} {linker}".rstrip(), linker, language, (*flags, *own)


def linked_kind(flags: Sequence[str]) -> str:
    return {"-no-pie": "non-PIE", "-pie": "PIE", "-static": "static", "-static-pie": "static-PIE", "-shared": "library"}[flags[0]]


def compile_one(language: str, flags: Sequence[str], output: Path) -> bool:
    """False where this machine cannot link so."""
    compiler, source = SOURCES[language]
    output.parent.mkdir(exist_ok=True)
    done = subprocess.run(
        [compiler, "-O1", "-g", PROGRAMS / source, *flags, "-o", output], check=False, capture_output=True, text=True
    )
    if done.returncode:
        print(f"{output.parent.name}: not linked: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
    return done.returncode == 0
