"""A test that tries many cases and names all that fail, where `pytest.mark.parametrize` would make a test of each."""

from __future__ import annotations

import functools
import inspect
import traceback
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Test = Callable[..., None]
    Ids = Iterable[str] | Callable[[Any], object] | None

CASE = type(pytest.param())
FRAMES = 3  # of a failure: the test and what it called


def for_each(names: str | Sequence[str], cases: Iterable[Any], ids: Ids = None) -> Callable[[Test], Test]:
    """Takes what parametrize takes. A case has a folder and a monkeypatch of its own; other fixtures are those of the test.

    A case that skips (a tool is missing) makes the test a skipped one, after all others were tried."""
    parameters = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    alone = isinstance(names, str) and len(parameters) == 1
    table: dict[str, dict[str, object]] = {}
    for number, case in enumerate(cases):
        values = case.values if isinstance(case, CASE) else (case,) if alone else case
        name = case.id if isinstance(case, CASE) else None
        if callable(ids):
            name = ", ".join(str(ids(value)) for value in values)
        elif ids:
            name = list(ids)[number]
        table[f"{number}: {name or ', '.join(map(repr, values))[:100]}"] = dict(zip(parameters, values, strict=True))

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def all_cases(**fixtures: Any) -> None:
            failures: list[str] = []
            skipped: list[BaseException] = []
            for number, (name, case) in enumerate(table.items()):
                own = dict(fixtures)
                with pytest.MonkeyPatch.context() as monkeypatch:
                    if "monkeypatch" in own:
                        own["monkeypatch"] = monkeypatch
                    if "tmp_path" in own:
                        own["tmp_path"] = fixtures["tmp_path"] / str(number)
                        own["tmp_path"].mkdir()
                    try:
                        test(**own, **case)
                    except pytest.skip.Exception as reason:
                        skipped.append(reason)
                    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - it is told below
                        failures.append(f"[{name}] {''.join(traceback.format_exception(error, limit=-FRAMES))}")
                        if isinstance(error, TimeoutError):  # perhaps the limit of the whole test, which comes once
                            break
            if failures:
                pytest.fail(f"{len(failures)} of {len(table)} cases:\n" + "\n".join(failures), pytrace=False)
            if skipped:
                raise skipped[0]

        signature = inspect.signature(test)
        rest = [one for one in signature.parameters.values() if one.name not in parameters]
        setattr(all_cases, "__signature__", signature.replace(parameters=rest))  # noqa: B010 - mypy knows no such attribute
        return all_cases

    return decorate
