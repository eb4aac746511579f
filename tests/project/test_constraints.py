"""tests/constraints/: the releases that `make test-constraints` tries are those that pyproject.toml promises."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT

pytestmark = pytest.mark.once

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NEEDED = [Requirement(line) for line in (*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"])]
WHICH = ("oldest", "newest")


def pinned(which: str) -> dict[str, str]:
    lines = (ROOT / "tests" / "constraints" / f"{which}.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("which", WHICH)
def test_each_dependency_is_pinned_and_nothing_else(which: str) -> None:
    assert sorted(pinned(which)) == sorted(canonicalize_name(one.name) for one in NEEDED)


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("one", NEEDED, ids=lambda one: one.name)
def test_each_release_is_allowed(one: Requirement, which: str) -> None:
    assert one.specifier.contains(pinned(which)[canonicalize_name(one.name)])


@pytest.mark.parametrize("one", NEEDED, ids=lambda one: one.name)
def test_the_oldest_is_the_lower_bound(one: Requirement) -> None:
    """The bound with which nothing older is allowed: `1` is 1.0.0."""
    [bound] = [specifier.version for specifier in one.specifier if specifier.operator == ">="]
    oldest = pinned("oldest")[canonicalize_name(one.name)]
    assert oldest.removesuffix(".0").removesuffix(".0") == bound.removesuffix(".0").removesuffix(".0")
