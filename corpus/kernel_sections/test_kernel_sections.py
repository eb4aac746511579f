"""A small run of the study: a module that is compiled here, as a kernel has it in memory."""

from __future__ import annotations

import subprocess
from random import Random
from typing import TYPE_CHECKING

import pytest

from corpus.kernel_sections.judge import judged
from corpus.kernel_sections.loaded import SIGNATURE, load_module, without_signature
from sframegen import add_section
from tests.linker.objects.test_kernel_modules import FLAGS, MODULE
from tests.support.cross import ARM64, S390X

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cross import Machine
    from tests.support.peers import Peers


@pytest.mark.parametrize("machine", [ARM64, S390X], ids=lambda machine: machine.name)
def test_a_module_in_memory(machine: Machine, peers: Peers, tmp_path: Path) -> None:
    module, debug = tmp_path / "module.ko", tmp_path / "module.debug"
    compiled = machine.compiler(peers, tmp_path)(MODULE, *FLAGS, name="module.o")
    subprocess.run([f"{machine.prefix}ld", "-r", "--build-id", "-o", module, compiled], check=True)
    subprocess.run([f"{machine.prefix}objcopy", "--only-keep-debug", module, debug], check=True)
    subprocess.run([f"{machine.prefix}strip", "--strip-debug", module], check=True)
    add_section(module, debug_file=debug)
    found = judged(load_module(module, debug), tmp_path / "loaded", 200, Random(1), peers)
    assert found.is_right
    assert (found.fdes, found.not_looked_up, sum(found.looked_up.values())) == (5, 1, 200)


def test_a_signature_is_cut_off() -> None:
    assert without_signature(b"module" + b"\x30" * 5 + bytes(8) + (5).to_bytes(4, "big") + SIGNATURE) == b"module"
    assert without_signature(b"module") == b"module"
