"""What the tools are asked: rows of the table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from corpus.tools.obtaining import Provider

RPATH = "/a/directory/with/a/name/longer/than/anything/that/was/in/the/table/of/strings"
LIBRARY = "libm.so.6"
SHELL = {"cp", "ln"}  # of the machine
PROGRAM = re.compile(r"^\S+")


@dataclass(frozen=True)
class Invocation:
    """Steps from {in} to {out}, each "program argument ..."; `leaves`: what must be in the file then."""

    name: str
    steps: tuple[str, ...]
    leaves: str = ""

    @property
    def programs(self) -> list[str]:
        return list(dict.fromkeys(name for step in self.steps if (name := step.split()[0]) not in SHELL))


@dataclass(frozen=True)
class Row:
    """An invocation of tools of one provider."""

    invocation: Invocation
    provider: Provider

    @property
    def tools(self) -> str:
        return ", ".join(f"{name} {self.provider.versions[name]}" for name in self.invocation.programs)

    @property
    def name(self) -> str:
        return f"{self.tools}: {self.invocation.name}"


def then(*steps: str) -> tuple[str, ...]:
    """One after the other, each from what the one before it wrote."""
    names = ["{in}", *("{out}." + str(number) for number in range(1, len(steps))), "{out}"]
    return tuple(step.replace("{in}", a).replace("{out}", b) for step, a, b in zip(steps, names, names[1:], strict=False))


def patchelf(change: str, leaves: str = "") -> Invocation:
    return Invocation(change.split(maxsplit=1)[0], (f"patchelf {change} --output {{out}} {{in}}",), leaves)


STRIP, EU_STRIP, LLVM_STRIP = "strip -o {out} {in}", "eu-strip -o {out} {in}", "llvm-strip -o {out} {in}"
SET_RPATH = f"patchelf --set-rpath {RPATH} --output {{out}} {{in}}"
DEBIAN_STRIP = (
    "objcopy --only-keep-debug --compress-debug-sections {in} {out}.debug",
    "strip --remove-section=.comment --remove-section=.note -o {out} {in}",
    "objcopy --add-gnu-debuglink={out}.debug {out}",
)
AUDITWHEEL = tuple(
    f"patchelf {change} --output {{out}} {{in}}"
    for change in (
        "--set-soname libname-0123abcd.so.1",
        "--remove-rpath",
        "--force-rpath --set-rpath $ORIGIN/name.libs",
        "--replace-needed libc.so.6 libc.so.6",
    )
)
INVOCATIONS = (
    patchelf(f"--set-rpath {RPATH}", RPATH),
    patchelf(f"--add-rpath {RPATH}", RPATH),
    patchelf(f"--force-rpath --set-rpath {RPATH}", RPATH),
    patchelf("--remove-rpath"),
    patchelf(f"--page-size 65536 --set-rpath {RPATH}", RPATH),
    patchelf(f"--add-needed {LIBRARY}", LIBRARY),
    patchelf("--remove-needed libnothing.so.1"),
    patchelf("--replace-needed libc.so.6 /lib/x86_64-linux-gnu/libc.so.6"),
    patchelf("--no-default-lib"),
    patchelf("--set-interpreter {interpreter}"),
    patchelf("--set-soname libanother-soname-that-is-long.so.1"),
    Invocation("--set-rpath twice", then(SET_RPATH, SET_RPATH + "/2"), RPATH),
    Invocation(
        "--set-rpath, then --add-needed", then(SET_RPATH, f"patchelf --add-needed {LIBRARY} --output {{out}} {{in}}"), RPATH
    ),
    Invocation(
        "as auditwheel", then(*(f"patchelf {change} --output {{out}} {{in}}" for change in AUDITWHEEL)), "$ORIGIN/name.libs"
    ),
    Invocation("dwz", ("dwz -o {out} {in}",)),
    Invocation("dwz -m", ("cp {in} {out}", "cp {in} {out}.twin", "dwz -m {out}.common {out} {out}.twin")),
    Invocation("strip", (STRIP,)),
    Invocation("strip -g", ("strip -g -o {out} {in}",)),
    Invocation("objcopy", ("objcopy {in} {out}",)),
    Invocation("objcopy --compress-debug-sections", ("objcopy --compress-debug-sections {in} {out}",)),
    Invocation("dh_strip's", DEBIAN_STRIP),
    Invocation("dh_dwz's, then dh_strip's", ("dwz -o {out}.dwz {in}", *(s.replace("{in}", "{out}.dwz") for s in DEBIAN_STRIP))),
    Invocation("eu-strip", (EU_STRIP,)),
    Invocation("eu-strip -f", ("eu-strip -f {out}.debug -o {out} {in}",)),
    Invocation(
        "eu-strip -f, then eu-unstrip", ("eu-strip -f {out}.debug -o {out}.1 {in}", "eu-unstrip -o {out} {out}.1 {out}.debug")
    ),
    Invocation("eu-elfcompress", ("eu-elfcompress --force -o {out} {in}",)),
    Invocation("llvm-strip", ("llvm-objcopy --strip-all {in} {out}",)),
    Invocation("llvm-objcopy", ("llvm-objcopy {in} {out}",)),
    Invocation("llvm-objcopy --strip-debug", ("llvm-objcopy --strip-debug {in} {out}",)),
    Invocation("chrpath -r", ("cp {in} {out}", "chrpath -r /short {out}"), "/short"),
    Invocation("chrpath -d", ("cp {in} {out}", "chrpath -d {out}")),
    Invocation("debugedit", ("cp {in} {out}", "debugedit --base-dir={sources} --dest-dir=/usr/src/debug {out}")),
    Invocation("debugedit, a new build-id", ("cp {in} {out}", "debugedit --build-id --build-id-seed=1 {out}")),
    Invocation("sstrip", ("cp {in} {out}", "sstrip {out}")),
    Invocation("upx", ("upx -qqq -1 -o {out} {in}",)),
    Invocation("LIEF, unchanged", ("lief {in} {out}",)),
    Invocation("LIEF, a library added", (f"lief {{in}} {{out}} add-library {LIBRARY}",), LIBRARY),
    Invocation("LIEF, a run path set", (f"lief {{in}} {{out}} set-rpath {RPATH}",), RPATH),
    Invocation("strip, then eu-strip", then(STRIP, EU_STRIP)),
    Invocation("eu-strip, then strip", then(EU_STRIP, STRIP)),
    Invocation("strip, then patchelf", then(STRIP, SET_RPATH), RPATH),
    Invocation("patchelf, then strip", then(SET_RPATH, STRIP), RPATH),
    Invocation("patchelf, then eu-strip", then(SET_RPATH, EU_STRIP), RPATH),
    Invocation("patchelf, then llvm-strip", then(SET_RPATH, "llvm-objcopy --strip-all {in} {out}"), RPATH),
)


def rows(providers: Iterable[Provider], invocations: Iterable[Invocation] = INVOCATIONS) -> Iterator[Row]:
    """Each invocation with each provider that has all of its programs, in versions that no provider before it has."""
    chosen = list(providers)
    for invocation in invocations:
        seen = set()
        for provider in chosen:
            row = Row(invocation, provider)
            if all(name in provider.commands for name in invocation.programs) and row.tools not in seen:
                seen.add(row.tools)
                yield row
