"""Rust's v0 mangling (RFC 2603): prints names like rustc's own demangler, without crate hashes.

A short name can stand for a very long one, by references back: work, depth and text have limits.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

BASIC_TYPES = {
    "a": "i8", "b": "bool", "c": "char", "d": "f64", "e": "str", "f": "f32", "h": "u8", "i": "isize", "j": "usize", "l": "i32",
    "m": "u32", "n": "i128", "o": "u128", "p": "_", "s": "i16", "t": "u16", "u": "()", "v": "...", "x": "i64", "y": "u64", "z": "!",
}  # fmt: skip
INTEGERS = "ahijlmnostxy"
BASE_62 = {digit: value for value, digit in enumerate("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")}
NAME = re.compile(r"[_0-9A-Za-z]+")
DECIMAL = re.compile(r"0|[1-9][0-9]{0,5}")
HEXADECIMAL = re.compile(r"([0-9a-f]*)_")
SUFFIX = re.compile(r"[.$].*", re.DOTALL)
LLVM = re.compile(r"\.llvm\.[0-9A-F@]+$")
MAX_STEPS = 20_000  # paths, types and constants
MAX_DEPTH = 100  # of these in one another
MAX_TEXT = 1 << 16
MAX_LIFETIMES = 1000  # of one binder

T = TypeVar("T")


class NotRustError(Exception):
    """The name is not in the grammar, or exceeds a limit."""


def demangle_v0(name: str) -> str | None:
    """Return the name, demangled; None if it is not a complete name in this mangling."""
    match = NAME.match(name, 2)
    if not name.startswith("_R") or match is None or name[2].isdigit():
        return None
    suffix = LLVM.sub("", name[match.end() :])
    if suffix and not SUFFIX.fullmatch(suffix):
        return None
    reader = _Reader(match[0])
    try:
        text = reader.path(in_value=True)
        if not reader.at_end():
            reader.path(in_value=False)  # of the crate that instantiated it
    except NotRustError:
        return None
    return text + suffix if reader.at_end() else None


class _Reader:
    """Reads the symbol from start to end; each method returns the text of the part that it read, or raises NotRustError."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._steps = self._depth = 0
        self._lifetimes = 0  # that the binders around have named

    def at_end(self) -> bool:
        return self._at == len(self._text)

    # -- paths

    def path(self, *, in_value: bool) -> str:
        """Read a path. `in_value`: arguments of generics need `::` before them."""
        text, is_open = self._path_open(in_value=in_value)
        return text + ">" * is_open

    def _path_open(self, *, in_value: bool) -> tuple[str, bool]:
        """Return the text, and True if the arguments of generics are left open."""
        return self._nested(lambda: self._any_path(in_value=in_value))

    def _any_path(self, *, in_value: bool) -> tuple[str, bool]:
        tag = self._next()
        if tag == "C":
            return self._identifier()[0], False
        if tag == "N":
            return self._within(self._next(), in_value=in_value), False
        if tag == "I":
            text = self.path(in_value=in_value) + ("::<" if in_value else "<")
            return text + ", ".join(self._until_end(self._generic)), True
        if tag == "B":
            return self._back(lambda: self._path_open(in_value=in_value))
        if tag not in ("M", "X", "Y"):
            raise NotRustError
        if tag != "Y":
            self._disambiguator()  # and where the implementation is, which nobody asks for
            self.path(in_value=False)
        text = self.type()
        return f"<{text}>" if tag == "M" else f"<{text} as {self.path(in_value=False)}>", False

    def _within(self, namespace: str, *, in_value: bool) -> str:
        if not namespace.isalpha():
            raise NotRustError
        text = self.path(in_value=in_value)
        name, number = self._identifier()
        if namespace.islower():
            return f"{text}::{name}" if name else text
        kind = {"C": "closure", "S": "shim"}.get(namespace, namespace)
        return f"{text}::{{{kind}{':' * bool(name)}{name}#{number}}}"

    def _generic(self) -> str:
        if self._eat("L"):
            return self._lifetime(self._base_62())
        return self._constant(in_value=False) if self._eat("K") else self.type()

    # -- types

    def type(self) -> str:
        return self._nested(self._any_type)

    def _any_type(self) -> str:
        tag = self._next()
        if tag in BASIC_TYPES:
            return BASIC_TYPES[tag]
        if tag in "RQ":
            lifetime = self._lifetime(number) + " " if self._eat("L") and (number := self._base_62()) else ""
            return f"&{lifetime}{'mut ' * (tag == 'Q')}{self.type()}"
        if tag in "PO":
            return f"*{'mut' if tag == 'O' else 'const'} {self.type()}"
        if tag == "A":
            return f"[{self.type()}; {self._constant(in_value=True)}]"
        if tag == "S":
            return f"[{self.type()}]"
        if tag == "T":
            return _tuple(self._until_end(self.type))
        if tag == "F":
            return self._bound(self._function)
        if tag == "D":
            text = "dyn " + self._bound(lambda: " + ".join(self._until_end(self._trait)))
            self._expect("L")
            number = self._base_62()
            return text + (f" + {self._lifetime(number)}" if number else "")
        if tag == "B":
            return self._back(self.type)
        self._at -= 1
        return self.path(in_value=False)

    def _function(self) -> str:
        text = "unsafe " * self._eat("U")
        if self._eat("K"):
            abi = "C" if self._eat("C") else self._plain_identifier().replace("_", "-")
            text += f'extern "{abi}" '
        text += f"fn({', '.join(self._until_end(self.type))})"
        return text if self._eat("u") else f"{text} -> {self.type()}"

    def _trait(self) -> str:
        text, is_open = self._path_open(in_value=False)
        while self._eat("p"):
            text += f"{', ' if is_open else '<'}{self._plain_identifier()} = {self.type()}"
            is_open = True
        return text + ">" * is_open

    def _bound(self, read: Callable[[], str]) -> str:
        """Read a type that may have a binder, which names lifetimes."""
        count = self._base_62() + 1 if self._eat("G") else 0
        if count > MAX_LIFETIMES:
            raise NotRustError
        self._lifetimes += count
        names = [self._lifetime(number) for number in range(count, 0, -1)]
        text = read()
        self._lifetimes -= count
        return f"for<{', '.join(names)}> {text}" if count else text

    def _lifetime(self, number: int) -> str:
        """Return the name of a lifetime, counted from the innermost binder; 0: erased."""
        if number == 0:
            return "'_"
        at = self._lifetimes - number
        if at < 0:
            raise NotRustError
        return "'" + (chr(ord("a") + at) if at < 26 else f"_{at}")

    # -- constants

    def _constant(self, *, in_value: bool) -> str:
        """Read a constant. In the place of a type, all except literals are in braces."""
        return self._nested(lambda: self._any_constant(in_value=in_value))

    def _any_constant(self, *, in_value: bool) -> str:
        tag = self._next()
        if tag == "p":
            return "_"
        if tag == "B":
            return self._back(lambda: self._constant(in_value=in_value))
        if tag in INTEGERS:
            return "-" * (self._eat("n")) + self._number()
        if tag == "b":
            return {"0": "false", "1": "true"}.get(self._number()) or self._fail()
        if tag == "c":
            return _quoted(self._character(), "'")
        if tag == "R" and self._eat("e"):
            return self._string()
        text = self._compound(tag)
        return text if in_value else f"{{{text}}}"

    def _compound(self, tag: str) -> str:
        def inner() -> str:
            return self._constant(in_value=True)

        if tag == "e":
            return "*" + self._string()
        if tag in "RQ":
            return ("&" if tag == "R" else "&mut ") + inner()
        if tag == "A":
            return f"[{', '.join(self._until_end(inner))}]"
        if tag == "T":
            return _tuple(self._until_end(inner))
        if tag != "V":
            raise NotRustError
        text, kind = self.path(in_value=True), self._next()
        if kind == "T":
            return f"{text}({', '.join(self._until_end(inner))})"
        if kind == "S":
            fields = self._until_end(lambda: f"{self._identifier()[0]}: {inner()}")
            return f"{text} {{ {', '.join(fields)} }}" if fields else f"{text} {{}}"
        return text if kind == "U" else self._fail()

    def _digits(self) -> str:
        match = HEXADECIMAL.match(self._text, self._at)
        if match is None:
            raise NotRustError
        self._at = match.end()
        return match[1]

    def _number(self) -> str:
        digits = self._digits().lstrip("0")
        return str(int(digits or "0", 16)) if len(digits) <= 16 else f"0x{digits}"

    def _character(self) -> str:
        digits = self._digits().lstrip("0") or "0"
        value = int(digits, 16) if len(digits) <= 6 else -1
        if not 0 <= value < 0x110000 or 0xD800 <= value < 0xE000:
            raise NotRustError
        return chr(value)

    def _string(self) -> str:
        try:
            return _quoted(bytes.fromhex(self._digits()).decode(), '"')
        except ValueError:
            raise NotRustError from None

    # -- identifiers and numbers

    def _identifier(self) -> tuple[str, int]:
        """Read a name with the number that distinguishes it from others of the same name."""
        number = self._disambiguator()
        return self._plain_identifier(), number

    def _disambiguator(self) -> int:
        return self._base_62() + 1 if self._eat("s") else 0

    def _plain_identifier(self) -> str:
        is_encoded = self._eat("u")
        match = DECIMAL.match(self._text, self._at)
        if match is None:
            raise NotRustError
        self._at = match.end()
        self._eat("_")  # apart from a name that begins with a digit, or with it
        name = self._text[self._at : self._at + int(match[0])]
        self._at += int(match[0])
        if self._at > len(self._text):
            raise NotRustError
        return _unicode(name) if is_encoded else name

    def _base_62(self) -> int:
        if self._eat("_"):
            return 0
        value = 0
        while not self._eat("_"):
            digit = BASE_62.get(self._next())
            if digit is None or value >> 64:
                raise NotRustError
            value = 62 * value + digit
        return value + 1

    # -- one character, or what has no end of its own

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise NotRustError
        self._at += 1
        return self._text[self._at - 1]

    def _eat(self, tag: str) -> bool:
        found = self._text.startswith(tag, self._at)
        self._at += found
        return found

    def _expect(self, tag: str) -> None:
        if not self._eat(tag):
            raise NotRustError

    def _until_end(self, read: Callable[[], str]) -> list[str]:
        found = []
        while not self._eat("E"):
            found.append(read())
        return found

    def _fail(self) -> str:
        raise NotRustError

    def _back(self, read: Callable[[], T]) -> T:
        """Read an earlier part again."""
        before = self._at - 1
        target = self._base_62()
        if target >= before:
            raise NotRustError
        after, self._at = self._at, target
        found = read()
        self._at = after
        return found

    def _nested(self, read: Callable[[], T]) -> T:
        self._steps += 1
        self._depth += 1
        if self._steps > MAX_STEPS or self._depth > MAX_DEPTH:
            raise NotRustError
        found = read()
        if len(found[0] if isinstance(found, tuple) else found) > MAX_TEXT:  # type: ignore[arg-type] # text, or text and more
            raise NotRustError
        self._depth -= 1
        return found


def _tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


def _unicode(name: str) -> str:
    """Decode punycode, whose delimiter is `_` here."""
    plain, _, encoded = name.rpartition("_")
    try:
        return f"{plain}-{encoded}".removeprefix("-").encode().decode("punycode")
    except (UnicodeError, IndexError, OverflowError):
        return f"punycode{{{name}}}"


def _quoted(text: str, quote: str) -> str:
    text = text.replace("\\", "\\\\").replace(quote, "\\" + quote)
    return quote + "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in text) + quote
