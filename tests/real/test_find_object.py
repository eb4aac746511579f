"""glibc 2.43 finds the section: `_dl_find_object` gives unwinders its address, from PT_GNU_SFRAME."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sframegen import add_section
from sframegen.elf.file import open_elf
from sframegen.elf.records import PT
from tests.support.cross import MACHINES, Machine
from tests.support.inputs.linker_inputs import blocking_script
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers, corpus_file

pytestmark = pytest.mark.full

# The C library that the compiler has may be older: <dlfcn.h> knows the function, but not the field and the flag.
ASKING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
struct found {
    unsigned long long flags;
    char *map_start, *map_end;
    struct link_map *link_map;
    void *eh_frame, *sframe;
    unsigned long long reserved[6];
};
static int ask(const char *what, char *address) {
    struct found found;
    if (_dl_find_object(address, (struct dl_find_object *) &found)) return puts("not found"), 1;
    printf("%s: flags %llu", what, found.flags);
    if (found.flags) {
        printf(" at %#lx:", (unsigned long) found.sframe - found.link_map->l_addr);
        for (int i = 0; i < 28; i++) printf(" %02x", ((unsigned char *) found.sframe)[i]);
    }
    return puts(""), 0;
}
int main(int count, char **names) {
    void *library = dlopen(names[1], RTLD_NOW), *function = library ? dlsym(library, "function") : 0;
    if (!function) return puts(dlerror()), 1;
    return ask("program", (char *) main) || ask("library", function);
}
"""
LIBRARY = "int function(int n) { return n * 3; }"


def expected(file: Path) -> str:
    elf = open_elf(file)
    [segment] = [s for s in elf.segments if s.p_type == PT.GNU_SFRAME]
    header = bytes(elf.slice(segment.p_offset, 28, "PT_GNU_SFRAME"))
    return f"flags 1 at {segment.p_vaddr:#x}: {header.hex(' ')}"


def ask(program: Path, library: Path, machine: Machine | None, peers: Peers) -> list[str]:
    """Run by the dynamic linker and libraries of Debian's newest suite."""
    if machine:
        libc = corpus_file(f"{machine.name}-libc")
        root = next(parent for parent in libc.parents if parent.name == "root")
        command = machine.command(root, program, library, LD_LIBRARY_PATH=libc.parent)
    else:
        libraries = Path(peers.libsframe()).parent
        [loader] = libraries.glob("ld-linux-*.so.*")
        command = [str(loader), "--library-path", str(libraries), str(program), str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("machine", [None, *MACHINES], ids=["x86-64", *(machine.name for machine in MACHINES)])
@for_each("kind", ["-pie", "-no-pie"])
def test_the_section_is_found(machine: Machine | None, kind: str, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    if machine:
        compile_c = machine.compiler(peers, tmp_path)
    program, library = tmp_path / "program", tmp_path / "library.so"
    add_section(compile_c(ASKING, "-O1", kind, "-ldl"), output=program, verify=False)
    add_section(compile_c(LIBRARY, "-O1", "-shared", "-fPIC", name="library.so"), output=library, verify=False)
    assert ask(program, library, machine, peers) == [f"program: {expected(program)}", f"library: {expected(library)}"]


def test_the_section_of_a_library_in_the_tail_layout_is_found(compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(blocking_script())
    library = compile_c("const int first = 1;" + LIBRARY, "-O1", "-shared", "-fPIC", f"-Wl,-T,{tmp_path}/script", name="library.so")
    add_section(library, output=tmp_path / "library.so", verify=False)
    assert len([s for s in open_elf(tmp_path / "library.so").sections if s.name == ".sframegen.phdrs"]) == 1
    told = ask(compile_c(ASKING, "-O1", "-ldl"), tmp_path / "library.so", None, peers)
    assert told == ["program: flags 0", f"library: {expected(tmp_path / 'library.so')}"]
