"""s390x: describes PLT entries. Its instructions are not decoded."""

from __future__ import annotations

from sframegen.code.isa.instruction_set import Stubs, stub

IRELATIVE = 61  # R_390_IRELATIVE

# RA stays in r14, and r15 is not changed.
FIRST = stub(
    "e3 00&ef f0 38 00 24 c0 10 .. .. .. .. d2 07 f0 30 10 08 e3 10 10 10 00 04 07 f1 .. .. .. .. .. ..", (0, 160), repeats=False
)
LAZY = stub("c0 10 .. .. .. .. e3 10 10 00 00 04 07 f1 0d 10 e3 10 10 0c 00 14 c0 f4 .. .. .. .. .. .. .. ..", (0, 160))
# mold's. In versions after 1, the address of an entry gives its number.
FIRST_MOLD = stub(
    "b9 09 00 01 a7 0b ff c2 eb 10 00 01 00 0c b9 08 00 01 "
    "e3 00 f0 38 00 24 c0 10 .. .. .. .. d2 07 f0 30 10 08 e3 10 10 10 00 04 07 f1 00 00 00 00", (0, 160), repeats=False
)  # fmt: skip
LAZY_MOLD = stub("c0 10 .. .. .. .. e3 10 10 00 00 04 0d 01 00 00", (0, 160))
LAZY_MOLD_1 = stub(f"c0 10 .. .. .. .. e3 10 10 00 00 04 c0 01 .. .. .. .. 07 f1 {'07 00 ' * 6}", (0, 160))
DIRECT_MOLD = stub("c0 10 .. .. .. .. e3 10 10 00 00 04 07 f1 00&f8 00", (0, 160))
PLT = Stubs((FIRST, FIRST_MOLD), (LAZY, LAZY_MOLD, LAZY_MOLD_1, DIRECT_MOLD))
