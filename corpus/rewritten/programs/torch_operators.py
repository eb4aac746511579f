"""Every third operator of torch's own table of tests, with the first inputs that the table has: for pytest."""

from __future__ import annotations

from importlib import import_module

import pytest

torch = import_module("torch")
OPERATORS = import_module("torch.testing._internal.common_methods_invocations").op_db
PLACES = range(0, len(OPERATORS), 3)


@pytest.mark.parametrize("place", PLACES, ids=[f"{OPERATORS[place].name}-{OPERATORS[place].variant_test_name}" for place in PLACES])
def test_operator(place: int) -> None:
    operator = OPERATORS[place]
    if torch.float32 not in operator.dtypes or operator.name.startswith("jiterator"):
        pytest.skip("not for floats on CPUs")
    torch.manual_seed(0)
    for number, sample in enumerate(operator.sample_inputs("cpu", torch.float32, requires_grad=False)):
        operator(sample.input, *sample.args, **sample.kwargs)
        if number == 3:
            break
