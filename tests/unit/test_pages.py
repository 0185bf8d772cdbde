"""Pages of hand-made records: contents, links, and no external resources."""

import json
import math
import re
import shutil
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import jsonschema
import pandas as pd
import pytest

from fltrain.experiments.claims import Claim
from fltrain.experiments.layout import ItemJob, Measured, Table
from fltrain.reporting import overview, paper, summary, version
from fltrain.reporting.figures.forest import AXIS, forest
from fltrain.reporting.pages import TEMPLATES, cited, in_lines
from fltrain.reporting.tables.html import facts
from fltrain.reporting.tables.render import GENERAL, Grid, GridEntry, Notes
from fltrain.reporting.tables.table_cell import CORRECTED, TableCell, read_csv, to_csv
from fltrain.reporting.version import outdated_pages, reporting_version

from ..toy import ABOUT, DOUBT, METHODS, PLUGINS, SEEDS, SUMMARY, Toy

ROOT = Path(__file__).parents[2]
PAGES = ("index.html", "runs.html", "paper/index.html", "paper/table1.html")


class Page(HTMLParser):
    """A page parsed strictly: every element closed, in order."""

    VOID = {"meta", "br", "hr", "img", "link", "input"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.open: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == [], "elements that are not closed"
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if "href" in values:
            (self.links if tag == "a" else self.loaded).append(values["href"] or "")
        self.loaded += [values[name] or "" for name in ("src", "srcset", "action", "data") if name in values]
        self.ids += [values["id"] or ""] if "id" in values else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def of(self, tag: str) -> list[str]:
        return [text for inside, text in self.texts if inside == tag]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(tmp_path_factory.mktemp("toy")).write()


def read(toy: Toy, name: str) -> Page:
    return Page((toy.folder / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PAGES)
def test_texts_are_escaped_and_nothing_is_loaded_from_elsewhere(toy: Toy, name: str) -> None:
    page = read(toy, name)
    assert page.of("b") == [] and len(page.of("script")) == 1
    assert all(address.startswith(("data:", "paper/", "figure1.")) for address in page.loaded)


def test_a_table_has_title_assumptions_and_verdicts(toy: Toy) -> None:
    page = read(toy, "paper/table1.html")
    assert page.of("h1") == ["Accuracy & gain"]
    assert "A-1: Which rate: 0.1 (alternatives: 0.01)." in read(toy, "paper/index.html").of("li")
    assert any("over 3 seeds (0 to 2)." in text for text in page.of("p"))
    assert "not reproduced (worse)" in page.of("span") and "not comparable" not in page.text
    assert "not reproduced" not in page.of("span"), "without its side"


def test_at_a_reduced_scale_there_is_no_verdict(tmp_path: Path) -> None:
    page = read(Toy(tmp_path, reduced=True).write(), "paper/table1.html")
    assert any("Do not compare these values" in text for text in page.of("p"))
    assert not any("reproduced" in text or "inconclusive" in text for text in page.of("span"))


def test_doubts_and_notes_are_linked_from_their_values(toy: Toy) -> None:
    page = read(toy, "paper/table1.html")
    assert f"Doubtful as published: {DOUBT}." in page.of("li")
    assert page.links.count("#note-1") == 1 and "read off a plot" in page.of("li")[0]
    assert page.links.count("#note-2") == 2, "both values of FedProx"
    assert "All published values: mean of 3 seeds." in page.of("p"), "a note on every value needs no mark"


def sections(page: Page) -> dict[str, str]:
    """The text of the section of each cell, by its anchor."""
    parts = re.split(r'<section class="cell" id="(cell-\w+)"', page.text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_cell_leads_to_its_runs_and_their_files(toy: Toy) -> None:
    page = read(toy, "paper/table1.html")
    cells = [(method, plugin) for method in METHODS for plugin in PLUGINS]
    anchors = [link[1:] for link in page.links if link.startswith("#cell-")]
    assert len(anchors) == len(cells) == len(set(anchors))
    files = ("spec.json", "metrics.jsonl", "summary.json", "costs.json", "provenance.json", "train.log")
    for (method, plugin), anchor in zip(cells, anchors, strict=True):
        runs = [Toy.run(method, plugin, seed) for seed in SEEDS]
        links = re.findall(r'data-file href="([^"]+)"', sections(page)[anchor])
        expected: list[str] = []
        for run in runs:
            expected += [f'../runs.html?filter="{run}"', *(f"../../runs/{run}/{file}" for file in files)]
        assert list(map(unquote, links)) == expected


def test_a_cell_shows_values_per_seed_interval_verdict_and_runs(toy: Toy) -> None:
    page = read(toy, "paper/table1.html")
    text = sections(page)[TableCell(row="FedAvg", column="+ FLFA").anchor]
    assert "FedAvg / +\u00a0FLFA" in text and "<dt>published</dt><dd>70.00</dd>" in text
    assert "<dd>not reproduced (worse)</dd>" in text and re.search(r"<dd>51\.00 \[", text)
    for value in ("50.00", "51.00", "52.00"):
        assert f">{value}</td>" in text
    row = page.text[page.text.index(Toy.run("FedDyn", "BP", 1)) :].partition("</tr>")[0]
    texts = re.findall(r'<td class="text"[^>]*>([^<]*)', row)
    assert texts == ["diverged in round 7", ""]
    assert f"attributes.run_name = '{Toy.run('FedAvg', 'BP', 0)}'" in page.of("kbd")


COMPARED: dict[str, Any] = {
    **{"verdict": "inconclusive", "mean": 60.5, "published": 60.0, "difference": 0.5, "margin": 1.0},
    **{"n": 3, "seeds": 3, "difference_low": -0.2, "difference_high": 1.2, "seeds_needed": 7},
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"difference": "+0.50 [-0.20, +1.20]", "margin": "±1", "seeds that would decide": "7"}),
        (
            {"seeds_needed": math.inf},
            {"seeds that would decide": "none, the published value is too uncertain"},
        ),
        ({"exploratory": True}, {"verdict": "inconclusive, exploratory"}),
        ({"reason": "one seed"}, {"verdict": "inconclusive (one seed)"}),
        (
            {"low": 59.0, "high": 62.0, "spread": 0.684, "spread_cells": 6},
            {
                "spread behind the interval": "0.68, estimated from 6 similar cells, this one included "
                "(docs/protocol.md)"
            },
        ),
        ({"gain_margin": 0.5, "gain_p": 0.0114}, {"one-sided p, not corrected": "0.0114"}),
    ],
)
def test_facts_about_a_cell(changes: dict[str, Any], expected: dict[str, str]) -> None:
    entries = facts(TableCell(measure="final_accuracy", **{**COMPARED, **changes}), False)
    assert {name: entries[name] for name in expected} == expected


def test_a_forest_plot_has_the_differences_in_margins() -> None:
    titles = {"a": "Table of <a>", "b": "B"}
    cell = TableCell(
        **{"item": "a", "row": "one", "margin": 2.0, "verdict": "not reproduced"},
        **{"difference": 1.0, "difference_low": 0.0, "difference_high": 99.0},
    )
    without = TableCell(item="b", row="no interval", margin=2.0, difference=1.0)
    plot = forest([cell, without], titles)
    # The axis reaches from -2 to 6 margins; the point lies at half a margin, the interval is cut off.
    (row,) = plot["rows"][""]
    assert (row["low"], row["middle"], row["high"]) == (25, 31.25, 100)
    assert (row["below"], row["above"], row["place"], row["tone"]) == (False, True, "one", "bad")
    assert plot["ticks"] == {"-2": 0, "-1": 12.5, "0": 25, "1": 37.5, "6": 100}
    assert plot["notes"] == [AXIS, "arrows: beyond the axis"]
    far = cell.replace(difference=90.0, difference_low=80.0)
    ((beyond,),) = forest([far], titles)["rows"].values()
    assert beyond["middle"] is None and beyond["above"], "no dot at a false place"
    panels = [cell.replace(panel=panel, column="+ x") for panel in ("p", "p", "q")]
    for cells, label in (
        (panels[:2], "one + x"),
        (panels, "p / one + x"),
        ([cell.replace(row="", panel="p")], "p"),
    ):
        assert next(iter(forest(cells, titles)["rows"].values()))[0]["place"] == label
    several = [cell, cell.replace(row="two"), cell.replace(item="b", verdict="reproduced")]
    rows = forest(several, titles)["rows"]
    assert {name: [row["tone"] for row in part] for name, part in rows.items()} == {
        "Table of <a>": ["bad", "bad"],
        "B": ["good"],
    }
    counted = forest([cell, cell.replace(difference_low=None, reason="one seed")], titles)
    assert counted["notes"][-1] == "1 cell without an interval: not shown"
    missed = without.replace(verdict="inconclusive", reason="target missed", difference=float("inf"))
    mixed = forest([cell, missed], titles)
    assert [row["lost"] for part in mixed["rows"].values() for row in part] == ["", "target missed"]
    assert mixed["notes"] == plot["notes"] and forest([missed], titles) == {}
    assert forest([without], titles) == {} == forest([cell] * 41, titles)


def test_a_forest_plot_of_gains_is_in_points() -> None:
    cell = TableCell(item="a", row="one", label="accuracy, %", gain=1.0, gain_low=0.5, gain_high=1.5)
    plot = forest([cell, cell.replace(label="time")], {"a": "A"}, "gain")
    assert plot["ticks"] == {"0": 0, "0.5": 25, "1": 50, "1.5": 75, "2": 100} and plot["margin"] == []
    assert plot["notes"] == ["gain, in percentage points", "colour: the interval excludes zero"]
    assert [(row["middle"], row["tone"]) for row in plot["rows"]["A"]] == [(50, "good")]
    below = cell.replace(gain=-1.0, gain_low=-1.5, gain_high=-0.5)
    across = cell.replace(gain_low=-0.5)
    judged = cell.replace(gain_verdict="inconclusive")
    rows = forest([below, across, judged], {"a": "A"}, "gain")["rows"]["A"]
    assert [row["tone"] for row in rows] == ["bad", "", ""], "a verdict has its own colour"
    none = forest([cell.replace(gain=0.0, gain_low=0.0, gain_high=0.0)], {"a": "A"}, "gain")
    assert none["ticks"] == {"0": 0, "0.5": 50, "1": 100}


def test_most_gains_of_a_forest_plot_fit_its_axis() -> None:
    near = TableCell(item="a", row="one", label="accuracy, %", gain=-0.2, gain_low=-0.4, gain_high=0.1)
    wide = near.replace(gain=-28.0, gain_low=-112.0, gain_high=56.0)
    plot = forest([near, near, near, wide], {"a": "A"}, "gain")
    assert list(plot["ticks"]) == ["-2", "-1", "0", "1", "2"] and "arrows: beyond the axis" in plot["notes"]
    assert [row["below"] for row in plot["rows"]["A"]] == [False, False, False, True]
    far = near.replace(gain=14.0, gain_low=9.0, gain_high=19.2)
    plot = forest([far, far, near], {"a": "A"}, "gain")
    assert list(plot["ticks"]) == ["0", "5", "10", "15", "20"], "large gains that are usual here fit, too"
    assert "arrows: beyond the axis" not in plot["notes"]


@pytest.mark.parametrize("of", ["gain", "difference"])
def test_a_forest_plot_has_words_if_all_runs_diverged(of: Literal["gain", "difference"]) -> None:
    numbers = {
        name: {f"{name}_low": 79.0, f"{name}_high": 81.0, name: 80.0} for name in ("gain", "difference")
    }
    cell = TableCell(item="a", row="one", label="accuracy, %", margin=1.0, gains=(80.0,), **numbers[of])
    lost = cell.replace(row="two", seeds=3, diverged=3, verdict="not reproduced")
    base = cell.replace(row="three", base_diverged=1)
    words = {"gain": ["", "diverged", "base diverged"], "difference": ["", "diverged", ""]}[of]
    (rows,) = forest([cell, lost, base], {"a": "A"}, of)["rows"].values()
    assert [row["lost"] for row in rows] == words
    assert [row["above"] for row in rows] == [of == "difference" and not word for word in words]


def test_a_forest_plot_on_a_page_has_bars_points_and_arrows(toy: Toy) -> None:
    row = {"place": "<one>", "lost": "", "tone": "bad", "low": 50, "middle": 75, "high": 100}
    rows = [
        {**row, "below": False, "above": True},
        {**row, "below": False, "above": False, "lost": "diverged"},
    ]
    plot = {
        "rows": {"A\nminus B": rows},
        "ticks": {"-6": 0, "-1": 42, "0": 50, "1": 58, "6": 100},
        "margin": [42, 58],
        "notes": ["x"],
    }
    file = toy.folder / "paper" / "summary.json"
    before = file.read_text()
    file.write_text(json.dumps({**SUMMARY, "picture": "", "forest": plot}))
    try:
        page = front(toy)
    finally:
        file.write_text(before)
        front(toy)
    assert page.of("strong") == ["A\nminus B"]
    assert "<one>" in page.of("span") and "diverged" in page.of("small")
    assert re.findall(r'class="bar([^"]*)" style="left:50%;right:0%"', page.text) == [" above"]
    assert page.text.count('class="dot" style="left:75%"') == 1
    assert page.text.count('class="margin" style="left:42%;right:42%"') == 3, "two rows and the legend"


def test_the_file_of_all_cells_fits_its_schema(toy: Toy) -> None:
    """Empty fields are left out; texts stay texts if they look like numbers."""
    schema = json.loads((ROOT / "config" / "schemas" / "verdicts.json").read_text())
    texts = {name: str for name, entry in schema["properties"].items() if entry.get("type") == "string"}
    frame = pd.read_csv(toy.folder / "verdicts.csv", dtype=texts)
    assert list(frame) == list(schema["properties"])
    rows = [{key: value for key, value in row.items() if pd.notna(value)} for row in frame.to_dict("records")]
    assert len(rows) == len(METHODS) * len(PLUGINS) and any("difference_low" in row for row in rows)
    for row in rows:
        jsonschema.validate(row, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**rows[0], "verdict": "fine"}, schema)


def test_pages_of_another_version_are_named(toy: Toy, tmp_path: Path) -> None:
    assert outdated_pages(toy.folder) == []
    page = tmp_path / "paper" / "table1.html"
    page.parent.mkdir()
    page.write_text((toy.folder / "paper/table1.html").read_text().replace(reporting_version(), "1-abc"))
    older = tmp_path / "paper" / "table2.html"
    older.write_text("<html>made before pages had a mark</html>")
    (tmp_path / "report.html").write_text("<html>by Snakemake</html>")
    assert outdated_pages(tmp_path) == ["paper/table1.html", "paper/table2.html"]


@pytest.mark.parametrize(
    "file",
    [
        *("experiments/published.py", "experiments/items.py", "runs/where.py", "core/errors.py"),
        *("analysis/class_preference.py", "reporting/templates/style.css"),
    ],
)
def test_code_that_decides_pages_changes_their_version(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(version._PACKAGE, tmp_path / "fltrain")
    monkeypatch.setattr(version, "_PACKAGE", copy)
    before = version.reporting_version.__wrapped__()
    (copy / "engine" / "simulation.py").write_text("# It trains.")
    (copy / "reporting" / ".ipynb_checkpoints").mkdir()
    for backup in ("reporting/.ipynb_checkpoints/frame-checkpoint.py", "core/errors.py~"):
        (copy / backup).write_text("# An editor writes it.")
    (copy / "reporting" / "templates" / ".page.html.swp").touch()
    assert version.reporting_version.__wrapped__() == before
    with (copy / file).open("a") as code:
        code.write("# changed\n")
    assert version.reporting_version.__wrapped__() != before


def test_every_layer_below_the_pages_decides_them_or_trains() -> None:
    """A new layer of the package needs a decision."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = next(rule["layers"] for rule in config["tool"]["importlinter"]["contracts"] if "layers" in rule)
    below = layers[layers.index("reporting") :]
    assert {*below} - {*version._LAYERS} == {"engine", "methods", "metrics", "models", "data", "runtime"}


def test_missing_files_are_not_linked(tmp_path: Path) -> None:
    """An archive of records has no logs; a run that was never trained has no record."""
    toy = Toy(tmp_path, missing=("MOON",)).write()
    for log in (toy.results.root / "runs").glob("*/train.log"):
        log.unlink()
    toy.write_pages()
    page = read(toy, "paper/table1.html")
    assert not any("train.log" in link for link in page.links)
    assert not any("runs/digits-moon" in link for link in page.links)
    row = page.text[page.text.index(f"<code>{Toy.run('MOON', 'BP', 0)}") :].partition("</tr>")[0]
    assert re.findall(r'<td class="text"[^>]*>([^<]*)', row) == ["not run", ""]
    assert "24 of 30 runs are done" in text_of(read(toy, "index.html"))


MIXED: dict[str, tuple[dict[str, Any], str]] = {
    "another host": ({"host": "elsewhere"}, ""),
    "another commit": ({"commit": "b" * 40}, "Different versions of the code trained these runs"),
    "another torch": ({"packages": {"torch": "2.13.0"}}, "These runs mix PyTorch versions (2.12.1: 29"),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_code_or_machines_are_reported_below_the_results(name: str, tmp_path: Path) -> None:
    changes, remark = MIXED[name]
    toy = Toy(tmp_path, provenance={Toy.run("FedProx", "BP", 1): changes}).write()
    for file in ("index.html", "runs.html", "paper/table1.html"):
        text = read(toy, file).text
        folded = re.findall(r"<summary>These runs differ in processor.*?</details>", text, re.DOTALL)
        assert [text.count(remark), remark in "".join(folded)] == [1, True] if remark else not folded, file
        assert 'role="note"' not in text and "".join(folded) in text.rpartition("</table>")[2], file


def test_damaged_records_are_reported_at_the_top(tmp_path: Path) -> None:
    toy = Toy(tmp_path).write()
    (toy.results.run(Toy.run("FedProx", "BP", 1)) / "metrics.jsonl").write_text("")
    toy.write_pages()
    for file in ("index.html", "runs.html", "paper/table1.html"):
        above = read(toy, file).text.partition('<table class="sortable')[0]
        assert above.count("Damaged and left out: ") == above.count('role="note"') == 1, file


def text_of(page: Page) -> str:
    return re.sub(r"\s+", " ", " ".join(text for _, text in page.texts))


def front(toy: Toy, **changes: Any) -> Page:
    """The front page of a listing with changes."""
    listing = {**toy.listing, **changes}
    overview.write(listing, toy.results, toy.folder / "index.html", toy.folder / "runs.html")
    return read(toy, "index.html")


def test_verdicts_of_each_table_are_counted_in_a_line(tmp_path: Path) -> None:
    cell = TableCell(paper="paper", item="a", **COMPARED)
    intended = cell.replace(verdict="not reproduced", falsified=True)
    cells = [
        cell,
        cell,
        intended,
        cell.replace(item="b", verdict="reproduced"),
        cell.replace(item="c", verdict=None),
    ]
    (tmp_path / overview.VERDICT_FILE).write_text(to_csv(cells))
    assert overview.verdict_lines(tmp_path) == [
        "paper/a: 2 inconclusive, 1 not reproduced (as intended)",
        "paper/b: 1 reproduced",
    ]


def test_the_front_page_shows_what_was_found_before_the_bookkeeping(toy: Toy) -> None:
    page = read(toy, "index.html")
    text = text_of(page)
    assert page.of("h2") == ["Another paper", "Number of verdicts", "Runs"], (
        "the title of the other card is a link"
    )
    first = "protocol A paper on <toys> It is <so>. published values: "
    assert first in text and "claims: 1 supported 1 contradicted the paper's on toy data. Each card" in text
    assert text.count("It is <so>.") == 1, "the card does not repeat it"
    assert "paper/index.html" in page.links and "A paper on <toys>" in page.of("a")
    assert "4 published values under the papers' own protocol" in page.of("th")
    assert "judged confirmatory exploratory 4 published values" in text
    assert (
        "claims 1 supported 1 contradicted supported Accuracy changes (sec. 5) "
        "x minus y, <each> case +1.25 points [+0.50, +2.00] "
        "weakest of 2 cases , “a” +1 needed above 0 " in text
    )
    assert "differences among our own runs 5 equivalent 6 inconclusive" in text
    assert "A paper on <toys> Claims and intervals published values" in text
    # Each of the 30 runs took 100 seconds.
    assert "30 of 30 runs are done, 4 of them diverged; they took 50 min" in text
    assert text.index("Small <toys>.") < text.index("judged confirmatory") < text.index("30 of 30 runs")


@pytest.mark.parametrize(
    ("title", "short"),
    [
        ("Averages (FedAvg)", "FedAvg"),
        ("FedAvg: averages of clients", "FedAvg"),
        ("Two (2) parts (of it) all", "Two (2) parts (of it) all"),
    ],
)
def test_the_front_page_has_a_line_for_each_paper(toy: Toy, title: str, short: str) -> None:
    """Without a declared conclusion, it has the first claim, or the result if there is no claim."""
    path = toy.folder / "paper" / "summary.json"
    before = path.read_text(encoding="utf-8")
    first, other = toy.listing["papers"]
    papers = [{**first, "title": title}, other]
    try:
        for kind, finding, line, shown_verdict in (
            ("examples", ("supported", "A grows", ["x: +1"]), "Paper's claim: A grows.", "1 supported"),
            ("examples", ("inconclusive†", "A", ["x: +1"]), "Paper's claim: A.", "1 inconclusive†"),
            ("results", ("better", "A (B)", ["x: +1"]), "A (B); x: +1", "1 better"),
            ("results", ("", "", ["All are right."]), "All are right.", ""),
        ):
            path.write_text(
                json.dumps({**SUMMARY, "conclusions": {}, "examples": [], kind: [finding]}), encoding="utf-8"
            )
            page = front(toy, papers=papers)
            words = " ".join(filter(None, [line, shown_verdict]))
            assert f"protocol {short} {words} the paper's on toy data." in text_of(page)
            listing = {**toy.listing, "papers": papers}
            verdict = f" ({shown_verdict})" if shown_verdict else ""
            assert overview.main_results(listing, toy.folder)[0] == f"{short}: {line}{verdict}"
            assert page.links[0] == "#paper"
        counts = {
            "published values (2 missed)": ({"not reproduced": 2, "not run": 1}, {}),
            "claims": ({"supported": 1, "contradicted†": 3, "supported, exploratory": 4}, {}),
        }
        path.write_text(json.dumps(SUMMARY | {"counts": counts}), encoding="utf-8")
        lines = overview.main_results(toy.listing | {"papers": papers}, toy.folder)
        verdicts = "published values: 2 not reproduced; claims: 1 supported, 3 contradicted†"
        assert lines[0] == f"{short}: It is <so>. ({verdicts})"
        path.write_text(json.dumps(SUMMARY | {"examples": []}), encoding="utf-8")
        assert overview.main_results(toy.listing | {"papers": papers}, toy.folder) == [], "no run yet"
        path.write_text(before, encoding="utf-8")
        for changes in ({"papers": papers[:1]}, {"reduced": True}):  # a single card; nothing is judged
            assert "our runs show" not in text_of(front(toy, **changes))
            assert overview.main_results({**toy.listing, **changes}, toy.folder) == []
    finally:
        path.write_text(before, encoding="utf-8")
        front(toy)


def test_the_front_page_is_small_and_links_pictures(toy: Toy) -> None:
    page = read(toy, "index.html")
    assert [address for address in page.loaded if not address.startswith("data:,")] == ["paper/figure1.png"]
    assert len(page.text) < 40_000 and not any("report" in link for link in page.links)
    assert "lazy" not in page.text, "a picture that loads late would move the cards"
    picture = '<svg class="a" width="100" height="50.4" viewBox="0 0 9 9"><desc>A &amp; B</desc></svg>'
    (toy.folder / "paper" / "figure1.svg").write_text(picture)
    try:
        page = front(toy)
        assert "paper/figure1.svg" in page.loaded, "sharp at any size"
        assert 'width="100" height="50" style="--width:100px"' in page.text, "in place before it is loaded"
        assert page.of("figcaption") == ["A & B"] and 'alt="Main figure of A paper on &lt;' in page.text
        toy.write_pages()
        assert read(toy, "paper/index.html").of("figcaption") == ["A & B"]
    finally:
        (toy.folder / "paper" / "figure1.svg").unlink()
        toy.write_pages()


def test_a_dagger_on_a_card_is_explained_there(toy: Toy) -> None:
    path = toy.folder / "paper" / "summary.json"
    before = path.read_text(encoding="utf-8")
    note = "† Significant alone, but not after the correction for the number of claims"
    try:
        assert note not in text_of(front(toy)), "nothing to explain"
        path.write_text(before.replace('"contradicted":', '"contradicted†":'), encoding="utf-8")
        legend, _, cards = text_of(front(toy)).partition("Claims and intervals")
        assert note in legend and note in cards.partition("contradicted†")[2].partition("Runs")[0]
    finally:
        path.write_text(before, encoding="utf-8")
        front(toy)


def test_the_front_page_explains_its_brackets_cases_and_verdicts(toy: Toy) -> None:
    text = text_of(front(toy)).partition("Claims and intervals")[0]
    assert "A case is" not in text.partition("Meaning of the verdicts")[0], "words are folded"
    words = re.findall(r"Brackets show|A case is", text)
    assert words == ["Brackets show", "A case is"]
    assert "Claims are in italics, in our own words." in text
    meanings = text.partition("Meaning of the verdicts")[2]
    assert "The opposite is significant at 5 %" in meanings
    assert "has the other sign" not in meanings, "no gain of this scale is opposite"
    assert "None of our runs" not in meanings, "cards count no claims that were not run"


def test_a_reduced_scale_has_numbers_for_claims_but_no_verdict(tmp_path: Path) -> None:
    toy = Toy(tmp_path, reduced=True).write()
    path = toy.folder / "paper" / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    finding = ("reduced scale", "A grows (sec. 2)", ["x minus y, average of 2 cases: -1 points", "x: 2 %"])
    path.write_text(json.dumps({**summary, "examples": [finding]}), encoding="utf-8")
    text = text_of(front(toy))
    expected = "A grows (sec. 2) x minus y, average of 2 cases -1 points x 2 %"
    assert expected in text and "A case is one setting or method of a claim." in text
    assert "Each card shows one of the paper's claims. Links" in text and "counts the verdicts" not in text


def test_numbers_of_a_claim_stand_in_lines_with_their_intervals() -> None:
    html = in_lines(
        [
            "<b> minus C = 0, average of 2 cases: -5 rounds [-6, -4]",
            "A relative to B: +9 % [+6, +11]",
            "change with E: +9.0 % of the drift of B [+6.0, +11.0]",
            "needed: above 0.5 points with B = 10",
            "no number at b",
            "",
        ]
    )
    assert re.findall(r"<abbr title=\"(A case)[^\"]+[.]\">([\w ]+)</abbr>", html) == [("A case", "cases")]
    pairs = re.findall(r"<dt>(.*?)</dt>(?:<dd>(.*?)</dd>)?", re.sub("</?abbr.*?>", "", html))
    assert pairs == [
        ("&lt;b&gt; minus C\u00a0=\u00a00, average of 2 cases", "-5 rounds [-6, -4]"),
        ("A relative to B", "+9\u00a0% [+6, +11]"),
        ("change with E", "+9.0\u00a0% of the drift of B [+6.0, +11.0]"),
        ("needed", "above 0.5 points with B\u00a0=\u00a010"),
        ("no number at b", ""),
    ]
    css = (ROOT / "fltrain/reporting/templates/style.css").read_text(encoding="utf-8")
    assert re.search(r"\.numbers dd {[^}]*white-space: nowrap", css), "no line breaks in a number"
    assert in_lines([]) == in_lines([""]) == ""


def test_claims_that_runs_judged_as_planned_come_first(toy: Toy) -> None:
    """The others are folded, but the exploratory ones are open if no claim is planned."""
    planned, late, *others = SUMMARY["claims"][:-1]
    headings = []
    for claims in ([planned, late, *others], [late, *others], others):
        changed = {**SUMMARY, "reduced": False, "claims": claims}
        text = paper.page(changed, ABOUT, [toy.figure], {}, toy.folder / "paper")
        headings.append(re.findall(r"<summary>((?:Expl|Claims).*?)</summary>", text))
    assert headings == [
        ["Exploratory claims (1)", "Claims without verdict (4)"],
        ["Claims without verdict (4)"],
        [],
    ]


def test_a_case_is_explained_with_the_verdicts(toy: Toy) -> None:
    def text(number: str) -> str:
        claims = [{**claim, "number": number} for claim in SUMMARY["claims"]]
        changed = {**SUMMARY, "reduced": False, "claims": claims}
        return text_of(Page(paper.page(changed, ABOUT, [toy.figure], {}, toy.folder / "paper")))

    meaning = "A case is one setting or method of a claim."
    assert meaning in text("x, average of 2 cases: +2 points") and meaning not in text("x: +2 points")


def test_the_page_of_a_paper_has_its_tables_figures_and_claims(toy: Toy) -> None:
    page = read(toy, "paper/index.html")
    text = text_of(page)
    assert page.ids.index("claim-table") < page.ids.index("table1") < page.ids.index("figure1")
    table = read(toy, "paper/table1.html")
    assert [link for link in page.links if "#cell-" in link] == [
        f"table1.html{link}" for link in table.links if link.startswith("#cell-")
    ]
    assert "figure1.png" in page.loaded and "figure1.png" in page.links, "figures open in full size"
    assert "Result It is <so>. published values" in text, "the conclusion of its card comes first"
    assert "More claims on this paper: Another paper" in text and "../other/index.html#claims" in page.links
    assert page.links.count("#table1-note-2") == 2 and "table1-note-2" in page.ids, "notes stand on this page"
    assert "would expect about 2 reproduced and 2 inconclusive (of 4 with an interval)." in text
    heads = ("our runs", "claim needs")
    assert [head for head in page.of("th") if head in heads] == [*heads, *heads, heads[0]]
    result = "x minus y +1.2 points 1 run diverged evidence +1.2 points on average (p = 0.01)"
    assert f"{result} Runs: Accuracy & gain . above 0 " in text
    assert "FLFA <always> helps" in page.of("i") and "contradicted†" in page.of("span")
    assert re.search(r">A square</a>, <a [^>]*>Accuracy &amp; gain</a>.</details>", page.text), "about both"
    assert "figure1" not in text and "table1" not in text, "people read titles"
    assert "† Significant alone, but not after the correction for the number of claims" in text
    assert "opposite is significant at 5 %" in text
    assert "has the other sign" not in text, "no gain on this page is opposite"
    assert (
        "A result is exploratory if we declared it so, or decided on it after we had seen these runs." in text
    )
    assert (
        "Not run: 1 of the claims, 1 of the paper's tables and figures" in text
        and "sec. 10: Toys last" in text
    )
    assert text.count("on toy data") == 1, "the scale stands once, at the top"
    assert text.count("Small <toys>.") == 1 and text.index("Result") < text.index("Small <toys>.")


def test_the_list_of_runs_names_the_cell_of_each_run(toy: Toy) -> None:
    run = Toy.run("MOON", "BP", SEEDS[0])
    (row,) = re.findall(
        rf"<tr[^>]*>(?:(?!</tr>).)*<code>{run}</code>.*?</tr>", read(toy, "runs.html").text, re.DOTALL
    )
    assert ">MOON, BP</td>" in row


def test_a_figure_leads_to_its_runs_if_it_has_any(toy: Toy) -> None:
    bubbles = toy.figure.model_dump(mode="json") | {"figure": {"kind": "bubbles", "columns": "method"}}
    links = []
    for sheet in (toy.figure, ItemJob.parse(bubbles, "sheet")):
        page = Page(paper.page({**SUMMARY, "reduced": False}, ABOUT, [sheet], {}, toy.folder / "paper"))
        links.append([unquote(link) for link in page.links if "runs.html" in link])
    assert links == [['../runs.html?filter="paper/figure1"'], []]


def test_long_tables_after_the_first_fold_on_phones(toy: Toy) -> None:
    cells = read_csv(toy.folder / "paper" / "table1.csv")
    long = [cell.replace(row=f"{cell.row} {number}") for cell in cells for number in range(2)]
    second = toy.sheet.model_copy(update={"id": "paper/table2"})
    covers = {"table1": [], "table2": ["table 2"]}
    for rows, folded in ((cells[:2], 0), (long, 1)):
        by_item = {toy.sheet.id: rows, second.id: rows}
        about = {**ABOUT, "covers": covers}
        text = paper.page(
            {**SUMMARY, "reduced": False}, about, [toy.sheet, second], by_item, toy.folder / "paper"
        )
        assert text.count('<details class="fold" open>') == folded


def test_numbers_of_a_group_stand_together_on_phones() -> None:
    grid = Grid("method", [("A", "x"), ("B", "x"), ("A", "y")], {"a": [GridEntry(text) for text in "123"]})
    text = TEMPLATES.get_template("parts.html").module.values("t", "T", grid)  # type: ignore[attr-defined]
    assert re.findall(r'data-label="(.)"( data-group=".")?( style="order:.")?', text) == [
        ("x", ' data-group="A"', ""),
        ("x", ' data-group="B"', ' style="order:1"'),
        ("y", "", ""),
    ]


def test_a_citation_leads_to_the_paper() -> None:
    html = cited("A & B, arXiv 1602.05629, 2017, doi 10.32604/cmc.2024.054484")
    links = (
        '<a href="https://arxiv.org/abs/1602.05629">arXiv 1602.05629</a>',
        '<a href="https://doi.org/10.32604/cmc.2024.054484">doi 10.32604/cmc.2024.054484</a>',
    )
    assert html == f"A &amp; B, {links[0]}, 2017, {links[1]}"


def test_a_count_of_zero_has_no_colour() -> None:
    counts = TEMPLATES.get_template("parts.html").module.counts  # type: ignore[attr-defined]
    classes = re.findall(r"badge (\w*)", counts({"better": 0, "worse": 1}))
    assert classes == ["", "bad"]


def test_items_without_planned_claims_stand_folded_after_those_with_them(toy: Toy) -> None:
    cells = {toy.sheet.id: read_csv(toy.folder / "paper" / "table1.csv")}
    names = {"table1": "figure1", "figure1, table1": "table1"}  # an exploratory claim on the table
    claims = [{**claim, "item": names.get(claim["item"], "")} for claim in SUMMARY["claims"]]
    about = {**ABOUT, "covers": {"table1": [], "figure1": []}}
    summaries = ({**SUMMARY, "claims": chosen} for chosen in (claims, []))
    sheets = [toy.sheet, toy.figure]
    folded = [
        paper.page({"reduced": False, **data}, about, sheets, cells, toy.folder / "paper").partition(
            '<details id="further">'
        )
        for data in summaries
    ]
    assert [[name in part for name in ('id="table1"', 'id="figure1"')] for part in folded[0][::2]] == [
        [False, True],
        [True, False],
    ]
    assert folded[1][1] == "", "nothing is left if there are no claims at all"
    covered = {**about, "covers": {"table1": ["table 1"], "figure1": []}}
    page = paper.page(
        {**SUMMARY, "reduced": False, "claims": claims}, covered, sheets, cells, toy.folder / "paper"
    )
    assert page.index('id="figure1"') < page.index('id="table1"'), "confirmatory claims come first"


def test_wide_tables_have_their_differences_on_their_own_page_only(toy: Toy, monkeypatch: Any) -> None:
    cells = {"paper/table1": read_csv(toy.folder / "paper" / "table1.csv")}
    columns = len(Grid.of(toy.sheet, cells["paper/table1"], {}, ["verdict"]).columns)
    about = {**ABOUT, "covers": {"table1": []}}
    for widest, has_difference in ((columns, True), (columns - 1, False)):
        monkeypatch.setattr(paper, "WIDEST", widest)
        text = paper.page({**SUMMARY, "reduced": False}, about, [toy.sheet], cells, toy.folder / "paper")
        head = text.partition('id="table1-values"')[2].partition("</thead>")[0]
        assert ("difference" in head) == has_difference and "published" in head


def test_a_page_has_sentences_once_that_hold_for_all_its_tables(toy: Toy) -> None:
    cells = {f"paper/{name}": read_csv(toy.folder / "paper" / "table1.csv") for name in "ab"}
    assert any(cell.diverged for cell in cells["paper/a"])
    sheets = [
        ItemJob(**{**dict(toy.sheet), "id": f"paper/{name}", "caption": f"Of all. {text}"})
        for name, text in (("a", "First."), ("b", "Second."))
    ]
    about = {**ABOUT, "covers": {"a": [], "b": []}}
    text = text_of(
        Page(paper.page({**SUMMARY, "reduced": False}, about, sheets, cells, toy.folder / "paper"))
    )
    counts = [text.count(sentence) for sentence in ("Of all.", "First.", "Second.", GENERAL["chance"])]
    assert counts == [1, 1, 1, 1]
    assert text.index("In all tables: Of all.") < text.index("First.")


def test_controls_have_no_expected_numbers(toy: Toy) -> None:
    """Their truth is known: some of their values are false on purpose."""
    cells = read_csv(toy.folder / "paper" / "table1.csv")
    texts = [
        " ".join(Notes.of(ItemJob(**{**dict(toy.sheet), "control": control}), cells).texts)
        for control in (False, True)
    ]
    assert ["If all published values were true, we would expect" in text for text in texts] == [True, False]
    values, controls = (
        next(iter(summary.verdict_counts(kind, cells, []).items())) for kind in ("paper", "control")
    )
    assert values[1][0] == controls[1][0] and values[1][1] and not controls[1][1]
    judged = [cell for cell in cells if cell.verdict and cell.published is not None]
    false, *true = (cell.replace(falsified=number == 0, published=1.0) for number, cell in enumerate(judged))
    expected = sum(cell.expected_reproduced or 0 for cell in true)
    assert summary.true_values([false, *true]) == (
        f"with so few seeds, we expect about {expected:.1f} of {len(true)} true values to be reproduced"
    )


def test_notes_below_a_table_count_cells_apart_and_explain_equal_widths(toy: Toy) -> None:
    cells = read_csv(toy.folder / "paper" / "table1.csv")
    count = sum(cell.expected_reproduced is not None for cell in cells)
    one_seed = {"verdict": "inconclusive", "reason": "one seed", "expected_reproduced": None}
    cells.append(cells[0].replace(**one_seed))
    rule = next(text for text in Notes.of(toy.sheet, cells).texts if text.startswith("Verdicts"))
    counts = re.search(r"Cells with an interval: ([^.]*)\.", rule)
    assert counts and sum(map(int, re.findall(r"\d+", counts[1]))) == count > 1
    assert "Inconclusive (no interval): 1." in rule
    points = r"[\d.]+(?: to [\d.]+)? points? of final accuracy"
    detects = f"The rule detects a true difference of {points} with a probability of 80 %"
    assert re.search(rf"The margin is {points}\. {detects}", rule)
    rounds = {"measure": "rounds_to_target", "label": "rounds to target", "published": 100.0}
    pairs = ((14.0, 20.4), (856.0, 1137.2))
    ends = [cells[0].replace(**rounds, margin=margin, detectable=least) for margin, least in pairs]
    text = " ".join(Notes.of(toy.sheet, ends).texts)
    assert "The margin is 20 % of the published value (14 to 856 rounds to target)." in text
    assert "true difference of 20 to 1100 rounds to target with a probability of 80 % (depending on" in text
    (measured,) = toy.sheet.table.measures
    as_intervals = toy.sheet.table.model_copy(update={"measures": (replace_interval(measured),)})
    sheets = [toy.sheet, ItemJob(**{**dict(toy.sheet), "table": as_intervals})]
    bare = [cell.replace(runs=(cell.place,), gain_low=None, gain_high=None) for cell in cells]
    for number, expected in (("", [False, True]), ("gain_", [True, True])):
        ends = [{f"{number}low": 1.0, f"{number}high": 2.0 + place // 2} for place in range(len(bare))]
        equal = [cell.replace(**bounds) for cell, bounds in zip(bare, ends, strict=True)]
        for chosen, words in ((equal, expected), (equal[:1], [False, False])):
            texts = [Notes.of(sheet, chosen).seeds for sheet in sheets]
            assert [
                "Intervals of equal width share one estimate of the spread" in text for text in texts
            ] == words
    bare = [cell.replace(measure="best_accuracy") for cell in bare]
    assert "Intervals of equal width" in Notes.of(toy.sheet, [*equal, *bare]).seeds, "of the same runs"
    assert (
        "Gains are differences from BP, paired by seed, with 90 % intervals."
        in Notes.of(toy.sheet, cells).seeds
    )
    assert "Gains are differences from BP, paired by seed." in Notes.of(toy.sheet, bare).seeds


def test_notes_on_published_values_are_numbered_from_top_to_bottom(toy: Toy) -> None:
    """A doubt in a lower row does not come first; the columns of a row follow each other."""
    axis = toy.sheet.table.rows
    upper, lower = toy.sheet.axes[axis][:2]
    cell = read_csv(toy.folder / "paper" / "table1.csv")[0].replace(anomalies=(), published_notes=())
    cells = [
        cell.replace(row=lower, column="x", anomalies=("a copy",)),
        cell.replace(row=upper, column="x"),
        cell.replace(row=upper, column="y", published_notes=("one client", "rounded")),
    ]
    notes = Notes.of(toy.sheet, cells)
    assert notes.numbered == ["[1] one client.", "[2] rounded.", "[3] Doubtful as published: a copy."]
    rows = Grid.of(toy.sheet, cells, notes.marks).rows
    assert [*rows] == [upper, lower]
    assert [entry.marks for entries in rows.values() for entry in entries if entry.marks] == [
        ("1", "2"),
        ("3",),
    ]


def replace_interval(measured: Measured) -> Measured:
    """The measure with intervals instead of deviations."""
    return measured.model_copy(update={"interval": True})


def test_headings_tell_deviations_from_intervals_if_a_table_has_both(toy: Toy) -> None:
    cells = [cell for cell in read_csv(toy.folder / "paper" / "table1.csv") if cell.row == "FedAvg"]
    headings = [column[-1] for column in Grid.of(toy.sheet, cells, {}).columns]
    assert {"final accuracy, % ± SD", "difference [90 % interval]", "published"} <= {*headings}
    assert "gain over BP [90 % interval]" in headings
    short = [column[-1] for column in Grid.of(toy.sheet, cells, {}, ["difference", "gain"]).columns]
    assert "final accuracy, % ± SD" in short, "the heading does not depend on the columns that are shown"
    alike = [cell.replace(difference=None, gain=None) for cell in cells]
    assert not any("SD" in column[-1] for column in Grid.of(toy.sheet, alike, {}).columns)


def test_the_heading_of_a_gain_names_its_base(toy: Toy) -> None:
    cell = TableCell(row="FedDyn", column="BP", label="final accuracy, %", mean=60.0, gain=1.0)
    other = cell.replace(column="+ FLFA")
    (measured,) = toy.sheet.table.measures
    for over, words in (
        ({"method": "FedAvg", "plugin": "BP"}, " over FedAvg, BP"),
        ({"method": "FedAvg"}, " over FedAvg"),
    ):
        changed = {"measures": (measured.model_copy(update={"gain_over": over}),)}
        table = toy.sheet.table.model_copy(update=changed)
        grid = Grid.of(ItemJob(**{**dict(toy.sheet), "table": table}), [cell, other], {})
        gains = [column for column in grid.columns if column[-1].startswith("gain")]
        assert gains == [("BP", f"gain{words}"), ("+ FLFA", f"gain{words}")], "one heading for one quantity"


def test_verdicts_next_to_values_are_short(toy: Toy) -> None:
    """The note next to it and the details of the cell have the rest; the side stays."""
    cell = TableCell(verdict="not reproduced", side="worse", dropped=True, exploratory=True)
    assert GridEntry(kind="own", cell=cell).badge == "not reproduced (worse)†, exploratory"
    assert GridEntry(kind="own", cell=cell).pill == "not reproduced (worse)†"
    intended = cell.replace(falsified=True, side="", dropped=False, exploratory=False)
    assert GridEntry(kind="own", cell=intended).pill == "not reproduced (as intended)"
    open_gain = TableCell(gain_verdict="inconclusive", reason=CORRECTED, verdict="reproduced")
    assert GridEntry(kind="gain", cell=open_gain).badge == f"inconclusive ({CORRECTED})"
    assert GridEntry(kind="gain", cell=open_gain).pill == CORRECTED
    assert GridEntry(kind="own", cell=open_gain).pill == "reproduced"


A, B = ("A grows", "supported", False), ("B falls", "contradicted", False)
LATE, OPEN = ("C stays", "supported", True), ("D may grow", "inconclusive", False)
SMALL = ("E grows", "reduced scale", False)


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        (
            [LATE, OPEN, B, A, ("A falls", "supported", False)],
            [("supported", "A grows"), ("contradicted", "B falls"), ("inconclusive", "D may grow")],
        ),
        ([LATE, OPEN], [("inconclusive", "D may grow")]),
        ([LATE], [("supported, exploratory", "C stays")]),
        ([SMALL], [("reduced scale", "E grows")]),
        ([], []),
    ],
)
def test_findings_are_the_first_claim_of_each_verdict(
    claims: list[tuple[str, str, bool]], expected: list[tuple[str, str]]
) -> None:
    number = "+1.00 points [+0.50, +1.50] (gain over base: x minus y)"
    measured = [
        {
            "claim": text,
            "verdict": verdict,
            "dropped": False,
            "exploratory": late,
            "where": "sec. 2",
            "number": f"{text}; {number}",
            "needed": "above 0; within 1 point",
            "reason": "1 run diverged; no number at b" if verdict == "inconclusive" else "",
        }
        for text, verdict, late in claims
    ]
    without = {**measured[0], "number": ""} if measured else {"number": ""}
    lines = [number, "needed: above 0 and within 1 point"]
    why = ["1 run diverged", "no number at b"]
    assert summary.claim_findings([without, *measured]) == [
        (verdict, f"{text} (sec. 2)", [text, *lines] + why * (verdict == "inconclusive"))
        for verdict, text in expected
    ]


def test_values_that_are_not_reproduced_are_summed_up_for_each_table() -> None:
    def cell(item: str, published: float, mean: float | None, verdict: Any) -> TableCell:
        return TableCell(item=item, published=published, mean=mean, verdict=verdict)

    missed = "not reproduced"
    cells = [cell("a", 100, 24, missed), cell("a", 10, 4.8, missed), cell("a", 10, 10, "reproduced")]
    cells += [cell("b", 10, 20, missed), cell("c", 10, 12, "inconclusive"), cell("d", 10, None, missed)]
    titles = {"a": "Rounds", "b": "One", "c": "Open", "d": "Lost"}
    values, ours = "published values that are not reproduced", "our values, in per cent of the published ones"
    assert summary.missed_values(cells, titles) == [
        (missed, "Rounds", [f"{values}: 2 of 3", f"{ours}: 24 to 48 %"]),
        (missed, "One", [f"{values}: 1 of 1", f"{ours}: 200 %"]),
        (missed, "Lost", [f"{values}: 1 of 1"]),
    ]


def test_the_page_of_a_paper_has_its_main_intervals_beside_its_result(toy: Toy) -> None:
    plot = {
        "rows": {"": [{"place": "x", "lost": "diverged", "tone": ""}]},
        "ticks": {"0": 0},
        "notes": [],
        "margin": [],
    }
    for changes, has_plot in (
        ({"picture": ""}, True),
        ({}, False),
        ({"picture": "", "parts": {"B": {**SUMMARY, "picture": "", "forest": plot}}}, True),
        ({"picture": "", "parts": {"B": {**SUMMARY, "picture": ""}}}, False),
    ):
        data = {**SUMMARY, "reduced": False, "claims": [], "forest": plot, **changes}
        text = paper.page(data, ABOUT, [], {}, toy.folder / "paper")
        assert ('class="forest"' in text.partition('id="claims"')[0]) == has_plot, changes


def test_a_comparison_has_a_card_for_each_paper_that_its_claims_are_on(toy: Toy) -> None:
    """A paper has one card, also with several results; one none of whose items has been made has no card."""
    numbers: dict[str, Any] = {"label": "accuracy, %", "gain": 1.0, "gain_low": 0.5, "gain_high": 1.5}
    sheets = [toy.sheet.model_copy(update={"id": f"both/{name}"}) for name in ("a", "b", "pilot")]
    cells = {sheet.id: [TableCell(item=sheet.name, row=sheet.name, **numbers)] for sheet in sheets}
    fields = {"verdict": "supported", "dropped": False, "exploratory": False, "evidence": "", "number": "1"}
    fields |= {"needed": "above 0", "reason": ""}
    places = {"B, fig. 2": "b", "Paper, sec. 1, table 1": "a", "C, sec. 3": "missing"}
    judged = pd.DataFrame([{**fields, "where": key, "claim": "x", "item": places[key]} for key in places])
    heading = {"paper": "both", "title": "Both", "kind": "comparison", "scale": "one", "reduced": False}
    result = summary.paper_summary({**heading, "note": "Small."}, sheets, judged, cells)
    for name, item, place in (("B", "b", "fig. 2"), ("Paper", "a", "sec. 1, table 1")):
        part = result["parts"][name]
        assert [row["item"] for row in part["claims"]] == part["items"] == [item] and not part["parts"]
        assert part["counts"]["claims"] == ({"supported": 1}, {})
        assert part["examples"] == [("supported", f"x ({name}, {place})", ["1", "needed: above 0"])]
        assert list(part["forest"]["rows"]) == ["Accuracy & gain: gain over BP"], "a base, also with one item"
    folder = toy.folder / "both"
    folder.mkdir()
    try:
        (folder / "summary.json").write_text(json.dumps({**result, "conclusions": {"Paper": "So it is."}}))
        (folder / "index.html").touch()
        comparison = {"name": "both", "title": "Both", "contents": []}
        page = front(toy, papers=[*toy.listing["papers"], comparison])
    finally:
        shutil.rmtree(folder)
        front(toy)
    order = re.findall(r'<article aria-labelledby="([^"]*)"', page.text)
    assert order == ["paper", "other", "b"]
    assert page.of("h2") == ["Another paper", "Number of verdicts", "Runs"], (
        "titles of cards with a page are links"
    )
    assert page.links.count("both/index.html#b") == 3, "in the table, and in both titles of the card"
    assert page.links.count("both/index.html#a") == 1
    folded, card = (
        "So it is. Claims and intervals claims 1 supp",
        "Both claims 1 supported supported x (B, fig. 2) 1 needed above 0",
    )
    assert (text_of(page).count(folded), text_of(page).count(card)) == (1, 1), (
        "further results stand in a line"
    )


def test_a_forest_plot_names_axes_of_numbers_and_the_base_of_gains(toy: Toy) -> None:
    """A row ``3`` or a gain over the paper's own method cannot be read without them."""
    layout = {**toy.sheet.model_dump(mode="json")["table"], "rows": "cut", "columns": None, "panels": None}
    layout["measures"] = [{"measure": "final_accuracy", "gain_over": {"noise": "0"}}]
    sheets = [
        toy.sheet.model_copy(update={"id": f"paper/{name}", "table": Table.parse(layout, "")})
        for name in "ab"
    ]
    numbers: dict[str, Any] = {"label": "accuracy, %", "gain": 1.0, "gain_low": 0.5, "gain_high": 1.5}
    cells = {sheet.id: [TableCell(item=sheet.id[-1], row="3", **numbers)] for sheet in sheets}
    judged = pd.DataFrame([{**dict.fromkeys(summary.COLUMNS, ""), "verdict": "supported", "item": "a, b"}])
    heading = {"paper": "paper", "title": "A paper", "kind": "paper", "scale": "one", "reduced": False}
    rows = summary.paper_summary(heading, sheets, judged, cells)["forest"]["rows"]
    assert [(name, row["place"]) for name, part in rows.items() for row in part] == [
        ("Accuracy & gain: gain over noise 0", "cut 3")
    ] * 2


@pytest.mark.parametrize(
    ("reverse", "gain", "words"), [(False, 1.0, "gain over BP"), (True, -1.0, "BP minus each")]
)
def test_a_forest_plot_has_the_direction_of_the_claims(
    toy: Toy, reverse: bool, gain: float, words: str
) -> None:
    """If a claim is on the method of the base against its rivals, plus means that this method is better."""
    test = {"kind": "positive", "item": "table1", "measure": "final_accuracy", "over": {"plugin": "BP"}}
    claim = Claim.parse({"where": "", "claim": "", "test": {**test, "reverse": reverse}}, "claim")
    cell = TableCell(item="table1", row="one", label="accuracy, %", gain=1.0, gain_low=0.5, gain_high=2.5)
    judged = pd.DataFrame([{**dict.fromkeys(summary.COLUMNS, ""), "verdict": "supported", "item": "table1"}])
    heading = {"paper": "paper", "title": "A paper", "kind": "paper", "scale": "one", "reduced": False}
    sheets = [toy.sheet, ItemJob(**{**dict(toy.sheet), "id": "paper/b"})]
    cells = {toy.sheet.id: [cell], "paper/b": [cell.replace(item="b")]}
    judged["item"] = "table1, b"
    plot = summary.paper_summary(heading, sheets, judged, cells, [claim])["forest"]
    assert next(iter(plot["rows"])) == f"Accuracy & gain: {words}"
    # Item b has the other direction if there is a reversed claim, and then the axis begins at -3.
    middle = plot["rows"][f"Accuracy & gain: {words}"][0]["middle"]
    assert [*plot["ticks"]] == (["-2", "0", "2"] if reverse else ["0", "1", "2", "3"])
    assert middle == pytest.approx(50 * (1 + gain / 3) if reverse else 100 * gain / 3, abs=0.01)


FALSE: dict[str, Any] = {"published": 1.0, "falsified": True}


def test_controls_and_comparisons_without_claims_have_a_result() -> None:
    """A control counts the values that the rule rejects; else there is a cell of each verdict."""
    cell = TableCell(item="a", row="one", verdict="inconclusive", published=1.0)
    false = [cell.replace(**FALSE, verdict=verdict) for verdict in ("not reproduced", "inconclusive")]
    (entry,) = summary.cell_findings("control", [cell, cell, *false], {"a": "A"}, {})
    assert entry[-1] == ["The rule rejects 1 of 2 false values and none of 2 true ones (1 different number)."]
    gain: dict[str, Any] = {"gain": 1.0, "gain_low": 0.5, "gain_high": 1.5, "verdict": None}
    better = cell.replace(**gain, gain_verdict="better")
    late = better.replace(exploratory=True, row="late")
    assert summary.cell_findings(
        "comparison", [late, better, better.replace(row="two"), cell], {"a": "A"}, {"a": "A minus B"}
    ) == [("better", "one (A)", ["A minus B, in points: +1.00 [+0.50, +1.50]"])]


def test_a_card_quotes_a_method_with_the_settings_of_its_base(toy: Toy) -> None:
    assert toy.sheet.table
    measured = toy.sheet.table.measures[0].model_copy(update={"gain_over": {"settings": "tuned"}})
    table = toy.sheet.table.model_copy(update={"columns": "settings", "measures": (measured,)})
    sheet = toy.sheet.model_copy(update={"table": table})
    gain: dict[str, Any] = {"gain": 1.0, "gain_low": 0.5, "gain_high": 1.5, "gain_verdict": "better"}
    cells = [TableCell(item="table1", row="one", column=name, **gain) for name in ("default", "tuned")]
    heading = {"paper": "paper", "title": "A paper", "kind": "comparison", "scale": "one", "reduced": False}
    result = summary.paper_summary(
        heading, [sheet], pd.DataFrame(columns=[*summary.COLUMNS]), {sheet.id: cells}
    )
    (finding,) = result["results"]
    words = ["difference from tuned, in points: +1.00 [+0.50, +1.50]"]
    assert finding == ("better", "one / tuned (Accuracy & gain)", words)


def test_cells_without_an_interval_are_counted_apart() -> None:
    """The expected numbers are of the others alone."""
    cell = TableCell(verdict="inconclusive", expected_reproduced=0.5, expected_not_reproduced=0.1)
    without = [TableCell(verdict="inconclusive", reason=why) for why in ("target missed", "one seed")]
    ((verdicts, expected),) = summary.verdict_counts("paper", [cell, cell, *without], []).values()
    assert verdicts == {"inconclusive": 2, "inconclusive (target missed)": 1, "inconclusive (no interval)": 1}
    assert sum(expected.values()) == pytest.approx(2)


@pytest.mark.parametrize("gain", ["", "published", "own"])
def test_exploratory_verdicts_of_cells_are_counted_apart(gain: str) -> None:
    """The expected numbers are of the others alone."""
    cell = TableCell(verdict="inconclusive", expected_reproduced=0.5, expected_not_reproduced=0.1)
    if gain:
        cell = TableCell(gain_verdict="inconclusive", published_gain=1.0 if gain == "published" else None)
    seen = cell.replace(exploratory=True)
    ((verdicts, expected),) = summary.verdict_counts("paper", [cell, cell, seen], []).values()
    assert verdicts == {"inconclusive": 2, "inconclusive, exploratory": 1}
    assert sum(expected.values()) == pytest.approx(0 if gain else 2)


def test_differences_with_the_same_runs_are_named(toy: Toy) -> None:
    """Tuned settings can be the default ones: both cells count."""
    cell = TableCell(item="a", label="accuracy, %", gain_margin=0.5, gain_verdict="inconclusive")
    cells = [cell.replace(runs=(run,), column=name) for run in "ab" for name in ("default", "tuned")]
    (heading,) = summary.verdict_counts("comparison", [*cells, cell], [])
    assert heading == "differences among our own runs (2 duplicates: their settings coincide)"
    (note, *_) = Notes.of(toy.sheet, cells).texts
    assert "2 differences are duplicates, because" in note and CORRECTED in note.lower()
    assert "duplicate" not in "".join(Notes.of(toy.sheet, cells[:1]).texts)


def test_cells_with_the_same_runs_and_different_intervals_are_explained(toy: Toy) -> None:
    """Other cells moderate their spread: without the note, it would look like a mistake."""
    assert toy.sheet.table
    measured = toy.sheet.table.measures[0].model_copy(update={"interval": True})
    sheet = toy.sheet.model_copy(
        update={"table": toy.sheet.table.model_copy(update={"measures": (measured,)})}
    )
    cell = TableCell(measure="final_accuracy", label="accuracy, %", low=1.0, high=2.0, runs=("a",))
    first, second = (cell.replace(row="one", column=name) for name in ("default", "tuned"))
    note = "Cells with the same runs, for example one / default and one / tuned, can have different intervals"
    assert note in Notes.of(sheet, [first, second.replace(high=3.0)]).seeds
    for other in (second, second.replace(high=3.0, runs=("b",))):
        assert "same runs" not in Notes.of(sheet, [first, other]).seeds
    averages = [cell.replace(runs=(), high=high) for cell, high in ((first, 2.0), (second, 3.0))]
    assert "same runs" not in Notes.of(sheet, averages).seeds


def test_the_front_page_sums_up_all_papers() -> None:
    """Controls test the rule: they do not count. Exploratory verdicts are counted apart.

    A zero stands only where all follows the papers.
    """

    def card(kind: str, **counts: dict[str, int]) -> dict[str, Any]:
        return {
            "kind": kind,
            "counts": {name.replace("_", " "): (verdicts, {}) for name, verdicts in counts.items()},
        }

    values = {
        "not reproduced": 14,
        "inconclusive": 4,
        "inconclusive (target missed)": 1,
        "inconclusive (no interval)": 1,
    }
    summaries = [
        card("paper", published_values=values, claims={"supported": 2, "by definition": 3, "not run": 9}),
        card("paper", claims={"supported": 1, "inconclusive": 4, "inconclusive, exploratory": 5}),
        card("comparison", claims={"contradicted": 1, "contradicted†": 2, "not judged": 1}),
        card("control", published_values={"reproduced": 7}),
        card("paper", differences_among_our_own_runs={"better": 1, "worse": 2}),
        card("comparison", **{"differences among our own runs (2 with the same runs)": {"inconclusive": 3}}),
        card("comparison", published_gains={"opposite, exploratory": 2}),
        card("", claims={}),
    ]
    protocol, elsewhere = "under the papers' own protocol", "in replications or comparisons"
    assert list(overview.overall(summaries)) == [
        (f"20 published values {protocol}", {"reproduced": 0, **values}, {}),
        (f"12 claims {protocol}", {"supported": 3, "inconclusive": 4}, {"inconclusive": 5}),
        (f"3 claims {elsewhere}", {"contradicted": 1, "contradicted†": 2}, {}),
        ("6 differences among our own runs", {"better": 1, "worse": 2, "inconclusive": 3}, {}),
        (f"2 published gains {elsewhere}", {}, {"opposite": 2}),
    ]
    nothing = card("paper", claims={"reduced scale": 4, "not run": 1})
    assert not list(
        overview.overall(
            [nothing, card("control", published_values={"reproduced": 7}), {**nothing, "kind": ""}]
        )
    )


def test_pages_lead_to_the_documentation_of_their_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copied folder of results has no such files."""
    note = "See docs/records.md#changed-code, docs/papers/toy.md, docs/no.md and tests/test_toy.py::test_it."
    monkeypatch.setitem(SUMMARY, "note", note)
    linked = ["docs/records.md#changed-code", "docs/papers/toy.md", "tests/test_toy.py"]
    changed = {Toy.run("MOON", "BP", 1): {"commit": "b" * 40}}
    toy = Toy(tmp_path, provenance=changed).write()
    pages = {
        "index.html": "../../",
        "runs.html": "../../",
        "paper/index.html": "../../../",
        "paper/table1.html": "../../../",
    }
    assert not any("docs/" in link for page in pages for link in read(toy, page).links)
    for name in (*linked, "docs/protocol.md"):
        file = tmp_path / name.partition("#")[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    toy.write_pages()
    for name, up in pages.items():
        page = read(toy, name)
        named = {path for path in linked if path in page.text}
        assert named and named <= {link.removeprefix(up) for link in page.links}, name
        bare = re.sub(r"<a [^>]*>[^<]*</a>", "", page.text)
        assert re.findall(r"(?:docs|tests)/[\w/.-]+", bare) == ["docs/no.md"] * ("index" in name), name
    site = tmp_path / "site" / "docs" / "records.html"
    site.parent.mkdir(parents=True)
    site.touch()
    toy.write_pages()
    links = read(toy, "index.html").links
    assert {"../../site/docs/records.html#changed-code", "../../docs/papers/toy.md"} <= {*links}


def test_the_title_of_a_scale_stands_over_items_that_share_it(toy: Toy) -> None:
    assert "on toy data. Each card shows one example" in text_of(front(toy))
    assert "on toy data" not in text_of(front(toy, title=""))
    front(toy)


def test_a_front_page_before_any_run_is_trained(tmp_path: Path) -> None:
    toy = Toy(tmp_path)
    toy.folder.mkdir(parents=True)
    page = front(toy)
    assert "0 of 30 runs are done" in text_of(page)
    assert {link.partition("?")[0] for link in page.links} == {"runs.html", "verdicts.csv"}
