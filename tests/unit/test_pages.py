"""Pages of hand-made records: contents, links, and no external resources."""

import base64
import hashlib
import html
import io
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import pandas as pd
import pytest
import vl_convert

from fltrain.reporting import curves
from fltrain.reporting.overview import page as overview
from fltrain.reporting.overview.listing import Listing
from fltrain.reporting.overview.page import write
from fltrain.reporting.pictures import Bar, forest
from fltrain.reporting.tables.html import verdict_sentence
from fltrain.reporting.tables.table_cell import TableCell
from fltrain.reporting.version import outdated_pages, reporting_version

from ..toy import DOUBT, METHODS, PLUGINS, ROUNDS, SEEDS, Toy
from .helpers import DIVERGED, Cells, accuracies

ROOT = Path(__file__).parents[2]
PAGES = ("index.html", "runs.html", "paper/table1.html", "paper/table1.curves.html")


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
def test_texts_are_escaped(toy: Toy, name: str) -> None:
    assert read(toy, name).of("b") == []


def test_a_table_has_title_assumptions_and_verdicts(toy: Toy) -> None:
    page = read(toy, "paper/table1.html")
    assert page.of("h1") == ["paper/table1 — Accuracy & gain"]
    assert "A-1: Which rate: 0.1 (alternatives: 0.01)." in page.of("li")
    assert any("over 3 seeds." in text for text in page.of("p"))
    assert "not reproduced (worse)" in page.of("span") and "not comparable" not in page.text


def test_at_a_reduced_scale_there_is_no_verdict(tmp_path: Path) -> None:
    page = read(Toy(tmp_path, reduced=True).write(), "paper/table1.html")
    assert any("not comparable with the published ones" in text for text in page.of("p"))
    assert not any("reproduced" in text or "inconclusive" in text for text in page.of("span"))


def test_doubts_and_notes_are_linked_from_their_values(toy: Toy) -> None:
    page = read(toy, "paper/table1.html")
    assert f"Doubtful as published: {DOUBT}." in page.of("li")
    assert page.links.count("#doubt-1") == 2, "both values of FedProx"
    assert page.links.count("#note-a") == 1 and "read off a plot" in page.of("li")
    assert "mean of 3 seeds" in page.of("li"), "a note on every value needs no mark"


def sections(page: Page) -> dict[str, str]:
    """The text of the section of each cell, by its anchor."""
    parts = re.split(r'<section class="cell" id="(cell-\d+)"', page.text)
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
        expected = [f"table1.curves.html?panel={plugin}"]
        for run in runs:
            expected += [f'../runs.html?filter="{run}"', *(f"../../runs/{run}/{file}" for file in files)]
        assert list(map(unquote, links)) == expected


def test_a_cell_shows_values_per_seed_interval_verdict_and_runs(toy: Toy) -> None:
    page = read(toy, "paper/table1.html")
    text = sections(page)["cell-2"]
    assert "FedAvg / + FLFA" in text and "published is 70.00" in text
    assert "Not reproduced (worse): ours is 51.00 [" in text
    for value in ("50.00", "51.00", "52.00"):
        assert f"<td>{value}</td>" in text
    assert text.count("<svg") == 2, "the difference and the gain"
    row = page.text[page.text.index(Toy.run("FedDyn", "BP", 1)) :].partition("</tr>")[0]
    found = re.findall(r'<td class="text">([^<]*)', row)
    assert found == ["diverged in round 7", "", "aaaaaaaaaa", "cpu, torch 2.12.1, numpy 2.4.6"]
    assert f'tags."fltrain.run_id" = "{Toy.run("FedAvg", "BP", 0)}"' in page.of("kbd")


COMPARED: dict[str, Any] = {
    **{"verdict": "inconclusive", "mean": 60.5, "published": 60.0, "difference": 0.5, "margin": 1.0},
    **{"n": 3, "seeds": 3, "difference_low": -0.2, "difference_high": 1.2, "seeds_needed": 7},
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["Inconclusive: ours is 60.50", "[-0.20, +1.20], reaches across", "7 seeds would decide it"]),
        ({"verdict": "reproduced", "seeds_needed": None}, ["Reproduced:", "lies inside the margin of ±1."]),
        ({"exploratory": True}, ["(exploratory)."]),
        ({"verdict": None}, ["Ours: 60.50."]),
        ({"verdict": "inconclusive", "reason": "one seed", "difference_low": None}, ["(one seed)"]),
    ],
)
def test_sentences_about_a_cell(changes: dict[str, Any], words: list[str]) -> None:
    sentence = verdict_sentence(TableCell(**{**COMPARED, **changes}))
    assert [word for word in words if word not in sentence] == []


def test_pictures_place_intervals_against_margins() -> None:
    bars = [
        Bar("a", 0.5, 0.0, 1.0, (-1.0, 1.0), verdict="reproduced"),
        Bar("b", 50.0, 40.0, 60.0, (-1.0, 1.0)),
    ]
    picture = forest(bars, "axis", limit=6.0)
    Page(picture)
    margins = [float(x) for x in re.findall(r'<rect x="([\d.]+)"', picture)]
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="14"', picture)]
    (center,) = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', picture)]
    assert len(set(margins)) == 1
    # From -1 to 1: 0.5 lies at three quarters.
    assert (center - margins[0]) / widths[0] == pytest.approx(0.75, abs=0.01)
    assert "▶" in picture, "an arrow stands for a difference that is too large"
    assert forest([], "axis") == ""


def test_the_file_of_all_cells_fits_its_schema(toy: Toy) -> None:
    """Empty fields are left out; texts stay texts if they look like numbers."""
    schema = json.loads((ROOT / "config" / "schemas" / "verdicts.json").read_text())
    texts = {name: str for name, one in schema["properties"].items() if one.get("type") == "string"}
    frame = pd.read_csv(toy.folder / "verdicts.csv", dtype=texts)
    assert list(frame) == list(schema["properties"])
    rows = [{key: value for key, value in row.items() if pd.notna(value)} for row in frame.to_dict("records")]
    assert len(rows) == len(METHODS) * len(PLUGINS) and any("difference_low" in row for row in rows)
    for row in rows:
        jsonschema.validate(row, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**rows[0], "verdict": "fine"}, schema)


@pytest.mark.parametrize("name", PAGES)
def test_only_the_pages_own_scripts_may_run(toy: Toy, name: str) -> None:
    """The policy holds their digests, so a script in a text that is not escaped would not run."""
    text = read(toy, name).text
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    allowed = re.findall(r"'sha256-([^']+)'", html.unescape(policy))
    scripts = re.findall(r'<script(?: type="module")?>(.*?)</script>', text, re.S)
    digests = {base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts}
    assert digests == set(allowed) and "unsafe-inline" not in policy.partition("style-src")[0]
    assert policy.startswith("default-src") and ("unsafe-eval" in policy) == ("curves" in name)


def test_pages_of_another_version_are_named(toy: Toy, tmp_path: Path) -> None:
    assert outdated_pages(toy.folder) == []
    page = tmp_path / "paper" / "table1.html"
    page.parent.mkdir()
    page.write_text((toy.folder / "paper/table1.html").read_text().replace(reporting_version(), "1-abc"))
    assert outdated_pages(tmp_path) == ["paper/table1.html"]


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
    assert re.findall(r'<td class="text">([^<]*)', row) == ["not run", "", "", ""]
    assert Page((toy.folder / "index.html").read_text()).of("small")[0] == "of 30"


MIXED: dict[str, tuple[dict[str, Any], str]] = {
    "another host": ({"host": "elsewhere"}, ""),
    "another commit": ({"commit": "b" * 40}, "Different versions of the code trained these runs"),
    "another torch": ({"packages": {"torch": "2.13.0"}}, "These runs mix PyTorch versions (2.12.1: 29"),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_code_or_machines_are_reported_at_the_top(name: str, tmp_path: Path) -> None:
    changes, remark = MIXED[name]
    toy = Toy(tmp_path, provenance={Toy.run("FedProx", "BP", 1): changes}).write()
    for file in ("index.html", "runs.html", "paper/table1.html"):
        text = read(toy, file).text
        assert ('role="note"' in text) == bool(remark), file
        assert remark in text.partition("<table")[0], "before any number"


def test_the_overview_counts_runs_time_verdicts_and_claims(toy: Toy) -> None:
    page = read(toy, "index.html")
    numbers = dict(zip(page.of("dt"), page.of("dd"), strict=False))
    assert numbers["runs done"] == "30"
    assert numbers["of them diverged"] == "4"
    assert numbers["time they took"] == "50 min"  # 30 runs of 100 seconds
    counts = [
        ("3", "reproduced"),
        ("1", "not reproduced"),
        ("0", "inconclusive"),
        ("2", "direction reproduced"),
    ]
    verdicts = [(text, badge) for text, badge in itertools.pairwise(page.of("span")) if text.isdigit()]
    assert [one for one in verdicts if one in counts][:3] == counts[:3], "an expected number is shown"
    assert "expected 2.5" in page.of("small") and "expected 1.5" in page.of("small")
    assert "(expected: if every published value were true)" in page.of("small")
    assert "<svg" in page.text and "contradicted†" in page.of("span")
    assert "FLFA <always> helps" in page.of("td")
    assert re.search(r">table1</a>, <a [^>]*>figure1</a></td>", page.text), "a claim about both"


def text_of(page: Page) -> str:
    return re.sub(r"\s+", " ", " ".join(text for _, text in page.texts))


def cards(page: Page) -> dict[str, str]:
    """The text of each box at the top of the overview, by its title."""
    parts = re.findall(r"<div><dt>(.*?)</dt><dd[^>]*>(.*?)</dd></div>", page.text)
    return {re.sub(" <small>.*", "", title): re.sub("<[^>]+>", "", text) for title, text in parts}


def test_gains_and_differences_among_our_own_runs_are_counted_apart(toy: Toy) -> None:
    boxes = cards(read(toy, "index.html"))
    assert boxes["published gains"] == "0 size reproduced expected 2.0 2 direction reproduced"
    assert boxes["differences among our own runs"] == "5 equivalent 6 inconclusive"


def test_only_exploratory_verdicts_are_called_so(toy: Toy) -> None:
    """Of two judged claims, that on the figure is exploratory."""
    text = text_of(read(toy, "index.html"))
    assert "Exploratory are the verdicts on 1 of 2 judged claims and 7 table cells:" in text
    assert "Exploratory:" not in text, "no word about all results"


@pytest.mark.parametrize("kind", ["paper", "comparison", "control"])
def test_totals_and_pooled_gains_are_those_of_papers(kind: str, toy: Toy) -> None:
    """The published values of controls are our own; comparisons pool different things."""
    listing = toy.listing.model_dump(mode="json")
    listing["papers"][0]["kind"] = kind
    page = Page(overview.index_page(Listing.parse(listing, "x"), toy.results, toy.folder, "runs.html"))
    text = text_of(page)
    gain = (
        "The gain of flfa over its base method, in accuracy, is +1.25 points (90 % interval 0.50 to 2.00): "
        "the interquartile mean over 4 cells of table1, table2. In these cells, a run beats one of its base "
        "method with a probability of 0.75 (0.50 to 1.00)."
    )
    assert (gain in text) == (kind == "paper")
    assert ("published values" in cards(page)) == ("claims" in cards(page)) == (kind != "control")
    assert ("leave out the controls, as their" in text) == (kind == "control")
    assert "21.44" not in text and "3 reproduced" in text


@pytest.mark.parametrize("title", ["on toy data", ""])
def test_the_title_of_a_scale_stands_over_items_that_share_it(title: str, toy: Toy) -> None:
    listing = toy.listing.model_dump(mode="json")
    listing["title"] = title
    listing["papers"][0]["items"][0]["scale"] = "five seeds"
    shown = Listing.parse(listing, "x")
    text = text_of(Page(overview.index_page(shown, toy.results, toy.folder, "runs.html")))
    runs = text_of(Page(overview.runs_page(shown, toy.results, toy.folder, "index.html")))
    assert ("on toy data" in text) == ("on toy data" in runs) == bool(title)
    assert ("different scales" in text) == ("Accuracy & gain five seeds" in text) == (not title)


def test_pictures_are_embedded_in_the_overview_unless_they_are_large(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The overview can be passed on as a single file."""
    picture = (toy.folder / "paper" / "figure1.png").read_bytes()
    (found,) = (address for address in read(toy, "index.html").loaded if address.startswith("data:image/png"))
    assert base64.b64decode(found.partition("base64,")[2]) == picture
    monkeypatch.setattr(overview, "PICTURE_BYTES", len(picture) - 1)
    large = Page(overview.index_page(toy.listing, toy.results, toy.folder, "runs.html"))
    assert [one for one in large.loaded if not one.startswith("data:")] == ["paper/figure1.png"]


def test_an_overview_before_any_run_is_trained(tmp_path: Path) -> None:
    toy = Toy(tmp_path)
    toy.folder.mkdir(parents=True)
    write(toy.listing, toy.results, toy.folder / "index.html", toy.folder / "runs.html")
    page = read(toy, "index.html")
    assert dict(zip(page.of("dt"), page.of("dd"), strict=False))["runs done"] == "0"
    assert {link for link in page.links if not link.startswith("#")} == {
        *("runs.html", "report.html", "verdicts.csv"),
        *(link for link in page.links if link.startswith("runs.html?")),
    }


def test_the_page_of_curves_has_the_numbers_of_the_records(toy: Toy) -> None:
    text = toy.curves.read_text(encoding="utf-8")
    found = re.search(r'<script type="text/csv" id="numbers">(.*?)</script>', text, re.DOTALL)
    assert found
    shown = pd.read_csv(io.StringIO(found[1].replace("\\u003c", "<")), keep_default_na=False)
    expected = [
        (cell.labels["plugin"], cell.labels["method"], cell.seed, cell.run, *row)
        for cell in toy.sheet.cells
        for row in metrics_of(toy, cell.run)
    ]
    assert len(expected) == 2 * (len(METHODS) * len(SEEDS) * ROUNDS - 2 * 5)
    assert list(shown.itertuples(index=False, name=None)) == expected


def test_a_chart_opens_with_lines_whatever_its_parts_are_called(tmp_path: Path) -> None:
    """Vega-Lite reads dots and brackets as paths; the first panel has none of the drawn curve."""
    cells = Cells(tmp_path / "results", layers=["stem.0", "blocks[1]"])
    for alpha, accuracy, kind in (("0.1", DIVERGED, "other"), ("0.5", 0.5, "divergence")):
        rows = [{"round": n, "kind": kind, "layers": {"stem.0": n, "blocks[1]": n}} for n in (1, 2, 3)]
        cells.add({"alpha": alpha}, accuracy, rows=[*accuracies(0.1, 0.2, 0.3), *rows])
    panels = [{"curve": "divergence.layers", "label": "Divergence"}]
    sheet = cells.sheet(figure={"kind": "curves", "series": "layers", "columns": "alpha", "panels": panels})
    script, path = tmp_path / "vega.js", tmp_path / "figure1.curves.html"
    script.write_text("")
    curves.write(sheet, cells.results.record, script, path)
    text = path.read_text(encoding="utf-8")
    (chart,) = re.findall(r'<script type="application/json" id="spec">(.*?)</script>', text, re.DOTALL)
    (numbers,) = re.findall(r'<script type="text/csv" id="numbers">(.*?)</script>', text, re.DOTALL)
    spec = json.loads(chart)
    assert spec["params"][0]["bind"]["options"][:2] == [
        "divergence layers stem 0",
        "divergence layers blocks 1",
    ]
    spec["data"]["values"] = numbers
    assert vl_convert.vegalite_to_svg(spec).count("round: ") >= 3, "points"


def metrics_of(toy: Toy, run: str) -> list[tuple[float, ...]]:
    lines = (toy.results.run(run) / "metrics.jsonl").read_text().splitlines()
    return [(row["round"], row["accuracy"], row["loss"]) for row in map(json.loads, lines)]


def test_a_page_of_many_curves_keeps_every_nth_round(monkeypatch: pytest.MonkeyPatch, toy: Toy) -> None:
    numbers = curves.points(toy.sheet, toy.results.record)
    assert curves.thinned(numbers)[1] == 1
    monkeypatch.setattr(curves, "ROWS", len(numbers) // 3)
    kept, step = curves.thinned(numbers)
    assert step == 3 and set(kept["round"]) == {3, 6, 9, 12}
