"""Pictures of MLflow's interface with the demonstration's runs, for docs/compare.md.

    python docs/screenshots.py [--results results] [--out docs/images]

Starts MLflow on the database, walks through the tour of the guide in headless Chromium and takes a picture at
each station. It fails if the interface does not show our runs, a comparison is empty, or a link leads
nowhere. Nothing is written unless ``--out`` is given. The browser is the one that FLTRAIN_BROWSER names, or
Playwright's own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from mlflow import MlflowClient
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from fltrain.tracking.export import CELLS, TABLES, opened

SIZE = {"width": 1440, "height": 810}
SECONDS = 120
PAPER, TABLE, FIGURE = "flfa (demo)", "flfa/table1", "flfa/figure2"
ABLATED, ABLATION = "fedavg (demo)", "fedavg/table1_2nn"


@contextmanager
def interface(results: Path) -> Iterator[str]:
    """The address of MLflow's interface to the runs of a results folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "fltrain", "ui", "--results", str(results), "--port", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(address, process)
        yield address
    finally:
        os.killpg(process.pid, 15)  # the server and its worker
        process.wait()


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            urlopen(f"{address}/health", timeout=5).close()
            return
        except (URLError, OSError):
            time.sleep(0.2)
    raise SystemExit("error: MLflow's interface does not start")


class Tour:
    """The stations of the guide; each returns when its page shows what the picture is to show."""

    def __init__(self, page: Page, address: str, client: MlflowClient) -> None:
        self.page, self.address, self.client = page, address, client
        self.experiments = {entry.name: entry.experiment_id for entry in client.search_experiments()}
        if missing := {PAPER, TABLES, CELLS} - self.experiments.keys():
            raise SystemExit(f"error: no experiments {sorted(missing)}; `make reproduce` makes them")
        self.experiment = self.experiments[PAPER]

    def open(self, place: str) -> None:
        """Load a page as somebody who comes for the first time: browsers keep changed settings otherwise."""
        self.page.goto(f"{self.address}/health")
        self.page.evaluate("localStorage.clear()")
        self.page.goto(f"{self.address}/#/{place}")

    def runs(self, condition: str, experiment: str) -> list[str]:
        """MLflow's ids of the runs of an experiment that meet a condition; there must be some."""
        ids = [run.info.run_id for run in self.client.search_runs([experiment], condition)]
        if not ids:
            raise SystemExit(f"error: the store holds no run with {condition}")
        return ids

    def view(self, experiment: str, condition: str, column: str, mode: str = "") -> None:
        """Open the list of an experiment, with a filter; it shows a column, unless it shows charts."""
        place = opened(self.experiments[experiment], condition)
        self.open(place.removeprefix("#/") + mode)
        if not mode:
            expect(self.page.get_by_role("columnheader", name=column).first).to_be_visible()
        count = len(self.client.search_runs([self.experiments[experiment]], condition, max_results=100))
        expect(self.page.get_by_text(f"{count} matching run")).to_be_visible()
        expect(self.page.get_by_text("You're viewing a shared view")).to_have_count(0)

    def find(self) -> None:
        """All runs of a paper, grouped by cell, with rounded means."""
        self.view(PAPER, "", "final_accuracy")
        expect(self.page.get_by_text(re.compile(r"^\d\d\.\d\d \(average\)$")).first).to_be_visible()

    def filter(self) -> None:
        """The runs of one table."""
        self.view(PAPER, f"tags.items LIKE '%{TABLE},%'", "plugins")

    def cells(self) -> None:
        """The cells of all tables with a plug-in."""
        self.view(CELLS, "tags.plugins = 'flfa'", "gain")
        expect(self.page.get_by_role("link", name=f" · {TABLE} (").first).to_be_visible()
        expect(self.page.locator(".ag-header-cell", has_text="gain")).to_be_visible()
        expect(self.page.locator(".ag-header-cell", has_text="Duration")).to_be_hidden()
        expect(self.page.locator("button[data-assistant-ui]").first).to_be_hidden()

    def curves(self) -> None:
        """Curves of two methods, means over seeds, as runs are grouped, before numbers of tables."""
        self.view(ABLATED, "", "", "&compareRunsMode=CHART")
        legend = self.page.locator('div:has(> div > svg > path[d$="h24"])').first
        runs = self.client.search_runs([self.experiments[ABLATED]])
        for name in {run.data.tags["cell"] for run in runs}:
            expect(legend.get_by_text(name, exact=True)).to_be_in_viewport()
        self.view(PAPER, f"tags.items LIKE '%{FIGURE},%'", "", "&compareRunsMode=CHART")
        for section in ("Curves", "Numbers of tables"):
            expect(self.page.get_by_text(section, exact=True).first).to_be_attached()
        expect(self.page.locator(".scatterlayer .trace").nth(1)).to_be_visible()
        self.page.mouse.move(0, 0)  # charts under the pointer show buttons

    def ablation(self) -> None:
        """Parallel coordinates over the settings of an ablation."""
        home = self.experiments[ABLATED]
        chosen = quote(json.dumps(self.runs(f"tags.items LIKE '%{ABLATION},%'", home)))
        self.open(f"compare-runs?runs={chosen}&experiments={quote(json.dumps([home]))}")
        titles = self.page.locator(".parcoords .axis-title")
        expect(titles.filter(has_text="participation").first).to_be_visible()
        expect(titles.filter(has_text="shards_per_client")).to_be_visible()
        # MLflow would draw a number for a run without this setting.
        expect(self.page.locator(".parcoords .axis text").get_by_text("none")).to_be_visible()
        expect(titles.filter(has_text="rounds_to_target")).to_be_visible()

    def run(self) -> None:
        """A run, and in its description the way to its table."""
        (first, *_) = self.runs(f"tags.items LIKE '%{TABLE},%' and tags.plugins = 'flfa'", self.experiment)
        self.open(f"experiments/{self.experiment}/runs/{first}")
        link = self.page.get_by_role("link", name=TABLE, exact=True)
        expect(link).to_be_visible()
        link.scroll_into_view_if_needed()

    def table(self) -> None:
        """From the run to the table, whose numbers are open, and to its page."""
        with self.page.expect_popup() as opened:
            self.page.get_by_role("link", name=TABLE, exact=True).click()
        self.page = opened.value
        self.page.get_by_role("link", name=f"{TABLE} (demo)").click()
        expect(self.page.get_by_role("button", name="Collapse description")).to_be_visible()
        with self.page.expect_popup() as opened:
            self.page.get_by_role("link", name="Page", exact=True).click()
        expect(opened.value.locator("#values tbody tr").first).to_be_visible()


STATIONS = (
    Tour.find,
    Tour.filter,
    Tour.cells,
    Tour.curves,
    Tour.ablation,
    Tour.run,
    Tour.table,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument(
        "--out", type=Path, help="folder for the pictures; without it, pages are only checked"
    )
    options = parser.parse_args()
    with interface(options.results) as address, sync_playwright() as playwright:
        # Containers, in which this often runs, have no sandbox to offer.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("FLTRAIN_BROWSER"), args=arguments
        )
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(1000 * SECONDS)
        expect.set_options(timeout=1000 * SECONDS)
        tour = Tour(page, address, MlflowClient(address))
        for number, station in enumerate(STATIONS, 1):
            started = time.monotonic()
            station(tour)
            page = tour.page
            print(f"{number} {station.__name__}: {time.monotonic() - started:.1f} s", flush=True)
            if options.out:
                page.wait_for_timeout(1000)  # animations
                take(page, options.out / f"{number}-{station.__name__}.webp")
        browser.close()


def take(page: Page, path: Path) -> None:
    """Write a picture in few bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    png = path.with_suffix(".png")
    page.screenshot(path=png)
    with Image.open(png) as picture:
        picture.convert("RGB").save(path, quality=80, method=6)
    png.unlink()


if __name__ == "__main__":
    main()
