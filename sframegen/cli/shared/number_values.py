"""Numbers as values of options: what is wrong with one is said in words."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable


class Numbers(click.ParamType):  # type: ignore[type-arg] # older releases of click have no arguments for it
    """From `least` to `most`; with `more`, more than `least`. `kind`: int or float."""

    name = "number"

    def __init__(self, kind: Callable[[str], float], least: float, most: float | None = None, *, more: bool = False) -> None:
        self.kind, self.least, self.most, self.more = kind, least, most, more

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not isinstance(value, str):  # a default
            return value
        try:
            number = self.kind(value)
        except ValueError:
            self.fail(f"{value!r} is not {'a whole number' if self.kind is int else 'a number'}", param, ctx)
        if isinstance(number, float) and not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        if self.more and number <= self.least:
            self.fail(f"{value} is too little: more than {self.least:g}", param, ctx)
        if number < self.least:
            self.fail(f"{value} is too little: at least {self.least:g}", param, ctx)
        if self.most is not None and number > self.most:
            self.fail(f"{value} is too much: at most {self.most:,.0f}", param, ctx)
        return number


COUNT = Numbers(int, 1)
SECONDS = Numbers(float, 0, more=True)
PERCENT = Numbers(float, 0, 100)
