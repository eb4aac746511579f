"""Guesses the compiler and the language of an ELF file.

`.comment` names compilers, but distributions strip it. Other signs, the surest first, are sections and texts that only programs
in one language have, and the libraries that the file needs. Go's build information outweighs all. Results are "" without a sign.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sframegen.elf.file import ElfFile

MAX_COMMENT_BYTES = 1 << 20
MAX_TEXT_BYTES = 400  # bytes of a text in `.comment`: the patterns take cubic time, and texts of compilers have 120 bytes
MAX_SEARCHED_BYTES = 1 << 28


class Producer(NamedTuple):
    name: str = ""
    version: str = ""
    language: str = ""


class CommentPattern(NamedTuple):
    """A pattern for a compiler's text in `.comment`, and the compiler's language if it compiles only one."""

    pattern: re.Pattern[str]
    name: str
    language: str = ""


VERSION = r"[^\d\n]*?(\d+(?:\.\d+)*)"
COMMENT_PATTERNS = (
    CommentPattern(re.compile(r"^rustc version" + VERSION), "rustc", "Rust"),
    CommentPattern(re.compile(r"^GCC: \(.*\) (\d+(?:\.\d+)*)"), "GCC"),
    CommentPattern(re.compile(r"^GCC: " + VERSION), "GCC"),
    CommentPattern(re.compile(r"\bclang version" + VERSION), "clang"),
    CommentPattern(re.compile(r"^GHC" + VERSION), "GHC", "Haskell"),
    CommentPattern(re.compile(r"^ldc version" + VERSION), "ldc", "D"),
    CommentPattern(re.compile(r"^Intel\(R\) .*?Compiler.*? Version" + VERSION), "Intel"),
    CommentPattern(re.compile(r"^FPC" + VERSION), "FPC", "Pascal"),
    CommentPattern(re.compile(r"^(?:Swift|swiftlang)" + VERSION), "Swift", "Swift"),
    CommentPattern(re.compile(r"^zig" + VERSION), "zig", "Zig"),
)
# Libraries that programs of one language need. C++ comes before Fortran: a C++ library may have a part in Fortran.
LIBRARY_LANGUAGES = (
    (re.compile(r"^libgo\.so"), "Go"),
    (re.compile(r"^lib(?:gphobos|phobos2|druntime|gdruntime)\b"), "D"),
    (re.compile(r"^libgnat(?:-\d+)?\.so|^libgnarl"), "Ada"),
    (re.compile(r"^libHS"), "Haskell"),
    (re.compile(r"^libswiftCore\.so"), "Swift"),
    (re.compile(r"^lib(?:stdc\+\+|c\+\+|c\+\+abi)\.so"), "C++"),
    (re.compile(r"^lib(?:gfortran|flang|FortranRuntime)\b"), "Fortran"),
)
SECTION_LANGUAGES = {
    ".go.buildinfo": "Go",
    ".note.go.buildid": "Go",
    ".gopclntab": "Go",
    ".note.rustc": "Rust",
    ".rustc": "Rust",
    "swift5_typeref": "Swift",
    ".fpcdata": "Pascal",
}
# Texts in loaded data, which stripping does not remove: (pattern, whose group is the version, language, compiler).
TEXTS = (
    (re.compile(rb"/rustc(?:/[0-9a-f]{40}|-(\d+\.\d+\.\d+))/library/"), "Rust", "rustc"),
    (re.compile(rb"\bGHCRTS\b"), "Haskell", "GHC"),
    (re.compile(rb"OCAMLRUNPARAM|\0caml[A-Z]\w*(?:__|\.)"), "OCaml", ""),
    (re.compile(rb"core\.exception\.\w+Error|\0_D(?:3std|4core)\d"), "D", ""),
    (re.compile(rb"__gxx_personality_v0|\0_ZNSt"), "C++", ""),
)
C_LIBRARY = re.compile(r"^(?:libc\.so|libc\.musl|ld-linux|ld-musl|ld64\.so)")
GO_MAGIC = b"\xff Go buildinf:"
GO_VERSION = re.compile(rb"go(\d+(?:\.\d+)*)")


def guess_producer(elf: ElfFile, needed: Sequence[str]) -> Producer:
    """Guess the file's producer. `needed`: the libraries of DT_NEEDED. Raises FormatError if a section is not in the file."""
    producer = _read_comment(elf)
    if (go := _read_go_build_info(elf)) is not None:
        return go
    if producer.language:
        return producer
    sections = {section.name for section in elf.sections}
    language = next((language for section, language in SECTION_LANGUAGES.items() if section in sections), "")
    by_text = _search_texts(elf) if not language else Producer()
    if by_text.name and not producer.name:
        producer = by_text
    language = language or by_text.language
    if language in ("", "C++"):  # the weakest sign: programs in other languages can contain C++, too
        by_library = (other for pattern, other in LIBRARY_LANGUAGES if any(map(pattern.match, needed)))
        language = next(by_library, language)
    if not language and (producer.name or any(map(C_LIBRARY.match, needed))):
        language = "C"
    return producer._replace(language=language)


def _read_comment(elf: ElfFile) -> Producer:
    """Return the compiler that `.comment` names most often; compilers of one language win over the C compiler of start files."""
    section = elf.section(".comment")
    if section is None or section.header.sh_size > MAX_COMMENT_BYTES:
        return Producer()
    texts = [text[:MAX_TEXT_BYTES].decode("utf-8", "replace") for text in bytes(elf.stored_contents(section)).split(b"\0") if text]
    counts = Counter(producer for text in texts if (producer := _match_comment(text)) is not None)
    return max(counts, key=lambda producer: (bool(producer.language), counts[producer], producer.version), default=Producer())


def _match_comment(text: str) -> Producer | None:
    for compiler in COMMENT_PATTERNS:
        if match := compiler.pattern.search(text):
            return Producer(compiler.name, match[1], compiler.language)
    return None


def _read_go_build_info(elf: ElfFile) -> Producer | None:
    """Return Go and its version for a Go program. Since Go 1.18, offset 32 has the version's length in one byte, then its text."""
    section = elf.section(".go.buildinfo")
    if section is None:
        return None
    raw = bytes(elf.stored_contents(section)[:64])
    match = GO_VERSION.match(raw, 33) if raw.startswith(GO_MAGIC) else None
    return Producer("Go", match[1].decode() if match else "", "Go")


def _search_texts(elf: ElfFile) -> Producer:
    """Return the producer for the first of TEXTS that occurs in the file."""
    data = elf.data[:MAX_SEARCHED_BYTES]
    for pattern, language, compiler in TEXTS:
        if match := pattern.search(data):
            version = match[1].decode() if pattern.groups and match[1] else ""
            return Producer(compiler, version, language)
    return Producer()
