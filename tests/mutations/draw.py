"""Draws mutants of modules: the operators are mutmut's. A rule, never a choice by hand, leaves out what can change no meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import NamedTuple

import libcst as cst
from mutmut.mutation import mutators

# None in place of an argument or a value, an argument less, a string with XX: these end in a TypeError, or change a message.
LEFT_OUT = {
    mutators.operator_arg_removal,
    mutators.operator_assignment,
    mutators.operator_dict_arguments,
    mutators.operator_lambda,
    mutators.operator_string,
}
OPERATORS = [(kind, operator) for kind, operator in mutators.mutation_operators if operator not in LEFT_OUT]

# Numbers are ints here: what becomes a float, or was a path, ends in a TypeError.
DIVISIONS = (cst.Divide, cst.DivideAssign)

# What runs in no interpreted build: the type checker's imports, and what only compiled modules do.
NEVER_RUN = re.compile(r"\bTYPE_CHECKING\b|\bcython\.compiled\b")


class Mutant(NamedTuple):
    module: str  # path in site-packages
    line: int
    before: str  # the changed lines
    after: str
    text: str  # the whole module

    def __str__(self) -> str:
        return f"{self.module}:{self.line}\n" + "".join(
            f"{sign}{line}\n" for sign, lines in (("-", self.before), ("+", self.after)) for line in lines.split("\n")
        )


def draw(packages: Path, modules: Sequence[str], count: int, seed: int) -> tuple[list[Mutant], int]:
    """(`count` mutants, each as likely as any other, in random order; the number of all). Modules are paths in `packages`."""
    trees = {module: cst.parse_module((packages / module).read_text(encoding="utf-8")).deep_clone() for module in modules}
    changes = [(module, *change) for module, tree in trees.items() for change in changes_in(tree, never_run_in(tree.code))]
    drawn: list[Mutant] = []
    for module, node, replacement in Random(seed).sample(changes, len(changes)):
        if len(drawn) == count:
            break
        mutant = made(module, trees[module].code, trees[module].deep_replace(node, replacement).code)
        if mutant and is_python(mutant):
            drawn.append(mutant)
    return drawn, len(changes)


def never_run_in(code: str) -> re.Pattern[str]:
    """Matches NEVER_RUN, and the names that stand for it: `fits = cython.compiled and ...`."""
    names = re.findall(r"^ +(\w+) = cython\.compiled and ", code, re.MULTILINE)
    return re.compile("|".join([NEVER_RUN.pattern, *(rf"\b{name}\b" for name in names)]))


def changes_in(node: cst.CSTNode, never_run: re.Pattern[str], *, raised: bool = False) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """(a node, what an operator makes of it), without what can change no meaning. `raised`: the node is in a raise statement."""
    raised |= isinstance(node, cst.Raise)
    message = raised and isinstance(node, cst.FormattedString)
    if message or isinstance(node, (cst.Annotation, cst.Decorator)) or is_assertion(node):
        return
    if isinstance(node, cst.If) and never_run.search(cst.Module([]).code_for_node(node.test)):
        yield from changes_in(node.orelse, never_run, raised=raised) if node.orelse else ()
        return
    if isinstance(node, cst.BooleanOperation) and NEVER_RUN.search(cst.Module([]).code_for_node(node)):
        return
    for kind, operator in OPERATORS:
        if isinstance(node, kind):
            yield from ((node, replacement) for replacement in operator(node) if not (divides(node) or divides(replacement)))
    for child in node.children:
        yield from changes_in(child, never_run, raised=raised)


def divides(node: cst.CSTNode) -> bool:
    """True for `a / b` and `a /= b`."""
    return isinstance(node, (cst.BinaryOperation, cst.AugAssign)) and isinstance(node.operator, DIVISIONS)


def is_assertion(node: cst.CSTNode) -> bool:
    """`strict=True` of zip."""
    return isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "strict"


def made(module: str, before: str, after: str) -> Mutant | None:
    """The mutant with the lines that differ; None if nothing does."""
    if before == after:
        return None
    old, new = before.split("\n"), after.split("\n")
    head = common(old, new)
    tail = common(old[head:][::-1], new[head:][::-1])
    return Mutant(module, head + 1, "\n".join(old[head : len(old) - tail]), "\n".join(new[head : len(new) - tail]), after)


def common(one: list[str], other: list[str]) -> int:
    """How many lines both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def is_python(mutant: Mutant) -> bool:
    try:
        compile(mutant.text, mutant.module, "exec")
    except SyntaxError:
        return False
    return True
