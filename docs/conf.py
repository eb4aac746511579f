"""Sphinx' configuration: `make docs`, `make man`. The pages of the site are those that the pages of LISTS list, in their order."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import commands  # noqa: E402

import sframegen  # noqa: E402

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

commands.write_reference(HERE / "reference")

project = "sframegen"
author = "the sframegen authors"
copyright = f"2026, {author}"  # noqa: A001 - the name that Sphinx reads
version = release = sframegen.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
nitpicky = True
suppress_warnings = ["misc.highlighting_failure"]  # languages that Pygments does not know
nitpick_ignore_regex = [("py:.*", r"(?!sframegen\.[\w]+$).*")]  # of types, only public ones are documented
smartquotes = False  # --json is no dash
default_role = "code"
highlight_language = "text"

myst_enable_extensions = ["attrs_inline", "deflist"]
myst_heading_anchors = 3

HIDDEN = ["__init__", "__new__", "end", "relative", "seeker"]  # the last three: of SframeSection
autodoc_default_options = {"members": True, "member-order": "bysource", "exclude-members": ",".join(HIDDEN)}
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"sframegen {release}"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]

man_pages = commands.man_pages()

CAPTIONED = re.compile(r"^## (.+)\n((?:(?!^## ).*\n?)*)", re.MULTILINE)
FILE_NAME = re.compile(r"\[[\w-]+\.md(?:#[\w-]+)?\]\((?=[^)]+\.md)")
LISTED = re.compile(r"^- \[[^]]+\]\(([\w/-]+)\.md\)", re.MULTILINE)
LISTS = ("upstream/index",)  # of pages that the side bar shows below them


def contents(pages: list[str], *options: str) -> str:
    return "\n".join(["\n```{toctree}", ":hidden:", *options, "", *pages, "```\n"])


def add_contents(_app: Sphinx, document: str, source: list[str]) -> None:
    """The side bar lists what index.md does; the pages that LISTS and commands.md list are below these in it."""
    if document == "index":
        for caption, text in CAPTIONED.findall(source[0]):
            if pages := LISTED.findall(text):
                source[0] += contents(pages, f":caption: {caption}")
    elif document in LISTS:
        source[0] += contents(LISTED.findall(source[0]))
    elif document == "json":
        source[0] += "\n".join(["", *commands.key_tables()])
    elif document == "commands":
        pages = commands.reference_lines()
        source[0] += "\n".join(["", *(f"- [{title}]({page}.md): {line}" for page, title, line in pages), ""])
        source[0] += contents([page for page, _title, _line in pages])


def name_titles(_app: Sphinx, _document: str, source: list[str]) -> None:
    """A link named as a file, for those who read the files, is named as the page or section that it leads to."""
    source[0] = FILE_NAME.sub("[](", source[0])


def drop_empty_links(app: Sphinx, tree: nodes.document, _document: str) -> None:
    """One man page has no address for another: from 0.22 on, docutils prints `<>` after the text of such a link."""
    if app.builder.format == "man":
        for link in list(tree.findall(lambda node: node.tagname == "reference" and not node.get("refuri"))):
            link.replace_self(link.children)


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)
    app.connect("source-read", name_titles)
    app.connect("doctree-resolved", drop_empty_links)
