"""Damage that leaves a section perfectly well formed, and wrong: its rules and rows say something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sframegen.format.model import OUTERMOST, Rule, Where
from tests.checks.damages.kinds import Kinds, Place

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.checks.damages.kinds import Copy
    from tests.checks.damages.subject import Site

KINDS = Kinds()


def _saved(where: Where | None) -> bool:
    return where is not None and where.deref


def _changed(copy: Copy, random: Random, fits: Callable[[Rule], object], change: Callable[[Rule], Rule]) -> Place:
    """Changes the rule of a row that fits, and is not the outermost frame's."""
    site = copy.site(random, lambda site: site.rule.cfa is not None and fits(site.rule))
    return copy.set_rule(site, change(site.rule))


def _moved(where: Where | None, by: int) -> Where:
    assert where is not None
    return where._replace(offset=where.offset + by)


# -- CFA


def _cfa_changed(copy: Copy, random: Random, fits: Callable[[Where], object], change: Callable[[Where], Where]) -> Place:
    site = copy.site(random, lambda site: site.rule.cfa is not None and fits(site.rule.cfa))
    assert site.rule.cfa is not None
    return copy.set_rule(site, site.rule._replace(cfa=change(site.rule.cfa)))


@KINDS("cfi-rule", alone=True)
def cfa_offset_8_more(copy: Copy, random: Random) -> Place:
    return _cfa_changed(copy, random, lambda _: True, lambda cfa: _moved(cfa, 8))


@KINDS("cfi-rule", alone=True)
def cfa_offset_8_less(copy: Copy, random: Random) -> Place:
    return _cfa_changed(copy, random, lambda _: True, lambda cfa: _moved(cfa, -8))


@KINDS("cfi-rule", alone=True)
def cfa_from_fp_instead_of_sp(copy: Copy, random: Random) -> Place:
    sp, fp = copy.abi.sp, copy.abi.fp
    return _cfa_changed(copy, random, lambda cfa: cfa.register == sp, lambda cfa: cfa._replace(register=fp))


@KINDS("cfi-rule", alone=True)
def cfa_from_sp_instead_of_fp(copy: Copy, random: Random) -> Place:
    sp, fp = copy.abi.sp, copy.abi.fp
    return _cfa_changed(copy, random, lambda cfa: cfa.register == fp, lambda cfa: cfa._replace(register=sp))


@KINDS("cfi-rule", versions=(3,), alone=True)
def cfa_from_another_register(copy: Copy, random: Random) -> Place:
    """Of a flexible rule."""
    others = [n for n in copy.abi.base_registers if n not in (copy.abi.sp, copy.abi.fp)]

    def change(cfa: Where) -> Where:
        return cfa._replace(register=random.choice([n for n in others if n != cfa.register]))

    return _cfa_changed(copy, random, lambda cfa: cfa.register in others, change)


@KINDS("cfi-rule", versions=(3,), alone=True)
def cfa_not_read_from_memory(copy: Copy, random: Random) -> Place:
    return _cfa_changed(copy, random, lambda cfa: cfa.deref, lambda cfa: cfa._replace(deref=False))


@KINDS("cfi-rule", versions=(3,), alone=True)
def cfa_read_from_memory(copy: Copy, random: Random) -> Place:
    return _cfa_changed(copy, random, lambda cfa: not cfa.deref, lambda cfa: cfa._replace(deref=True))


@KINDS("cfi-rule", alone=True)
def cfa_offset_adjusted_twice(copy: Copy, random: Random) -> Place:
    """s390x, which stores CFA offsets less 160."""
    adjustment = copy.abi.cfa_adjustment
    return _cfa_changed(copy, random, lambda _: adjustment, lambda cfa: _moved(cfa, adjustment))


@KINDS("cfi-rule", alone=True)
def cfa_offset_scaled_twice(copy: Copy, random: Random) -> Place:
    """s390x, which stores an eighth of them."""
    adjustment, scale = copy.abi.cfa_adjustment, copy.abi.cfa_scale
    return _cfa_changed(
        copy,
        random,
        lambda cfa: scale > 1 and cfa.offset != adjustment,
        lambda cfa: _moved(cfa, (cfa.offset - adjustment) * (scale - 1)),
    )


# -- RA, FP


@KINDS("cfi-rule", alone=True)
def ra_offset_8_less(copy: Copy, random: Random) -> Place:
    return _changed(copy, random, lambda rule: _saved(rule.ra), lambda rule: rule._replace(ra=_moved(rule.ra, -8)))


@KINDS("cfi-rule", alone=True)
def ra_rule_lost(copy: Copy, random: Random) -> Place:
    return _changed(copy, random, lambda rule: rule.ra and not copy.abi.fixed_ra_offset, lambda rule: rule._replace(ra=None))


@KINDS("cfi-rule", alone=True)
def ra_rule_invented(copy: Copy, random: Random) -> Place:
    return _changed(copy, random, lambda rule: rule.ra is None, lambda rule: rule._replace(ra=Where(None, -8, deref=True)))


@KINDS("cfi-rule", alone=True)
def ra_in_another_register(copy: Copy, random: Random) -> Place:
    """Of s390x, whose version 2 says registers as odd offsets."""

    def change(rule: Rule) -> Rule:
        assert rule.ra is not None
        assert rule.ra.register is not None
        return rule._replace(ra=rule.ra._replace(register=rule.ra.register ^ 1))

    return _changed(copy, random, lambda rule: rule.ra and rule.ra.register is not None and not rule.ra.deref, change)


@KINDS("cfi-rule", alone=True)
def fp_offset_8_less(copy: Copy, random: Random) -> Place:
    return _changed(copy, random, lambda rule: _saved(rule.fp), lambda rule: rule._replace(fp=_moved(rule.fp, -8)))


@KINDS("cfi-rule", alone=True)
def fp_rule_lost(copy: Copy, random: Random) -> Place:
    return _changed(copy, random, lambda rule: rule.fp is not None, lambda rule: rule._replace(fp=None))


@KINDS("cfi-rule", alone=True)
def fp_rule_invented(copy: Copy, random: Random) -> Place:
    return _changed(copy, random, lambda rule: rule.fp is None, lambda rule: rule._replace(fp=Where(None, -24, deref=True)))


@KINDS("cfi-rule", alone=True)
def ra_and_fp_exchanged(copy: Copy, random: Random) -> Place:
    def fits(rule: Rule) -> bool:
        return rule.ra != rule.fp and _saved(rule.ra) and _saved(rule.fp)

    return _changed(copy, random, fits, lambda rule: rule._replace(ra=rule.fp, fp=rule.ra))


@KINDS("cfi-rule", alone=True)
def outermost_frame_invented(copy: Copy, random: Random) -> Place:
    return _changed(copy, random, lambda _: True, lambda _: OUTERMOST)


@KINDS("cfi-rule", alone=True)
def outermost_frame_lost(copy: Copy, random: Random) -> Place:
    site = copy.site(random, lambda site: site.rule == OUTERMOST)
    return copy.set_rule(site, copy.usual_rule())


@KINDS("cfi-rule", alone=True)
def signed_state_lost(copy: Copy, random: Random) -> Place:
    return _changed(copy, random, lambda rule: rule.ra_signed, lambda rule: rule._replace(ra_signed=False))


@KINDS("cfi-rule", alone=True)
def signed_state_invented(copy: Copy, random: Random) -> Place:
    signs = copy.abi.ra_is_signed
    return _changed(copy, random, lambda rule: signs and not rule.ra_signed, lambda rule: rule._replace(ra_signed=True))


# -- rows


@KINDS("cfi-rule", alone=True)
def stale_fp_rule_after_a_restore(copy: Copy, random: Random) -> Place:
    site = copy.site(
        random, lambda site: site.rule.cfa and site.rule.fp is None and site.before is not None and _saved(site.before.fp)
    )
    assert site.before is not None
    return copy.set_rule(site, site.rule._replace(fp=site.before.fp))


@KINDS("cfi-rule", alone=True)
def stale_ra_rule_after_a_restore(copy: Copy, random: Random) -> Place:
    site = copy.site(
        random, lambda site: site.rule.cfa and site.rule.ra is None and site.before is not None and _saved(site.before.ra)
    )
    assert site.before is not None
    return copy.set_rule(site, site.rule._replace(ra=site.before.ra))


@KINDS("cfi-rule", alone=True)
def rule_of_the_row_before(copy: Copy, random: Random) -> Place:
    site = copy.site(random, lambda site: copy.differ(site.before, site.rule))
    assert site.before is not None
    return copy.set_rule(site, site.before)


@KINDS("cfi-rule", alone=True)
def rule_of_the_row_after(copy: Copy, random: Random) -> Place:
    site = copy.site(random, lambda site: copy.differ(site.after, site.rule))
    assert site.after is not None
    return copy.set_rule(site, site.after)


@KINDS("cfi-rule", alone=True)
def rules_of_two_rows_exchanged(copy: Copy, random: Random) -> Place:
    site = copy.site(random, lambda site: copy.differ(site.after, site.rule))
    rows = copy.table.rows(site.function)
    (here, rule), (there, other) = rows[site.row : site.row + 2]
    rows[site.row : site.row + 2] = [(here, other), (there, rule)]
    copy.set_rows(site.function, rows)
    return Place(site.start)


@KINDS("cfi-rule", alone=True)
def row_dropped(copy: Copy, random: Random) -> Place:
    site = copy.site(random, lambda site: copy.differ(site.before, site.rule))
    rows = copy.table.rows(site.function)
    del rows[site.row]
    copy.set_rows(site.function, rows)
    return Place(site.start)


def _row_moved(copy: Copy, site: Site, by: int) -> None:
    rows = copy.table.rows(site.function)
    offset, rule = rows[site.row]
    rows[site.row] = (offset + by, rule)
    copy.set_rows(site.function, rows)


@KINDS("cfi-rule", alone=True)
def row_one_byte_later(copy: Copy, random: Random) -> Place:
    site = copy.site(random, lambda site: copy.differ(site.before, site.rule) and site.end - site.start > 1)
    _row_moved(copy, site, 1)
    return Place(site.start)


@KINDS("cfi-rule", alone=True)
def row_one_byte_earlier(copy: Copy, random: Random) -> Place:
    table = copy.subject.table

    def fits(site: Site) -> bool:
        rows = table.row_start[table.first_row[site.function] + site.row - 1 :][:2] if site.row else [0, 0]
        return rows[1] - rows[0] > 1 and copy.subject.described(site.start - 1) and copy.differ(site.before, site.rule)

    site = copy.site(random, fits)
    _row_moved(copy, site, -1)
    return Place(site.start - 1)
