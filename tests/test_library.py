"""What users of the package get: names, documented parameters and fields."""

from __future__ import annotations

import ast
import re
from inspect import Parameter, getsource, isclass, isfunction, signature
from pathlib import Path
from typing import Any

import pytest

import sframegen
import sframegen.api

PUBLIC = {name: getattr(sframegen, name) for name in sframegen.api.__all__}
LIBRARY = (Path(__file__).parent.parent / "docs" / "library.md").read_text()


def test_names_are_the_same_for_type_checkers() -> None:
    """mypy reads the imports, Python `__all__`."""
    tree = ast.parse(Path(sframegen.__file__ or "").read_bytes())
    typed = [node.names[0].asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "sframegen.api"]
    assert typed == sorted(PUBLIC)


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if isfunction(value)])
def test_functions_document_parameters_and_errors(name: str) -> None:
    text = PUBLIC[name].__doc__ or ""
    parameters = signature(PUBLIC[name]).parameters.values()
    keywords = [parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY]
    if "of `examine`" not in text:
        assert [keyword for keyword in keywords if f"`{keyword}`" not in text] == []
        assert "Raises FormatError" in text
    assert f"| `{name}(" in LIBRARY
    assert re.search(rf"sframegen\.{name}\(", LIBRARY)


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if isclass(value)])
def test_values_document_fields(name: str) -> None:
    assert PUBLIC[name].__doc__
    [body] = [node.body for node in ast.parse(getsource(PUBLIC[name])).body if isinstance(node, ast.ClassDef)]
    lines = getsource(PUBLIC[name]).splitlines()
    fields = [node.lineno for node in body if isinstance(node, (ast.AnnAssign, ast.Assign))]
    internal = ("layout: Layout", "place: str")  # of SframeSection
    undocumented = [line.strip() for line in (lines[number - 1] for number in fields) if "  #: " not in line]
    assert [line for line in undocumented if line not in internal] == []


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (sframegen.add_section, {"version": 1}),
        (sframegen.add_section, {"optimize": "best"}),
        (sframegen.convert, {"version": 4}),
        (sframegen.examine, {"consumer": "nobody"}),
    ],
)
def test_wrong_arguments_are_no_errors_of_the_file(call: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"only|no ") as caught:
        call("/nonexistent", **arguments)
    assert not isinstance(caught.value, sframegen.FormatError)
