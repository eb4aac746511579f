"""Tables for compiled modules: each class is a table, with its columns as attributes, whose types are in columns.pxd. Compiled.

While an object exists, the arrays that are its columns cannot grow or shrink, so make it for one call and drop it.
docs/architecture.md says how to add a class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython
except ImportError:
    from sframegen.base import cython_shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from sframegen.base.columns import Bytes, Column

COMPILED: bool = cython.compiled


class Functions:
    """The columns of a FunctionTable."""

    def __init__(self, start: Column, size: Column, kind: Column, first_row: Column, row_start: Column, row_rule: Column) -> None:
        self.start = start
        self.size = size
        self.kind = kind
        self.first_row = first_row
        self.row_start = row_start
        self.row_rule = row_rule


class Words:
    """The kinds and rules of a table, encoded as bytes.

    Rule r in FDE type t is rule_bytes[rule_at[2 * r + t] : rule_at[2 * r + t + 1]], which is empty if that type cannot express it.
    Kind k is three bytes from kind_bytes[3 * k] on: info, info2 and rep_size.
    """

    def __init__(self, rule_at: Column, rule_bytes: Bytes, kind_bytes: Bytes) -> None:
        self.rule_at = rule_at
        self.rule_bytes = rule_bytes
        self.kind_bytes = kind_bytes


class Blocks:
    """The block of encoded rows of each function: its FRE type, size and offset, and its owner, the first function that uses it."""

    def __init__(self, fre_type: Column, size: Column, at: Column, owner: Column) -> None:
        self.fre_type = fre_type
        self.size = size
        self.at = at
        self.owner = owner
