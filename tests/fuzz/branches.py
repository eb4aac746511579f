"""Which branches of the interpreted modules an input takes: each sets a flag of its own, by a statement that is put into it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

PACKAGES = ("cfi", "linker", "sframegen")
FLAGS = "__branches__"


class Flags(MetaPathFinder):
    """Modules of PACKAGES that are imported from now on set `taken[number]`; compiled ones cannot."""

    def __init__(self) -> None:
        self.taken = bytearray()
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname.partition(".")[0] in PACKAGES else None
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        spec.loader = _Loader(fullname, spec.loader.path, self)
        return spec

    def new(self) -> ast.expr:
        """`__branches__[number] = 1` of a new branch, as an expression that is None."""
        self.taken.append(0)
        return ast.parse(f"{FLAGS}.__setitem__({len(self.taken) - 1}, 1)", mode="eval").body


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, flags: Flags) -> None:
        super().__init__(fullname, path)
        self.flags = flags

    def get_code(self, fullname: str) -> CodeType:
        """Of the source, never of a cache."""
        path = self.get_filename(fullname)
        tree = _Marker(self.flags).visit(ast.parse(self.get_data(path)))
        code: CodeType = compile(ast.fix_missing_locations(tree), path, "exec")
        return code

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, FLAGS, self.flags.taken)
        super().exec_module(module)


class _Marker(ast.NodeTransformer):
    def __init__(self, flags: Flags) -> None:
        self.flags = flags

    def _marked(self, node: ast.AST, *bodies: str) -> ast.AST:
        self.generic_visit(node)
        for name in bodies:
            body: list[ast.stmt] = getattr(node, name)
            body.insert(int(_is_docstring(body)), ast.Expr(self.flags.new()))
        return node

    def _with_body(self, node: ast.AST) -> ast.AST:
        return self._marked(node, "body")

    visit_FunctionDef = visit_For = visit_While = visit_ExceptHandler = visit_match_case = _with_body  # noqa: N815 - ast's

    def visit_If(self, node: ast.If) -> ast.AST:
        return self._marked(node, "body", "orelse")

    def _reached(self, value: ast.expr) -> ast.expr:
        """The same value, which sets a flag before it is computed."""
        return ast.BoolOp(ast.Or(), [self.flags.new(), value])

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        node.body, node.orelse = self._reached(node.body), self._reached(node.orelse)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        node.values[1:] = map(self._reached, node.values[1:])
        return node


def _is_docstring(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
