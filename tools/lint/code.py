"""Rules on the product's modules: who imports whom, where versions and machines are told apart, names, lengths."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from tools import rooms
from tools.lint.sources import differ, files, found, nodes_of, text_of, tracked, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINES = 450
LONGER = {"cfi/machine.py": 650}  # the cursor and the machine that reads with it: Cython's quick calls do not cross modules
MAX_FUNCTION_LINES = 60
# Reading loops: a call for each byte or row would cost as much as the work.
LONGER_FUNCTIONS = {
    "cfi/machine.py:run_fdes",
    "sframegen/code/decoding/instruction_columns.py:read",
    "sframegen/format/unpack.py:number_all",
}

# Only these tell one SFrame version or one ABI from another; all other code asks their tables.
TELLS_VERSIONS_APART = {"sframegen/format/layouts.py", "sframegen/format/abi.py"}
VERSION_NAMES = {"version", "abi", "abi_arch"}
# What only one machine has lies in these folders, in modules of the same names; no module but the table of ABIs names one.
MACHINE_FOLDERS = ("sframegen/stack/abi", "sframegen/code/isa")
NAMES_ABIS = {"sframegen/format/abi.py"}
MACHINE_NAME = re.compile(r"x86|\bx64\b|amd64|aarch64|arm64|s390", re.IGNORECASE)
ABI_NAME = re.compile(r"\.(EM|AMD64|AARCH64(_BE)?|S390X)$")

OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
# Of objcopy, GNU as, perf, ld, and the dynamic loader.
OPTIONS_OF_OTHERS = {
    *("--decompress-debug-sections", "--gsframe", "--call-graph", "--build-id", "--no-as-needed", "--version-script", "--list"),
    "--perf-basic-prof",
}
NETWORK = re.compile(
    r"^ *(?:import|from) (?:urllib\.request|http|fsspec|distributed|ftplib|smtplib|ssl)\b"
    r"|\bsocket\.socket\((?!fileno)|create_connection\(",
    re.MULTILINE,
)
USES_NETWORK = {  # SECURITY.md names them
    "sframegen/fleet/dask_cluster.py",
    "sframegen/fleet/sources/fetching.py",
}

# One function for each of several things, under one name: what they are given and return is the same.
PROTOCOLS = {
    "sframegen/cli": {"command"},  # of each command, which cli/commands.py calls
    "sframegen/code/isa": {"decode_effects", "decode_point", "find_jump_table", "always_matters", "is_padding"},  # of each machine
    "sframegen/stack/abi": {"ends_call", "starts_thread"},  # as well
}
# What a command does, and the library's function for it; what the programs of two rooms begin with.
COMMANDS = {"add_section", "convert", "main"}
# To be renamed. Take a name off when it is; add none.
AMBIGUOUS = {"decode", "join", "read"}
IN_EACH_ROOM = {"__init__.py", "__main__.py", "columns.py", "machines.py"}
ROOMS_OF_FILES = ("sframegen/cli", "sframegen/code/isa", "sframegen/stack/abi")  # a file for each command, or each machine

FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<!\w)/(?:home|work)/\w|/tmp/(?:peers|dev)\b"),
    "a host of packages": re.compile(r"\b(?:deb|ftp|security|snapshot|archive)\.(?:\w+\.)?(?:debian|ubuntu)\.\w"),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def product() -> list[str]:
    return files(*rooms.PACKAGES)


def imported(name: str) -> list[str]:
    return list(rooms.imported(nodes_of(name)))


def functions(name: str) -> Iterator[Function]:
    return (node for node in nodes_of(name) if isinstance(node, Function))


def documented(node: Function) -> int:
    """Lines of its docstring."""
    first = node.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return (first.end_lineno or 0) - first.lineno + 1 if is_docstring else 0


def imports_run_down() -> Iterator[str]:
    graph = rooms.modules({name: nodes_of(name) for name in product()})
    yield from (f"tools/rooms.py: {text}" for text in rooms.upward(graph))
    if around := rooms.circle(graph):
        yield f"tools/rooms.py: a circle of imports: {' <- '.join(around)}"


def messages_of_the_library_have_no_options() -> Iterator[str]:
    """Callers in Python have parameters: `RefusedError.reason` is what the command line makes an option of."""
    for name in (name for name in product() if not name.startswith("sframegen/cli/")):
        for node, text in names_and_texts(name):
            options = set(OPTION.findall(text)) - OPTIONS_OF_OTHERS if "--" in text else ()
            yield from (f"{name}:{node.lineno}: {option} is of the command line" for option in options)


def only_listed_modules_use_the_network() -> Iterator[str]:
    for name in product():
        if name not in USES_NETWORK:
            yield from found(name, NETWORK, "SECURITY.md does not name this use of the network")
    idle = (name for name in USES_NETWORK if name not in tracked() or not NETWORK.search(text_of(name)))
    yield from (f"{name}: uses no network: tools/lint/code.py lists it" for name in idle)


def versions_and_abis_are_rows_of_tables() -> Iterator[str]:
    """`version in TABLE` is a look-up, and fine."""
    for name in (name for name in product() if not name.startswith("cfi/") and name not in TELLS_VERSIONS_APART):
        yield from (f"{name}:{line}: branches on a version or an ABI" for line in branches_on_version(name))


def branches_on_version(name: str) -> Iterator[int]:
    def is_version(node: ast.expr) -> bool:
        return (node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)) in VERSION_NAMES

    def is_constant(node: ast.expr) -> bool:
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        return isinstance(node, ast.Constant) or name.isupper()

    for node in nodes_of(name):
        if isinstance(node, ast.Match) and is_version(node.subject):
            yield node.lineno
        elif isinstance(node, ast.Compare) and any(map(is_version, operands := [node.left, *node.comparators])):
            equality = any(isinstance(op, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)) for op in node.ops)
            literal = any(isinstance(operand, (ast.Tuple, ast.List, ast.Set)) for operand in operands)
            if literal or (equality and any(map(is_constant, operands))):
                yield node.lineno


def only_the_table_names_an_abi() -> Iterator[str]:
    for name in product():
        named = [one for one in imported(name) if ABI_NAME.search(one)]
        if bool(named) is not (name in NAMES_ABIS):
            yield f"{name}: imports {named or 'no ABI'}; the table of ABIs does, nothing else"


def what_names_a_machine_is_listed_for_ports() -> Iterator[str]:
    _, heading, steps = text_of("docs/architecture.md").partition("\n## Adding a machine\n")
    if not heading:
        yield "docs/architecture.md: no section `Adding a machine`"
    listed = NAMES_ABIS | {"sframegen/elf/records.py", *re.findall(r"`([\w/.]+)`", steps)}
    for name in (name for name in product() if name not in listed and not name.startswith(MACHINE_FOLDERS)):
        places = ((node.lineno, text) for node, text in names_and_texts(name) if MACHINE_NAME.search(text))
        yield from (f"{name}:{line}: {text!r} names a machine; docs/architecture.md lacks the file" for line, text in places)


def names_and_texts(name: str) -> Iterator[tuple[ast.expr | ast.alias, str]]:
    """Except docstrings."""
    docstrings = {id(node.value) for node in nodes_of(name) if isinstance(node, ast.Expr)}
    for node in nodes_of(name):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield node, text
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.alias(name=text):
                yield node, text


def each_machine_has_its_modules() -> Iterator[str]:
    from sframegen.elf.records import MACHINE_NAMES  # noqa: PLC0415 - the checkout's, as the next
    from sframegen.format.abi import ABIS  # noqa: PLC0415

    yield from differ("sframegen/elf/records.py", "machines", sorted(MACHINE_NAMES), sorted({abi.machine for abi in ABIS}))
    wanted = (f"{folder}/{name}.py" for folder in MACHINE_FOLDERS for name in ("machines", *MACHINE_NAMES.values()))
    yield from (f"{name}: missing" for name in wanted if name not in tracked())


def files_and_functions_are_short() -> Iterator[str]:
    for name in product():
        if (lines := text_of(name).count("\n")) > LONGER.get(name, MAX_LINES):
            yield f"{name}: {lines} lines, at most {LONGER.get(name, MAX_LINES)}"
        for node in functions(name):
            lines = (node.end_lineno or 0) - node.lineno + 1 - documented(node)
            if lines > MAX_FUNCTION_LINES and f"{name}:{node.name}" not in LONGER_FUNCTIONS:
                yield f"{name}:{node.lineno}: {node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"


def a_name_stands_for_one_thing() -> Iterator[str]:
    places: dict[str, set[str]] = defaultdict(set)
    for name in product():
        room, _, file = name.rpartition("/")
        if room not in ROOMS_OF_FILES and file not in IN_EACH_ROOM:
            places[file].add(name)
        for node in tree_of(name).body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(room if node.name in PROTOCOLS.get(room, ()) else name)
    for what, several in sorted(places.items()):
        if len(several) > 1 and what not in COMMANDS | AMBIGUOUS:
            yield f"{min(several)}: {what} is also {', '.join(sorted(several)[1:])}"


def no_file_names_one_machine() -> Iterator[str]:
    for name in tracked():
        for why, pattern in FORBIDDEN.items():
            yield from found(name, pattern, why)


def nothing_that_decides_in_the_conformance_suite_asks_sframegen() -> Iterator[str]:
    for name in files("conformance"):
        asked = [one for one in imported(name) if one.partition(".")[0] in (*rooms.PACKAGES, "corpus", "tests")]
        if asked and name != "conformance/known_readers.py":
            yield f"{name}: imports {asked}: the verdicts are to be the specification's"


RULES = (
    imports_run_down,
    messages_of_the_library_have_no_options,
    only_listed_modules_use_the_network,
    versions_and_abis_are_rows_of_tables,
    only_the_table_names_an_abi,
    what_names_a_machine_is_listed_for_ports,
    each_machine_has_its_modules,
    files_and_functions_are_short,
    a_name_stands_for_one_thing,
    no_file_names_one_machine,
    nothing_that_decides_in_the_conformance_suite_asks_sframegen,
)
