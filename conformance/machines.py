"""The ABIs of the specification, a row each: register numbers are DWARF's."""

from __future__ import annotations

from typing import Literal, NamedTuple

ByteOrder = Literal["little", "big"]
MARKS: dict[ByteOrder, str] = {"little": "<", "big": ">"}  # of struct


class Machine(NamedTuple):
    """`entry`, `frame`: data words of the rule at a function's first instruction, and of one in its body, both from SP.

    A CFA offset is a data word times `cfa_scale`, plus `cfa_bias`.
    """

    name: str
    abi: int  # sfh_abi_arch
    byte_order: ByteOrder
    e_machine: int
    sp: int
    fp: int
    ra: int
    versions: tuple[int, ...]
    entry: tuple[int, ...]
    frame: tuple[int, ...]
    entry_rule: tuple[str, ...]  # what these words say: rules.py
    frame_rule: tuple[str, ...]
    fixed_ra: int = 0
    cfa_scale: int = 1
    cfa_bias: int = 0
    signs: bool = False  # return addresses can be signed


AMD64 = Machine(
    "amd64", 3, "little", 62, sp=7, fp=6, ra=16, versions=(1, 2, 3), fixed_ra=-8, entry=(8,), frame=(32, -16),
    entry_rule=("sp+8", "*(cfa-8)", "kept"), frame_rule=("sp+32", "*(cfa-8)", "*(cfa-16)"),
)  # fmt: skip
AARCH64 = Machine(
    "aarch64", 2, "little", 183, sp=31, fp=29, ra=30, versions=(1, 2, 3), signs=True, entry=(0,), frame=(32, -24, -32),
    entry_rule=("sp+0", "kept", "kept"), frame_rule=("sp+32", "*(cfa-24)", "*(cfa-32)"),
)  # fmt: skip
AARCH64_BE = AARCH64._replace(name="aarch64-be", abi=1, byte_order="big")
S390X = Machine(
    "s390x", 4, "big", 22, sp=15, fp=11, ra=14, versions=(2, 3), cfa_scale=8, cfa_bias=160, entry=(0,), frame=(8, -48, -72),
    entry_rule=("sp+160", "kept", "kept"), frame_rule=("sp+224", "*(cfa-48)", "*(cfa-72)"),
)  # fmt: skip
MACHINES = (AMD64, AARCH64, AARCH64_BE, S390X)
