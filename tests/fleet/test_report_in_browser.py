"""The page of a report, as a person uses it: in Chromium."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sframegen.fleet.result_rows import Outcome
from tests.fleet.browser import Browser, Page, browser
from tests.fleet.stored_run import report_of, write_run
from tests.fleet.test_report import HOSTILE, RUN, file, package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.full]

ROWS = "[...document.querySelectorAll('#file-table tbody tr')].map((row) => row.cells[{cell}].innerText.split('\\n')[0])"
FILES = 130
NARROW = 500  # where the tables of this run fit


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as one:
        yield one
    assert one.socket.closed


@pytest.fixture(scope="module")
def page(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A page with RUN, and many files of package 3."""
    packages, files = RUN
    more = [
        file(3, f"m{n:03}.so", code_bytes=1000 + n, covered_bytes=1000 + n - n % 3, left_out={"x": n % 3}) for n in range(FILES)
    ]
    out = tmp_path_factory.mktemp("run")
    write_run(out, [*packages, package(3)], [*files, *more])
    return chromium.open(report_of(out))


def shown(page: Page, cell: int = 0) -> list[str]:
    found: list[str] = page.run(ROWS.format(cell=cell))
    return found


def search(page: Page, text: str) -> str:
    """Return what stands beside the field."""
    page.run(f"""(() => {{
        const input = document.querySelector('#file-table input');
        input.value = {text!r};
        input.dispatchEvent(new Event('input'));
    }})()""")
    status: str = page.run("document.querySelector('#file-table .tools span').innerText")
    return status


def test_the_page_has_plots_and_nothing_goes_wrong(page: Page) -> None:
    assert (
        page.run("document.querySelectorAll('.chart canvas').length") == page.run("document.querySelectorAll('.chart').length") >= 8
    )
    assert page.run("[...document.querySelectorAll('.chart canvas')].every((one) => one.width > 200 && one.height > 20)")
    assert page.run("document.title") == "SFrame in 4 packages"
    assert page.faults == []


def test_search_finds_words_in_any_order(page: Page) -> None:
    assert search(page, "") == f"{FILES + 6}"
    assert search(page, "LIB3 m01") == f"10 of {FILES + 6}"
    assert set(shown(page)) == {f"usr/lib/m01{n}.so" for n in range(10)}
    assert search(page, "32-bit") == f"1 of {FILES + 6}"
    assert shown(page) == ["usr/lib/old.so"]
    assert search(page, "no such file") == f"0 of {FILES + 6}"
    assert shown(page) == []
    search(page, "")


def test_a_click_on_a_title_sorts_and_another_turns_it_round(page: Page) -> None:
    def click(place: int) -> str:
        order: str = page.run(f"""(() => {{
            const head = document.querySelector('#file-table thead tr').cells[{place}];
            head.firstChild.click();
            return head.getAttribute('aria-sort');
        }})()""")
        return order

    titles = page.run("[...document.querySelector('#file-table thead tr').cells].map((cell) => cell.innerText)")
    code, covered = titles.index("code with CFI"), titles.index("covered")
    assert shown(page)[:2] == ["usr/lib/c.so", "usr/lib/a.so"]
    assert click(code) == "ascending"
    assert shown(page, code)[:2] == ["", "1 kB"]
    assert click(covered) == "descending"
    assert set(shown(page, covered)[:40]) == {"100 %"}
    assert click(covered) == "ascending"
    assert shown(page, covered)[0] == "99.800 %"
    assert click(0) == "ascending"
    assert shown(page)[0] == "usr/lib/a.so"
    assert click(0) == "descending"
    assert shown(page)[0] == "usr/lib/old.so"


def test_pages_of_the_table_have_every_row_once(page: Page) -> None:
    search(page, "")
    rows = shown(page)
    while page.run("""(() => {
        const next = document.querySelectorAll('#file-table .pages button')[1];
        if (next.disabled) return false;
        next.click();
        return true;
    })()"""):
        rows += shown(page)
    assert len(rows) == len(set(rows)) == FILES + 6


def test_links_open_details_and_the_address_has_them(page: Page) -> None:
    def follow(link: str) -> tuple[str, str]:
        title, body = page.run(f"""new Promise((done) => {{
            const texts = () => ['details-title', 'details-body'].map((id) => document.getElementById(id).innerText);
            addEventListener('hashchange', () => done(texts()), {{ once: true }});
            document.querySelector({link!r}).click();
        }})""")
        return title, body

    search(page, "b.so")
    title, body = follow("#file-table tbody a")
    assert title == "usr/lib/b.so"
    assert "99.900 %: 9,990 of 10,000 bytes" in body
    assert "a CFA by an expression\n10 bytes" in body
    assert page.run("location.hash") == "#f/1"
    title, body = follow("#details-body dd a")
    assert title == "lib0_1.0_amd64.deb"
    assert "1,030 bytes, +3.00 %" in body
    is_open, address = page.run("""new Promise((done) => {
        const details = document.getElementById('details');
        details.addEventListener('close', () => done([details.open, location.hash]), { once: true });
        document.querySelector('#details form button').click();
    })""")
    assert (is_open, address) == (False, "")
    assert page.faults == []


@pytest.mark.parametrize("width", [320, 500, 641, 800, 1280])
def test_nothing_is_cut(page: Page, width: int) -> None:
    """The page is not wider than the window, and no text than its cell; a table that is wider than its box scrolls there."""
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.browser.call("Emulation.setDeviceMetricsOverride", page.session, **metrics)
    wide = "[...document.querySelectorAll({!r})].filter((one) => one.scrollWidth > one.clientWidth)"
    try:
        assert page.run("innerWidth") == width
        assert page.run("document.documentElement.scrollWidth") <= width
        for whole in ("nav div, .tabs, .tools, .pages", "#package-table td, #file-table td"):
            assert page.run(f"{wide.format(whole)}.map((one) => one.innerText)") == []
        tables = page.run(f"{wide.format('.box')}.map((one) => getComputedStyle(one).overflowX)")
        assert set(tables) <= (set() if width == NARROW else {"auto"})
    finally:
        page.browser.call("Emulation.clearDeviceMetricsOverride", page.session)


def test_hostile_names_run_nothing(chromium: Browser, tmp_path: Path) -> None:
    names = [*HOSTILE, "javascript:alert(1)", "{{constructor}}", "datum.x"]
    packages, files = [], []
    for n, name in enumerate(names):
        packages.append(package(n, package=name, kind=name, reason=name, outcome=Outcome.REFUSED, warnings=[name]))
        texts = {"package": name, "language": name, "producer": name, "machine": name, "warnings": [name]}
        files.append(file(n, name, **texts, left_out={name: 5}, no_cfi={name: 7}))
    write_run(tmp_path, packages, files)
    page = chromium.open(report_of(tmp_path), "#f/0")
    assert page.run("document.getElementById('details-title').innerText").endswith(HOSTILE[0])
    elements = page.run("[...new Set([...document.body.querySelectorAll('*')].map((one) => one.localName))]")
    assert set(elements) & {"img", "iframe", "object", "embed", "link"} == set()
    assert page.run("[...document.querySelectorAll('a')].every((one) => one.getAttribute('href').startsWith('#'))")
    assert page.run("document.querySelectorAll('.chart canvas').length") >= 8
    assert page.faults == []
