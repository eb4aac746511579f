"""A stock arm64 kernel, built without and with the step: docs/kernel-7.2.patch, which docs/kernels.md shows."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from elftools.elf.elffile import ELFFile

from corpus.fetch.__main__ import download
from corpus.kernel_sections.image import SECTION, image_in_memory
from corpus.kernel_sections.judge import judged
from sframegen import check
from tests.support.oracles import cfi_text, sframe_text
from tests.support.oracles.compare import FILLERS
from tests.support.oracles.libsframe import Decoder
from tests.support.oracles.rules import ABIS, Interner, Rule, pieces

if TYPE_CHECKING:
    from random import Random

    from corpus.kernel_sections.loaded import Loaded
    from tests.support.peers import Peers

PATCH = Path(__file__).parents[2] / "docs/kernel-7.2.patch"
SOURCE, SUITE = "linux-source-7.2", "sid"
PREFIX = "aarch64-linux-gnu-"
ENABLED = (
    *("DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT", "PRINTK", "TTY", "SERIAL_AMBA_PL011", "SERIAL_AMBA_PL011_CONSOLE", "MODULES"),
    *("MODULE_UNLOAD", "KALLSYMS", "BLK_DEV_INITRD", "BINFMT_ELF", "PROC_FS", "CRYPTO"),
)
AS_MODULES = ("CRYPTO_LZO", "CRYPTO_MD4", "CRC7", "TEST_MODULE")
QEMU = ("qemu-system-aarch64", "-M", "virt", "-cpu", "cortex-a57", "-m", "256", "-nic", "none", "-display", "none")
COMMAND_LINE = "earlycon console=ttyAMA0"
BOOTED, BOOT_SECONDS = "---[ end Kernel panic", 120
GNU_SECTION = ".sframe"


class Build(NamedTuple):
    """`variables` for make; `gas`: the folder of a newer GNU as, which writes tables of its own."""

    name: str
    variables: tuple[str, ...]
    gas: bool = False


BUILDS = (
    Build("gcc", (f"CROSS_COMPILE={PREFIX}",)),
    Build("clang", ("LLVM=-19", "KCFLAGS=-fasynchronous-unwind-tables -fforce-dwarf-frame")),
    Build("gas", ("KCFLAGS=-Wa,--gsframe-3",), gas=True),
)


def source(builds: Path) -> Path:
    """Return Debian's source of the kernel, unpacked in that folder. Raises FetchError, CalledProcessError."""
    folder = builds / "linux"
    if not folder.is_dir():
        builds.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(builds / "debs", ignore_errors=True)
        [deb] = download([SOURCE], SUITE, builds / "debs")
        subprocess.run(["dpkg-deb", "--extract", deb, builds / "debs"], check=True)
        subprocess.run(["tar", "-xf", builds / f"debs/usr/src/{SOURCE}.tar.xz", "-C", builds], check=True)
        (builds / SOURCE).rename(folder)
    return folder


def patch(linux: Path, *, wanted: bool) -> None:
    """Apply the step to the source, or take it back."""
    present = (linux / "include/asm-generic/vmlinux.lds.h").read_text().count(SECTION) > 0
    if present != wanted:
        subprocess.run(["patch", "-s", "-p1", *(() if wanted else ("-R",)), "-i", PATCH], cwd=linux, check=True)


def built(builds: Path, build: Build, peers: Peers, *, step: bool) -> Path:
    """Return the folder with the kernel, built if it is missing. The build with the step starts from a copy of the one without."""
    folder = builds / (build.name + "-step" * step)
    if (folder / "vmlinux").exists():
        return folder
    linux = source(builds)
    patch(linux, wanted=step)
    make = ["make", "-s", f"-j{os.cpu_count()}", f"O={folder.resolve()}", "ARCH=arm64", *build.variables]
    environment = os.environ | {"SFRAMEGEN": _program(builds, build)}
    if build.gas:
        make.append(f"CROSS_COMPILE={_newer_tools(builds, peers)}/{PREFIX}")
    if step and not build.gas:
        shutil.copytree(built(builds, build, peers, step=False), folder, symlinks=True)
        patch(linux, wanted=True)
    else:
        subprocess.run([*make, "tinyconfig"], cwd=linux, check=True)
        options = [word for name in ENABLED for word in ("-e", name)] + [word for name in AS_MODULES for word in ("-m", name)]
        script: list[str | Path] = ["scripts/config", "--file", folder.resolve() / ".config", "-d", "DEBUG_INFO_NONE", *options]
        subprocess.run(script, cwd=linux, check=True)
        subprocess.run([*make, "olddefconfig"], cwd=linux, check=True)
    subprocess.run([*make, "Image", "modules"], cwd=linux, check=True, env=environment)
    return folder


def _program(builds: Path, build: Build) -> str:
    """Return a script that runs the installed sframegen, but skips `check` where the image also has GNU's tables."""
    path = builds / f"sframegen-{build.name}"
    skip = '[ "$1" = check ] && exit 0\n' if build.gas else ""
    path.write_text(f'#!/bin/sh\n{skip}exec {shlex.quote(sys.executable)} -P -m sframegen "$@"\n')
    path.chmod(0o755)
    return str(path.resolve())


def _newer_tools(builds: Path, peers: Peers) -> Path:
    """Return a folder with the newest GNU binutils under the cross compiler's names, and the compiler with them."""
    folder = builds.resolve() / "binutils"
    (folder / "B").mkdir(parents=True, exist_ok=True)
    for tool in ("as", "ld", "nm", "objcopy", "objdump", "readelf", "strip", "ar"):
        for link in (folder / f"{PREFIX}{tool}", folder / "B" / tool):
            link.unlink(missing_ok=True)
            link.symlink_to(peers.tool(f"{PREFIX}{tool}"))
    compiler = folder / f"{PREFIX}gcc"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which(f"{PREFIX}gcc")} -B{folder}/B/ "$@"\n')
    compiler.chmod(0o755)
    return folder


def text_symbols(vmlinux: Path) -> list[str]:
    """Return what nm prints of `.head.text` and `.text`."""
    lines = subprocess.check_output([f"{PREFIX}nm", "-n", vmlinux], text=True).splitlines()
    places = {line.split()[2]: line.split()[0] for line in lines if len(line.split()) == 3}
    return [line for line in lines if places["_text"] <= line.split()[0] < places["_etext"]]


def boot(folder: Path, section: tuple[int, bytes], scratch: Path) -> tuple[list[str], bool]:
    """Return the lines of the log without numbers, up to the panic for want of an init, and whether the section is in memory."""
    log, dump = scratch / "log", scratch / "dump"
    log.write_bytes(b"")
    command = [*QEMU, "-serial", f"file:{log}", "-monitor", "stdio", "-append", COMMAND_LINE]
    command += ["-kernel", str(folder / "arch/arm64/boot/Image")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as machine:
        end = time.monotonic() + BOOT_SECONDS
        while BOOTED not in log.read_text(errors="replace") and time.monotonic() < end:
            time.sleep(0.2)
        machine.communicate(f'memsave {section[0]:#x} {len(section[1])} "{dump}"\nquit\n')
    lines = log.read_text(errors="replace").splitlines()
    said = [re.sub(r"^\[.*?\] |\d", "", line) for line in lines]
    shown = [line for line in said if not line.startswith(" ")]  # those may come too late for the console
    return shown, dump.exists() and dump.read_bytes() == section[1]


def without_cfi(vmlinux: Path, loaded: Loaded, path: Path, peers: Peers) -> dict[str, int]:
    """Return bytes of code without CFI by section, fillers not counted."""
    abi = ABIS[loaded.machine]
    found: Counter[str] = Counter()
    with vmlinux.open("rb") as stream:
        code = [(one.name, one["sh_addr"], one.data()) for one in ELFFile(stream).iter_sections() if one["sh_flags"] & 4]
    everywhere = [(start, start + len(data)) for _, start, data in code]
    table = cfi_text.read(peers.tool("readelf"), str(path), abi, everywhere).table
    bounds = [*zip(table.starts, [*table.starts[1:], 1 << 64], table.ids, strict=True)]
    for name, start, data in code:
        gaps = [(start, table.starts[0])] if table.starts else [(start, start + len(data))]
        gaps += [(low, high) for low, high, row in bounds if not row]
        for low, high in gaps:
            part = data[max(low - start, 0) : max(high - start, 0)]
            if part and not FILLERS[loaded.machine].fullmatch(part):
                found[name] += len(part)
    return dict(found)


def beside_gas(ours: Loaded, theirs: Loaded, scratch: Path, peers: Peers) -> dict[str, object]:
    """Compare with the tables of GNU as, rule for rule at every PC of code that is looked up."""
    rules: Interner[Rule | None] = Interner(None, Rule("overlapping FDEs", "", "", signal=False))
    tables = []
    for name, loaded in (("ours", ours), ("theirs", theirs)):
        path = scratch / name
        loaded.write(path)
        decoder = Decoder(peers.libsframe(), loaded.section[1], loaded.section[0], ABIS[loaded.machine], rules)
        tables.append(sframe_text.read(peers.tool("readelf"), str(path), rules, decoder.block_sizes))
        decoder.close()
    found: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for start, end, one, two in pieces(tables[0].table, tables[1].table):
        piece = next((part for part in ours.code if part.address <= start < part.address + len(part.data)), None)
        where = "" if piece is None or piece.judged else " where nobody looks"
        fills = piece and FILLERS[ours.machine].fullmatch(piece.data[start - piece.address : end - piece.address])
        kind = "same" if one == two else "ours alone" if not two else "theirs alone" if not one else "DIFFERS"
        kind += (" (padding)" if fills and kind == "ours alone" else "") + where
        found[kind] += (end - start) * bool(one or two)
        if one != two and kind != "ours alone (padding)":
            examples.setdefault(kind, f"{start:#x}..{end:#x}: {rules.values[one]}, {rules.values[two]}")
    return {
        "bytes": {kind: count for kind, count in found.items() if count},
        "examples": examples,
        "functions": [table.functions for table in tables],
        "section_bytes": [len(ours.section[1]), len(theirs.section[1])],
    }


def results(builds: Path, pcs: int, random: Random, scratch: Path, peers: Peers) -> list[dict[str, object]]:
    found = []
    for build in BUILDS:
        folder = built(builds, build, peers, step=True)
        loaded = image_in_memory(folder / "vmlinux")
        path = scratch / build.name
        seen = judged(loaded, path, pcs, random, peers)
        faults = list(seen.differences)
        record: dict[str, object] = {
            "compiler": build.name,
            "section_bytes": len(loaded.section[1]),
            "debug_frame_bytes": len(loaded.debug_frame),
            **seen._asdict(),
            "instructions": check(folder / "vmlinux", instructions=True).instructions["cfi"],
            "without_cfi": without_cfi(folder / "vmlinux", loaded, path, peers),
        }
        passes = sorted(folder.glob(".tmp_vmlinux[1-9].syms"))
        if (folder / "System.map").read_bytes() != passes[-1].read_bytes():
            faults.append("System.map is not that of the last pass for kallsyms")
        log, in_memory = boot(folder, loaded.section, scratch)
        record["boot"] = next((line for line in log if "not syncing" in line), "")
        if not in_memory:
            faults.append("the section in memory is not that of the file")
        if build.gas:
            record["gas"] = beside_gas(loaded, image_in_memory(folder / "vmlinux", name=GNU_SECTION), scratch, peers)
        else:
            plain = built(builds, build, peers, step=False)
            symbols, others = text_symbols(plain / "vmlinux"), text_symbols(folder / "vmlinux")
            record["text_symbols"] = len(others)
            if symbols != others:
                faults.append("symbols of .head.text and .text differ from those without the step")
            if boot(plain, loaded.section, scratch)[0] != log:
                faults.append("the log is another one than without the step")
        found.append({**record, "faults": faults})
    return found
