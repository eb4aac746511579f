"""How each part of an installation is tried. An attempt returns what it found, or raises; what it tries is imported in it."""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from contextlib import suppress
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING

from cfi.errors import FormatError
from sframegen.cli.installation.install_commands import lacks_to_compile
from sframegen.elf.opening import beginning_of
from sframegen.program.build import MODULES, is_compiled
from sframegen.program.libraries import requirements

if TYPE_CHECKING:
    from collections.abc import Callable

    from linker.files.read_back import Reader
    from sframegen.program.libraries import Library

BOUND = re.compile(r"(>=|<)([\d.]+)")
END_OF_TAR = bytes(10240)
MANGLED, DEMANGLED = "_ZN1a1bEi", "a::b(int)"
RET = b"\xc3"
MAX_STARTUP_FILE = 1 << 20  # bytes of a shell's file that are read
COMPLETIONS = {  # by shell: files of its own, then files with a line that asks for it
    "bash": (
        ("/usr/share/bash-completion/completions/sframegen", "~/.local/share/bash-completion/completions/sframegen"),
        ("~/.bashrc", "~/.bash_profile", "~/.bash_completion", "/etc/bash.bashrc"),
    ),
    "zsh": (
        ("/usr/share/zsh/site-functions/_sframegen", "/usr/share/zsh/vendor-completions/_sframegen"),
        ("~/.zshrc", "/etc/zsh/zshrc"),
    ),
    "fish": (
        ("/usr/share/fish/vendor_completions.d/sframegen.fish", "~/.config/fish/completions/sframegen.fish"),
        ("~/.config/fish/config.fish",),
    ),
}


class DoesNotWorkError(Exception):
    """Why, in one line."""


# --- sframegen itself ------------------------------------------------------------------------------------------------------------


def compiled() -> str:
    missing = [name for name in MODULES if not is_compiled(name)]
    for name in MODULES:
        import_module(name)
    if missing:
        which = "all" if len(missing) == len(MODULES) else ", ".join(missing)
        lacking = [f"{what} ({debian} of Debian)" for what, debian in lacks_to_compile()]
        raise DoesNotWorkError(
            f"interpreted: {which}" + (f"; to compile them, this machine lacks {' and '.join(lacking)}" if lacking else "")
        )
    return f"{len(MODULES)}, each imported"


def preload() -> str:
    """A program that loads the object says so at its end."""
    import subprocess  # noqa: PLC0415

    from sframegen.backtrace.installed_libraries import STATISTICS, preload_object, preloading  # noqa: PLC0415

    library, loading = preload_object(), preloading({})
    environment = os.environ | loading | {STATISTICS: "1"}
    done = subprocess.run([sys.executable, "-S", "-c", ""], check=False, capture_output=True, text=True, env=environment)
    if "sframegen preload: " not in done.stderr:
        raise DoesNotWorkError(f"{library} does not load: {next(iter(done.stderr.splitlines()), 'it says nothing')}")
    return str(library)


def add_section() -> str:
    """The whole way: a section for a program of this machine, in a copy of it, and read from there."""
    import sframegen  # noqa: PLC0415 - here and below: what is tried

    program = _program()
    with TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        summary = sframegen.add_section(program, output=copy)
        if not summary.section_bytes:
            return f"nothing to add to {program}: {summary.note}"
        rows = len(sframegen.read(copy).table.start)
    return f"{summary.rows:,} rows for {rows:,} functions of {program}, in a copy"


def _program() -> str:
    """A small program of this machine, if there is one on PATH that is not a script; else Python."""
    found = shutil.which("true")
    with suppress(FormatError, OSError):
        if found and beginning_of(found, found, 4) == b"\x7fELF":
            return os.path.realpath(found)
    return os.path.realpath(sys.executable)


# --- Libraries -------------------------------------------------------------------------------------------------------------------


def dependency(one: Library) -> str:
    """Its version, if it is one that sframegen can use, after it has done what sframegen needs it for."""
    if find_spec(one.module.partition(".")[0]) is None or find_spec(one.module) is None:
        raise DoesNotWorkError("not installed")
    try:
        import_module(one.module)
        if one.project in _USES:
            _USES[one.project]()
    except Exception as error:
        place = getattr(find_spec(one.module), "origin", None)
        raise DoesNotWorkError(f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")) from error
    try:
        version = metadata.version(one.project)
    except metadata.PackageNotFoundError:
        return "of unknown version"
    needed = requirements().get(one.project)
    bound = needed.bounds if needed else ""
    if not within(version, bound):
        raise DoesNotWorkError(f"version {version}, where sframegen needs {bound}")
    return version


def _make_command() -> None:
    import click  # noqa: PLC0415

    _expect(click.Command("name").name, "name")


def _disassemble() -> None:
    from sframegen.code.isa.disassembly import disassembler  # noqa: PLC0415

    [(_, size, mnemonic, _)] = disassembler("CS_ARCH_X86", "CS_MODE_64").texts(RET, 0)
    _expect((size, mnemonic), (1, "ret"))


def _read_with(reader: Reader) -> None:
    from linker.files.read_back import READERS  # noqa: PLC0415
    from sframegen.elf.file import open_elf  # noqa: PLC0415

    program = _program()
    said = READERS[reader](Path(program))
    _expect(said and len(said.segments), len(open_elf(program).segments))


def _compress() -> None:
    from sframegen.elf.compressed import zstd_library  # noqa: PLC0415

    zstd = zstd_library()
    _expect(zstd.decompress(zstd.compress(END_OF_TAR, 19)), END_OF_TAR)


def _make_table() -> None:
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    table = pa.table({"number": [1]})
    with TemporaryFile() as file:
        parquet.write_table(table, file)
        file.seek(0)
        _expect(parquet.read_table(file).to_pydict(), table.to_pydict())


_USES: dict[str, Callable[[], None]] = {
    "click": _make_command,
    "capstone": _disassemble,
    "lief": partial(_read_with, "lief"),
    "pyelftools": partial(_read_with, "elftools"),
    "backports.zstd": _compress,
    "pyarrow": _make_table,
}


def within(version: str, bound: str) -> bool:
    """True if a version is allowed: `5.0.9` is, of `<5.1,>=5.0.2`. What follows the numbers, such as `rc1`, does not count."""

    def numbers(text: str) -> tuple[int, ...]:
        found = [int(part) for part in re.findall(r"\d+", (re.match(r"[\d.]*", text) or [""])[0])]
        while found and not found[-1]:
            found.pop()
        return tuple(found)

    return all((numbers(version) < numbers(limit)) == (sign == "<") for sign, limit in BOUND.findall(bound))


# --- profile ---------------------------------------------------------------------------------------------------------------------


def profile_fact(name: str) -> str:
    """One line of `sframegen profile --probe`."""
    from sframegen.profile.probe import probe  # noqa: PLC0415

    [fact] = [fact for fact in probe().facts if fact.name == name]
    if not fact.fine:
        raise DoesNotWorkError(fact.found)
    return fact.found


def walk_in_the_kernel() -> str:
    """Loads the kernel program, and attaches it to this process."""
    from sframegen.profile.bpf.kernel_walker import KernelWalker  # noqa: PLC0415
    from sframegen.profile.bpf.sampling_settings import Sampling  # noqa: PLC0415

    walker = KernelWalker({os.getpid()}, Sampling())
    try:
        walker.attach()
    finally:
        walker.close()
    return "the kernel program was loaded and attached"


# --- Names -----------------------------------------------------------------------------------------------------------------------


def demangler() -> str:
    from sframegen.stack.names.demangle import demangle  # noqa: PLC0415

    if demangle(MANGLED) != DEMANGLED:
        raise DoesNotWorkError("not found")
    return "demangles"


def debug_files() -> str:
    """Looks for the debug file of the C library, which each stack has."""
    from sframegen.elf.file import open_elf  # noqa: PLC0415
    from sframegen.elf.notes import build_id_of  # noqa: PLC0415
    from sframegen.stack.names.file_names import DEBUG_FILES  # noqa: PLC0415

    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123
        names = dict.fromkeys(line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "r-xp" in line)
    libraries = [name for name in names if re.match(r"libc[.-]|ld-musl", os.path.basename(name))]  # noqa: PTH119 - of a text
    if not libraries:
        raise DoesNotWorkError("this Python has no C library of its own")
    build_id = (build_id_of(open_elf(libraries[0])) or b"").hex()
    path = f"{DEBUG_FILES}/{build_id[:2]}/{build_id[2:]}.debug"
    try:
        sections = open_elf(path).sections
    except FileNotFoundError:
        raise DoesNotWorkError(f"none for {libraries[0]}") from None
    return f"{path}, {len(sections)} sections"


# --- Shell -----------------------------------------------------------------------------------------------------------------------


def completion(shell: str) -> str:
    """Looks where docs/installing.md puts it: what a shell reads when it starts is not run."""
    if shell not in COMPLETIONS:
        raise DoesNotWorkError(f"SHELL is {shell}, which has none" if shell else "SHELL is not set")
    own, shared = ([os.path.expanduser(path) for path in paths] for paths in COMPLETIONS[shell])  # noqa: PTH111
    files = [*own, os.path.join(sysconfig.get_path("data"), *own[0].split("/")[2:])]  # noqa: PTH118
    for path in [*files, *shared]:
        try:
            said = beginning_of(path, path, MAX_STARTUP_FILE)
        except (FormatError, OSError):
            continue
        if path in files or f"{shell}_source".encode() in said:
            return f"{shell}: {path}"
    raise DoesNotWorkError(f"not installed for {shell}")


def _expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise DoesNotWorkError(f"gives {found}, not {wanted}")
