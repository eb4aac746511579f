"""Documents, help, messages, docstrings and comments are in plain English: habits that were removed do not come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING

from tools.lint.sources import files, found, nodes_of, text_of, tracked
from tools.rooms import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

# What to write instead.
HABITS = {
    r"\bbehind\b": "after",
    r"\bso many\b": "number of, several",
    r"\banew\b": "again, from scratch",
    r"\bbut for\b(?! example)": "except",
    r"\b(?:stays?|kept|left|remains?) as (?:it|they) (?:is|are|was|were)\b": "unchanged",
    r"\bthat there (?:is|are) not\b": "unknown, missing",
    r"\bby whom(?:ever)?\b": "whichever tool produced it",
    r"\bbad news\b": "failures",
    r"\b(?:is|are) told\b(?! to)|\btells\b": "reports, prints, lists",
    r"\bin earnest\b|\bthe way back\b|\bpair of eyes\b|\bone's own\b": "the plain term",
    r"\bthe other way round\b|\bfor want of\b": "the plain term",
}
PATTERNS = [(re.compile(habit, re.IGNORECASE), f"write: {plain}") for habit, plain in HABITS.items()]
ANY = re.compile("|".join(HABITS), re.IGNORECASE)
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
PLAIN = (*PACKAGES, "benchmarks", "conformance", "corpus", "docs")


def pages() -> list[str]:
    return [name for name in tracked() if (name.endswith(".md") and name.startswith("docs/")) or re.fullmatch(r"\w+\.md", name)]


def prose(name: str) -> str:
    """A page without its code, which keeps its lines."""
    return CODE.sub(lambda code: " " + "\n" * code[0].count("\n"), text_of(name))


def words_are_plain() -> Iterator[str]:
    for name in pages():
        for pattern, plain in PATTERNS:
            yield from found(name, pattern, plain, prose(name))
    for name in (name for name in files(*PLAIN) if ANY.search(text_of(name))):
        for line, text in texts(name):
            yield from (f"{name}:{line}: {match[0]}: {plain}" for pattern, plain in PATTERNS for match in pattern.finditer(text))


def texts(name: str) -> Iterator[tuple[int, str]]:
    """Comments and docstrings; in the product also messages, help and all other texts."""
    nodes = nodes_of(name)
    if not name.startswith(PACKAGES):
        nodes = tuple(node.value for node in nodes if isinstance(node, ast.Expr))
    yield from ((node.lineno, node.value) for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    tokens = tokenize.generate_tokens(io.StringIO(text_of(name)).readline)
    yield from ((token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT)


RULES = (words_are_plain,)
