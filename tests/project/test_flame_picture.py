"""tools/flame_picture.py: a flame graph as a picture that does not move."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from sframegen.profile.report.formats.file_formats import write_profile
from tests import ROOT
from tests.support.named_stacks import EXAMPLE, named, stack
from tools import flame_picture

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.once

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = ROOT / "docs/flame-graph.svg"


def test_a_frame_begins_where_its_caller_does_or_where_the_one_before_it_ended() -> None:
    frames = [
        (0, "all", 10),
        (1, "a", 6),
        (2, "b", 2),
        (2, "c", 3),
        (1, "d", 4),
        (2, "e", 4),
    ]
    assert [*flame_picture.preorder(["a;c 3", "d;e 4", "a;b 2", "a 1"])] == frames
    assert [(box.label, box.begin) for box in flame_picture.boxes(frames)] == [
        ("all", 0),
        ("a", 0),
        ("b", 0),
        ("c", 2),
        ("d", 6),
        ("e", 6),
    ]


def test_a_written_profile_is_drawn(tmp_path: Path) -> None:
    """Names of a profile are text, whatever is in them."""
    profile, output = tmp_path / "profile.folded", tmp_path / "picture.svg"
    write_profile(named(*EXAMPLE, stack("main@program <script>&@program", 5)), str(profile))
    flame_picture.main(str(profile), str(output))
    drawn = ET.fromstring(output.read_bytes())
    texts = [element.text for element in drawn.iter(f"{SVG}text")]
    assert texts[0] == "15 samples"
    assert {"all", "program", "main", "work", "spin", "<script>&"} <= set(texts)
    assert not list(drawn.iter(f"{SVG}script"))


def test_a_profile_without_samples_is_drawn() -> None:
    assert "0 samples" in "".join(flame_picture.picture([]))


def test_the_picture_of_the_pages_is_small_and_complete() -> None:
    drawn = ET.fromstring(PICTURE.read_bytes())
    assert len(PICTURE.read_bytes()) < 100_000
    assert "main" in [element.text for element in drawn.iter(f"{SVG}text")]
