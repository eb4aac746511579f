from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import signal
import zlib
from collections import Counter
from functools import cache, partialmethod
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import Phase, settings

os.umask(0o022)  # the user's may be another one: dpkg-deb refuses what others cannot read

# The asserts of helpers, too, are to say what they compared.
pytest.register_assert_rewrite("tests", "corpus")

from tests.support import peers as foreign  # noqa: E402
from tests.support.own_stack import OwnStack  # noqa: E402
from tests.support.time_limit import time_limit  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

# Ends a loop that does not end; a test that is marked `dear` or `full` may take longer on a loaded machine.
SECONDS, LONG_SECONDS = 120, 900
RETRIES = 2  # of a test that is marked `sampled`

# What `make test` needs or fetches itself, in the reasons of skips: gcc, GNU binutils.
FETCHED = re.compile(
    r"no gcc |no (?:\S+/(?:as|ld|ld\.bfd|readelf|objcopy|objdump|strip|ar|nm)|libsframe\S+ in \S+): run tools/get-peers"
)

# What CI may lack: a kernel that lets it load BPF programs or open perf events (tests/support/kernel_events.py).
ALLOWED = re.compile(r"no (?:BPF|perf events): ")

# Before 8.2, click mixes the two outputs of a command unless told otherwise, and `output` has not both.
if "mix_stderr" in signature(CliRunner).parameters:
    setattr(CliRunner, "__init__", partialmethod(CliRunner.__init__, mix_stderr=False))  # noqa: B010 - mypy knows one form only
    setattr(Result, "output", property(lambda result: result.stdout + result.stderr))  # noqa: B010

# Signals that nohup, and shells for what runs in the background, let programs ignore: ours would, too.
for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored is signal.SIGINT else signal.SIG_DFL)
settings.register_profile("sframegen", deadline=None)  # how long an example takes is the machine's business
# For mutants one failing example is enough: it is not made smaller, and not stored, where the next mutant would find it.
settings.register_profile(
    "mutations", deadline=None, database=None, phases=[phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
)
settings.load_profile("sframegen")


@pytest.fixture(scope="session", autouse=True)
def _time_limits() -> None:
    """Long enough for a busy machine. Commands that run as processes of their own keep the usual limits."""
    from sframegen.program import time_limits  # noqa: PLC0415 - earlier it would be the checkout's

    long = 120.0
    time_limits.current = time_limits.TimeLimits(
        sleeping_helper=long, busy_helper=long, all_helpers=long, thread_stop=long, command_start=long, process_end=long, lock=long,
        runtime_code=long, stopped_runtime_code=long, table=long, proof=long, lines=long, all_lines=long,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _new_files_are_as_planned(request: pytest.FixtureRequest) -> Iterator[None]:
    """A refusal because the new file is wrong is a fault of sframegen, also where a test takes it for a verdict on the input."""
    from sframegen.base.errors import SframegenError, VerificationError  # noqa: PLC0415 - earlier it would be the checkout's

    refusals: list[str] = []

    def noted(error: VerificationError, *arguments: Any, **keywords: Any) -> None:
        SframegenError.__init__(error, *arguments, **keywords)
        refusals.append(str(error))

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(VerificationError, "__init__", noted)
        yield
    if request.node.get_closest_marker("verification_fails") is None:
        assert refusals == []


@pytest.fixture(scope="session")
def peers() -> foreign.Peers:
    return foreign.Peers()


@pytest.fixture(scope="session")
def compile_c(peers: foreign.Peers, tmp_path_factory: pytest.TempPathFactory) -> foreign.Compiler:
    return foreign.Compiler(peers, tmp_path_factory.mktemp("compiled"))


@pytest.fixture(autouse=True)
def _compiled_files_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    compiler = request.getfixturevalue("compile_c") if "compile_c" in request.fixturenames else None
    yield
    if compiler:
        compiler.check()


@pytest.fixture(scope="session")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A copy of a program of this machine, the same in the whole session: an update may replace the program meanwhile."""
    folder = tmp_path_factory.mktemp("copied")
    return cache(lambda program: Path(shutil.copy(os.path.realpath(program), folder)))


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: no relative name is there."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def own_stack(compile_c: foreign.Compiler, tmp_path_factory: pytest.TempPathFactory) -> OwnStack:
    return OwnStack(compile_c, tmp_path_factory.mktemp("libraries"))


@pytest.fixture(scope="session")
def go_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What go has compiled of its own packages, for the tests of all workers: each program begins with them."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "go-cache"


@pytest.fixture(scope="session")
def corpus_file() -> Callable[[str], Path]:
    return foreign.corpus_file


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="I/N", help="of the tests that are marked dear or full, one part of N, numbered from 0")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The corpus is large: what asks for it is `full`. What is sampled is tried again, where the plugin for it is installed."""
    for item in items:
        if "corpus_file" in getattr(item, "fixturenames", ()):
            item.add_marker("full")
        if item.get_closest_marker("sampled") and config.pluginmanager.hasplugin("rerunfailures"):
            item.add_marker(pytest.mark.flaky(reruns=RETRIES))
    if config.getoption("part"):
        number, parts = map(int, config.getoption("part").split("/"))
        left_out = {item for item in items if is_long(item) and zlib.crc32(item.nodeid.encode()) % parts != number}
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def is_long(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("dear", "full"))


def pytest_collection_finish() -> None:
    """The tests themselves stay to the end: garbage is not looked for in them."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # else what LIEF made is said to have leaked


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with time_limit(LONG_SECONDS if is_long(item) else SECONDS):
        return (yield)


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """What a test leaves open is collected while its name is known: else a warning would name the test in which that happens."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - after each test
    answer = yield
    if len(os.listdir("/proc/self/fd")) > before:  # noqa: PTH208
        gc.collect()
    return answer


def pytest_sessionfinish() -> None:
    from sframegen.program.helper import helpers  # noqa: PLC0415 - earlier it would be the checkout's

    helpers().close()


def forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With SFRAMEGEN_NO_SKIP=1, a test that could not be tried has failed; with `fetched`, if what it lacks is FETCHED.

    Never if it is ALLOWED."""
    forbidden = os.environ.get("SFRAMEGEN_NO_SKIP")
    if forbidden and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if (forbidden == "1" or FETCHED.search(reason)) and not ALLOWED.search(reason):
            report.outcome = "failed"
            report.longrepr = f"SFRAMEGEN_NO_SKIP={forbidden} forbids this: {reason}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What is not here, and what was tried again."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if reasons:
        terminalreporter.write_line("Skipped: " + "; ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items())))
    for name, count in Counter(report.nodeid for report in terminalreporter.stats.get("rerun", [])).items():
        terminalreporter.write_line(f"Tried again: {name} ({count})")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    forbid_skip(report)
    return report
