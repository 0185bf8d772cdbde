"""Pages state the numbers, counts and verdicts of the published files."""

import csv
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]
WORDS = {
    **{1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"},
    **{10: "ten", 11: "eleven", 12: "twelve", 13: "thirteen", 14: "fourteen", 15: "fifteen", 16: "sixteen"},
    17: "seventeen",
}
NUMBER = r"([+-]?\d+(?:\.\d+)?)"
SPREAD = rf"{NUMBER} ± {NUMBER}"
INTERVAL = rf"{NUMBER}(?: ± [\d.]+)?(?: points)?(?: \|)?\s\[([+-]?\d+\.\d+), ([+-]?\d+\.\d+)\]"
CLAIMED = r"([+-][\d.]+)[^\[\d]*\[([+-][\d.]+), ([+-][\d.]+)\]"
"""A number of a claim with its interval; the evidence adds the numbers of parts, without a verdict."""

FORMS = (
    *(("mean", "std"), ("gain", "gain_std")),
    *(("estimate", "low", "high"), ("mean", "low", "high"), ("gain", "gain_low", "gain_high")),
)
"""Columns of numbers that stand together."""

Numbers = tuple[float, ...]


@cache
def read(name: str) -> list[dict[str, str]]:
    with (ROOT / "published" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def written(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8").partition("<!-- docs/generate.py")[0]


SUBTRACTED = (
    ("ecgr/betas_accuracy.csv", "last_accuracy", "0", "0.2"),
    ("replication_cifar10/fed2.csv", "last_accuracy", "Fed2", "Fed2, all nodes"),
    *(
        ("replication_cifar10/flfa_parts.csv", "final_accuracy", part, "FLFA")
        for part in ("FLFA*", "FLFA†", "DFA")
    ),
)
"""Differences of rows on the same seeds that no table shows."""


def paired(name: str, measure: str, row: str, base: str) -> np.ndarray:
    """Differences of two rows, by seed."""
    values = {
        one["row"]: np.array(one["values"].split(), float) for one in read(name) if one["measure"] == measure
    }
    return values[row] - values[base]


def difference(name: str, measure: str, row: str, base: str) -> Numbers:
    """Mean and 90 % interval of a difference of two rows, paired by seed."""
    differences = paired(name, measure, row, base)
    half = stats.t.ppf(0.95, len(differences) - 1) * stats.sem(differences)
    return differences.mean(), differences.mean() - half, differences.mean() + half


@cache
def published() -> list[tuple[Numbers, str]]:
    """Means with their deviations or intervals, and the verdicts on claims and differences."""
    found = [(difference(*one), "") for one in SUBTRACTED]
    for path in sorted((ROOT / "published").glob("*/*.csv")):
        for row in read(f"{path.parent.name}/{path.name}"):
            verdict = row["verdict"] if path.stem == "claims" else row.get("gain_verdict", "")
            numbers = [tuple(row.get(name, "") for name in names) for names in FORMS]
            numbers += re.findall(CLAIMED, row.get("number", ""))
            found += [(tuple(map(float, one)), verdict) for one in numbers if all(one)]
            found += [(tuple(map(float, one)), "") for one in re.findall(CLAIMED, row.get("evidence", ""))]
    return found


def verdicts_on(stated: tuple[str, ...]) -> set[str]:
    """The verdicts on published numbers that round to the stated ones, or on the opposite difference."""
    texts = [text.lstrip("+") for text in stated]
    found = set()
    for (mean, *ends), verdict in published():
        turned = (-mean, *(ends if len(ends) == 1 else (-ends[1], -ends[0])))
        for numbers in ((mean, *ends), turned):
            places = (len(text.partition(".")[2]) for text in texts)
            if len(numbers) == len(texts) and [f"{one:z.{next(places)}f}" for one in numbers] == texts:
                found.add(verdict)
    return found


@pytest.mark.parametrize(
    "page", ["README.md", "docs/papers/ecgr.md", "docs/replication.md", "published/README.md"]
)
def test_spreads_intervals_and_their_verdicts_are_published(page: str) -> None:
    """A sentence with verdicts has the verdict of each claim whose interval it states."""
    wrong = []
    for sentence in re.split(r"\.\s|\n\n|\n[|*] ", written(page)):
        words = set(re.findall(r"supported|contradicted|undecided|(?<=\*)(?:better|worse)(?=\*)", sentence))
        for pattern in (SPREAD, INTERVAL):
            for match in re.finditer(pattern, sentence):
                verdicts = verdicts_on(match.groups())
                if not verdicts or (words and verdicts != {""} and not words & verdicts):
                    wrong.append(" ".join(match.group().split()))
    assert not wrong


def test_the_power_of_the_replications_follows_from_their_spreads() -> None:
    table = written("docs/replication.md").partition("| difference | s in the pilot")[2].partition("\n\n")[0]
    lines = {
        line.split(" | ")[0].strip("| "): re.findall(r"\d\.\d\d", line) for line in table.split("\n")[2:]
    }
    rows = {
        **{"Fed2 minus FedAvg": ("fed2", "Fed2", "FedAvg"), "Fed2 minus FedMA": ("fed2", "Fed2", "FedMA")},
        "Fed2 minus FedAvg with GroupNorm": ("fed2", "Fed2", "FedAvg + GN"),
        "Fed2 with all nodes minus FedAvg": ("fed2", "Fed2, all nodes", "FedAvg"),
        "FedImpro minus FedAvg": ("fedimpro", "3", "none (FedAvg)"),
        "FedImpro, middle cut minus deep cut": ("fedimpro", "3", "5"),
        "FedImpro with noise 0.5 minus FedAvg": ("fedimpro", "3, noise 0.5", "none (FedAvg)"),
        "FedFCD minus FedFCD without FA": ("fedfcd", "FedFCD", "without FA"),
    }
    computed = {}
    for name, (item, *pair) in rows.items():
        measure = "last_accuracy" if item == "fed2" else "final_accuracy"
        both = [paired(f"replication_cifar10/{one}.csv", measure, *pair) for one in (f"{item}_pilot", item)]
        (before, s), n = (one.std(ddof=1) for one in both), len(both[1])
        power = stats.nct.sf(stats.t.ppf(0.95, n - 1), n - 1, np.sqrt(n) / s)
        computed[name] = [f"{one:.2f}" for one in (before, s, power)]
    assert lines == computed


def test_gains_of_ecgr_shrink_at_the_higher_rate_as_stated() -> None:
    levels, gains = [], []
    for method in ("FedAvg", "FedProx", "FedNova"):
        low, high = (
            {
                row["column"]: row
                for row in read(f"ecgr/{name}.csv")
                if (row["row"], row["measure"]) == (method, "last_accuracy")
            }
            for name in ("confirmatory", "figure2_accuracy_higher_rate")
        )
        levels.append(float(high["base"]["mean"]) - float(low["base"]["mean"]))
        gains.append(float(high["+ ECGR"]["gain"]))
    levels_text = f"end {min(levels):.0f} to {max(levels):.0f} points higher"
    gains_text = f"gain {min(gains):.1f} to {max(gains):.1f}"
    for page in ("README.md", "docs/papers/ecgr.md"):
        text = " ".join(written(page).split())
        assert levels_text in text and gains_text in text


def counted(name: str, start: str = "") -> Counter[str]:
    return Counter(row["verdict"] for row in read(name) if row.get("where", "").startswith(start))


def test_counts_of_verdicts_are_published() -> None:
    rounds, fedavg, mnist = map(
        counted, ("fedavg/table1_2nn.csv", "fedavg/claims.csv", "replication/claims.csv")
    )
    missed = sum(row["reason"] == "target missed" for row in read("fedavg/table1_2nn.csv"))
    cifar, fed2 = (counted("replication_cifar10/claims.csv", start) for start in ("", "Fed2"))
    bases = [row for row in read("ecgr/claims.csv") if "gains with ECGR on MNIST (new seeds)" in row["claim"]]
    controls = ("positive", "positive_bare", "spiked", "flower")
    cells = [row for name in controls for row in read(f"controls/{name}.csv") if row["verdict"]]
    true = [row for row in cells if row["falsified"] == "False"]
    values = {row["published"] for row in true}
    confirmed = {row["published"] for row in true if row["verdict"] == "reproduced"}
    open_cells = [row for row in true if row["published"] not in confirmed]
    assert {row["verdict"] for row in open_cells} == {"inconclusive"}
    assert "not reproduced" not in {row["verdict"] for row in true}
    assert {row["verdict"] for row in bases} == {"supported"}
    tuned = [row for row in read("fair/accuracy.csv") if row["column"] == "tuned"]
    fair = Counter((row["panel"], row["gain_verdict"]) for row in tuned)
    assert fair["Dirichlet 0.1", "worse"] == 1 and "better" not in {row["gain_verdict"] for row in tuned}
    stated: dict[str, list[tuple[Any, ...]]] = {
        "README.md": [
            (f"In {rounds['not reproduced']} of {rounds.total()} cells, a quarter to a half",),
            (f"{rounds['not reproduced']} *not reproduced*, {{}} *inconclusive* (target missed)", missed),
            ("*supported* for all {} base methods", len(bases)),
            ("rejects all {} false values", len(cells) - len(true)),
            ("and none of the {} true ones. It confirms {} of the true values", len(values), len(confirmed)),
            ("the other {} are *inconclusive*", len(values - confirmed)),
        ],
        "published/README.md": [
            *(("{} cells are " + verdict, number) for verdict, number in rounds.items()),
            *(("{} claims are " + verdict, fedavg[verdict]) for verdict in ("supported", "undecided")),
            ("{} claims are supported: Fed2", fed2["supported"]),
            ("{} claims of five papers", cifar.total()),
            ("of the {} claims, ", mnist.total()),
            *(("{} is " + verdict, mnist[verdict]) for verdict in ("supported", "contradicted")),
            ("and {} are undecided", mnist["undecided"]),
        ],
    }
    for page, phrases in stated.items():
        text = " ".join(written(page).split()).lower()
        expected = [form.format(*(WORDS[number] for number in numbers)) for form, *numbers in phrases]
        assert not [phrase for phrase in expected if phrase.lower() not in text], page


def test_the_confirmatory_table_of_ecgr_is_published() -> None:
    gains = {row["row"]: row for row in read("ecgr/confirmatory.csv") if row["gain"]}
    table = re.findall(r"\n\| (\w+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ", written("docs/papers/ecgr.md"))
    stated = {cells[0]: cells[1:] for cells in table if cells[0] in gains}
    assert stated == {
        name: (
            f"{float(row['gain']):+.2f}",
            f"[{float(row['gain_low']):+.2f}, {float(row['gain_high']):+.2f}]",
            ", ".join(f"{float(one):.2f}" for one in row["gains"].split()),
        )
        for name, row in gains.items()
    }
