"""The table on the terminal and files of each format, read again with their own schemas; profiles of many stacks."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
from array import array
from collections import Counter
from functools import partialmethod
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sframegen.profile.collected import Collected
from sframegen.profile.packed_frames import FileFrame
from sframegen.profile.report import label_trees
from sframegen.profile.report.formats.file_formats import FORMATS, check_target, format_of, write_profile
from sframegen.profile.report.formats.flamegraph import encode_flamegraph
from sframegen.profile.report.formats.path_bytes import BLOCK_SIZE
from sframegen.profile.report.formats.row_kinds import ROWS_IN_PART
from sframegen.profile.report.formats.texts import encode_folded
from sframegen.profile.report.label_trees import group_stacks
from sframegen.profile.report.named import FrameKind, NamedFrame, NamedProfile
from sframegen.profile.report.naming import name_stacks
from sframegen.profile.report.table import MAX_TIES, find_hottest_stacks, format_notes, format_table, format_totals, function_costs
from sframegen.profile.stacks import growing, numbered
from sframegen.profile.stacks.growing import Room
from sframegen.stack.walking.frames import End
from tests.support.named_stacks import EXAMPLE, frame, named, stack, stack_of, stacks_in
from tests.support.pprof_messages import fields, stacks_of

GOLDEN = """\
  SELF %  TOTAL %  FUNCTION  OBJECT
    60.0     60.0  spin      libwork.so
    20.0     80.0  work      libwork.so
    10.0     10.0  callback  program
    10.0     10.0  vfs_read  [kernel]
     0.0     90.0  main      program
     0.0     10.0  lost      program
     0.0     10.0  read      libc.so.6

       %  HOTTEST STACKS, the innermost function first
    60.0  spin < work < main
    20.0  work < main
    10.0  callback [guess] < lost < [callers unknown]
    10.0  vfs_read < read < main

10 samples of cpu-clock, 99 Hz in 2.0 s; bpf
complete: 9 (90.0 %)
with guessed frames: 1 (10.0 %)
incomplete: 1 (10.0 %): no rule describes this code, and no frame pointer leads on
lost: 3 samples: the ring buffer was full"""


def test_golden() -> None:
    profile = named(*EXAMPLE)
    profile.lost["the ring buffer was full"] = 3
    assert "\n".join(format_table(profile)) == GOLDEN


def test_groups_are_listed_if_there_are_several() -> None:
    lines = list(format_table(group_stacks(named(*EXAMPLE), "pid")))
    at = lines.index("       %  BY PID")
    assert lines[at + 1 : at + 3] == ["    90.0  program (pid 7)", "    10.0  program (pid 8)"]
    assert "    80.0  libwork.so" in list(format_table(group_stacks(named(*EXAMPLE), "object")))
    many = named(*(stack("main@program", pid=number) for number in range(30)), by="pid")
    assert "    66.7  20 more" in list(format_table(many))


def test_a_recursive_function_counts_once_a_sample() -> None:
    profile = named(stack("f@a f@a f@a g@a", 3), stack("g@a f@a", 1))
    assert [cost[2:] for cost in function_costs(profile)] == [(3, 4), (1, 4)]


def test_the_hottest_stack_comes_after_many_equal_ones() -> None:
    profile = named(*(stack(f"f{number:04}@a") for number in range(MAX_TIES)), stack("hot@a", 2))
    assert find_hottest_stacks(profile) == [(("hot",), 2), *(((f"f{number:04}",), 1) for number in range(4))]


def test_lines_are_cut_to_the_width() -> None:
    huge = NamedFrame("f" * 10_000_000, "o" * 500, "/p", 1, FrameKind.USER)
    profile = named(stack_of([huge, huge], process="p" * 500, thread="t" * 500), *EXAMPLE)
    for width in (1, 40, 80, 200):
        assert max(map(len, [*format_table(profile, width)][: -len([*format_totals(profile)])])) <= max(width, 40)
    assert any(line.endswith("…") for line in format_table(profile, 80))


def test_notes_are_below_one_heading_each_once_and_wrapped() -> None:
    profile = named(*EXAMPLE)
    assert list(format_notes(profile, 80)) == []
    path, words = "/usr/lib" + "/folder" * 30 + "/libwork.so:", "some more words of a note " * 5
    profile.notes += [f"{path} Permission denied", words, words]
    lines = list(format_notes(profile, 80))
    assert lines[:3] == ["notes:", f"  - {path}", "    Permission denied"]
    assert " ".join(line.strip() for line in lines[3:]) == f"- {words.strip()}"
    assert max(map(len, lines[3:])) <= 80


def test_recursion_is_one_name_with_its_depth() -> None:
    lines = list(format_table(named(stack("main@a sort@a sort@a sort@a compare@a", 2), stack("", 1)), 80))
    assert "    66.7  compare < sort x3 < main" in lines
    assert "    33.3  [no user stack]" in lines


def test_a_small_share_is_not_nothing_and_a_large_one_is_not_all() -> None:
    lines = list(format_table(named(stack("rare@a", 1), stack("hot@a", 9999))))
    assert (lines[1].split()[0], lines[2].split()[0]) == ("99.99", "0.01")


def test_without_samples() -> None:
    assert next(iter(format_table(named(stack("..."), by="object")))) == "  SELF %  TOTAL %  FUNCTION  OBJECT"
    assert list(format_table(named())) == [
        "0 samples of cpu-clock, 99 Hz in 2.0 s; bpf",
        "nothing was sampled: the processes waited, or ended before they had used the CPU for a sampling period (10.1 ms)",
    ]
    lost = named()
    lost.lost["the ring buffer was full"] = 1
    assert [*format_table(lost)][-1] == "lost: 1 sample: the ring buffer was full"


def test_folded() -> None:
    assert b"".join(encode_folded(named(*EXAMPLE, EXAMPLE[0]))).decode().splitlines() == [
        "program;main;work;spin 12",
        "program;main;work 2",
        "program;main;read;vfs_read 1",
        "program;[callers unknown];lost;callback [guess] 1",
    ]
    assert b"".join(encode_folded(named(stack("a;b@x", process="p;q", thread="p;q")))) == b"p:q;a:b 1\n"
    assert b"".join(encode_folded(named(stack("", process="p", thread="p")))) == b"p 1\n"
    assert b"".join(format_of("a.txt").encode(named(stack("f@a", process="", thread="", pid=9)))) == b"9;f 1\n"


NONE = -1 << 40  # less than any memory
ENDS = (End.OUTERMOST, End.NO_RULE, End.KERNEL_THREAD)


def outputs() -> list[bytes]:
    collected = Collected("cpu-clock", "bpf", 99, seconds=1.0)
    stacks = collected.stacks
    for number in range(100):
        frames = [FileFrame(0, number % (5 + depth), guessed=number % 11 == depth).pack() for depth in range(number % 6)]
        task = stacks.tasks.find_number(1 + number % 4, 0)
        stacks.add_samples(stacks.find_or_add(task, array("Q", frames), ENDS[number % 3]), number % 5)
    profile = group_stacks(name_stacks(collected), "pid")
    written = [b"".join(format_of(ending).encode(profile)) for ending in FORMATS]
    return [*written, "\n".join(format_table(profile)).encode()]


def test_what_is_written_does_not_depend_on_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = outputs()
    for size in (1, 7):
        monkeypatch.setattr(growing, "PART_SIZE", size)
        assert outputs() == whole
    monkeypatch.setattr(label_trees, "MERGED_ROWS", 2)
    for held in (1, 4):  # nodes, each in the place of others
        monkeypatch.setattr(label_trees, "CACHED_NODES", held)
        assert outputs() == whole


def test_columns_in_files_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where memory goes after each part, and an index is filled in parts."""
    whole = outputs()
    monkeypatch.setattr(growing, "SMALL_COLUMN", 0)
    for module, name, value in (
        (growing, "PART_SIZE", 7),
        (growing, "MAX_FILE_MEMORY", NONE),
        (numbered, "PAIRS_AT_ONCE", 8),
        (label_trees, "MERGED_ROWS", 2),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(Room, "__init__", partialmethod(Room.__init__, -1))
    assert outputs() == whole


def test_parts_are_all_numbers_in_their_order_and_memory_goes_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "PART_SIZE", 4)
    monkeypatch.setattr(growing, "MAX_FILE_MEMORY", NONE)
    done: list[str] = []
    monkeypatch.setattr(Room, "release_pages", lambda _room: done.append("rest"))
    room = Room()
    room.in_file = True
    done += (str(part) for part in room.parts(11, 1))
    assert done == ["range(1, 5)", "rest", "range(5, 9)", "rest", "range(9, 11)", "rest"]
    monkeypatch.setattr(growing, "MAX_FILE_MEMORY", 1 << 40)
    done.clear()
    assert [*room.parts(11, 1)]
    assert not done
    assert [*Room().parts(6, last_first=True)] == [range(4, 6), range(4)]


def test_what_stays_in_memory_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries, and files that others have mapped: they would have memory go after each part."""
    monkeypatch.setattr(growing, "MAX_FILE_MEMORY", 50)
    rested: list[str] = []
    monkeypatch.setattr(Room, "release_pages", lambda _room: rested.append("rest"))
    room = Room()
    room.in_file = True
    done = []
    for size, staying in ((100, 90), (130, 0), (150, 95), (60, 0), (120, 60)):  # after the fourth, 60 of the 95 are left
        monkeypatch.setattr(growing, "resident_file_bytes", iter([size, staying]).__next__)
        room.limit_file_memory()
        done.append(len(rested))
    assert done == [1, 1, 2, 2, 3]


def test_a_profile_in_which_nothing_is_counted() -> None:
    """All that was sampled is in other threads, or in the interval before: frames have places, and no stack has samples."""
    without_samples = group_stacks(named(stack_of([frame("outer"), frame("inlined")._replace(inlined=True)], 0)), "pid")
    empty = NamedProfile("cpu-clock", "bpf", 99, 0.0, 1.0)
    empty.locations.number_locations([frame("outer"), frame("inlined")._replace(inlined=True)])
    for one in (without_samples, group_stacks(empty, "pid")):
        assert all(b"".join(format_of(ending).encode(one)) or ending in (".folded", ".txt") for ending in FORMATS)
        assert [*format_table(one)]


NOBODY = 65534
HOSTILE = ["</script><script>alert(1)</script>", 'a";b\\', "\x1b[31m\u2028\u202e", "--><!--", "${x}`", "\udcff"]


def written(profile: NamedProfile, ending: str, folder: Path) -> bytes:
    path = folder / f"profile{ending}"
    write_profile(profile, str(path))
    return path.read_bytes()


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
    frames = [NamedFrame(text, text, f"/{text}", number, FrameKind.USER) for number, text in enumerate(HOSTILE)]
    huge = NamedFrame("f" * 10_000_000, "o", "/o", 1, FrameKind.USER)
    profile = named(stack_of([*frames, huge], process=HOSTILE[0], thread=HOSTILE[0]))
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


# -- profiles of many rows: files are written in parts, and have the same as those that are written at once

FRAMES = [frame(f"a_function_with_a_long_name_{number}@program") for number in range(30)]


def test_files_have_all_samples() -> None:
    stacks = [stack_of([], 1 << 40)]
    for number in range(2 * ROWS_IN_PART + 5):
        frames = [FRAMES[number // 30**place % 30] for place in range(1 + number % 4)]
        samples = 0 if number < ROWS_IN_PART + 1 or number % 3 == 0 else number
        stacks.append(stack_of(frames, samples, pid=1 + number % 9))
    profile = named(*stacks, by="pid")
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
    assert (data["depths"], data["samples"]) == ([0, 1, 2, 3, 4, 2, 3, 4, 3, 4], [16, 16, 1, 1, 1, 15, 1, 1, 14, 12])
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
