"""Files of each format, read again with their own schemas; the names in a flame graph stay data."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
from collections import Counter
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from sframegen.profile.report.formats.file_formats import FORMATS, check_target, format_of, write_profile
from sframegen.profile.report.formats.flamegraph import encode_flamegraph
from sframegen.profile.report.formats.path_bytes import BLOCK_SIZE
from sframegen.profile.report.formats.row_kinds import ROWS_IN_PART
from sframegen.profile.report.label_trees import group_stacks
from sframegen.profile.report.named import FrameKind, NamedFrame, NamedProfile
from tests.support.named_stacks import EXAMPLE, frame, named, stack, stack_of, stacks_in
from tests.support.pprof_messages import fields, stacks_of

if TYPE_CHECKING:
    from pathlib import Path

    from sframegen.profile.report.named import NamedProfile

NOBODY = 65534
HOSTILE = ["</script><script>alert(1)</script>", 'a";b\\', "\x1b[31m\u2028\u202e", "--><!--", "${x}`", "\udcff"]


def written(profile: NamedProfile, ending: str, folder: Path) -> bytes:
    path = folder / f"profile{ending}"
    write_profile(profile, str(path))
    return path.read_bytes()


def hostile() -> NamedProfile:
    frames = [NamedFrame(text, text, f"/{text}", number, FrameKind.USER) for number, text in enumerate(HOSTILE)]
    huge = NamedFrame("f" * 10_000_000, "o", "/o", 1, FrameKind.USER)
    return named(stack_of([*frames, huge], process=HOSTILE[0], thread=HOSTILE[0]))


def test_where_no_file_can_be_made_is_known_before_sampling(tmp_path: Path) -> None:
    check_target(str(tmp_path / "new.html"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        check_target(str(tmp_path / "missing" / "new.html"))
    os.mkfifo(tmp_path / "fifo.html")
    with pytest.raises(OSError, match="not a regular file"):
        check_target(str(tmp_path / "fifo.html"))


def test_without_samples_and_hostile_names(tmp_path: Path) -> None:
    """Every file is written, and the same again from the same profile; the page shortens long names."""
    profile = hostile()
    for ending in FORMATS:
        written(named(), ending, tmp_path)
    assert [ending for ending in FORMATS if written(profile, ending, tmp_path) != written(profile, ending, tmp_path)] == []
    assert len(written(profile, ".html", tmp_path)) < 100_000


def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    """Root writes into a user's directory, who has put a link to a file of root's there."""
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    victim, theirs = tmp_path / "victim.json", tmp_path / "theirs"
    victim.write_text("of root")
    theirs.mkdir()
    (theirs / "out.json").symlink_to(victim)
    os.chown(theirs / "out.json", NOBODY, NOBODY, follow_symlinks=False)
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(OSError, match="another user controls"):
        write_profile(named(*EXAMPLE), str(theirs / "out.json"))
    assert victim.read_text() == "of root"
    write_profile(named(*EXAMPLE), str(theirs / "new.json"))
    assert json.loads((theirs / "new.json").read_text())["stacks"]


def test_another_name_of_a_file_keeps_its_content(tmp_path: Path) -> None:
    """The output is a new file: a hard link, which any user can make, is not written through."""
    victim = tmp_path / "victim"
    victim.write_text("of root")
    (tmp_path / "out.json").hardlink_to(victim)
    write_profile(named(*EXAMPLE), str(tmp_path / "out.json"))
    assert victim.read_text() == "of root"


def test_summary(tmp_path: Path) -> None:
    profile = named(*EXAMPLE)
    profile.lost["the ring buffer was full"] = 3
    document = json.loads(written(profile, ".json", tmp_path))
    counts = [document[key] for key in ("samples", "complete", "guessed", "lost", "groups")]
    assert counts == [10, 9, 1, {"the ring buffer was full": 3}, {"program": 10}]
    assert document["functions"][0] == {"function": "spin", "object": "libwork.so", "self": 6, "total": 6}
    assert sum(function["self"] for function in document["functions"]) == sum(one["samples"] for one in document["stacks"]) == 10
    functions = [document["frames"][number]["function"] for number in document["stacks"][3]["frames"]]
    assert functions == ["[callers unknown]", "lost", "callback"]


def test_pprof(tmp_path: Path) -> None:
    profile = named(*EXAMPLE)
    profile.build_ids["/usr/lib/libwork.so"] = "abcd"
    read = fields(gzip.decompress(written(profile, ".pb.gz", tmp_path)), "profile")
    strings = read[6]
    assert strings[0] == ""
    assert [(strings[one[1][0]], strings[one[2][0]]) for one in read[1]] == [("samples", "count"), ("cpu", "nanoseconds")]
    functions = {one[1][0]: strings[one[2][0]] for one in read[5]}
    locations = {one[1][0]: functions[one[4][0][1][0]] for one in read[4]}
    assert [([locations[number] for number in one[1]], one[2]) for one in read[2]] == [
        (["spin", "work", "main"], [6, 6 * (10**9 // 99)]),
        (["work", "main"], [2, 2 * (10**9 // 99)]),
        (["vfs_read", "read", "main"], [1, 10**9 // 99]),
        (["callback [guess]", "lost", "[callers unknown]"], [1, 10**9 // 99]),
    ]
    assert {strings[one[5][0]]: strings[one[6][0]] if 6 in one else "" for one in read[3]}["/usr/lib/libwork.so"] == "abcd"
    labels = {strings[one[1][0]]: one[3][0] if 3 in one else strings[one[2][0]] for one in read[2][2][3]}
    assert labels == {"comm": "program", "process": "program", "pid": 8}
    assert read[9] == [int(profile.started * 10**9)]
    by_object = fields(gzip.decompress(written(group_stacks(profile, "object"), ".pb.gz", tmp_path)), "profile")
    assert "object" in by_object[6]


def test_the_first_mapping_of_pprof_is_the_program(tmp_path: Path) -> None:
    programs = ("/usr/bin/other", "/usr/bin/program")
    stacks = [
        stack_of([NamedFrame("main", "", path, 1, FrameKind.USER)], count) for path, count in zip(programs, (20, 21), strict=True)
    ]
    profile = named(*EXAMPLE, *stacks)
    profile.programs |= {*programs}
    read = fields(gzip.decompress(written(profile, ".pb.gz", tmp_path)), "profile")
    assert (read[6][read[3][0][5][0]], read[3][0][1]) == ("/usr/bin/program", [1])


def test_stacks_without_threads_and_names(tmp_path: Path) -> None:
    write_profile(group_stacks(named(stack("f@a", process="", thread="", pid=9)), "comm"), str(tmp_path / "a.txt"))
    assert (tmp_path / "a.txt").read_text() == "9;f 1\n"


# -- profiles of many rows: files are written in parts, and have the same as those that are written at once

COUNT = 2 * ROWS_IN_PART + 5
FRAMES = [frame(f"a_function_with_a_long_name_{number}@program") for number in range(30)]


def large_profile() -> NamedProfile:
    stacks = []
    for number in range(COUNT):
        frames = [FRAMES[number // 30**place % 30] for place in range(1 + number % 4)]
        samples = 0 if number < ROWS_IN_PART + 1 or number % 3 == 0 else number
        stacks.append(stack_of(frames, samples, pid=1 + number % 9))
    stacks.append(stack_of([], 1 << 40))
    return named(*stacks, by="pid")


def test_files_have_all_samples() -> None:
    profile = large_profile()
    expected: Counter[tuple[str, ...]] = Counter()
    without_groups: Counter[tuple[str, ...]] = Counter()
    for one in stacks_in(profile):
        expected[one.labels] += one.samples
        without_groups[one.labels[1:]] += one.samples
    folded, summary, pprof = ([*format_of(name).encode(profile)] for name in ("a.folded", "a.json", "a.pb.gz"))
    lines = [line.rpartition(b" ") for line in b"".join(folded).splitlines()]
    assert {tuple(labels.decode().split(";")): int(count) for labels, _, count in lines} == expected
    document = json.loads(b"".join(summary))
    functions = [one["function"] for one in document["frames"]]
    found: Counter[tuple[str, ...]] = Counter()
    for one in document["stacks"]:
        found[one["group"], *(functions[number] for number in one["frames"])] += one["samples"]
    assert found == expected
    assert stacks_of(b"".join(pprof)) == without_groups
    assert len(folded) > 2
    assert max(map(len, folded + summary)) < 2 * BLOCK_SIZE


def test_a_stack_that_is_longer_than_a_part() -> None:
    long = [frame(f"{letter * BLOCK_SIZE}@program") for letter in "abc"]
    profile = named(stack_of(long, 7), stack_of(long[:1], 8), by="pid")
    text = b"".join(format_of("a.folded").encode(profile)).decode()
    group = "program (pid 7)"
    assert text == f"{group};{';'.join(one.function for one in long)} 7\n{group};{long[0].function} 8\n"


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
    page_of_hostile = Page(profile)
    assert page_of_hostile.elements == plain.elements
    assert [tag for tag, _ in page_of_hostile.texts] == [tag for tag, _ in plain.texts] == ["style", "script", "script"]
    assert page_of_hostile.data["labels"][2:4] == texts[:2]


def test_only_its_own_style_and_script_are_allowed() -> None:
    page = Page(named(*EXAMPLE))
    (policy,) = (attributes["content"] or "" for tag, attributes in page.elements if attributes.get("http-equiv"))
    hashes = [base64.b64encode(hashlib.sha256(page.texts[at][1].encode()).digest()).decode() for at in (2, 0)]
    assert policy.split("; ")[:3] == ["default-src 'none'", *map("{}-src 'sha256-{}'".format, ("script", "style"), hashes)]
    assert "unsafe" not in policy
    assert [attributes for _, attributes in page.elements if {"src", "href", "style", "onclick"} & {*attributes}] == []
    assert re.search(r"https?:|fetch\(|innerHTML|eval\(", page.texts[0][1] + page.texts[2][1]) is None
