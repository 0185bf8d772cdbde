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

from fltrain.experiments.layout import ItemJob, Table
from fltrain.reporting import overview, paper, summary, version
from fltrain.reporting.figures.forest import LIMIT, WIDTH, forest
from fltrain.reporting.tables.html import facts
from fltrain.reporting.tables.render import Notes
from fltrain.reporting.tables.table_cell import TableCell, read_csv
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
    assert any("over 3 seeds." in text for text in page.of("p"))
    assert "not reproduced (worse)" in page.of("span") and "not comparable" not in page.text


def test_at_a_reduced_scale_there_is_no_verdict(tmp_path: Path) -> None:
    page = read(Toy(tmp_path, reduced=True).write(), "paper/table1.html")
    assert any("not comparable with the published ones" in text for text in page.of("p"))
    assert not any("reproduced" in text or "inconclusive" in text for text in page.of("span"))


def test_doubts_and_notes_are_linked_from_their_values(toy: Toy) -> None:
    page = read(toy, "paper/table1.html")
    assert f"Doubtful as published: {DOUBT}." in page.of("li")
    assert page.links.count("#note-1") == 2, "both values of FedProx"
    assert page.links.count("#note-2") == 1 and "read off a plot" in page.of("li")
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
    assert "FedAvg / + FLFA" in text and "<dt>published</dt><dd>70.00</dd>" in text
    assert "<dd>not reproduced (worse)</dd>" in text and re.search(r"<dd>51\.00 \[", text)
    for value in ("50.00", "51.00", "52.00"):
        assert f"<td>{value}</td>" in text
    row = page.text[page.text.index(Toy.run("FedDyn", "BP", 1)) :].partition("</tr>")[0]
    found = re.findall(r'<td class="text">([^<]*)', row)
    assert found == ["diverged in round 7", ""]
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
    ],
)
def test_facts_about_a_cell(changes: dict[str, Any], expected: dict[str, str]) -> None:
    shown = facts(TableCell(measure="final_accuracy", **{**COMPARED, **changes}), False)
    assert {name: shown[name] for name in expected} == expected


def places(picture: str, mark: str) -> list[float]:
    """The horizontal places of the marks of a kind in a chart."""
    groups = re.findall(rf'<g class="mark-{mark} role-mark[^>]*>(.*?)</g>', picture)
    return [float(x) for group in groups for x in re.findall(r"translate\(([\d.]+),", group)]


def test_a_forest_plot_has_the_differences_in_margins() -> None:
    titles = {"a": "Table of <a>", "b": "B"}
    cell = TableCell(
        **{"item": "a", "row": "one", "margin": 2.0, "verdict": "not reproduced"},
        **{"difference": 1.0, "difference_low": 0.0, "difference_high": 99.0},
    )
    without = TableCell(item="b", row="no interval", margin=2.0, difference=1.0)
    picture = forest([cell, without], titles)
    Page(picture)
    # The axis ends at 6 margins; the point lies at half a margin, the interval is cut off.
    scale = WIDTH / (2 * LIMIT)
    assert places(picture, "symbol") == [pytest.approx(WIDTH / 2 + 0.5 * scale)]
    left = WIDTH / 2 - scale
    assert f'd="M{left:g},0h{2 * scale:g}v' in picture, "the margin is from -1 to 1"
    assert re.search(rf'translate\({WIDTH // 2},[\d.]+\)" x2="{WIDTH // 2}"', picture), "from 0 to the end"
    assert picture.count("var(--bad)") == 2, "point and interval"
    assert "Table of" not in picture and "no interval" not in picture
    several = forest([cell, cell.replace(row="two"), cell.replace(item="b", verdict="reproduced")], titles)
    texts = [text for text in re.findall(r">([^<>]+)</text>", several) if not re.fullmatch(r".?\d", text)]
    name = "difference to the published value, in margins (grey); cut off at the ends"
    assert sorted(texts) == ["B", "Table of &lt;a&gt;", name, "one", "one", "two"]
    assert "var(--good)" in several
    assert forest([without], titles) == "" == forest([cell] * 41, titles)


def test_a_forest_plot_of_gains_is_in_points() -> None:
    cell = TableCell(item="a", row="one", label="accuracy, %", gain=1.0, gain_low=0.5, gain_high=1.5)
    picture = forest([cell, cell.replace(label="time")], {"a": "A"}, "gain")
    assert re.findall(r">([^<>]+)</text>", picture) == [
        *("\u22122", "0", "2", "gain, in points", "one"),
    ]
    assert places(picture, "symbol") == [pytest.approx(0.75 * WIDTH)] and "mark-rect" not in picture


@pytest.mark.parametrize("of", ["gain", "difference"])
def test_a_forest_plot_has_words_if_all_runs_diverged(of: Literal["gain", "difference"]) -> None:
    numbers = {
        name: {f"{name}_low": 79.0, f"{name}_high": 81.0, name: 80.0} for name in ("gain", "difference")
    }
    cell = TableCell(item="a", row="one", label="accuracy, %", margin=1.0, gains=(80.0,), **numbers[of])
    lost = cell.replace(row="two", seeds=3, diverged=3, verdict="not reproduced")
    base = cell.replace(row="three", base_diverged=1)
    words = {"gain": ["base diverged", "diverged"], "difference": ["diverged"]}[of]
    picture = forest([cell, lost, base], {"a": "A"}, of)
    assert sorted(re.findall(r">([a-z ]*diverged)</text>", picture)) == words
    assert len(places(picture, "symbol")) == 3 - len(words)
    assert re.findall(r">(one|two|three)</text>", picture) == ["one", "two", "three"]
    assert "var(--bad)" not in picture
    assert forest([lost], {"a": "A"}, of).count("diverged</text>") == 1


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
    assert version.reporting_version.__wrapped__() == before
    with (copy / file).open("a") as code:
        code.write("# changed\n")
    assert version.reporting_version.__wrapped__() != before


def test_every_layer_below_the_pages_decides_them_or_trains() -> None:
    """A new layer of the package needs a decision."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = next(one["layers"] for one in settings["tool"]["importlinter"]["contracts"] if "layers" in one)
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
    assert re.findall(r'<td class="text">([^<]*)', row) == ["not run", ""]
    assert "24 of 30 runs are done" in text_of(read(toy, "index.html"))


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
        assert remark in text.partition("<table")[0], "before any table"


def text_of(page: Page) -> str:
    return re.sub(r"\s+", " ", " ".join(text for _, text in page.texts))


def front(toy: Toy, **changes: Any) -> Page:
    """The front page of a listing with changes."""
    listing = {**toy.listing, **changes}
    overview.write(listing, toy.results, toy.folder / "index.html", toy.folder / "runs.html")
    return read(toy, "index.html")


def test_the_front_page_shows_what_was_found_before_the_bookkeeping(toy: Toy) -> None:
    page = read(toy, "index.html")
    text = text_of(page)
    assert page.of("h2") == ["Another paper", "Runs"], "the title of the other card is a link"
    assert "paper/index.html" in page.links and "A paper on <toys>" in page.of("a")
    assert "+1.25 points <here>." in text and "claims 1 supported 1 contradicted Accuracy changes" in text
    assert "differences among our own runs 5 equivalent 6 inconclusive" in text
    # Each of the 30 runs took 100 seconds.
    assert "30 of 30 runs are done, 4 of them diverged; they took 50 min" in text
    assert text.index("supported") < text.index("30 of 30 runs")


def test_the_front_page_is_small_and_links_pictures(toy: Toy) -> None:
    page = read(toy, "index.html")
    assert [one for one in page.loaded if not one.startswith("data:,")] == ["paper/figure1.png"]
    assert len(page.text) < 40_000 and not any("report" in link for link in page.links)
    (toy.folder / "paper" / "figure1.svg").write_text("<svg/>")
    try:
        assert "paper/figure1.svg" in front(toy).loaded, "sharp at any size"
    finally:
        (toy.folder / "paper" / "figure1.svg").unlink()
        front(toy)


def test_the_page_of_a_paper_has_its_tables_figures_and_claims(toy: Toy) -> None:
    page = read(toy, "paper/index.html")
    text = text_of(page)
    assert page.ids.index("table1") < page.ids.index("figure1") < page.ids.index("claim-table")
    table = read(toy, "paper/table1.html")
    assert [link for link in page.links if "#cell-" in link] == [
        f"table1.html{link}" for link in table.links if link.startswith("#cell-")
    ]
    assert "figure1.png" in page.loaded
    assert page.links.count("#table1-note-1") == 2 and "table1-note-1" in page.ids, "notes stand on this page"
    assert "0 inconclusive" in text and "expected 1.5" in page.of("small")
    assert "FLFA <always> helps" in page.of("td") and "contradicted†" in page.of("span")
    assert re.search(r">A square</a>, <a [^>]*>Accuracy &amp; gain</a></td>", page.text), "a claim about both"
    assert "figure1" not in text and "table1" not in text, "people read titles"
    assert "† drops out of the list of contradicted claims" in text
    assert "has the other sign" in text and "opposite is significant at 5 %" in text
    assert "Exploratory: declared as such, or decided after these runs had been seen." in text
    assert (
        "Not run: 1 of the claims, 1 of the paper's tables and figures" in text
        and "sec. 10: Toys last" in page.of("li")
    )
    assert text.count("on toy data") == 1, "the scale stands once, at the top"


def test_a_figure_leads_to_its_runs_if_it_has_any(toy: Toy) -> None:
    bubbles = toy.figure.model_dump(mode="json") | {"figure": {"kind": "bubbles", "columns": "method"}}
    found = []
    for sheet in (toy.figure, ItemJob.parse(bubbles, "sheet")):
        page = Page(paper.page({**SUMMARY, "reduced": False}, ABOUT, [sheet], {}, toy.folder / "paper"))
        found.append([unquote(link) for link in page.links if "runs.html" in link])
    assert found == [['../runs.html?filter="paper/figure1"'], []]


def test_choices_of_settings_come_after_the_results(toy: Toy) -> None:
    sheets = [toy.sheet, toy.figure]
    cells = {toy.sheet.id: read_csv(toy.folder / "paper" / "table1.csv")}
    orders = []
    for axis in (None, "rate"):
        table = toy.sheet.table.model_copy(update={"best_of": axis})
        sheets[0] = ItemJob(**{**dict(toy.sheet), "table": table})
        text = paper.page({**SUMMARY, "reduced": False}, ABOUT, sheets, cells, toy.folder / "paper")
        orders.append(re.findall(r'<h2 id="(table1|figure1)"', text))
    assert orders == [["table1", "figure1"], ["figure1", "table1"]]


def test_controls_have_no_expected_numbers(toy: Toy) -> None:
    """Their truth is known: some of their values are false on purpose."""
    cells = read_csv(toy.folder / "paper" / "table1.csv")
    texts = [
        " ".join(Notes.of(ItemJob(**{**dict(toy.sheet), "control": control}), cells).texts)
        for control in (False, True)
    ]
    assert ["expected if every published value were true" in text for text in texts] == [True, False]
    values, controls = (
        next(iter(summary.verdict_counts(kind, cells, []).items())) for kind in ("paper", "control")
    )
    assert values[1][0] == controls[1][0] and values[1][1] and not controls[1][1]
    known = [cell for cell in cells if cell.verdict and cell.published is not None]
    false, *true = (cell.replace(falsified=number == 0, published=1.0) for number, cell in enumerate(known))
    assert summary.true_values([false, *true]).startswith(f"1 true value in {len(true)} cell")


A, B = ("A grows", "supported", False), ("B falls", "contradicted", False)
LATE, OPEN = ("C stays", "supported", True), ("D may grow", "undecided", False)
SMALL = ("E grows", "reduced scale", False)


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        (
            [LATE, OPEN, B, A, ("A falls", "supported", False)],
            ["Supported: “A grows”", "Contradicted: “B falls”", "Undecided: “D may grow”"],
        ),
        ([LATE, OPEN], ["Undecided: “D may grow”"]),
        ([LATE], ["Supported, exploratory: “C stays”"]),
        ([SMALL], ["Claim, not judged at this scale: “E grows”"]),
        ([], []),
    ],
)
def test_findings_are_the_first_claim_of_each_verdict(
    claims: list[tuple[str, str, bool]], expected: list[str]
) -> None:
    number = "+1.00 points [+0.50, +1.50] (gain over base: x minus y)"
    measured = [
        {
            "claim": text,
            "verdict": verdict,
            "dropped": False,
            "exploratory": late,
            "where": "sec. 2",
            "number": number,
        }
        for text, verdict, late in claims
    ]
    without = {**measured[0], "number": ""} if measured else {"number": ""}
    assert summary.findings([without, *measured]) == [f"{text} (sec. 2; {number})." for text in expected]


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
    columns = ["where", "claim", "verdict", "dropped", "exploratory", "evidence", "item", "number"]
    judged = pd.DataFrame([["", "", "supported", False, False, "", "a, b", ""]], columns=columns)
    heading = {"paper": "paper", "title": "A paper", "kind": "paper", "scale": "one", "reduced": False}
    picture = summary.paper_summary(heading, sheets, judged, cells)["forest"]
    texts = re.findall(r">([^<>]+)</text>", picture)
    assert texts.count("cut 3") == 2 and texts.count("Accuracy &amp; gain: minus noise 0") == 2, texts


def test_the_title_of_a_scale_stands_over_items_that_share_it(toy: Toy) -> None:
    assert "different scales" not in text_of(front(toy)) and "on toy data" in text_of(front(toy))
    assert "states its own scale" in text_of(front(toy, title="")), "as there is none for all"
    front(toy)


def test_a_front_page_before_any_run_is_trained(tmp_path: Path) -> None:
    toy = Toy(tmp_path)
    toy.folder.mkdir(parents=True)
    page = front(toy)
    assert "0 of 30 runs are done" in text_of(page)
    assert {link.partition("?")[0] for link in page.links} == {"runs.html", "verdicts.csv"}
