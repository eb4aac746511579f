"""Rules on README, docs/ and the documents beside README: what they name is there, and their figures are measured ones."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import sframegen
from tools.bare.__main__ import SMOKE
from tools.lint.sources import files, found, pages, text_of, tracked
from tools.rooms import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
TARGET = re.compile(r"`make ((?:[a-z]+-)*[a-z]+)`|^\$ make ((?:[a-z]+-)*[a-z]+)", re.MULTILINE)
FOLDER = r"(?:benchmarks|cfi|conformance|corpus|debian|docs|linker|packaging|sframegen|tests|tools)"
PLACE = re.compile(rf"(?<![\w./~-])({FOLDER}/[\w/.-]*(?:/(?=`)|\.\w+))")
NO_PLACE = re.compile("[A-Z]{3}|riscv64|/.debhelper/|^docs/reference/")  # of any file or machine; made
FIGURE = re.compile(r"(?<!Linux )(?<!libLLVM )(?<![\d.])(?:\d{1,3}(?:,\d{3})+|\d+\.\d+|\d+(?= times| ms\b))")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def without_blocks(name: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text_of(name), flags=re.DOTALL | re.MULTILINE)


def links_lead_to_files() -> Iterator[str]:
    for name in pages():
        for match in LINK.finditer(without_blocks(name)):
            if not ((ROOT / name).parent / match[1]).is_file():
                yield from found(name, re.compile(rf"(?<=\]\(){re.escape(match[1])}"), "no such file")


def what_pages_name_is_there() -> Iterator[str]:
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE))
    for name in (name for name in pages() if name != "CHANGELOG.md"):
        for match in TARGET.finditer(text_of(name)):
            if (target := match[1] or match[2]) not in targets:
                yield f"{name}: make {target}: Makefile has no such target"
        for place in sorted(set(PLACE.findall(text_of(name)))):
            if not NO_PLACE.search(place) and not (ROOT / place).exists():
                yield f"{name}: {place}: not there"
    named = {(name, page) for name in files("cfi", "linker", "sframegen") for page in re.findall(r"docs/[\w-]+\.md", text_of(name))}
    yield from (f"{name}: {page}: not there" for name, page in sorted(named) if not (ROOT / page).exists())
    yield from (f"tools/bare/__main__.py: {place}: not there" for place in SMOKE.split() if not (ROOT / place).exists())


def minor(version: str) -> list[int]:
    return [int(number) for number in version.split(".")[:2] if number]


def results_of_studies_are_on_the_page_and_name_their_version() -> Iterator[str]:
    """Those of corpus/measured.py."""
    page = text_of("docs/measured.md")
    for name in (name for name in tracked() if re.fullmatch(r"docs/measured/.*\.json", name)):
        if f"]({name.removeprefix('docs/')})" not in page:
            yield f"{name}: docs/measured.md does not link it"
        results = json.loads(text_of(name))
        versions = [(one.get("date"), minor(one.get("sframegen", ""))) for one in results.get("studies", [results])]
        if not all(date and [] < version <= minor(sframegen.__version__) for date, version in versions):
            yield f"{name}: no date, or no sframegen of a version up to {sframegen.__version__}"


def figures_of_readme_are_on_the_page_that_is_linked_after_them() -> Iterator[str]:
    """As they are, or rounded."""
    for paragraph in re.split(r"\n\n|\n(?=- )", without_blocks("README.md")):
        for said, page in re.findall(r"(.*?)\]\((docs/[\w/-]+\.md)(?:#[\w-]+)?\)", paragraph, re.DOTALL):
            if page not in tracked():  # as links_lead_to_files() says
                continue
            there = {number.replace(",", "") for number in NUMBER.findall(text_of(page))}
            for figure in FIGURE.findall(re.sub(r"measured with sframegen ([\d.]+\d)", "", said)):
                digits = len(figure.partition(".")[2])
                if figure.replace(",", "") not in there and not any(f"{float(one):.{digits}f}" == figure for one in there):
                    yield f"README.md: {figure}: not in {page}"
            yield from (
                f"README.md: {page} has nothing that was measured with sframegen {version}"
                for version in re.findall(r"measured with sframegen ([\d.]+\d)", said)
                if version not in text_of(page)
            )


def pictures_follow_the_readers_theme() -> Iterator[str]:
    for name in (name for name in tracked() if name.startswith("docs/") and name.endswith(".svg")):
        if "prefers-color-scheme: dark" not in text_of(name):
            yield f"{name}: no colours for dark pages"


RULES = (
    links_lead_to_files,
    what_pages_name_is_there,
    results_of_studies_are_on_the_page_and_name_their_version,
    figures_of_readme_are_on_the_page_that_is_linked_after_them,
    pictures_follow_the_readers_theme,
)
