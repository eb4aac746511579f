"""Real binaries: where each is found, and a use of it that fails if its code, its data or what ld.so reads of it was damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile

from tests.support.cross import MACHINES, Machine
from tests.support.own_stack import compiled_library
from tests.support.peers import Compiler, Peers, corpus_file, needs_compiler
from tests.support.programs import THROWING, THROWN


@dataclass(frozen=True)
class RealFile:
    name: str
    find: Callable[[Peers], Path]  # skips the test where there is none
    use: Callable[[Trial], None]
    newest: bool = False  # runs by the peers' ld.so and libraries: those of Debian's newest suite, where it is from
    machine: Machine | None = None  # not this one: runs by qemu, with the libraries that the corpus has beside it
    least_coverage: float = 0.999  # share of the bytes with CFI
    compiled_only: bool = False


def soname(file: Path) -> str | None:
    with file.open("rb") as stream:
        for segment in ELFFile(stream).iter_segments("PT_DYNAMIC"):
            assert isinstance(segment, DynamicSegment)
            return next((str(vars(tag)["soname"]) for tag in segment.iter_tags("DT_SONAME")), None)
    return None


class Trial(NamedTuple):
    """A binary with its new section, alone in a directory under the name by which it is asked for; `scratch` is for all else."""

    original: Path
    result: Path
    scratch: Path
    peers: Peers
    compile_c: Compiler
    newest: bool
    machine: Machine | None

    def run(self, *command: str | Path, **environ: str | Path) -> str:
        """Standard output of a command that succeeds. If the binary is a library, ld.so must have initialised this very file."""
        log = self.scratch / "ld.so"
        shutil.rmtree(log, ignore_errors=True)
        log.mkdir()
        settings: dict[str, str | Path] = {
            "PATH": os.environ["PATH"], "HOME": self.scratch, "LC_ALL": "C", "LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": log / "of",
        }  # fmt: skip
        if self.newest:
            libraries = Path(self.peers.libsframe()).parent
            command = (next(libraries.glob("ld-linux-*.so.*")), "--library-path", f"{self.result.parent}:{libraries}", *command)
        else:
            settings["LD_LIBRARY_PATH"] = self.result.parent
        settings |= environ
        if self.machine:
            command, settings = tuple(self.machine.command(corpus_root(self.original), *command, **settings)), {}
        done = subprocess.run(
            command, env={k: str(v) for k, v in settings.items()}, cwd=self.scratch, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if soname(self.result):
            assert any(f"calling init: {self.result}\n" in file.read_text() for file in log.iterdir())
        return done.stdout


def corpus_root(file: Path) -> Path:
    """Of a file that corpus/fetch unpacked with its libraries: the folder that stands for their machine's root."""
    return next(parent for parent in file.parents if parent.name == "root")


# -- programs

BASH = r"""
fib() { (($1 < 2)) && echo $1 || echo $(($(fib $(($1 - 1))) + $(fib $(($1 - 2))))); }
declare -A seen; for word in one two one; do ((seen[$word]++)); done
trap 'echo trapped' USR1; kill -USR1 $$
[[ 2026-11 =~ ^([0-9]+)-(.*)$ ]] && echo "$(fib 7) ${seen[one]} ${BASH_REMATCH[2]}"
"""
BASHED = "trapped\n13 2 11\n"


def use_bash(trial: Trial) -> None:
    assert trial.run(trial.result, "-c", BASH) == BASHED


PERL = r"""
my %seen; $seen{lc $_}++ for "One two ONE" =~ /\w+/g;
eval { die { code => 7 } }; print join(",", map { "$_=$seen{$_}" } sort keys %seen), " $@->{code} ", sprintf("%.3f", sqrt 2), "\n";
"""
PERLED = "one=2,two=1 7 1.414\n"


def use_perl(trial: Trial) -> None:
    assert trial.run(trial.result, "-e", PERL) == PERLED
    if not trial.newest:
        assert trial.run(trial.result, "-MList::Util=sum", "-e", "print sum 1..10") == "55"


def find_cc1plus(_: Peers) -> Path:
    needs_compiler("g++")
    return Path(subprocess.run(["g++", "-print-prog-name=cc1plus"], check=True, capture_output=True, text=True).stdout.strip())


def use_cc1plus(trial: Trial) -> None:
    assert trial.run("g++", "-B", trial.result.parent, "-print-prog-name=cc1plus") == f"{trial.result}\n"
    (trial.scratch / "source").write_text(THROWING)
    command = ("g++", "-x", "c++", "-O2", "-g", "source", "-o")
    trial.run(*command, "program", "-B", trial.result.parent)
    assert trial.run(trial.scratch / "program") == THROWN
    trial.run(*command, "by-the-original")
    assert (trial.scratch / "program").read_bytes() == (trial.scratch / "by-the-original").read_bytes()


# -- libraries


def system_library(name: str) -> Callable[[Peers], Path]:
    return lambda _: compiled_library(name)


def use_libc(trial: Trial) -> None:
    assert f" {trial.result}\n" in trial.run("cat", "/proc/self/maps")
    assert trial.run("bash", "-c", BASH) == BASHED
    assert trial.run("perl", "-e", PERL) == PERLED
    use_libstdcxx(trial)


def newest_libc(peers: Peers) -> Path:
    """The one that fits the peers' ld.so."""
    return Path(peers.libsframe()).with_name("libc.so.6")


def use_newest_libc(trial: Trial) -> None:
    use_libstdcxx(trial)
    readelf = trial.peers.directory / "root/usr/bin/eu-readelf"
    assert "DYN (Shared object file)" in trial.run(readelf, "-h", trial.result)


def use_foreign_libc(trial: Trial) -> None:
    assert trial.machine
    for name, code, expected in (("bash", ("-c", BASH), BASHED), ("perl", ("-e", PERL), PERLED)):
        program = corpus_file(f"{trial.machine.name}-{name}")
        [libraries] = corpus_root(program).glob("usr/lib/*-linux-gnu")
        assert trial.run(program, *code, LD_LIBRARY_PATH=f"{trial.result.parent}:{libraries}") == expected


# Calls functions by name: their types are of no concern, every argument is a pointer, an int or a size_t.
DLOPEN = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
static void *library;
static void *(*find(const char *name))() {
    void *found = dlsym(library, name);
    if (!found) printf("%s\n", dlerror());
    return (void *(*)()) found;
}
#define CALL(name, ...) find(#name)(__VA_ARGS__)
static int use(void);
int main(int argc, char **argv) {
    library = dlopen(argv[1], RTLD_NOW);
    if (!library) printf("%s\n", dlerror());
    return !library || use();
}
"""
SHA256 = r"""
static int use(void) {
    unsigned char digest[32];
    void *context = CALL(EVP_MD_CTX_new), *kind = CALL(EVP_sha256);
    CALL(EVP_DigestInit_ex, context, kind, (void *) 0);
    for (int i = 0; i < 1000; i++) CALL(EVP_DigestUpdate, context, "abc", (size_t) 3);
    CALL(EVP_DigestFinal_ex, context, digest, (void *) 0);
    for (int i = 0; i < 32; i++) printf("%02x", digest[i]);
    void *key = CALL(EVP_PKEY_Q_keygen, (void *) 0, (void *) 0, "RSA", (size_t) 1024);
    printf(" %d\n", (int) (size_t) CALL(EVP_PKEY_get_bits, key));
    return 0;
}
"""


TRIPLE = "static int use(void) { return puts(CALL(LLVMGetDefaultTargetTriple)) < 0; }"


def dlopen_program(trial: Trial, use: str) -> Path:
    return trial.compile_c(DLOPEN + use, "-std=gnu17", "-ldl")


def use_newest_libcrypto(trial: Trial) -> None:
    digest = "328de8f1895f8bb09f6e6b4c2012ef2b2a6f067cd002794b750aa040a6f6d8bd"
    assert trial.run(dlopen_program(trial, SHA256), trial.result) == f"{digest} 1024\n"


def use_libllvm(trial: Trial) -> None:
    assert trial.run(dlopen_program(trial, TRIPLE), trial.result).startswith("x86_64-")


def use_libstdcxx(trial: Trial) -> None:
    assert trial.run(trial.compile_c(THROWING, "-x", "c++", "-pthread", "-lstdc++")) == THROWN


PAGE = """<body><script>
const words = "the quick brown fox".split(" ").sort((a, b) => a.length - b.length || a.localeCompare(b)).join();
let caught = 0;
for (let i = 0; i < 1e5; i++) try { if (i % 3 == 0) throw i; } catch { caught++; }
document.body.style.background = words == "fox,the,brown,quick" && caught == 33334 ? "rgb(0, 128, 255)" : "red";
</script>"""


def use_libxul(trial: Trial) -> None:
    """Firefox renders a page: its own directory again, except the library; its programs start by their own suite's ld.so."""
    original, directory = trial.original.parent, trial.result.parent
    if not (original / "firefox-esr").exists():
        pytest.skip("the corpus has libxul without what it needs to run: run python -m corpus.fetch libxul")
    [libraries] = original.parent.glob("*-linux-gnu")
    [loader] = libraries.glob("ld-linux-*.so.*")
    for item in original.iterdir():
        place = directory / item.name
        if item.is_file() and not item.is_symlink() and os.access(item, os.X_OK):
            patchelf = trial.peers.tool("patchelf")
            subprocess.run([patchelf, "--set-interpreter", loader, "--output", place, item], check=True)
        elif item != trial.original:
            place.symlink_to(item)
    profile, page, image = (trial.scratch / name for name in ("profile", "page.html", "image.png"))
    profile.mkdir()
    (profile / "user.js").write_text('user_pref("network.dns.disabled", true);\n')
    page.write_text(PAGE)
    trial.run(
        directory / "firefox-esr", "--headless", "--no-remote", "--profile", profile, "--window-size=64,64", "--screenshot", image,
        page.as_uri(), LD_LIBRARY_PATH=libraries, MOZ_CRASHREPORTER_DISABLE="1",
    )  # fmt: skip
    assert first_pixel(image.read_bytes()) == (0, 128, 255)


def first_pixel(png: bytes) -> tuple[int, ...]:
    """Of a PNG with 8-bit colours. It has no neighbour that its row's filter could have taken away."""
    start = png.index(b"IDAT")
    return tuple(zlib.decompressobj().decompress(png[start + 4 :])[1:4])


def program(name: str) -> Callable[[Peers], Path]:
    return lambda _: Path(shutil.which(name) or pytest.skip(f"no {name} on this machine")).resolve()


def corpus(name: str) -> Callable[[Peers], Path]:
    return lambda _: corpus_file(name)


FILES = (
    RealFile("bash", program("bash"), use_bash),
    RealFile("perl", program("perl"), use_perl),
    RealFile("libc", system_library("libc.so.6"), use_libc),
    RealFile("libstdc++", system_library("libstdc++.so.6"), use_libstdcxx),
    RealFile("cc1plus", find_cc1plus, use_cc1plus, compiled_only=True),
    RealFile("newest bash", corpus("bash"), use_bash, newest=True),
    RealFile("newest perl", corpus("perl"), use_perl, newest=True),
    RealFile("newest libc", newest_libc, use_newest_libc, newest=True),
    RealFile("newest libcrypto", corpus("libcrypto"), use_newest_libcrypto, newest=True, least_coverage=0.953),
    RealFile("newest libstdc++", corpus("libstdcxx"), use_libstdcxx, newest=True),
    RealFile("libLLVM", corpus("libLLVM"), use_libllvm, newest=True, least_coverage=0.9999, compiled_only=True),
    RealFile("libxul", corpus("libxul"), use_libxul, least_coverage=0.9999, compiled_only=True),
    *(
        RealFile(
            f"{machine.name} {name}",
            corpus(f"{machine.name}-{name}"),
            use,
            machine=machine,
            least_coverage=0.9999,
            compiled_only=use not in (use_bash, use_foreign_libc),
        )
        for machine in MACHINES
        for name, use in (
            ("bash", use_bash),
            ("perl", use_perl),
            ("libc", use_foreign_libc),
            ("libcrypto", use_newest_libcrypto),
            ("libstdcxx", use_libstdcxx),
        )
    ),
)
