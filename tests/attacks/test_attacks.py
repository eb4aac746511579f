"""A second user races with root for root's files; `make study STUDY=tests.attacks` runs more rounds of the same."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests import attacks
from tests.attacks import races
from tests.support.peers import Compiler

ROUNDS = 200


@pytest.mark.full
@pytest.mark.parametrize("name", races.ALL)
def test_no_victim(name: str, compile_c: Compiler) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    if name in races.FLEET_RACES and not races.has_fleet():
        pytest.skip("needs the extra fleet")
    with TemporaryDirectory() as directory:  # others cannot reach those of pytest
        swap = Path(directory, "swap")
        swap.write_bytes(compile_c(attacks.SWAP.read_text(), "-O2", name="swap").read_bytes())
        swap.chmod(0o755)
        scene = attacks.lay_out(Path(directory), lambda text, path: path.write_bytes(compile_c(text, "-O2").read_bytes()))
        outcomes = attacks.run(races.ALL[name], scene, swap, ROUNDS)
    race = races.ALL[name]
    assert outcomes.total() == max(ROUNDS // race.cost, attacks.MIN_ROUNDS)
    assert race.is_refused == (not outcomes["done"])
