"""What files say of their compiler and language: compiled here, stripped as distributions strip, and as other tools write."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sframegen.elf.file import open_elf
from sframegen.fleet.file_rows import PackageFiles
from sframegen.fleet.producers import guess_producer
from sframegen.fleet.result_rows import FileRow
from sframegen.fleet.run_options import RunOptions
from tests.support.peers import Compiler

C = "int main(void) { return 0; }"
CXX = "struct E { ~E(); }; void g(); void f() { E e; g(); } E::~E() {} void g() { throw 1; } int main() { f(); }"


def row(path: Path) -> FileRow:
    files = PackageFiles("package", "", RunOptions())
    files.visit("bin/it", path, path.with_name("changed"))
    return files.rows[0]


def stripped(path: Path, tmp_path: Path) -> Path:
    """As debhelper strips, without .comment."""
    subprocess.run(["strip", "--remove-section=.comment", "-o", tmp_path / "stripped", path], check=True)
    return tmp_path / "stripped"


def test_compilers_name_themselves(compile_c: Compiler) -> None:
    found = row(compile_c(C))
    version = subprocess.run(["gcc", "-dumpfullversion"], check=True, capture_output=True, text=True).stdout.strip()
    assert (found.producer, found.producer_version, found.language) == ("GCC", version, "C")
    assert row(compile_c(CXX, "-x", "c++", "-lstdc++")).language == "C++"


def test_a_comment_that_patterns_would_search_for_hours(compile_c: Compiler) -> None:
    texts = "; ".join(f'.rept 5000; .ascii "{text}"; .endr' for text in ("Compiler", " Version", "clang version "))
    comment = f'.pushsection .comment; .byte 0; .ascii "Intel(R) "; {texts}; .byte 0; .popsection'
    assert row(compile_c(f"__asm__({json.dumps(comment)});\n{C}")).producer == "GCC"


def test_clang(tmp_path: Path) -> None:
    if shutil.which("clang") is None:
        pytest.skip("no clang on this machine")
    (tmp_path / "c.c").write_text(C)
    subprocess.run(["clang", "-o", tmp_path / "c", tmp_path / "c.c"], check=True)
    found = row(tmp_path / "c")
    assert (found.producer, found.language) == ("clang", "C")  # although gcc's start files are in it
    assert found.producer_version


def test_stripped_files_show_their_language_only(compile_c: Compiler, tmp_path: Path) -> None:
    for text, flags, language in ((C, (), "C"), (CXX, ("-x", "c++", "-lstdc++"), "C++")):
        found = row(stripped(compile_c(text, *flags), tmp_path))
        assert (found.producer, found.language) == ("", language)


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("rustc version 1.85.0 (4d91de4e4 2025-02-17)", ("rustc", "1.85.0", "Rust")),
        ("GCC: (GNU) 10.2.1 20210130 (Red Hat 10.2.1-11)", ("GCC", "10.2.1", "C")),
        ("Ubuntu clang version 18.1.3 (1ubuntu1)", ("clang", "18.1.3", "C")),
        ("GHC 9.0.2", ("GHC", "9.0.2", "Haskell")),
        ("nothing known", ("", "", "C")),
    ],
)
def test_texts_of_other_compilers(compile_c: Compiler, tmp_path: Path, comment: str, expected: tuple[str, str, str]) -> None:
    (tmp_path / "comment").write_bytes(comment.encode() + b"\0")
    program = stripped(compile_c(C), tmp_path)
    subprocess.run(["objcopy", f"--add-section=.comment={tmp_path}/comment", program], check=True)
    assert guess_producer(open_elf(program), ["libc.so.6"]) == expected


C_LIBRARY = ["libc.so.6"]
HASH = b"90b35a6239c3d8bdabc530a6a0816f7ff89a0aaf"


@pytest.mark.parametrize(
    ("needed", "text", "expected"),
    [
        (["libgfortran.so.5", "libc.so.6"], b"", ("", "", "Fortran")),
        (["libgfortran.so.5", "libstdc++.so.6"], b"", ("", "", "C++")),
        (["libHSbase-4.15-ghc9.0.2.so"], b"", ("", "", "Haskell")),
        (C_LIBRARY, b"/usr/src/rustc-1.63.0/library/core/src/str.rs", ("rustc", "1.63.0", "Rust")),
        (C_LIBRARY, b"/rustc/" + HASH + b"/library/std/src/rt.rs", ("rustc", "", "Rust")),
        (["libm.so.6"], b"", ("", "", "")),
        (C_LIBRARY, b"GHCRTS", ("GHC", "", "Haskell")),
        (C_LIBRARY, b"OCAMLRUNPARAM", ("", "", "OCaml")),
        (C_LIBRARY, b"camlLiquidsoap_lang__Lang_1", ("", "", "OCaml")),  # of a plugin, which has no run-time system
        (C_LIBRARY, b"core.exception.RangeError\0__gxx_personality_v0", ("", "", "D")),
        (C_LIBRARY, b"_D3std5stdio\0_ZNSt3foo", ("", "", "D")),
        (C_LIBRARY, b"/rustc/" + HASH + b"/library/core\0__gxx_personality_v0", ("rustc", "", "Rust")),
        (C_LIBRARY, b"_ZNSt3foo", ("", "", "C++")),
        (C_LIBRARY, b"camlot", ("", "", "C")),
    ],
)
def test_what_stripping_leaves(
    compile_c: Compiler, tmp_path: Path, needed: list[str], text: bytes, expected: tuple[str, str, str]
) -> None:
    (tmp_path / "texts").write_bytes(b"\0" + text + b"\0")
    program = stripped(compile_c(C), tmp_path)
    subprocess.run(["objcopy", f"--add-section=.rodata.texts={tmp_path}/texts", program], check=True)
    assert guess_producer(open_elf(program), needed) == expected
