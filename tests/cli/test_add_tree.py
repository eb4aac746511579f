"""A whole build root at a time: which files below it get a section, which are left alone, and what is said of them."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sframegen import add_section, check, read
from sframegen.checks.finding import Severity
from sframegen.cli.trees import tree_files
from sframegen.cli.trees.tree_files import Exclusions
from sframegen.elf.file import open_elf
from sframegen.elf.notes import read_build_id
from sframegen.format.locate import find_sframe
from tests.support.commands import run as sframegen
from tests.support.commands import start
from tests.support.loops import for_each

if TYPE_CHECKING:
    from tests.support.peers import Compiler, Peers

LIBRARY = "int twice(int n) { return 2 * n; } int four(int n, int (*f)(int)) { return f(n) + f(n + 1); }"
PROGRAM = "#include <stdlib.h>\nint main(int n, char **v) { return n > 1 ? atoi(v[1]) : 0; }"
run, remove_tree = partial(sframegen, "add-tree"), partial(sframegen, "remove-tree")

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
    result = run(root)
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
    run(root)
    if tool:
        for file in ("usr/bin/tree", "usr/lib/libtree.so.1"):
            subprocess.run([peers.tool(tool), root / file], check=True)
        run(root)
    before = state(root)
    assert run(root).stdout.startswith("0 files given a section, 3 unchanged, 0 without CFI, 0 refused; 100.00 % of ")
    assert state(root) == before


def test_an_older_section_gives_way(root: Path) -> None:
    plugin = root / "usr/lib/deep/er/plugin.so"
    add_section(plugin, version=2, verify=False)
    assert "3 files given a section" in run(root).stdout
    assert read(plugin).header.version == 3
    assert "3 unchanged" in run(root).stdout


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
    result = run("--strict", root)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "0 files given a section, 0 unchanged, 0 without CFI, 0 refused\n"
    assert state(root) == before


def test_files_without_cfi_are_counted(root: Path, compile_c: Compiler) -> None:
    bare = ["-O2", "-nostdlib", "-shared", "-fPIC", "-fno-asynchronous-unwind-tables", "-Wl,--no-eh-frame-hdr"]
    shutil.copy(compile_c("int f(void) { return 1; }", *bare, name="bare.so"), root / "usr/lib/bare.so")
    before = (root / "usr/lib/bare.so").read_bytes()
    report = root.parent / "report.json"
    assert "3 files given a section, 0 unchanged, 1 without CFI" in run("--report", report, root).stdout
    assert (root / "usr/lib/bare.so").read_bytes() == before
    entry = by_path(report)["usr/lib/bare.so"]
    assert (entry["outcome"], entry["reason"]) == ("nothing to add", "nothing to add: no call frame information")


def test_hard_links_are_one_file(root: Path) -> None:
    (root / "usr/bin/other").hardlink_to(root / "usr/bin/tree")
    report = root.parent / "report.json"
    result = run("--report", report, root)
    assert (result.stderr, result.stdout[:7]) == ("", "3 files")
    assert (root / "usr/bin/other").samefile(root / "usr/bin/tree")
    assert has_section(root / "usr/bin/other")
    assert by_path(report)["usr/bin/other"]["links"] == ["usr/bin/tree"]


def test_a_name_that_is_left_out_keeps_its_file_whole(root: Path) -> None:
    (root / "opt").mkdir()
    (root / "opt/tree").hardlink_to(root / "usr/bin/tree")
    assert run("--exclude", "/opt", root).stdout.startswith("2 files given a section")
    assert (root / "opt/tree").samefile(root / "usr/bin/tree")
    assert not has_section(root / "usr/bin/tree")


def test_what_is_outside_keeps_the_old_file(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "tree"
    outside.hardlink_to(root / "usr/bin/tree")
    result = run(root)
    assert result.exit_code == 0
    assert "1 other name (hard links) of" in result.stderr
    assert (has_section(outside), has_section(root / "usr/bin/tree")) == (False, True)


def test_several_roots_one_in_another(root: Path, tmp_path: Path) -> None:
    second = tmp_path / "pkg-dev"
    second.mkdir()
    (second / "tree").hardlink_to(root / "usr/bin/tree")
    report = tmp_path / "report.json"
    result = run("--report", report, root, second, root / "usr", f"{root}/")
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
        result = run("--exclude", glob, root)
        assert result.exit_code == 2
        assert "not a GLOB: " in result.stderr
    options = ("--exclude", "/usr/lib/deep/", "--exclude", "*.so.[0-9]")
    assert run(*options, root).stdout.startswith("1 file given a section")
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
    result = run(*options, "--report", report, root)
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
    assert "2 files given a section, 0 unchanged, 0 without CFI, 1 refused" in run("--report", report, root).stdout
    assert by_path(report)["usr/lib/libtree.so.1"]["reason"] == (
        "signed: a checksum in usr/lib/.libtree.so.1.hmac; use --force to change it anyway, then sign it again"
    )
    assert not has_section(file)
    assert f"sframegen: {file}: warning: must be signed again: " in run("--force", root).stderr
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
    result = run(root)
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
    result = run("--report", report, root)
    assert (result.exit_code, result.stderr) == (0, "")
    assert all(has_section(root / name) for name in names)
    assert has_section(deepest / "tree")
    assert {*names} < {*by_path(report)}
    assert "0 files given a section, 11 unchanged" in run(root).stdout


def test_paths_longer_than_the_system_takes(root: Path) -> None:
    here = os.open(root, os.O_RDONLY)
    for _ in range(45):
        os.mkdir("d" * 100, dir_fd=here)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    result = run(root)
    assert result.exit_code == 0
    assert result.stderr.endswith("ddd: File name too long\n")
    assert result.stdout.startswith("3 files given a section, 0 unchanged, 0 without CFI, 1 refused")


def test_a_report_that_cannot_be_written(root: Path, tmp_path: Path) -> None:
    """It takes the place of no device: /dev/null, for root."""
    absent, fifo = tmp_path / "absent/report.json", tmp_path / "fifo"
    os.mkfifo(fifo)
    for report, why in (absent, "No such file or directory"), (fifo, f"sframegen: {fifo}: not a regular file\n"):
        result = run("--report", report, root)
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
    assert run("--report", folder / "report.json", root).exit_code == 0
    assert victim.read_text() == "mine"
    assert len(by_path(folder / "report.json")) == 3


def test_a_report_to_stdout_is_all_that_is_there(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("-v", "--report", "-", root)
    assert json.loads(result.stdout)["totals"]["files"]["added"] == 3
    assert "3 files given a section, " in result.stderr
    assert f"{root / 'usr/bin/tree'}: " in result.stderr
    assert not (tmp_path / "-").exists()


def test_min_coverage_is_of_all_code_together(root: Path, compile_c: Compiler) -> None:
    assert run("--min-coverage", "100", root).exit_code == 0
    code = ".globl f; f: .cfi_startproc; .cfi_escape 0x0f,4,0x77,8,0x33,0x1e; .skip 9000,0x90; ret; .cfi_endproc"
    source = f'void f(void); __asm__("{code}"); int main(void) {{ return 0; }}'
    shutil.copy(compile_c(source, "-O2", name="uncovered"), root / "usr/bin/uncovered")
    result = run("--min-coverage", "90", root)
    assert result.exit_code == 1
    assert re.search(r"^sframegen: --min-coverage: \d+\.\d\d % is below 90 %$", result.stderr, re.MULTILINE)
    assert run("--min-coverage", "1", root).exit_code == 0


def test_the_report_tells_all(root: Path, tmp_path: Path) -> None:
    file = damaged(root)
    report = tmp_path / "report.json"
    report.write_text("an older one")
    run("--report", report, root)
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
    result = run("--dry-run", "--report", tmp_path / "report.json", root)
    assert result.stdout.startswith("1 file would be given a section, 1 unchanged, 0 without CFI, 1 refused; 100.00 % of ")
    assert state(root) == before
    dry = by_path(tmp_path / "report.json")
    run("--report", tmp_path / "report.json", root)
    assert by_path(tmp_path / "report.json") == dry


def test_remove_tree_gives_the_files_back(root: Path, peers: Peers, compile_c: Compiler) -> None:
    (root / "usr/bin/other").hardlink_to(root / "usr/bin/tree")
    stripped = root / "usr/lib/libtree.so.1"
    whole = [root / "usr/bin/tree", root / "usr/lib/deep/er/plugin.so"]
    contents = [path.read_bytes() for path in whole]
    run(root)
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
    run(root)
    file = damaged(root)
    result = remove_tree(*options, root)
    assert result.exit_code == status
    assert str(file) in result.stderr
    assert result.stdout == "2 files restored, 0 with the section taken out, 0 without one, 1 refused\n"


def test_check_of_a_directory(root: Path) -> None:
    check = partial(sframegen, "check")
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
    result = run("--json", "--report", "-", root)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--json and --report - exclude each other" in result.stderr
    assert state(root) == before
    result = run("--json", "-v", root)
    documents = json.loads(result.stdout)
    paths = [root / "usr/bin/tree", broken, root / "usr/lib/libtree.so.1"]
    assert [document["file"] for document in documents] == [*map(str, paths)]
    assert documents[1].keys() == {"file", "error"}
    assert f"sframegen: warning: {documents[1]['error']}" in result.stderr.splitlines()
    assert json.loads(sframegen("add-section", "--json", paths[0]).stdout)[0].keys() == documents[0].keys()
    assert result.exit_code == 0
    removed = remove_tree("--json", "-v", root)
    assert [document.get("restored") for document in json.loads(removed.stdout)] == [True, None, True]
    assert not has_section(paths[0])
    report = run("--json", "--report", tmp_path / "report.json", root)
    assert (len(json.loads(report.stdout)), len(by_path(tmp_path / "report.json"))) == (3, 3)


def test_debug_files_of_a_tree(root: Path, compile_c: Compiler, tmp_path: Path) -> None:
    """For those files that have one with call frame information; the others are done without, and are not refused."""
    file, debug = root / "usr/bin/work", tmp_path / "debug"
    subprocess.run(["objcopy", "--strip-debug", compile_c(PROGRAM, *DEBUG_FRAME), file], check=True)
    build_id = (read_build_id(open_elf(file)) or b"").hex()
    (debug / build_id[:2]).mkdir(parents=True)
    its_own = debug / build_id[:2] / f"{build_id[2:]}.debug"
    subprocess.run(["objcopy", "--only-keep-debug", compile_c(PROGRAM, *DEBUG_FRAME), its_own], check=True)
    without = {one["file"]: one["functions"] for one in json.loads(run("--json", "--dry-run", root).stdout)}
    result = run("--json", "--debug-file", debug, root)
    found = {one["file"]: one["functions"] for one in json.loads(result.stdout)}
    assert (result.exit_code, result.stderr) == (0, "")
    assert found.pop(str(file)) > without.pop(str(file))
    assert found == without
    assert [one.severity for one in check(file, debug_file=debug).findings if one.severity is Severity.ERROR] == []
    its_own.write_bytes(its_own.read_bytes()[:1000])
    assert f"warning: {its_own}" in run("--debug-file", debug, root).stderr


CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC = 0x20000, 4096, 1 << 18, 16384


@for_each("jobs", [1, 2])
def test_times_of_directories_stay(root: Path, jobs: int) -> None:
    directories = [path for path in (root, *root.rglob("*")) if path.is_dir() and not path.is_symlink()]
    for number, path in enumerate(directories):
        os.utime(path, ns=(10**18 + number, 10**18 + 7 * number))
    before = [path.stat().st_mtime_ns for path in directories]
    for command in (run, remove_tree):
        assert command("-j", jobs, root).exit_code == 0
        assert [path.stat().st_mtime_ns for path in directories] == before


def test_a_file_is_not_refused_because_of_times(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "utime", lambda *_, **__: os.close(-1))
    assert os.strerror(errno.EBADF) not in run(root).stderr


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
