"""The flame graph: one file, whose names stay data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

from sframegen.profile.report.formats.flamegraph import encode_flamegraph
from sframegen.profile.report.named import FrameKind, NamedFrame, NamedProfile
from tests.support.named_stacks import EXAMPLE, named, stack_of


class Page(HTMLParser):
    def __init__(self, profile: NamedProfile) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.parts: list[tuple[str, list[str]]] = []
        self.inside = False
        self.feed("".join(encode_flamegraph(profile)))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = tag in ("script", "style")
        if self.inside:
            self.parts.append((tag, []))

    def handle_endtag(self, _tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.parts[-1][1].append(data)

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(tag, "".join(parts)) for tag, parts in self.parts]

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.texts[1][1])
        return found


def test_the_tree() -> None:
    data = Page(named(*EXAMPLE, EXAMPLE[0])).data
    labels = ["all", "program", "[callers unknown]", "lost", "callback [guess]", "main", "read", "vfs_read", "work", "spin"]
    assert [data["labels"][frame] for frame in data["frames"]] == labels
    assert data["depths"] == [0, 1, 2, 3, 4, 2, 3, 4, 3, 4]
    assert data["samples"] == [16, 16, 1, 1, 1, 15, 1, 1, 14, 12]
    assert [data["objects"][number] for number in data["frameObjects"]][-1] == "libwork.so"
    assert data["notes"][0].startswith("16 samples of cpu-clock")
    empty = Page(named()).data
    assert (empty["depths"], empty["title"]) == ([], "cpu-clock: 0 samples")


def test_names_are_no_markup_and_no_script() -> None:
    plain = Page(named(*EXAMPLE))
    texts = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "--><!--<script>", "a\u2028b", "\udcff"]
    frames = [NamedFrame(text, text, text, 1, FrameKind.USER) for text in texts]
    profile = named(stack_of(frames, process=texts[0], thread=texts[0]))
    profile.notes.append(texts[0])
    hostile = Page(profile)
    assert hostile.elements == plain.elements
    assert [tag for tag, _ in hostile.texts] == [tag for tag, _ in plain.texts] == ["style", "script", "script"]
    assert hostile.data["labels"][2:4] == texts[:2]


def test_only_its_own_style_and_script_are_allowed() -> None:
    page = Page(named(*EXAMPLE))
    (policy,) = (attributes["content"] or "" for tag, attributes in page.elements if attributes.get("http-equiv"))
    hashes = [base64.b64encode(hashlib.sha256(page.texts[at][1].encode()).digest()).decode() for at in (2, 0)]
    assert policy.split("; ")[:3] == ["default-src 'none'", *map("{}-src 'sha256-{}'".format, ("script", "style"), hashes)]
    assert "unsafe" not in policy
    assert [attributes for _, attributes in page.elements if {"src", "href", "style", "onclick"} & {*attributes}] == []
    assert re.search(r"https?:|fetch\(|innerHTML|eval\(", page.texts[0][1] + page.texts[2][1]) is None
