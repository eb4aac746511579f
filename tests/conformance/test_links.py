"""The links of the conformance suite: GNU ld's faults are those that are known, and merge has none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import run_links

from conformance.linked.mergers import Link, all_links
from tests.support.loops import for_each
from tests.support.peers import Peers

LINKS = {link.name: link for link in all_links() if link.machine.name == "amd64"}
GNU_FAILS = {"mixed-fixed-ra"}  # docs/upstream/ld-fixed-offsets.md
# A program that links with ld, and then has `merge` make the section again from the objects.
MERGING = """#!/bin/sh
set -e
"{ld}" "$@" -Map=map
case "$*" in *-shared*|-r*) exit 0;; esac
objects=
for one; do case "$one" in *.o) objects="$objects $one";; esac; done
"{python}" -P -m sframegen merge --no-verify -q --map map -o merged OUT $objects
mv merged OUT
"""


def folder_of(link: Link, directory: Path) -> Path:
    folder = directory / link.name
    folder.mkdir()
    (folder / "link.json").write_text(json.dumps(link.as_json()))
    for name, data in link.inputs.items():
        (folder / name).write_bytes(data)
    return folder


@for_each("name", LINKS)
def test_gnu_ld(name: str, peers: Peers, tmp_path: Path) -> None:
    link = LINKS[name]
    wrong = run_links.wrong_with(folder_of(link, tmp_path), link.as_json(), peers.tool("ld"))
    assert bool(wrong) is (name in GNU_FAILS), wrong


@pytest.mark.full
@for_each("name", LINKS)
def test_merge(name: str, peers: Peers, tmp_path: Path) -> None:
    link = LINKS[name]
    linker = tmp_path / "linker"
    linker.write_text(MERGING.format(ld=peers.tool("ld"), python=sys.executable))
    linker.chmod(0o755)
    assert run_links.wrong_with(folder_of(link, tmp_path), link.as_json(), str(linker)) == []
