"""Damage that leaves a section perfectly well formed, and wrong: its rules and rows say something else."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from sframegen.format.model import OUTERMOST, Rule, Where
from tests.checks.damages.kinds import Copy, Kinds
from tests.checks.damages.subject import Site

KINDS = Kinds()


def _saved(where: Where | None) -> bool:
    return where is not None and where.deref


def _moved(where: Where | None, by: int) -> Where:
    assert where is not None
    return where._replace(offset=where.offset + by)


def _rule(name: str, fits: Callable[[Copy, Rule], object], change: Callable[[Copy, Rule], Rule]) -> None:
    """Changes the rule of a row that fits, and is not the outermost frame's."""

    def do(copy: Copy, random: Random) -> int:
        site = copy.site(random, lambda site: site.rule.cfa is not None and fits(copy, site.rule))
        return copy.set_rule(site, change(copy, site.rule))

    KINDS.add(name, do, "cfi-rule")


def _cfa(name: str, fits: Callable[[Copy, Where], object], change: Callable[[Copy, Where, Random], Where], **more: Any) -> None:
    def do(copy: Copy, random: Random) -> int:
        site = copy.site(random, lambda site: site.rule.cfa is not None and fits(copy, site.rule.cfa))
        assert site.rule.cfa is not None
        return copy.set_rule(site, site.rule._replace(cfa=change(copy, site.rule.cfa, random)))

    KINDS.add(name, do, "cfi-rule", **more)


# -- CFA


def _others(copy: Copy) -> list[int]:
    return [n for n in copy.abi.base_registers if n not in (copy.abi.sp, copy.abi.fp)]


def _another(copy: Copy, cfa: Where, random: Random) -> Where:
    return cfa._replace(register=random.choice([n for n in _others(copy) if n != cfa.register]))


_cfa("cfa offset 8 more", lambda *_: True, lambda _, cfa, __: _moved(cfa, 8))
_cfa(
    "cfa from fp instead of sp",
    lambda copy, cfa: cfa.register == copy.abi.sp,
    lambda copy, cfa, _: cfa._replace(register=copy.abi.fp),
)
_cfa(
    "cfa from sp instead of fp",
    lambda copy, cfa: cfa.register == copy.abi.fp,
    lambda copy, cfa, _: cfa._replace(register=copy.abi.sp),
)
_cfa("cfa from another register", lambda copy, cfa: cfa.register in _others(copy), _another, versions=(3,))  # of a flexible rule
_cfa("cfa not read from memory", lambda _, cfa: cfa.deref, lambda _, cfa, __: cfa._replace(deref=False), versions=(3,))
_cfa("cfa read from memory", lambda _, cfa: not cfa.deref, lambda _, cfa, __: cfa._replace(deref=True), versions=(3,))


# -- RA, FP


def _in_another_register(_: Copy, rule: Rule) -> Rule:
    assert rule.ra is not None
    assert rule.ra.register is not None
    return rule._replace(ra=rule.ra._replace(register=rule.ra.register ^ 1))


_rule("ra offset 8 less", lambda _, rule: _saved(rule.ra), lambda _, rule: rule._replace(ra=_moved(rule.ra, -8)))
_rule("ra rule lost", lambda copy, rule: rule.ra and not copy.abi.fixed_ra_offset, lambda _, rule: rule._replace(ra=None))
_rule("ra rule invented", lambda _, rule: rule.ra is None, lambda _, rule: rule._replace(ra=Where(None, -8, deref=True)))
# Of s390x, whose version 2 says registers as odd offsets.
_rule(
    "ra in another register", lambda _, rule: rule.ra and rule.ra.register is not None and not rule.ra.deref, _in_another_register
)
_rule("fp offset 8 less", lambda _, rule: _saved(rule.fp), lambda _, rule: rule._replace(fp=_moved(rule.fp, -8)))
_rule("fp rule lost", lambda _, rule: rule.fp is not None, lambda _, rule: rule._replace(fp=None))
_rule("fp rule invented", lambda _, rule: rule.fp is None, lambda _, rule: rule._replace(fp=Where(None, -24, deref=True)))
_rule("outermost frame invented", lambda *_: True, lambda *_: OUTERMOST)


@KINDS("cfi-rule")
def outermost_frame_lost(copy: Copy, random: Random) -> int:
    return copy.set_rule(copy.site(random, lambda site: site.rule == OUTERMOST), copy.usual_rule())


_rule("signed state lost", lambda _, rule: rule.ra_signed, lambda _, rule: rule._replace(ra_signed=False))
_rule(
    "signed state invented",
    lambda copy, rule: copy.abi.ra_is_signed and not rule.ra_signed,
    lambda _, rule: rule._replace(ra_signed=True),
)


# -- rows


@KINDS("cfi-rule")
def row_dropped(copy: Copy, random: Random) -> int:
    site = copy.site(random, lambda site: copy.differ(site.before, site.rule))
    rows = copy.table.rows(site.function)
    del rows[site.row]
    copy.set_rows(site.function, rows)
    return site.start


def _row_moved(copy: Copy, site: Site, by: int) -> None:
    rows = copy.table.rows(site.function)
    offset, rule = rows[site.row]
    rows[site.row] = (offset + by, rule)
    copy.set_rows(site.function, rows)


@KINDS("cfi-rule")
def row_one_byte_later(copy: Copy, random: Random) -> int:
    site = copy.site(random, lambda site: copy.differ(site.before, site.rule) and site.end - site.start > 1)
    _row_moved(copy, site, 1)
    return site.start


@KINDS("cfi-rule")
def row_one_byte_earlier(copy: Copy, random: Random) -> int:
    table = copy.subject.table

    def fits(site: Site) -> bool:
        rows = table.row_start[table.first_row[site.function] + site.row - 1 :][:2] if site.row else [0, 0]
        return rows[1] - rows[0] > 1 and copy.subject.described(site.start - 1) and copy.differ(site.before, site.rule)

    site = copy.site(random, fits)
    _row_moved(copy, site, -1)
    return site.start - 1
