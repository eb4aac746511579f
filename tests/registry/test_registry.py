"""The registry against a naive list."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sframegen.registry.regions import Region, Registry, RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.format.model import Match


def refused(number: int, call: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(RegistryError) as caught:
        call(*arguments)
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[number]


class Nothing:
    def look_up(self, pc: int) -> Match | None:
        raise AssertionError(pc)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("register"), st.integers(-2, 40), st.integers(-2, 40), st.integers(0, 4)),
            st.tuples(st.just("unregister"), st.integers(0, 4), st.just(0), st.just(0)),
        ),
        max_size=30,
    )
)
def test_registry_is_as_a_list_would_be(calls: list[tuple[str, int, int, int]]) -> None:
    registry, model = Registry(), list[Region]()
    for what, first, end, key in calls:
        if what == "register":
            region = Region(first, end, key, Nothing())
            expected = errno.EINVAL if not 0 <= first < end else 0
            if not expected and any(set(range(first, end)) & set(range(r.start, r.end)) for r in model):
                expected = errno.EEXIST
            if expected:
                refused(expected, registry.register, region)
            else:
                registry.register(region)
                model.append(region)
        elif any(region.key == first for region in model):
            gone = registry.unregister(first)
            assert sorted(gone) == sorted(region for region in model if region.key == first)
            model = [region for region in model if region.key != first]
        else:
            refused(errno.EINVAL, registry.unregister, first)
        assert list(registry) == sorted(model)
        for pc in range(-3, 43):
            assert registry.find(pc) == next((region for region in model if region.start <= pc < region.end), None)


def test_a_region_ends_with_the_address_space() -> None:
    registry = Registry()
    registry.register(Region((1 << 64) - 1, 1 << 64, 0, Nothing()))
    assert registry.find((1 << 64) - 1) is not None
    refused(errno.EINVAL, registry.register, Region(1, (1 << 64) + 1, 0, Nothing()))
