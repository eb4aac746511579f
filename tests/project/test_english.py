"""Documents, help, messages and docstrings are in plain English: habits that were removed do not come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import TYPE_CHECKING

import click
import commands
import pytest

import sframegen.api
from sframegen.cli.commands import COMMANDS
from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.once

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
HABIT = re.compile("|".join(HABITS), re.IGNORECASE)
NO_VERB = re.compile(r"(?:Of|Whether)\b")  # as a docstring begins
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`|\]\([^)]*\)", re.DOTALL | re.MULTILINE)

PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "reference"),
]
# Whose messages are plain; whose docstrings and comments are, too.
PLAIN_MESSAGES = ("cfi", "linker", "sframegen")
PLAIN = ("benchmarks", "cfi", "conformance", "corpus", "docs", "linker", "sframegen")
PRINTS = ("echo", "finding", "note")


def habits(text: str) -> list[str]:
    return [f"...{text[max(0, found.start() - 40) : found.end() + 40]}...".replace("\n", " ") for found in HABIT.finditer(text)]


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def messages(tree: ast.AST) -> Iterator[str]:
    """What is raised, and what is printed."""
    for node in ast.walk(tree):
        printed = isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in PRINTS
        if printed or isinstance(node, ast.Raise):
            parts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
            yield from (text for text in parts if isinstance(text, str))


def docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield ast.get_docstring(node) or ""


def comments(path: Path) -> Iterator[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    yield from (token.string for token in tokens if token.type == tokenize.COMMENT)


@pytest.mark.parametrize(
    "text",
    ["the bytes behind it", "so many files", "it stays as it is", "the file is left as it was", "all but for one", "it tells"],
)
def test_habits_are_found(text: str) -> None:
    assert len(habits(text)) == 1


def test_plain_text_has_none() -> None:
    assert habits("but for example this, and a comparison with the file as it was") == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages_are_plain(path: Path) -> None:
    assert habits(CODE.sub(" ", path.read_text())) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_plain(name: str) -> None:
    context = commands.context_of(name)
    options = [option.help or "" for option in context.command.get_params(context) if isinstance(option, click.Option)]
    assert [habits(text) for text in (COMMANDS[name], context.command.help or "", *options) if habits(text)] == []


@pytest.mark.parametrize("package", PLAIN_MESSAGES)
def test_messages_are_plain(package: str) -> None:
    found = {}
    for path in sources(package):
        if said := habits("\n".join(messages(ast.parse(path.read_bytes())))):
            found[path.relative_to(ROOT).as_posix()] = said
    assert found == {}


@pytest.mark.parametrize("name", sframegen.api.__all__)
def test_docstrings_of_public_names_are_plain(name: str) -> None:
    text = getattr(sframegen.api, name).__doc__ or ""
    assert habits(text) == []
    assert not NO_VERB.match(text)


@pytest.mark.parametrize("folder", PLAIN)
def test_docstrings_and_comments_are_plain(folder: str) -> None:
    found = {}
    for path in sources(folder):
        texts = list(docstrings(ast.parse(path.read_bytes())))
        said = [*habits("\n".join([*texts, *comments(path)])), *(text for text in texts if NO_VERB.match(text))]
        if said:
            found[path.relative_to(ROOT).as_posix()] = said
    assert found == {}
