"""The keys and types of docs/json-schema.json are those that are printed."""

from __future__ import annotations

import errno
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import pytest
from click.testing import CliRunner

from sframegen import add_section
from sframegen.checks.finding import Verdict
from sframegen.cli.commands import COMMANDS, cli
from sframegen.cli.trees import each_file
from sframegen.cli.trees.tree_files import FoundFiles, Name
from sframegen.profile.report.formats.file_formats import write_profile
from tests import ROOT
from tests.support.loops import for_each
from tests.support.named_stacks import EXAMPLE, named
from tests.support.peers import Compiler

PAGE = (ROOT / "docs" / "json.md").read_text()
DEFINITIONS: dict[str, Any] = json.loads((ROOT / "docs" / "json-schema.json").read_text())["$defs"]
TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict, "number": float, "array": list, "null": type(None)}
SOURCE = "int f(int x) { return x + 1; }\nint main(int argc, char **argv) { (void)argv; return f(argc) - 2; }\n"


def faults_of(value: Any, schema: dict[str, Any], place: str) -> Iterator[str]:
    """What a value has that its schema does not say. Keys have the order of the schema, and none is unknown."""
    if "anyOf" in schema:
        found = [list(faults_of(value, one, place)) for one in schema["anyOf"]]
        yield from min(found, key=len)
        return
    if "$ref" in schema:
        schema = DEFINITIONS[schema["$ref"].rpartition("/")[2]]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if type(value) not in [TYPES[kind] for kind in kinds]:
        yield f"{place}: {value!r} is not a {' or '.join(kinds)}"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from faults_of(item, schema["items"], f"{place}[{number}]")
    elif isinstance(value, dict) and "properties" in schema:
        properties = schema["properties"]
        if list(value) != [key for key in properties if key in value or key in schema["required"]]:
            yield f"{place}: {list(value)}"
        for key in value.keys() & properties.keys():
            yield from faults_of(value[key], properties[key], f"{place}.{key}")


def assert_documented(document: Any, name: str) -> None:
    assert list(faults_of(document, {"$ref": f"#/$defs/{name}"}, name)) == []


def usage(name: str) -> list[str]:
    context = commands.context_of(name)
    return context.command.collect_usage_pieces(context)


@pytest.fixture
def file(compile_c: Compiler, tmp_path: Path) -> Path:
    return Path(shutil.copy(compile_c(SOURCE, "-O1"), tmp_path / "file"))


def printed(*arguments: str | Path | int) -> Any:
    """The JSON of a command; of a list with one object, that."""
    found = json.loads(CliRunner().invoke(cli, [*map(str, arguments), "--json"]).stdout)
    return found[0] if isinstance(found, list) and len(found) == 1 else found


MERGES = ("nope/out nope", "out FILE nope", "out --map nope FILE FILE", "out --linker nope FILE", "out --map FILE nope FILE")


@for_each("line", ["lookup nope 0", *(f"merge -o {rest}" for rest in MERGES)])
@pytest.mark.usefixtures("empty_folder")
def test_commands_with_one_result_print_the_refusal_as_that(line: str, compile_c: Compiler) -> None:
    file = compile_c(SOURCE, "-c") if "--map" not in line else compile_c(SOURCE)
    document = printed(*line.replace("FILE", str(file)).split())
    assert_documented(document, "refused")
    assert document["file"] == "nope"
    assert document["error"].startswith("nope: No such file or directory")


def test_add_section_dump_lookup_convert_and_remove(file: Path) -> None:
    assert_documented(printed("add-section", file), "add-section")
    assert_documented(printed("add-section", "--dry-run", "--replace", "--sframe-version", "2", file), "add-section")
    assert_documented(printed("dump", file), "dump")
    document = printed("lookup", file, "main", "_start", "nosuch", "0")
    assert_documented(document, "lookup")
    *covered, unknown, uncovered = document["addresses"]
    assert all("signal" in each for each in covered)
    assert (covered[0]["name"], list(unknown), unknown["given"]) == ("main", ["given", "error"], "nosuch")
    assert list(uncovered) == DEFINITIONS["lookup-address"]["required"]
    assert uncovered["rule"] is None
    for words in ("convert", "--sframe-version", "2"), ("remove",):
        for dry_run in (["--dry-run"], []):
            assert_documented(printed(*words, *dry_run, file), words[0])


def test_add_section_to_a_package(file: Path, tmp_path: Path) -> None:
    archive = tmp_path / "x.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(file, "usr/bin/file")
    document = printed("add-section", archive)
    assert_documented(document, "add-section")
    [each] = document["package"]["files"]
    assert each["file"] == "usr/bin/file"


def test_merge(compile_c: Compiler, tmp_path: Path) -> None:
    objects = [shutil.copy(compile_c(f"int {name}(int x) {{ return x; }}", "-c"), tmp_path / f"{name}.o") for name in "ab"]
    printed("add-section", *objects)
    assert_documented(printed("merge", "-o", tmp_path / "both.o", *objects), "merge")


def test_check(file: Path, compile_c: Compiler) -> None:
    documents = [printed("check", file)]
    printed("add-section", file)
    documents.append(printed("check", file))
    assert documents[0]["findings"]
    for document in documents:
        assert_documented(document, "check")
    archive = file.with_name("x.tar")
    with tarfile.open(archive, "w") as tar:
        tar.add(file, "usr/bin/file")
    document = printed("check", archive)
    assert_documented(document, "check")
    assert len(document["package"]["files"]) == 1
    wrong = '__asm__("f: .cfi_startproc\\n push %rbx\\n pop %rbx\\n ret\\n .cfi_endproc");'
    document = printed("check", "--instructions", compile_c(wrong, "-shared"))
    assert_documented(document, "check")
    assert list(document["instructions"]) == ["section", "cfi"]
    assert all(list(code) == ["right", "contradicted", "undecided"] for code in document["instructions"].values())
    assert document["findings"][0]["instructions"]
    assert list(documents[1]["code"]) == [verdict.name.lower() for verdict in Verdict]
    said = DEFINITIONS["check"]["properties"]["code"]["description"]
    for verdict in Verdict:
        assert re.search(rf"`{verdict.name.lower()}`(?: \({re.escape(verdict.value)}\))?", said)


def test_lookup_and_dump_of_objects(compile_c: Compiler, tmp_path: Path) -> None:
    file = shutil.copy(compile_c(SOURCE, "-c"), tmp_path / "file.o")
    subprocess.run(["ar", "rc", archive := tmp_path / "lib.a", file], check=True)
    for given in (file, archive):
        printed("add-section", given)
        document = printed("lookup", given, "main")
        assert_documented(document, "lookup")
        assert ("object" in document["addresses"][0]) is (given == archive)
        assert_documented(printed("dump", given), "dump-sections")


def test_doctor() -> None:
    document = printed("doctor")
    assert_documented(document, "doctor")
    assert document["parts"]
    for group in {each["group"] for each in document["parts"]}:
        assert f"`{group}`" in DEFINITIONS["doctor-part"]["properties"]["group"]["description"]


@pytest.mark.usefixtures("empty_folder")
def test_the_page_names_the_commands_that_print_a_list(file: Path) -> None:
    """With one file, too; a refused file has its error, in its place."""
    lists = re.findall(r"`([\w-]+)`", re.findall(r"^These print a list: (.*?)\.$", PAGE, re.MULTILINE | re.DOTALL)[0])
    options = {"convert": ["--sframe-version", "2"]}
    taking_files = [name for name in COMMANDS if re.search(r"(FILE|ROOT)\.\.\.", str(usage(name)))]
    assert sorted(lists) == sorted(taking_files)
    printed("add-section", file)
    tree = file.parent / "tree"
    tree.mkdir()
    shutil.copy(file, tree)
    (tree / "damaged").write_bytes(file.read_bytes()[:5000])
    for name in lists:
        given = [tree] if name.endswith("-tree") else [file, "none", file]
        done = CliRunner().invoke(cli, [name, *options.get(name, []), "--json", *map(str, given)])
        documents = json.loads(done.stdout)
        refused = [document for document in documents if "error" in document]
        for each in refused:
            assert_documented(each, "refused")
            assert f"sframegen: {each['error']}" in done.stderr.replace("sframegen: warning: ", "sframegen: ").splitlines()
        if not name.endswith("-tree"):
            assert [document["file"] for document in refused] == ["none"]
        assert len(refused) == 1
        assert len(documents) > 1


def test_stack() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        document = printed("stack", child.pid, "--convert")
        child.kill()
    assert_documented(document, "stack")
    assert document["threads"][0]["frames"]


def test_profile(tmp_path: Path) -> None:
    write_profile(named(*EXAMPLE), str(tmp_path / "out.json"))
    document = json.loads((tmp_path / "out.json").read_text())
    assert_documented(document, "profile")
    assert all(document[key] for key in ("functions", "frames", "stacks"))


def test_check_goes_on_behind_what_it_cannot_read(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_section(file)
    shut = OSError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(
        each_file,
        "find_linked_files",
        lambda *_: FoundFiles([[Name(str(tmp_path), "file")]], [(Name(str(tmp_path), "shut"), shut)], {}),
    )
    too_long = str(tmp_path / ("n" * 300))
    done = CliRunner().invoke(cli, ["check", "--json", too_long, str(tmp_path), str(file)])
    found = {one["file"]: one.get("error") for one in json.loads(done.stdout)}
    assert found == {
        too_long: f"{too_long}: File name too long",
        str(tmp_path / "shut"): f"{tmp_path / 'shut'}: Permission denied",
        str(file): None,
    }
    assert done.exit_code == 1
