"""Languages and compilers, from what stripping leaves in a file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sframegen.elf.file import ElfFile
from sframegen.fleet.producers import producer_of


@pytest.mark.parametrize(
    ("text", "language", "compiler"),
    [
        (b"\0GHCRTS\0", "Haskell", "GHC"),
        (b"\0OCAMLRUNPARAM\0", "OCaml", ""),
        (b"\0camlLiquidsoap_lang__Lang_1\0", "OCaml", ""),  # of a plugin, which has no run-time system
        (b"\0core.exception.RangeError\0__gxx_personality_v0\0", "D", ""),
        (b"\0_D3std5stdio\0_ZNSt3foo\0", "D", ""),
        (b"\0/rustc/0123456789012345678901234567890123456789/library/core\0__gxx_personality_v0\0", "Rust", "rustc"),
        (b"\0_ZNSt3foo\0", "C++", ""),
        (b"\0camlot\0", "C", ""),
    ],
)
def test_texts_of_one_language(text: bytes, language: str, compiler: str) -> None:
    program = Path(shutil.which("true") or "").read_bytes().replace(b".comment", b".unnamed")
    found = producer_of(ElfFile(memoryview(program + text), "program"), ["libc.so.6"])
    assert (found.language, found.name) == (language, compiler)
