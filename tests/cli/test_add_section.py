"""`sframegen add-section`, and a whole build root at a time: which files below it get a section, and what is said of them."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sframegen
from sframegen import add_section, check, read
from sframegen.api.add_summary import Plan, Summary
from sframegen.checks.finding import Severity
from sframegen.cli.trees import tree_files
from sframegen.cli.trees.tree_files import Exclusions
from sframegen.elf.file import open_elf
from sframegen.elf.function_names import resolve_address
from sframegen.elf.notes import read_build_id
from sframegen.format.layouts import FormatVersion
from sframegen.format.locate import find_sframe
from tests.support.commands import run as sframegen_command
from tests.support.commands import start
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers

run = partial(sframegen_command, "add-section", "-j1")


def summary(file: str = "app", **fields: Any) -> Summary:
    numbers: dict[str, Any] = {
        "functions": 1234, "functions_covered": 1230, "code_bytes": 345678, "covered_bytes": 345600, "rows": 5678,
        "section_bytes": 40123, "eh_frame_bytes": 40000, "eh_frame_hdr_bytes": 8341, "cfi_sections": (".eh_frame", ".eh_frame_hdr"),
    }  # fmt: skip
    return Summary(file, **(numbers | fields))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], Summary]], None]:
    return lambda answer: monkeypatch.setattr("sframegen.cli.add_section.add", lambda path, _options: answer(path))


def test_one_line_and_warnings_which_quiet_silences(calls: Any) -> None:
    calls(lambda path: summary(path, warnings=["other names of this file keep the old one"]))
    result = run("app")
    assert result.stdout == (
        "app: 1,234 functions, 99.97 % of 345,678 bytes with CFI covered, 5,678 rows; "
        ".sframe 40,123 bytes, 0.83 of .eh_frame + .eh_frame_hdr\n"
    )
    assert result.stderr == "sframegen: app: warning: other names of this file keep the old one\n"
    assert run("-q", "app").output == ""


NO_CFI = {"functions": 0, "code_bytes": 0, "covered_bytes": 0, "synthesized_functions": 3, "synthesized_bytes": 75}


@for_each(
    ("fields", "fates", "piece"),
    [
        ({"covered_bytes": 345677}, {}, " 99.99 % of "),
        ({"covered_bytes": 345678}, {}, " 100.00 % of "),
        (
            {"functions": 1, "rows": 1, "code_bytes": 1, "covered_bytes": 1},
            {},
            "app: 1 function, 100.00 % of 1 byte with CFI covered, 1 row; ",
        ),
        ({"eh_frame_bytes": 0, "eh_frame_hdr_bytes": 0}, {}, " .sframe 40,123 bytes\n"),
        ({"cfi_sections": (".debug_frame",)}, {}, ", 0.83 of .debug_frame\n"),
        ({"note": "no table"}, {}, " of .eh_frame + .eh_frame_hdr; no table\n"),
        (
            {},
            {"covered": {"default": 345600}, "left_out": {"why": 78}, "no_cfi": {"padding": 22, "code": 10_000_000}},
            "app: 1,234 functions, 99.97 % of 345,678 bytes with CFI covered, 3.34 % of 10,345,700 executable bytes, 5,678 rows; ",
        ),
        (
            NO_CFI,
            {"covered": {"default": 0}, "no_cfi": {"code": 25}, "synthesized": {"instructions": 75}},
            "app: no CFI, 75.00 % of 100 executable bytes covered, 5,678 rows; ",
        ),
        ({"synthesized_functions": 3, "synthesized_bytes": 75}, {}, "; 3 functions of 75 bytes synthesized\n"),
    ],
)
def test_one_line_in_other_cases(fields: dict[str, Any], fates: dict[str, dict[str, int]], piece: str) -> None:
    assert piece in summary(fates=fates, **fields).one_line() + "\n"


def test_coverage_that_is_demanded(calls: Any) -> None:
    for least, covered, status in (("99", 345600, 0), ("99.98", 345600, 1), ("100", 345678, 0), ("100", 345677, 1)):
        calls(lambda path, covered=covered: summary(path, covered_bytes=covered))
        result = run("--min-coverage", least, "app")
        assert (result.exit_code, len(result.stderr.splitlines())) == (status, status), least


FATES = {
    "covered": {"default": 345_000, "flex": 600, "outermost": 0, "signal": 0},
    "left_out": {"a rare rule": 8, "the usual": 70},
    "no_cfi": {"padding": 1022, "code": 300, "not code": 0},
}
DETAILS = [
    "  1,230 of 1,234 functions covered from start to end",
    "  347,000 executable bytes",
    "  345,000  99.42 %  covered: default",
    "      600   0.17 %  covered: flex",
    "       70   0.02 %  left out: the usual",
    "        8   0.00 %  left out: a rare rule",
    "    1,022   0.29 %  no CFI: padding",
    "      300   0.09 %  no CFI: code",
    "  ignored: 3 FDEs: duplicate",
    "  ignored: 1 FDE: empty",
    "  written: new",
]


def test_details_tell_the_fate_of_every_byte(calls: Any) -> None:
    calls(lambda path: summary(path, fates=FATES, ignored_fdes={"empty": 1, "duplicate": 3}, output="new"))
    assert (run("-v", "app").stdout.splitlines()[1:], len(run("app").stdout.splitlines())) == (DETAILS, 1)


def test_several_files_have_a_total(calls: Any) -> None:
    calls(lambda path: summary(path, fates=FATES if path == "one" else {"no_cfi": {"code": 12}, "left_out": {"a rare rule": 100}}))
    lines = run("-v", "one", "two").stdout.splitlines()
    assert lines[lines.index("all 2 files:") + 1 :] == [
        "  347,112 executable bytes",
        "  345,000  99.39 %  covered: default",
        "      600   0.17 %  covered: flex",
        "      108   0.03 %  left out: a rare rule",
        "       70   0.02 %  left out: the usual",
        "    1,022   0.29 %  no CFI: padding",
        "      312   0.09 %  no CFI: code",
    ]
    assert not [line for line in run("one", "two").stdout.splitlines() if line.startswith("all ")]
    assert run("-v", "-q", "one", "two").stdout == ""


@for_each("flags", ["-no-pie", "-pie", "-static", "-shared"])
@for_each("far", [True, False])
@for_each("version", [3, 2])
def test_a_file_whose_section_kernels_do_not_take(
    flags: str, far: bool, version: FormatVersion, compile_c: Compiler, tmp_path: Path
) -> None:
    """The warning is what check says of the result. Of programs and libraries alike; kernels read no version 2 anyhow."""
    source = '__attribute__((section(".far"))) int far(void) { return 1; } int main(void) { return far() - 1; }'
    file = compile_c(source, "-fPIC", flags, *(["-Wl,--section-start=.far=0x10000000"] if far else []))
    assert len(open_elf(file).executable_loads()) == 1 + far
    out = tmp_path / "out"
    warnings = sframegen.add_section(file, output=out, version=version).warnings
    findings = sframegen.check(out, consumer="kernel").findings
    found = [one for one in findings if one.severity is sframegen.Severity.ERROR and one.rule != "kernel-version"]
    assert tuple(finding.message for finding in found) == warnings
    assert [finding.rule for finding in found] == ["kernel-one-text"] * (far and version == 3)
    if flags == "-shared":
        assert ctypes.CDLL(str(out)).far() == 1
    else:
        subprocess.run([out], check=True)


def test_dry_run_prints_the_plan_and_json_has_everything(calls: Any) -> None:
    plan = ("file grows to 9", "moves: .interp")
    calls(lambda path: summary(path, plan=Plan(plan), fates=FATES))
    assert (run("--dry-run", "app").stdout.splitlines()[1:], len(run("app").stdout.splitlines())) == ([*plan], 1)
    [document] = json.loads(run("--json", "app").stdout)
    assert (document["plan"], document["fates"]) == ([*plan], FATES)
    assert set(document) == set(Summary.__dataclass_fields__)


PLAIN = '#include <stdio.h>\nint main(int argc, char **argv) { printf("%s %d\\n", argv[0], argc); return 0; }'


@pytest.fixture
def plain(compile_c: Compiler, tmp_path: Path) -> Path:
    return Path(shutil.copy2(compile_c(PLAIN, "-O2"), tmp_path / "plain"))


def test_a_program_gets_its_section_in_place(plain: Path, peers: Peers) -> None:
    before = subprocess.run([plain], check=True, capture_output=True).stdout
    result = run("--min-coverage", "100", plain)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{plain}: ")
    assert subprocess.run([plain], check=True, capture_output=True).stdout == before
    theirs = subprocess.run([peers.tool("readelf"), "--sframe", plain], check=True, capture_output=True, text=True).stdout
    assert sframegen_command("dump", plain).stdout == theirs
    assert "<main>: (cfa, ra, fp) = (rsp + 8, *(cfa - 8), rbp)" in sframegen_command("lookup", plain, "main").stdout
    again = run(plain)
    assert (again.exit_code, again.stdout, again.stderr) == (0, result.stdout[:-1] + "; has it already\n", "")


def test_output_leaves_the_file_alone(plain: Path, tmp_path: Path) -> None:
    before = plain.read_bytes()
    assert run("--dry-run", plain).exit_code == 0
    assert [file.name for file in tmp_path.iterdir()] == ["plain"]
    [document] = json.loads(run("--json", "-o", tmp_path / "new", plain).stdout)
    assert (document["output"], document["section_bytes"]) == (str(tmp_path / "new"), len(read(tmp_path / "new").data))
    assert run("-q", "--no-verify", "-o", tmp_path / "other", plain).output == ""
    assert (tmp_path / "other").read_bytes() == (tmp_path / "new").read_bytes()
    assert plain.read_bytes() == before


def test_without_call_frame_information_the_output_is_a_copy(compile_c: Compiler, tmp_path: Path) -> None:
    source = '__asm__(".globl _start\\n_start: mov $60, %eax\\n xor %edi, %edi\\n syscall\\n");'
    bare = compile_c(source, "-nostdlib", "-static", "-fno-asynchronous-unwind-tables", "-Wl,--build-id=none")
    result = run("-o", tmp_path / "new", bare)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"{bare}: nothing to add: no call frame information\n"
    assert (tmp_path / "new").read_bytes() == bare.read_bytes()
    for least, status in ("100", 1), ("0.1", 1), ("0", 0):
        result = run("--min-coverage", least, "-q", bare)
        assert (result.exit_code, result.output) == (status, f"sframegen: {bare}: --min-coverage: nothing was added\n" * status)


def test_a_debug_file_has_the_call_frame_information_of_a_stripped_file(compile_c: Compiler, tmp_path: Path) -> None:
    whole = compile_c(PLAIN, "-O2", "-g", "-fno-asynchronous-unwind-tables", "-Wl,--build-id")
    stripped, debug = tmp_path / "stripped", tmp_path / "debug"
    subprocess.run(["strip", "-o", stripped, whole], check=True)
    subprocess.run(["objcopy", "--only-keep-debug", whole, debug], check=True)
    main = resolve_address(open_elf(whole), "main")
    for options, described in ((), False), (("--debug-file", debug), True):
        assert run("--replace", *options, stripped).exit_code == 0
        assert (sframegen.read(stripped).rule_at(main) is not None) is described


def test_a_tree(plain: Path, tmp_path: Path) -> None:
    """Below a directory, as with add-tree: a refused file is a warning, which --min-coverage makes a failure."""
    refused, tree = tmp_path / "tree/refused", tmp_path / "tree"
    tree.mkdir()
    refused.write_bytes(plain.read_bytes()[:70])
    plain.rename(tree / "plain")
    result = run("--recursive", tree)
    assert result.exit_code == 0
    assert "1 file given a section" in result.stdout
    assert result.stderr.startswith(f"sframegen: warning: {refused}: ")
    assert has_section(tree / "plain")
    assert run("-q", "-r", "--min-coverage", "1", tree).stderr.startswith(f"sframegen: {refused}: ")
    refused.unlink()
    assert run("-q", "-r", "--min-coverage", "1", tree).exit_code == 0
    result = sframegen_command("remove", "-r", tree)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("1 file restored")
    for name in ("add-section", "remove"):
        result = sframegen_command(name, "-r", tree / "plain")
        assert (result.exit_code, result.stdout) == (2, "")


LIBRARY = "int twice(int n) { return 2 * n; } int four(int n, int (*f)(int)) { return f(n) + f(n + 1); }"
PROGRAM = "#include <stdlib.h>\nint main(int n, char **v) { return n > 1 ? atoi(v[1]) : 0; }"
add_tree, remove_tree = partial(sframegen_command, "add-tree"), partial(sframegen_command, "remove-tree")
PR_CAPBSET_DROP, DAC_OVERRIDE, DAC_READ_SEARCH = 24, 1, 2  # of Linux


def as_owner(*arguments: object) -> subprocess.CompletedProcess[str]:
    """With no more rights than a file's modes give its owner, even for root."""
    libc = ctypes.CDLL(None)

    def drop() -> None:
        for capability in DAC_OVERRIDE, DAC_READ_SEARCH:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)

    return start("add-tree", *arguments, preexec_fn=drop)


def has_section(file: Path) -> bool:
    return find_sframe(open_elf(file)) is not None


def state(tree: Path) -> dict[str, tuple[Any, ...]]:
    """All that a second run may not change, times among it."""
    found = {}
    for directory, directories, names in os.walk(tree):
        for name in [*directories, *names]:
            path = Path(directory, name)
            status = path.lstat()
            content = hashlib.sha256(path.read_bytes()).digest() if path.is_file() and not path.is_symlink() else b""
            found[str(path)] = (status.st_mode, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, content)
    return found


def by_path(report: Path) -> dict[str, Any]:
    return {entry["path"]: entry for tree in json.loads(report.read_text())["trees"] for entry in tree["files"]}


@pytest.fixture
def root(tmp_path: Path, compile_c: Compiler) -> Path:
    program = compile_c(PROGRAM, "-O2", "-g", "-Wl,--build-id", name="tree")
    library = compile_c(LIBRARY, "-O2", "-g", "-shared", "-fPIC", "-Wl,--build-id", name="libtree.so.1")
    root = tmp_path / "pkg"
    for directory in ("usr/bin", "usr/lib/deep/er"):
        (root / directory).mkdir(parents=True)
    shutil.copy(program, root / "usr/bin/tree")
    shutil.copy(library, root / "usr/lib/libtree.so.1")
    shutil.copy(library, root / "usr/lib/deep/er/plugin.so")
    (root / "usr/lib/libtree.so").symlink_to("libtree.so.1")
    return root


def test_all_programs_and_libraries_get_a_section(root: Path) -> None:
    result = add_tree(root)
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.fullmatch(
        r"3 files given a section, 0 unchanged, 0 without CFI, 0 refused; 100\.00 % of [\d,]+ bytes with CFI covered, "
        r"[\d.]+ % of [\d,]+ executable bytes; "
        r"\.sframe [\d,]+ bytes\n",
        result.stdout,
    )
    for path in ("usr/bin/tree", "usr/lib/libtree.so.1", "usr/lib/deep/er/plugin.so"):
        assert not [found for found in check(root / path).findings if found.severity is Severity.ERROR]
    assert (root / "usr/lib/libtree.so").is_symlink()
    assert subprocess.run([root / "usr/bin/tree", "7"], check=False).returncode == 7


@pytest.mark.parametrize("tool", ["", "strip", "llvm-strip"])
def test_a_second_run_changes_nothing(root: Path, peers: Peers, tool: str) -> None:
    """Nor does one after strip, which takes with it what `remove` needs, and leaves the section."""
    add_tree(root)
    if tool:
        for file in ("usr/bin/tree", "usr/lib/libtree.so.1"):
            subprocess.run([peers.tool(tool), root / file], check=True)
        add_tree(root)
    before = state(root)
    assert add_tree(root).stdout.startswith("0 files given a section, 3 unchanged, 0 without CFI, 0 refused; 100.00 % of ")
    assert state(root) == before


def test_an_older_section_gives_way(root: Path) -> None:
    plugin = root / "usr/lib/deep/er/plugin.so"
    add_section(plugin, version=2, verify=False)
    assert "3 files given a section" in add_tree(root).stdout
    assert read(plugin).header.version == 3
    assert "3 unchanged" in add_tree(root).stdout


def test_what_is_no_program_stays_in_silence(root: Path, compile_c: Compiler, peers: Peers, tmp_path: Path) -> None:
    for file in (root / "usr").rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.unlink()
    made = compile_c(PROGRAM, "-O2", "-g", "-fno-asynchronous-unwind-tables", "-Wl,--build-id", name="debugged")
    debug = root / "usr/lib/debug/.build-id"
    debug.mkdir(parents=True)
    subprocess.run([peers.tool("objcopy"), "--only-keep-debug", made, debug / "gnu.debug"], check=True)
    subprocess.run([peers.tool("eu-strip"), "-f", debug / "eu.debug", "-o", tmp_path / "stripped", made], check=True)
    shutil.copy(compile_c(LIBRARY, "-c", name="module.o"), root / "usr/lib/module.ko")
    subprocess.run([peers.tool("ar"), "rc", root / "usr/lib/libtree.a", root / "usr/lib/module.ko"], check=True)
    (root / "usr/bin/script").write_text("#!/bin/sh\n")
    (root / "usr/bin/empty").touch()
    (root / "usr/bin/short").write_bytes(b"\x7fELF\x02\x01\x01")
    header = bytearray(made.read_bytes()[:64])
    for name, at, number in (("core", 16, 4), ("riscv", 18, 243)):
        (root / "usr/bin" / name).write_bytes(bytes([*header[:at], number, 0, *header[at + 2 :]]))
    (root / "usr/bin/thirty-two").write_bytes(bytes([*header[:4], 1, *header[5:]]))
    os.mkfifo(root / "usr/bin/fifo")
    (root / "usr/bin/loop").symlink_to("loop")
    (root / "usr/bin/up").symlink_to("..")
    before = state(root)
    result = add_tree("--strict", root)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "0 files given a section, 0 unchanged, 0 without CFI, 0 refused\n"
    assert state(root) == before


def test_files_without_cfi_are_counted(root: Path, compile_c: Compiler) -> None:
    bare = ["-O2", "-nostdlib", "-shared", "-fPIC", "-fno-asynchronous-unwind-tables", "-Wl,--no-eh-frame-hdr"]
    shutil.copy(compile_c("int f(void) { return 1; }", *bare, name="bare.so"), root / "usr/lib/bare.so")
    before = (root / "usr/lib/bare.so").read_bytes()
    report = root.parent / "report.json"
    assert "3 files given a section, 0 unchanged, 1 without CFI" in add_tree("--report", report, root).stdout
    assert (root / "usr/lib/bare.so").read_bytes() == before
    entry = by_path(report)["usr/lib/bare.so"]
    assert (entry["outcome"], entry["reason"]) == ("nothing to add", "nothing to add: no call frame information")


def test_hard_links_are_one_file(root: Path) -> None:
    (root / "usr/bin/other").hardlink_to(root / "usr/bin/tree")
    report = root.parent / "report.json"
    result = add_tree("--report", report, root)
    assert (result.stderr, result.stdout[:7]) == ("", "3 files")
    assert (root / "usr/bin/other").samefile(root / "usr/bin/tree")
    assert has_section(root / "usr/bin/other")
    assert by_path(report)["usr/bin/other"]["links"] == ["usr/bin/tree"]


def test_a_name_that_is_left_out_keeps_its_file_whole(root: Path) -> None:
    (root / "opt").mkdir()
    (root / "opt/tree").hardlink_to(root / "usr/bin/tree")
    assert add_tree("--exclude", "/opt", root).stdout.startswith("2 files given a section")
    assert (root / "opt/tree").samefile(root / "usr/bin/tree")
    assert not has_section(root / "usr/bin/tree")


def test_what_is_outside_keeps_the_old_file(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "tree"
    outside.hardlink_to(root / "usr/bin/tree")
    result = add_tree(root)
    assert result.exit_code == 0
    assert "1 other name (hard links) of" in result.stderr
    assert (has_section(outside), has_section(root / "usr/bin/tree")) == (False, True)


def test_several_roots_one_in_another(root: Path, tmp_path: Path) -> None:
    second = tmp_path / "pkg-dev"
    second.mkdir()
    (second / "tree").hardlink_to(root / "usr/bin/tree")
    report = tmp_path / "report.json"
    result = add_tree("--report", report, root, second, root / "usr", f"{root}/")
    assert (result.stderr, result.stdout[:7]) == ("", "3 files")
    trees = json.loads(report.read_text())["trees"]
    assert [(tree["root"], len(tree["files"])) for tree in trees] == [("pkg", 3), ("pkg-dev", 0), ("usr", 0), ("pkg", 0)]
    assert (second / "tree").samefile(root / "usr/bin/tree")


@for_each(
    ("glob", "fitting", "others"),
    [
        ("*.so", ["a.so", "usr/lib/a.so", "x/y.so/z"], ["a.so.1", "usr/so"]),
        ("lib", ["lib", "usr/lib", "usr/lib/a/b"], ["usr/lib64", "mylib/x"]),
        ("lib/", ["lib/x", "usr/lib/x"], ["usr/lib"]),
        ("/lib", ["lib", "lib/x"], ["usr/lib", "usr/lib/x"]),
        ("usr/lib", ["usr/lib", "usr/lib/x"], ["opt/usr/lib"]),
        ("usr/*/x", ["usr/lib/x", "usr/lib/x/y"], ["usr/lib/deep/x"]),
        ("usr/**/x", ["usr/x", "usr/lib/x", "usr/lib/deep/x"], ["usr/libx", "x"]),
        ("**/x", ["x", "a/b/x"], ["a/bx"]),
        ("**b/c**", ["a/b/c", "ab/cd", "x/ab/cd/e"], ["b/a/c"]),
        ("a?c", ["abc", "x/a.c"], ["ac", "a/c"]),
        ("lib[0-9x].so", ["lib7.so", "libx.so"], ["lib.so", "liby.so"]),
        ("lib[!0-9].so", ["liby.so"], ["lib7.so"]),
        ("[]]", ["]"], ["["]),
        ("/a[!b]c", ["axc"], ["a/c", "abc"]),
        ("[a\\]", ["a", "\\"], ["b"]),
        ("a[b", ["a[b"], ["ab"]),
        ("a.b+(c)", ["a.b+(c)"], ["axb+(c)"]),
        ("new\nline*", ["new\nline", "new\nline\nend"], ["newline"]),
        ("\udcff*", ["\udcff", "d/\udcffx"], ["x\udcff"]),
    ],
)
def test_patterns(glob: str, fitting: list[str], others: list[str]) -> None:
    exclusions = Exclusions([glob])

    def left_out(path: str) -> bool:
        parts = path.split("/")
        above = ("/".join(parts[:n]) for n in range(1, len(parts)))
        return any(exclusions.match(one, is_directory=True) for one in above) or exclusions.match(path, is_directory=False)

    assert [path for path in fitting if not left_out(path)] == []
    assert [path for path in others if left_out(path)] == []


def test_left_out_by_options(root: Path) -> None:
    for glob in ("", "/", "//", "[z-a]"):
        result = add_tree("--exclude", glob, root)
        assert result.exit_code == 2
        assert "not a GLOB: " in result.stderr
    options = ("--exclude", "/usr/lib/deep/", "--exclude", "*.so.[0-9]")
    assert add_tree(*options, root).stdout.startswith("1 file given a section")
    assert has_section(root / "usr/bin/tree")


def damaged(root: Path) -> Path:
    file = root / "usr/lib/deep/er/plugin.so"
    file.write_bytes(file.read_bytes()[:5000])
    return file


@pytest.mark.parametrize(("options", "status", "word"), [([], 0, "warning: "), (["--strict"], 1, ""), (["-q"], 0, None)])
def test_a_refused_file(root: Path, options: list[str], status: int, word: str | None) -> None:
    file = damaged(root)
    before = file.read_bytes()
    report = root.parent / "report.json"
    result = add_tree(*options, "--report", report, root)
    assert result.exit_code == status
    assert result.stderr.startswith(f"sframegen: {word}{file}: ") if word is not None else result.stderr == ""
    assert result.stderr.count("\n") == (word is not None)
    assert file.read_bytes() == before
    assert has_section(root / "usr/bin/tree")
    entry = by_path(report)["usr/lib/deep/er/plugin.so"]
    assert entry["outcome"] == "refused"
    assert entry["reason"]
    assert str(root.parent) not in report.read_text()


def test_a_checksum_beside_a_file_stays_true(root: Path) -> None:
    """Unless --force is given, as the warning without it says."""
    file, report = root / "usr/lib/libtree.so.1", root.parent / "report.json"
    file.with_name(".libtree.so.1.hmac").write_text("0123\n")
    assert "2 files given a section, 0 unchanged, 0 without CFI, 1 refused" in add_tree("--report", report, root).stdout
    assert by_path(report)["usr/lib/libtree.so.1"]["reason"] == (
        "signed: a checksum in usr/lib/.libtree.so.1.hmac; use --force to change it anyway, then sign it again"
    )
    assert not has_section(file)
    assert f"sframegen: {file}: warning: must be signed again: " in add_tree("--force", root).stderr
    assert has_section(file)


def test_what_may_not_be_read_or_written(root: Path) -> None:
    (root / "usr/lib/deep").chmod(0)
    (root / "usr/bin/tree").chmod(0o111)
    (root / "usr/lib").chmod(0o555)
    done = as_owner(root)
    if os.getuid() == 0 and not done.stderr:
        pytest.skip("the right of root to read all cannot be dropped")
    assert (done.returncode, done.stdout) == (0, "0 files given a section, 0 unchanged, 0 without CFI, 3 refused\n")
    assert sorted(done.stderr.splitlines()) == [
        f"sframegen: warning: {root}/usr/bin/tree: Permission denied",
        f"sframegen: warning: {root}/usr/lib/deep: Permission denied",
        f"sframegen: warning: {root}/usr/lib/libtree.so.1: cannot create a file in its directory: Permission denied",
    ]
    assert as_owner("--strict", root).returncode == 1
    assert as_owner("--strict", "--exclude", "deep", "--exclude", "tree", "--exclude", "libtree*", root).returncode == 0
    for directory in (root / "usr/lib", root / "usr/lib/deep"):
        directory.chmod(0o755)


@pytest.mark.parametrize("swapped", ["", "usr/bin", "usr/bin/tree"])
def test_a_file_that_vanishes(swapped: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a symbolic link comes in its place, or in that of its directory: the file outside of the root stays unchanged."""
    found = tree_files.find_linked_files
    outside = tmp_path / "outside"
    shutil.copytree(root / "usr/bin", outside)
    before = (outside / "tree").read_bytes()

    def find(*arguments: Any, **options: Any) -> Any:
        result = found(*arguments, **options)
        (root / (swapped or "usr/bin/tree")).rename(tmp_path / "away")
        if swapped:
            (root / swapped).symlink_to(outside / swapped[len("usr/bin/") :])
        return result

    monkeypatch.setattr("sframegen.cli.trees.each_file.find_linked_files", find)
    result = add_tree(root)
    assert (outside / "tree").read_bytes() == before
    why = "a symbolic link has appeared in its path" if swapped else "No such file or directory"
    assert (result.exit_code, result.stderr) == (0, f"sframegen: warning: {root}/usr/bin/tree: {why}\n")
    assert "2 files given a section" in result.stdout


def test_weird_names(root: Path, tmp_path: Path) -> None:
    names = ["new\nline", "-q", "a b", "\udcff", "ü", "[x]*", "$(id)"]
    for name in names:
        shutil.copy(root / "usr/bin/tree", root / name)
    deepest = root
    for _ in range(25):
        deepest /= "d" * 100
    deepest.mkdir(parents=True)
    shutil.copy(root / "usr/bin/tree", deepest / "tree")
    report = tmp_path / "report.json"
    result = add_tree("--report", report, root)
    assert (result.exit_code, result.stderr) == (0, "")
    assert all(has_section(root / name) for name in names)
    assert has_section(deepest / "tree")
    assert {*names} < {*by_path(report)}
    assert "0 files given a section, 11 unchanged" in add_tree(root).stdout


def test_paths_longer_than_the_system_takes(root: Path) -> None:
    here = os.open(root, os.O_RDONLY)
    for _ in range(45):
        os.mkdir("d" * 100, dir_fd=here)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    result = add_tree(root)
    assert result.exit_code == 0
    assert result.stderr.endswith("ddd: File name too long\n")
    assert result.stdout.startswith("3 files given a section, 0 unchanged, 0 without CFI, 1 refused")


def test_a_report_that_cannot_be_written(root: Path, tmp_path: Path) -> None:
    """It takes the place of no device: /dev/null, for root."""
    absent, fifo = tmp_path / "absent/report.json", tmp_path / "fifo"
    os.mkfifo(fifo)
    for report, why in (absent, "No such file or directory"), (fifo, f"sframegen: {fifo}: not a regular file\n"):
        result = add_tree("--report", report, root)
        assert result.exit_code == 1
        assert why in result.stderr
    assert fifo.is_fifo()
    assert has_section(root / "usr/bin/tree")


def test_the_report_follows_no_link_that_somebody_guessed(root: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / f".report.json.{os.getpid()}").symlink_to(victim)
    assert add_tree("--report", folder / "report.json", root).exit_code == 0
    assert victim.read_text() == "mine"
    assert len(by_path(folder / "report.json")) == 3


def test_a_report_to_stdout_is_all_that_is_there(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = add_tree("-v", "--report", "-", root)
    assert json.loads(result.stdout)["totals"]["files"]["added"] == 3
    assert "3 files given a section, " in result.stderr
    assert f"{root / 'usr/bin/tree'}: " in result.stderr
    assert not (tmp_path / "-").exists()


def test_min_coverage_is_of_all_code_together(root: Path, compile_c: Compiler) -> None:
    assert add_tree("--min-coverage", "100", root).exit_code == 0
    code = ".globl f; f: .cfi_startproc; .cfi_escape 0x0f,4,0x77,8,0x33,0x1e; .skip 9000,0x90; ret; .cfi_endproc"
    source = f'void f(void); __asm__("{code}"); int main(void) {{ return 0; }}'
    shutil.copy(compile_c(source, "-O2", name="uncovered"), root / "usr/bin/uncovered")
    result = add_tree("--min-coverage", "90", root)
    assert result.exit_code == 1
    assert re.search(r"^sframegen: --min-coverage: \d+\.\d\d % is below 90 %$", result.stderr, re.MULTILINE)
    assert add_tree("--min-coverage", "1", root).exit_code == 0


def test_the_report_tells_all(root: Path, tmp_path: Path) -> None:
    file = damaged(root)
    report = tmp_path / "report.json"
    report.write_text("an older one")
    add_tree("--report", report, root)
    assert [path.name for path in tmp_path.iterdir() if "report" in path.name] == ["report.json"]
    document = json.loads(report.read_text())
    assert (document["schema"], {*document}) == (1, {"schema", "totals", "trees"})
    [tree] = document["trees"]
    assert tree["root"] == "pkg"
    assert document["totals"] == tree["totals"]
    assert tree["totals"]["files"] == {"added": 2, "unchanged": 0, "nothing to add": 0, "refused": 1}
    paths = [entry["path"] for entry in tree["files"]]
    assert paths == sorted([str(file.relative_to(root)), "usr/bin/tree", "usr/lib/libtree.so.1"])
    for number in ("functions", "functions_covered", "code_bytes", "covered_bytes", "section_bytes"):
        assert tree["totals"][number] == sum(entry[number] for entry in tree["files"]) > 0
    entry = by_path(report)["usr/bin/tree"]
    assert entry["build_id"] == (read_build_id(open_elf(root / "usr/bin/tree")) or b"").hex() != ""
    assert sum(entry["fates"]["covered"].values()) == entry["covered_bytes"]


def test_a_dry_run_changes_nothing(root: Path, tmp_path: Path) -> None:
    add_section(root / "usr/bin/tree", verify=False)
    damaged(root)
    before = state(root)
    result = add_tree("--dry-run", "--report", tmp_path / "report.json", root)
    assert result.stdout.startswith("1 file would be given a section, 1 unchanged, 0 without CFI, 1 refused; 100.00 % of ")
    assert state(root) == before
    dry = by_path(tmp_path / "report.json")
    add_tree("--report", tmp_path / "report.json", root)
    assert by_path(tmp_path / "report.json") == dry


def test_remove_tree_gives_the_files_back(root: Path, peers: Peers, compile_c: Compiler) -> None:
    (root / "usr/bin/other").hardlink_to(root / "usr/bin/tree")
    stripped = root / "usr/lib/libtree.so.1"
    whole = [root / "usr/bin/tree", root / "usr/lib/deep/er/plugin.so"]
    contents = [path.read_bytes() for path in whole]
    add_tree(root)
    subprocess.run([peers.tool("objcopy"), stripped], check=True)
    shutil.copy(compile_c(LIBRARY, "-O2", "-shared", "-fPIC", name="bare.so"), root / "usr/lib/bare.so")
    (root / "usr/lib/outside").symlink_to("/usr/lib")
    before = state(root)
    line = "restored, 1 with the section taken out, 1 without one, 0 refused\n"
    assert remove_tree("--dry-run", root).stdout == f"2 files would be {line}"
    assert state(root) == before
    assert remove_tree("--exclude", "bin", root).stdout == f"1 file {line}"
    result = remove_tree("-v", root)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "1 file restored, 0 with the section taken out, 3 without one, 0 refused"
    assert [path.read_bytes() for path in whole] == contents
    assert not has_section(stripped)
    assert (root / "usr/bin/other").samefile(root / "usr/bin/tree")


@pytest.mark.parametrize(("options", "status"), [([], 0), (["--strict"], 1)])
def test_remove_tree_refuses_what_is_damaged(root: Path, options: list[str], status: int) -> None:
    add_tree(root)
    file = damaged(root)
    result = remove_tree(*options, root)
    assert result.exit_code == status
    assert str(file) in result.stderr
    assert result.stdout == "2 files restored, 0 with the section taken out, 0 without one, 1 refused\n"


def test_check_of_a_directory(root: Path) -> None:
    check = partial(sframegen_command, "check")
    empty = check(root)
    assert (empty.exit_code, empty.stderr) == (1, f"sframegen: {root}: no program or library in it has an SFrame section\n")
    for file in ("usr/bin/tree", "usr/lib/libtree.so.1"):
        add_section(root / file, verify=False)
    both = check(root)
    assert (both.exit_code, both.stderr) == (0, "")
    names = [line.partition(": OK: ")[0] for line in both.stdout.splitlines()]
    assert names == [f"{root}/usr/bin/tree", f"{root}/usr/lib/libtree.so.1"]
    assert [one["file"] for one in json.loads(check("--json", root / "usr/bin").stdout)] == [f"{root}/usr/bin/tree"]
    assert str(damaged(root)) in check(root).stderr


# .debug_frame only: what the compiler writes where nobody wants unwinding at run time
DEBUG_FRAME = ("-O2", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-exceptions", "-Wl,--build-id")


def test_json_is_a_list_like_that_of_add_section(root: Path, tmp_path: Path) -> None:
    """With the refused file in its place. Nothing else is on stdout, also with -v."""
    broken, before = damaged(root), state(root)
    result = add_tree("--json", "--report", "-", root)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--json and --report - exclude each other" in result.stderr
    assert state(root) == before
    result = add_tree("--json", "-v", root)
    documents = json.loads(result.stdout)
    paths = [root / "usr/bin/tree", broken, root / "usr/lib/libtree.so.1"]
    assert [document["file"] for document in documents] == [*map(str, paths)]
    assert documents[1].keys() == {"file", "error"}
    assert f"sframegen: warning: {documents[1]['error']}" in result.stderr.splitlines()
    assert json.loads(sframegen_command("add-section", "--json", paths[0]).stdout)[0].keys() == documents[0].keys()
    assert result.exit_code == 0
    removed = remove_tree("--json", "-v", root)
    assert [document.get("restored") for document in json.loads(removed.stdout)] == [True, None, True]
    assert not has_section(paths[0])
    report = add_tree("--json", "--report", tmp_path / "report.json", root)
    assert (len(json.loads(report.stdout)), len(by_path(tmp_path / "report.json"))) == (3, 3)


def test_debug_files_of_a_tree(root: Path, compile_c: Compiler, tmp_path: Path) -> None:
    """For those files that have one with call frame information; the others are done without, and are not refused."""
    file, debug = root / "usr/bin/work", tmp_path / "debug"
    subprocess.run(["objcopy", "--strip-debug", compile_c(PROGRAM, *DEBUG_FRAME), file], check=True)
    build_id = (read_build_id(open_elf(file)) or b"").hex()
    (debug / build_id[:2]).mkdir(parents=True)
    its_own = debug / build_id[:2] / f"{build_id[2:]}.debug"
    subprocess.run(["objcopy", "--only-keep-debug", compile_c(PROGRAM, *DEBUG_FRAME), its_own], check=True)
    without = {one["file"]: one["functions"] for one in json.loads(add_tree("--json", "--dry-run", root).stdout)}
    result = add_tree("--json", "--debug-file", debug, root)
    found = {one["file"]: one["functions"] for one in json.loads(result.stdout)}
    assert (result.exit_code, result.stderr) == (0, "")
    assert found.pop(str(file)) > without.pop(str(file))
    assert found == without
    assert [one.severity for one in check(file, debug_file=debug).findings if one.severity is Severity.ERROR] == []
    its_own.write_bytes(its_own.read_bytes()[:1000])
    assert f"warning: {its_own}" in add_tree("--debug-file", debug, root).stderr


CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC = 0x20000, 4096, 1 << 18, 16384


@for_each("jobs", [1, 2])
def test_times_of_directories_stay(root: Path, jobs: int) -> None:
    directories = [path for path in (root, *root.rglob("*")) if path.is_dir() and not path.is_symlink()]
    for number, path in enumerate(directories):
        os.utime(path, ns=(10**18 + number, 10**18 + 7 * number))
    before = [path.stat().st_mtime_ns for path in directories]
    for command in (add_tree, remove_tree):
        assert command("-j", jobs, root).exit_code == 0
        assert [path.stat().st_mtime_ns for path in directories] == before


def test_a_file_is_not_refused_because_of_times(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "utime", lambda *_, **__: os.close(-1))
    assert os.strerror(errno.EBADF) not in add_tree(root).stderr


def test_a_full_disk_is_a_failure(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
    result = add_tree("-j1", root)
    assert (result.exit_code, "warning" in result.stderr) == (1, False)
    assert os.strerror(errno.ENOSPC) in result.stderr


def test_one_file_system(root: Path, tmp_path: Path) -> None:
    """A directory and a file from elsewhere are mounted, in a name space of the test's own."""
    other = Path("/dev/shm") / f"sframegen-{os.getpid()}"
    if os.geteuid() != 0 or not other.parent.is_dir() or other.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs root and a second file system")
    libc = ctypes.CDLL(None, use_errno=True)
    shutil.copy(root / "usr/bin/tree", root / "usr/bin/second")

    def mount() -> None:
        if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
            os._exit(77)
        for name in ("usr/lib/deep", "usr/bin/tree"):
            if libc.mount(os.fsencode(other / name), os.fsencode(root / name), None, MS_BIND, None):
                os._exit(77)

    def files(*options: str) -> str:
        done = start("add-tree", "--dry-run", *options, root, preexec_fn=mount)
        if done.returncode == 77:
            pytest.skip("this user may not mount")
        return done.stdout.partition(" would be")[0]

    try:
        shutil.copytree(root / "usr", other / "usr")
        assert (files(), files("--one-file-system")) == ("4 files", "2 files")
    finally:
        shutil.rmtree(other, ignore_errors=True)
    assert not has_section(root / "usr/bin/tree")
