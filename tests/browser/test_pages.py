"""Pages of hand-made records and of a finished scale, opened from disk in headless Chromium.

These tests need a browser and npm, which downloads the checker axe-core: `.ci/run` runs them, `make test`
does not. Set FLTRAIN_BROWSER to choose the browser (default: Playwright's own), FLTRAIN_PAGES to choose the
folder of the finished scale (default: results/demo), and FLTRAIN_AXE to use your own file `axe.min.js`.
"""

import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

from ..toy import METHODS, Toy

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
FOLDER = Path(os.environ.get("FLTRAIN_PAGES", "results/demo")).resolve()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Containers, in which tests often run, have no sandbox to offer.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("FLTRAIN_BROWSER"), args=arguments
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    provenance = {Toy.run("MOON", "BP", 1): {"commit": "b" * 40, "dirty": True}}
    scale = Toy(tmp_path_factory.mktemp("toy"), provenance=provenance, missing=("<b>bold</b>",)).write()
    other_page = scale.folder / "other" / "index.html"  # pages link to the other paper's claims
    other_page.parent.mkdir()
    other_page.write_text('<h2 id="claims">Claims</h2>')
    return scale


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, a checker of accessibility."""
    if file := os.environ.get("FLTRAIN_AXE"):
        return Path(file).read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("axe")
    subprocess.run(["npm", "pack", "--silent", "axe-core@4.14.1"], cwd=folder, check=True)
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member
        return member.read().decode()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails the test at every error that the browser reports."""
    page = browser.new_page(viewport=DESKTOP)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.extend(_failed(request)))
    page.on("request", lambda request: complaints.append(request.url) if _foreign(request.url) else None)
    yield page
    page.close()
    assert complaints == []


def _failed(request: Request) -> list[str]:
    """Name a file that was not loaded. Leaving a page aborts loading images: no fault."""
    return [f"not loaded: {request.url}"] if request.failure != "net::ERR_ABORTED" else []


def _foreign(url: str) -> bool:
    return urlsplit(url).scheme not in ("file", "data")


def pages_on_disk() -> list[Path]:
    pages = [path for path in sorted(FOLDER.rglob("*.html")) if path.name != "report.html"]
    assert pages, f"{FOLDER} holds no pages; `make reproduce` makes them"
    return pages


def pages_of(toy: Toy) -> list[Path]:
    paper = toy.table.with_name("index.html")
    pages = [toy.folder / "index.html", toy.folder / "runs.html", paper, toy.table]
    assert all(path.exists() for path in pages)
    return pages


def check(page: Page, path: Path, axe: str) -> None:
    """Check a page at desktop and phone width, in light and dark colours."""
    for viewport in (DESKTOP, PHONE):
        page.set_viewport_size(viewport)
        page.goto(path.as_uri())
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= viewport["width"], f"{path.name} is {width} pixels wide"
        if viewport == PHONE:
            cut = "(table) => table.scrollWidth > table.parentElement.clientWidth"
            assert not page.evaluate(f"[...document.querySelectorAll('table')].some({cut})"), path.name
            tiny = "(image) => image.width && image.width < parseInt(image.style.getPropertyValue('--least'))"
            assert not page.evaluate(f"[...document.images].some({tiny})"), "a figure scrolls"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert faults(page, axe) == []
    assert page.locator("h1").count() == 1
    assert page.locator("main").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.evaluate("[...document.images].every((image) => image.alt)")
    identifiers = page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(identifiers) == len(set(identifiers)), "every id is unique"
    page.evaluate("for (const image of document.images) image.loading = 'eager'")
    page.wait_for_function("[...document.images].every((image) => image.complete)")
    assert page.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")
    links = page.evaluate("[...document.links].map((link) => [link.protocol, link.href])")
    for scheme, address in links:
        if address.startswith(("https://arxiv.org/abs/", "https://doi.org/")):
            continue
        assert scheme == "file:", address
        parts = urlsplit(address)
        target = Path(unquote(parts.path))
        assert target.exists(), f"{path}: {address} leads nowhere"
        if parts.fragment and target == path:
            assert unquote(parts.fragment) in identifiers, f"{path}: {address} leads nowhere"


def faults(page: Page, axe: str) -> list[str]:
    """Serious faults by axe-core: contrast of texts, names of controls, regions without keyboard access."""
    page.evaluate(axe)
    report = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{fault['id']}: {node['html'][:200]}"
        for fault in report["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


@pytest.mark.parametrize("index", range(4), ids=["index", "runs", "paper", "table"])
def test_pages_of_hand_made_records(page: Page, toy: Toy, axe: str, index: int) -> None:
    check(page, pages_of(toy)[index], axe)


@pytest.mark.parametrize("path", pages_on_disk(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_pages_on_disk(page: Page, axe: str, path: Path) -> None:
    check(page, path, axe)
    page.evaluate("document.querySelectorAll('a').forEach((link) => link.remove())")
    plain_paths = re.findall(r"docs/[\w/-]+\.md", page.evaluate("document.body.textContent"))
    assert plain_paths == [], "each file of the documentation is a link"


def column(page: Page, number: int) -> list[str]:
    cells = page.locator(f"#values tbody tr > :nth-child({number + 1})")
    return [text.strip() for text in cells.all_inner_texts()]


def test_tables_are_sorted_by_their_headings(page: Page, toy: Toy) -> None:
    page.goto(toy.table.as_uri())
    methods = list(METHODS)
    assert column(page, 0) == methods
    heading = page.locator("#values th[data-column='1']")
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    # 55, 53, 51; two of FedDyn's three diverged and count as chance; without a run last.
    assert column(page, 0) == ["MOON", "FedProx", "FedAvg", "FedDyn", "<b>bold</b>"]
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column(page, 0) == ["FedDyn", "FedAvg", "FedProx", "MOON", "<b>bold</b>"]
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") is None
    assert column(page, 0) == methods
    for number in (0, 1, 2):
        page.locator(f"#values th[data-column='{number}'] button").click()
        assert page.locator("#values [aria-sort]").count() == 1


def test_rows_are_filtered(page: Page, toy: Toy) -> None:
    page.goto((toy.folder / "runs.html").as_uri())
    field = page.get_by_label("Filter runs")
    field.fill("PROX flfa")
    assert page.locator("#runs tbody tr:visible").count() == 3
    assert page.locator("#runs details:visible").count() == 1, "of the tables with one"
    assert page.locator(".tools[data-for=runs] output").inner_text() == "3 of 30"
    field.fill("nothing of the kind")
    assert page.locator("#runs tbody tr:visible").count() == 0
    field.fill("")
    assert page.locator("#runs tbody tr:visible").count() == 30


def test_a_click_on_a_cell_leads_to_its_runs(page: Page, toy: Toy) -> None:
    page.goto(toy.table.as_uri())
    assert page.locator("section.cell:visible").count() == 0
    page.locator("#values tbody tr").nth(1).locator("td a").first.click()
    section = page.locator("section.cell:target")
    assert section.is_visible()
    assert page.locator("section.cell:visible").count() == 1, "only the chosen cell is visible"
    assert section.locator("code").all_inner_texts() == [Toy.run("FedProx", "BP", seed) for seed in (0, 1, 2)]
    section.get_by_role("link", name="summary").first.click()
    assert (
        Path(unquote(urlsplit(page.url).path))
        == toy.results.run(Toy.run("FedProx", "BP", 0)) / "summary.json"
    )


def test_the_page_of_runs_shows_those_of_an_item_and_no_other(page: Page, toy: Toy) -> None:
    """Table 1 does not match table 10."""
    for item, number in (("paper/table10", 3), ("paper/table1", 30)):
        page.goto((toy.folder / "runs.html").as_uri() + f"?filter={quote(f'{chr(34)}{item}{chr(34)}')}")
        assert page.locator("#runs tbody tr:visible").count() == number


def test_pages_work_without_scripts(browser: Browser, toy: Toy) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(toy.table.as_uri())
    assert page.locator("#values tbody tr").count() == 5
    assert not page.locator(".tools").first.is_visible(), "no filter without a script"
    page.locator("#cells > summary").click()
    assert page.locator("section.cell:visible").count() == 10
    context.close()


def test_embedded_pages_have_no_links_to_files(page: Page, toy: Toy) -> None:
    """Snakemake's report embeds a page as a data URL, from which relative links cannot be followed."""
    page.goto("about:blank")
    page.evaluate(
        """(html) => {
          const frame = document.createElement("iframe");
          frame.src = "data:text/html;charset=utf-8," + encodeURIComponent(html);
          frame.width = 1000; frame.height = 700;
          document.body.append(frame);
        }""",
        toy.table.read_text(),
    )
    frame = page.frame_locator("iframe")
    frame.locator("#values tbody tr").nth(0).locator("td a").first.click()
    assert frame.locator("section.cell:target").is_visible()
    assert frame.locator("a[data-file]").count() > 0
    assert frame.locator("a[data-file][href]").count() == 0


def test_a_card_leads_to_the_paper_and_its_table_to_the_seeds(page: Page, toy: Toy) -> None:
    page.goto((toy.folder / "index.html").as_uri())
    page.locator("article h2 a").first.click()
    page.locator("#table1-values tbody tr").nth(1).locator("td a").first.click()
    assert urlsplit(page.url).path.endswith("/paper/table1.html")
    assert page.locator("section.cell:target").is_visible()


def test_printed_pages_show_the_assumptions(page: Page, toy: Toy) -> None:
    page.goto(toy.table.with_name("index.html").as_uri())
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.get_by_text("A-1: Which rate").is_visible()
    assert not page.locator(".tools").first.is_visible()
