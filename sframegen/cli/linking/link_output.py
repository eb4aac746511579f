"""Finds the file that a linker writes, from the linker's arguments."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.elf.file import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DEFAULT_OUTPUT = "a.out"
MAX_RESPONSE_FILES = 2000  # GNU's own limit, since a response file may name itself
MAX_RESPONSE_CHARACTERS = 1 << 24  # of all response files together

# Options whose value is the next argument, in every linker that has the option: the next argument is then not an option, even if
# it looks like one. Long options may begin with one dash or two.
SHORT_WITH_VALUE = {f"-{letter}" for letter in "AabcefFhIlLmPRTuyYz"}
LONG_WITH_VALUE = {
    "Map", "Tbss", "Tdata", "Ttext", "architecture", "assert", "audit", "auxiliary", "defsym", "depaudit", "dependency-file",
    "dynamic-linker", "dynamic-list", "entry", "exclude-libs", "filter", "fini", "format", "init", "just-symbols", "library",
    "library-path", "mri-script", "plugin", "plugin-opt", "require-defined", "retain-symbols-file", "rpath", "rpath-link",
    "script", "section-start", "soname", "sort-section", "sysroot", "trace-symbol", "undefined", "version-script", "wrap",
}  # fmt: skip

# A word of a response file, and a part of a word: escaped, quoted or plain. Quotes of both kinds group characters; a backslash
# escapes the next character, also within quotes.
WORD = re.compile(r"""(?:\\.?|'(?:\\.|[^'\\])*(?:\\?'|\\?\Z)|"(?:\\.|[^"\\])*(?:"|\\?\Z)|[^\\'" \t\n\v\f\r])+""", re.DOTALL)
QUOTED_PART = re.compile(r"""\\(.?)|(['"])((?:\\.|(?!\2)[^\\])*)(?:\2|\\?\Z)|([^\\'"]+)""", re.DOTALL)


def find_output(arguments: Iterable[str]) -> str:
    """Return what GNU ld, gold, lld or mold writes: the last `-o OUT`, `-oOUT`, `--output OUT`, `--output=OUT`, or a.out."""
    output = DEFAULT_OUTPUT
    words = expand_response_files(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if len(name) > 3 and "--output".startswith(name):  # GNU ld accepts abbreviations down to --ou
            output = value if equals else next(words, output)
        elif word.startswith("-o"):
            output = word[2:] or next(words, output)
        elif word in SHORT_WITH_VALUE or (word.startswith("-") and word.lstrip("-") in LONG_WITH_VALUE):
            next(words, None)
    return output


def expand_response_files(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the arguments, with response files (`@file`) replaced by their arguments, except those that cannot be read."""
    waiting = list(arguments)[::-1]
    files_left, characters_left = MAX_RESPONSE_FILES, MAX_RESPONSE_CHARACTERS
    while waiting:
        word = waiting.pop()
        text = _read_response(word[1:]) if word.startswith("@") and files_left else None
        characters_left -= len(text or "")
        if characters_left < 0:
            files_left = 0
        if text is None or not files_left:
            yield word
        else:
            files_left -= 1
            waiting += split_words(text)[::-1]


def split_words(text: str) -> list[str]:
    return [QUOTED_PART.sub(_unquote, word[0]) for word in WORD.finditer(text)]


def _unquote(part: re.Match[str]) -> str:
    escaped, _, quoted, plain = part.groups()
    return re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL) if quoted is not None else (plain or escaped or "")


def _read_response(path: str) -> str | None:
    """Return the text of a response file, cut off if too long; None unless it is a regular file: the linker has to read a pipe."""
    with suppress(OSError, ValueError, FormatError):
        if stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - here and below: pathlib is not wanted for a name that need not be one
            with os.fdopen(open_regular(path, path), "rb") as file:
                return os.fsdecode(file.read(MAX_RESPONSE_CHARACTERS + 1))
    return None


def file_state(path: str) -> tuple[int, ...] | None:
    """Return values that change when a linker writes the file; None if it is not a regular file."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
