"""What tools do to files with an added section: the files, the tools, and a judge of what comes out."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import lief
import pytest

from corpus.tools.invocations import LIBRARY as ADDED_LIBRARY
from corpus.tools.invocations import RPATH as NEW_RPATH
from corpus.tools.invocations import then
from sframegen import FormatError, add_section, read
from sframegen.elf.file import open_elf
from sframegen.elf.notes import read_build_id
from sframegen.elf.records import PT, SHT
from tests.real.real_files import BASH, BASHED
from tests.support.cross import ARM64, S390X, Machine
from tests.support.inputs.linker_inputs import blocking_script
from tests.support.peers import Compiler, Peers
from tests.support.programs import PRINTED, PROGRAM

LIBRARY = r"""
#include <cstdio>
#include <stdexcept>
#include <vector>
extern "C" {
static int twice(int n) { return n * 2; }
int (*choose())(int) { return twice; }
int chosen(int) __attribute__((ifunc("choose")));
}
struct Counter {
    int value = 7;
    ~Counter() { std::printf("destroyed %d\n", value); }
};
static thread_local Counter counter;
static __thread int plain = 5;
extern "C" int report() {
    try { std::vector<int>(3).at(7); } catch (const std::out_of_range &) { counter.value += chosen(plain++); }
    return std::printf("counted %d %d\n", counter.value, plain) < 0;
}
"""
LIBRARY_USER = "int report(void); int main(void) { return report(); }\n"
LIBRARY_PRINTED = "counted 17 6\ndestroyed 17\n"

RPATH = "/a/directory/that/does/not/exist"
LONG_NAME = NEW_RPATH.removeprefix("/")
WORKS, WARNS, NO_BETTER, BREAKS = "yes", "warns", "no better", "BREAKS"


class Subject(NamedTuple):
    """A file, and what it prints: a program, or a library that LIBRARY_USER is linked with."""

    name: str
    flags: tuple[str, ...] = ()  # of the compiler; none: the machine's own bash
    machine: Machine | None = None
    source: str = PROGRAM
    prints: str = PRINTED
    min_kernel: str | None = None

    @property
    def is_library(self) -> bool:
        return "-shared" in self.flags


WITH_RPATH = ("-O2", "-g", f"-Wl,-rpath,{RPATH}")
LIBRARY_FLAGS = ("-x", "c++", "-O2", "-g", "-shared", "-fPIC", f"-Wl,-rpath,{RPATH}", "-Wl,-soname,libcounted.so", "-lstdc++")
SUBJECTS = (
    Subject("bash", source="", prints=BASHED),
    Subject("non-PIE", (*WITH_RPATH, "-no-pie")),
    Subject("static-PIE", ("-O2", "-g", "-static-pie")),
    Subject("static-PIE, tail", ("-O2", "-g", "-static-pie", "-fuse-ld=lld", "-B{peers}"), min_kernel="5.18"),
    Subject("library", LIBRARY_FLAGS, source=LIBRARY, prints=LIBRARY_PRINTED),
    Subject("library, tail", (*LIBRARY_FLAGS, "-Wl,-T,{script}"), source=LIBRARY, prints=LIBRARY_PRINTED),
    Subject("lld", (*WITH_RPATH, "-fuse-ld=lld", "-B{peers}")),
    Subject("gold", (*WITH_RPATH, "-fuse-ld=gold")),
    Subject("mold", (*WITH_RPATH, "-fuse-ld=mold")),
    Subject("AArch64", WITH_RPATH, ARM64),
    Subject("s390x", WITH_RPATH, S390X),
)


class ToolError(Exception):
    """What a tool, or a program that it wrote, did wrong."""


@dataclass
class Workshop:
    """A subject before and after add-section, and a directory for what tools make of it."""

    subject: Subject
    directory: Path
    peers: Peers
    compile_c: Compiler  # for the subject's machine

    @classmethod
    def of(cls, subject: Subject, directory: Path, peers: Peers, compile_c: Compiler) -> Workshop:
        return cls(subject, directory, peers, subject.machine.compiler(peers, directory) if subject.machine else compile_c)

    @cached_property
    def original(self) -> Path:
        if not self.subject.flags:
            return Path(shutil.which("bash") or pytest.skip("no bash on this machine")).resolve()
        for flag, program in (("-fuse-ld=gold", "ld.gold"), ("-fuse-ld=mold", "mold")):
            if flag in self.subject.flags and not shutil.which(program):
                pytest.skip(f"no {program} on this machine")
        lld = Path(self.peers.tool("ld.lld")).parent
        script = self.directory / "script"
        script.write_text(blocking_script())
        flags = [flag.format(peers=lld, script=script) for flag in self.subject.flags]
        name = "libcounted.so" if self.subject.is_library else "program"
        return self.compile_c(self.subject.source, *flags, name=name)

    @cached_property
    def result(self) -> Path:
        file = self.directory / "result" / self.original.name
        file.parent.mkdir()
        add_section(self.original, output=file, verify=False, min_kernel=self.subject.min_kernel)
        return file

    @cached_property
    def rules(self) -> list[object]:
        return rules(self.result)

    def command(self, file: Path) -> tuple[list[str], dict[str, str]]:
        """What runs the file, or a program that uses the library; and its environment."""
        machine = self.subject.machine
        environ = {"LC_ALL": "C", "PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(file.parent)}
        file.chmod(0o755)
        if self.subject.is_library:
            return [str(self.compile_c(LIBRARY_USER, "-O2", f"-L{self.original.parent}", "-lcounted"))], environ
        if machine:
            return machine.command(machine.root, file), environ
        return [str(file)] if self.subject.flags else [str(file), "-c", BASH], environ

    def run(self, file: Path) -> None:
        """ToolError where it does not print what it should."""
        command, environ = self.command(file)
        done = subprocess.run(command, env=environ, capture_output=True, check=False, cwd=self.directory)
        if (done.returncode, done.stdout, done.stderr) != (0, self.subject.prints.encode(), b""):
            raise ToolError(f"it prints {done.stdout!r} {done.stderr!r} and exits with {done.returncode}")

    def interpreter(self) -> Path:
        """The subject's own, by a longer name; a link to nowhere for one that has none."""
        elf = open_elf(self.original)
        name = next((elf.slice(s.p_offset, s.p_filesz, "PT_INTERP") for s in elf.segments if s.p_type == PT.INTERP), b"")
        machine = self.subject.machine
        link = self.directory / LONG_NAME
        if name and not link.is_symlink():
            link.parent.mkdir(parents=True)
            link.symlink_to((machine.root if machine else "") + bytes(name).decode().rstrip("\0"))
        return link


def rules(file: Path) -> list[object]:
    """What the section says, by distances from the first byte of .text: LIEF moves everything, by as much."""
    text = open_elf(file).section(".text")
    assert text is not None
    table = read(file).table
    return [
        (start - text.header.sh_addr, table.size[number], table.kinds[table.kind[number]], table.rows(number))
        for number, start in enumerate(table.start)
    ]


class Tool(NamedTuple):
    name: str
    steps: tuple[str, ...]  # "program argument ...", each from {in} to {out}
    leaves: str = ""  # what must be in the file then


STRIP, EU_STRIP, LLVM_STRIP = "{prefix}strip -o {out} {in}", "eu-strip -o {out} {in}", "llvm-strip -o {out} {in}"
SET_RPATH = f"patchelf --set-rpath {NEW_RPATH} --output {{out}} {{in}}"
SET_INTERPRETER = "patchelf --set-interpreter {interpreter} --output {out} {in}"
TOOLS = (
    Tool("strip", (STRIP,)),
    Tool("strip -g", ("{prefix}strip -g -o {out} {in}",)),
    Tool("objcopy", ("{prefix}objcopy {in} {out}",)),
    Tool("eu-strip", (EU_STRIP,)),
    Tool("eu-strip -f", ("eu-strip -f {out}.debug -o {out} {in}",)),
    Tool("eu-strip -f, then eu-unstrip", ("eu-strip -f {out}.debug -o {out}.1 {in}", "eu-unstrip -o {out} {out}.1 {out}.debug")),
    Tool("llvm-strip", (LLVM_STRIP,)),
    Tool("llvm-objcopy", ("llvm-objcopy {in} {out}",)),
    Tool("patchelf --set-rpath", (SET_RPATH,), NEW_RPATH),
    Tool("patchelf --add-needed", (f"patchelf --add-needed {ADDED_LIBRARY} --output {{out}} {{in}}",), ADDED_LIBRARY),
    Tool("patchelf --set-interpreter", (SET_INTERPRETER,), LONG_NAME),
    Tool("chrpath -r", ("cp {in} {out}", "chrpath -r /short {out}"), "/short"),
    Tool("LIEF", ("lief {in} {out}",)),
    Tool("LIEF, adding a library", (f"lief {{in}} {{out}} {ADDED_LIBRARY}",), ADDED_LIBRARY),
    Tool(
        "objcopy, strip and debug link as Debian",
        (
            "{prefix}objcopy --only-keep-debug {in} {out}.debug",
            "{prefix}strip --remove-section=.comment --remove-section=.note -o {out} {in}",
            "{prefix}objcopy --remove-section=.gnu_debuglink {out}",
            "{prefix}objcopy --add-gnu-debuglink={out}.debug {out}",
        ),
    ),
    Tool("strip, then eu-strip", then(STRIP, EU_STRIP)),
    Tool("eu-strip, then strip", then(EU_STRIP, STRIP)),
    Tool("strip, then llvm-strip", then(STRIP, LLVM_STRIP)),
    Tool("llvm-strip, then strip", then(LLVM_STRIP, STRIP)),
    Tool("strip, then patchelf", then(STRIP, SET_RPATH), NEW_RPATH),
    Tool("patchelf, then strip", then(SET_RPATH, STRIP), NEW_RPATH),
    Tool("patchelf, then eu-strip", then(SET_RPATH, EU_STRIP), NEW_RPATH),
    Tool("patchelf, then llvm-strip", then(SET_RPATH, LLVM_STRIP), NEW_RPATH),
    Tool("patchelf, then patchelf", then(SET_RPATH, SET_INTERPRETER), NEW_RPATH),
)


def apply(tool: Tool, shop: Workshop, source: Path, target: Path) -> str:
    """What the tool says. ToolError where it refuses, or does nothing."""
    machine = shop.subject.machine
    target.parent.mkdir()
    words = {"in": source, "out": target, "prefix": machine.prefix if machine else "", "interpreter": shop.interpreter()}
    said = ""
    for step in tool.steps:
        name, *arguments = (word.format(**words) for word in step.split())
        if name == "lief":
            rewrite(*arguments)
        elif name == "cp":
            shutil.copy(source, target)
        else:
            done = subprocess.run([shop.peers.tool(name), *arguments], capture_output=True, text=True, check=False)
            if done.returncode:
                raise ToolError(f"{name}: {done.returncode} {done.stdout}{done.stderr}")
            said += done.stdout * (name != "chrpath") + done.stderr
    if tool.leaves.encode() not in target.read_bytes():
        raise ToolError(f"{tool.leaves} is not there")
    return said


def rewrite(source: str, target: str, library: str = "") -> None:
    binary = lief.ELF.parse(source)
    assert isinstance(binary, lief.ELF.Binary)
    if library:
        binary.add_library(library)
    binary.write(target)


def judge(file: Path, shop: Workshop) -> None:
    """ToolError where it does not run, or its section is not what and where it should be."""
    try:
        elf, before = open_elf(file), open_elf(shop.result)
        segments = [(s.p_vaddr, s.p_offset, s.p_filesz) for s in elf.segments if s.p_type == PT.GNU_SFRAME]
        sections = [s.header[3:6] for s in elf.sections if s.header.sh_type == SHT.GNU_SFRAME]
        if not len(segments) == len(sections) == 1 or segments != sections:
            raise ToolError(f"PT_GNU_SFRAME {segments}, .sframe {sections}")
        if rules(file) != shop.rules:
            raise ToolError("other rules")
        first = next(s for s in elf.segments if s.p_type == PT.LOAD)
        for s in () if shop.subject.min_kernel else elf.segments:
            if s.p_type == PT.PHDR and s.p_vaddr != first.p_vaddr - first.p_offset + elf.header.e_phoff:
                raise ToolError("old kernels look for the program headers elsewhere")
        if read_build_id(elf) != read_build_id(before):
            raise ToolError("another build-id")
    except FormatError as error:
        raise ToolError(str(error)) from error
    shop.run(file)


def outcome(tool: Tool, shop: Workshop, directory: Path) -> tuple[str, str]:
    """(mark, why)."""
    changed, without = directory / "with" / shop.original.name, directory / "without" / shop.original.name
    try:
        said = apply(tool, shop, shop.result, changed)
        judge(changed, shop)
    except ToolError as error:
        try:
            apply(tool, shop, shop.original, without)
            shop.run(without)
        except ToolError as other:
            return NO_BETTER, f"{error}; the original: {other}"
        return BREAKS, str(error)
    return WARNS if said else WORKS, said
