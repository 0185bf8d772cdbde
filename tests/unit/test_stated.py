"""Pages state the numbers, counts and verdicts of the published files."""

import csv
import json
import math
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from statistics import mode
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fltrain.core.statistics import LEVEL, Sample, contrast, moderated
from fltrain.data.partition.dirichlet import Dirichlet
from fltrain.experiments.items import Entry, PlannedItem
from fltrain.methods.fed2 import Fed2
from fltrain.models.base import build
from fltrain.runs.spec import RunSpec

from .helpers import shipped

ROOT = Path(__file__).parents[2]
WORDS = {
    **{1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"},
    **{10: "ten", 11: "eleven", 12: "twelve", 13: "thirteen", 14: "fourteen", 15: "fifteen", 16: "sixteen"},
    **{17: "seventeen", 18: "eighteen", 19: "nineteen", 20: "twenty"},
}
NUMBER = r"([+-]?\d+(?:\.\d+)?)"
SPREAD = rf"{NUMBER} ± {NUMBER}"
INTERVAL = rf"{NUMBER}(?: points)?\s\[([+-]?\d+\.\d+), ([+-]?\d+\.\d+)\]"
ENDS = r"\[([+-][\d.]+), ([+-][\d.]+)\]"
CLAIMED = rf"([+-][\d.]+)(?: [^\[;:]*)? {ENDS}"
"""A number of a claim with its interval; the evidence adds the numbers of parts, without a verdict."""

FORMS = (
    ("mean", "std"),
    *(("estimate", "low", "high"), ("mean", "low", "high"), ("gain", "gain_low", "gain_high")),
)
"""Columns of numbers that stand together."""

MIDDLE = "FedImpro (cut after conv3)"

Numbers = tuple[float, ...]


@cache
def read(name: str) -> list[dict[str, str]]:
    with (ROOT / "published" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def written(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8").partition("<!-- docs/generate.py")[0]


SUBTRACTED = (
    ("ecgr/betas_accuracy.csv", "last_accuracy", "0", "0.2"),
    ("replication_cifar10/fed2.csv", "last_accuracy", "Fed2", "Fed2 (averaged over all nodes)"),
    *(
        ("replication_cifar10/flfa_parts.csv", "final_accuracy", part, "FLFA")
        for part in ("FLFA* with random feedback", "FLFA without scaling", "DFA (direct feedback)")
    ),
)
"""Differences of rows on the same seeds that no table shows."""


def paired(name: str, measure: str, label: str, base: str) -> np.ndarray:
    """Differences of two rows, by seed."""
    values = {
        row["row"]: np.array(row["values"].split(), float) for row in read(name) if row["measure"] == measure
    }
    return values[label] - values[base]


def difference(name: str, measure: str, row: str, base: str) -> Numbers:
    """Mean and 90 % interval of a difference of two rows, paired by seed."""
    return interval(paired(name, measure, row, base))


def interval(differences: np.ndarray) -> Numbers:
    half = stats.t.ppf(0.95, len(differences) - 1) * stats.sem(differences)
    return differences.mean(), differences.mean() - half, differences.mean() + half


@cache
def published() -> list[tuple[Numbers, str]]:
    """Means with their deviations or intervals, and the verdicts on claims and differences."""
    pairs = [(difference(*terms), "") for terms in SUBTRACTED]
    pairs += [(interval(gaps), "") for gaps in averaged_over_clients().values()]
    for path in sorted((ROOT / "published").glob("*/*.csv")):
        for row in read(f"{path.parent.name}/{path.name}"):
            verdict = row["verdict"] if path.stem == "claims" else row.get("gain_verdict", "")
            numbers = [tuple(row.get(name, "") for name in names) for names in FORMS]
            numbers += claimed(row.get("number", ""))
            pairs += [(tuple(map(float, texts)), verdict) for texts in numbers if all(texts)]
            pairs += [(tuple(map(float, texts)), "") for texts in claimed(row.get("evidence", ""))]
    return pairs


def claimed(text: str) -> list[tuple[str, ...]]:
    """Numbers of a claim with their intervals."""
    return re.findall(CLAIMED, text)


def verdicts_on(stated: tuple[str, ...]) -> set[str]:
    """The verdicts on published numbers that round to the stated ones, or on the opposite difference."""
    texts = [text.lstrip("+") for text in stated]
    verdicts = set()
    for (mean, *ends), verdict in published():
        turned = (-mean, *(ends if len(ends) == 1 else (-ends[1], -ends[0])))
        for numbers in ((mean, *ends), turned):
            places = (len(text.partition(".")[2]) for text in texts)
            if len(numbers) == len(texts) and [f"{number:z.{next(places)}f}" for number in numbers] == texts:
                verdicts.add(verdict)
    return verdicts


@pytest.mark.parametrize(
    "page", ["README.md", "docs/papers/ecgr.md", "docs/replication.md", "published/README.md"]
)
def test_spreads_intervals_and_their_verdicts_are_published(page: str) -> None:
    """A sentence with verdicts has the verdict of each claim whose interval it states."""
    wrong = []
    for sentence in re.split(r"\.\s|\n\n|\n[|*] ", written(page)):
        verdicts = r"supported|contradicted|inconclusive|(?<=\*)(?:better|worse)(?=\*)"
        words = set(re.findall(verdicts, sentence))
        for pattern in (SPREAD, INTERVAL):
            for match in re.finditer(pattern, sentence):
                verdicts = verdicts_on(match.groups())
                if not verdicts or (words and verdicts != {""} and not words & verdicts):
                    wrong.append(" ".join(match.group().split()))
    assert not wrong


def test_the_power_of_the_replications_follows_from_their_spreads() -> None:
    table = (
        written("docs/replication-audit.md")
        .partition("| difference | s in the pilot")[2]
        .partition("\n\n")[0]
    )
    lines = {
        line.split(" | ")[0].strip("| "): re.findall(r"\d\.\d\d", line) for line in table.split("\n")[2:]
    }
    rows = {
        **{"Fed2 minus FedAvg": ("fed2", "Fed2", "FedAvg"), "Fed2 minus FedMA": ("fed2", "Fed2", "FedMA")},
        "Fed2 minus FedAvg with GroupNorm": ("fed2", "Fed2", "FedAvg + GroupNorm"),
        "Fed2 (averaged over all nodes) minus FedAvg": ("fed2", "Fed2 (averaged over all nodes)", "FedAvg"),
        "FedImpro minus FedAvg": ("fedimpro", MIDDLE, "FedAvg"),
        f"{MIDDLE} minus FedImpro (cut after conv5)": ("fedimpro", MIDDLE, "FedImpro (cut after conv5)"),
        "FedImpro with noise 0.5 minus FedAvg": ("fedimpro", f"{MIDDLE[:-1]}, noise 0.5)", "FedAvg"),
        "FedFCD minus FedFCD without feature alignment": ("fedfcd", "FedFCD", "without feature alignment"),
    }
    computed = {}
    for name, (item, *pair) in rows.items():
        measure = "last_accuracy" if item == "fed2" else "final_accuracy"
        gaps = [paired(f"replication_cifar10/{file}.csv", measure, *pair) for file in (f"{item}_pilot", item)]
        (before, s), n = (gap.std(ddof=1) for gap in gaps), len(gaps[1])
        power, twice = (
            stats.nct.sf(stats.t.ppf(0.95, n - 1), n - 1, points * np.sqrt(n) / s) for points in (1, 2)
        )
        computed[name] = [f"{value:.2f}" for value in (before, s, power)]
        assert before < s and (item != "fedimpro" or twice >= 0.99)
    assert lines == computed


def ecgr(name: str, measure: str = "last_accuracy") -> dict[tuple[str, str], dict[int, float]]:
    """Values by method and plug-in, and by seed."""
    return {
        (row["row"], row["column"]): dict(
            zip(map(int, row["value_seeds"].split()), map(float, row["values"].split()), strict=True)
        )
        for row in read(f"ecgr/{name}.csv")
        if row["measure"] == measure and row["values"]
    }


def test_gains_of_ecgr_shrink_at_the_higher_rate_as_stated() -> None:
    """Levels are of the seeds that both rates have, gains of all seeds."""
    low, high = (ecgr(name) for name in ("figure2_accuracy", "figure2_accuracy_higher_rate"))
    levels = []
    for method in ("FedAvg", "FedProx", "FedNova"):
        seeds = low[method, "base"]
        assert sorted(seeds) == [0, 1, 2]
        base = np.mean([high[method, "base"][seed] for seed in seeds])
        levels.append(base - np.mean(list(seeds.values())))
    rows = read("ecgr/figure2_accuracy_higher_rate.csv")
    rows = [
        row for row in rows if row["measure"] == "last_accuracy" and row["gain"] and row["row"] != "SCAFFOLD"
    ]
    rows.sort(key=lambda row: float(row["gain"]))
    first, last = (
        "{:+.2f} [{:+.2f}, {:+.2f}] (".format(*(float(row[f"gain{end}"]) for end in ("", "_low", "_high")))
        + row["row"]
        for row in (rows[0], rows[-1])
    )
    extremes = [float(row["gain"]) for row in (rows[0], rows[-1])]
    texts = {
        "README.md": "ECGR adds only {:.2f} to {:.2f} points".format(*extremes),
        "docs/papers/ecgr.md": f"gain at rate 0.01? | only {first}) to {last}) |",
        "config/papers/ecgr/paper.yaml": "ECGR adds only {:.2f} to {:.2f} points".format(*extremes),
    }
    caption = " ".join(written("config/papers/ecgr/confirmatory.yaml").split())
    assert (
        f"end {min(levels):.0f} to {max(levels):.0f} points higher, and ECGR adds less than a point"
        in caption
    )
    assert extremes[-1] < 1
    for page, words in texts.items():
        text = " ".join(written(page).split())
        higher = f"end {min(levels):.0f} to {max(levels):.0f} points higher"
        assert words in text and higher in text


def test_the_range_of_rates_of_ecgr_is_stated() -> None:
    """The levels at 0.001, and at 0.0001 of SCAFFOLD with the same seeds."""
    page = " ".join(written("docs/papers/ecgr.md").split())
    means = [np.mean(list(values.values())) for values in ecgr("figure2_accuracy").values()]
    assert f"our methods end at {min(means):.0f} to {max(means):.0f} % on average" in page
    slower = [
        float(value)
        for row in read("ecgr/rates_accuracy_scaffold_slower.csv")
        if (row["row"], row["panel"], row["measure"]) == ("SCAFFOLD", "MNIST, lr 0.001", "last_accuracy")
        for value in row["values"].split()
    ]
    assert len(slower) == 6
    assert f"SCAFFOLD's runs with these seeds end at {min(slower):.0f} to {max(slower):.0f} %" in page
    register = " ".join((ROOT / "config" / "register.yaml").read_text(encoding="utf-8").split())
    seen = [
        value
        for name in ("figure2_accuracy", "confirmatory")
        for (method, plugin), values in ecgr(name).items()
        if plugin == "base" and method != "SCAFFOLD"
        for value in values.values()
    ]
    assert f"({min(seen):.0f} to {max(seen):.0f} % without ECGR, {WORDS[len(seen) // 3]} seeds)" in register


def test_the_replication_of_fed2_states_its_final_accuracies() -> None:
    """Its claims use the last accuracy; records have the final one, too."""
    rows = {
        row["row"]: row for row in read("replication_cifar10/fed2.csv") if row["measure"] == "last_accuracy"
    }
    ours, *others = (
        np.array([records()[run]["summary.json"]["accuracy"]["final"] for run in rows[name]["runs"].split()])
        for name in ("Fed2", "FedAvg", "FedAvg + GroupNorm")
    )
    over, norm = (f"{100 * (ours - base).mean():.2f}" for base in others)
    text = " ".join(written("docs/replication.md").split())
    below = f"{norm.removeprefix('-')} below FedAvg with GroupNorm."
    assert norm.startswith("-") and f"Fed2 is {over} points above FedAvg and {below}" in text


CURVES = re.compile(rb'"kind": ?"(flfa|updates|dissimilarity)"')


@cache
def records() -> dict[str, dict[str, Any]]:
    """Run -> its summary, provenance and costs, and some rows of runs on CIFAR-10 or of FedAvg."""
    files: dict[str, dict[str, Any]] = defaultdict(dict)
    low = {entry.spec.run_id for entry in low_rate()}
    with tarfile.open(ROOT / "published" / "records.tar.gz") as archive:
        for member in archive:
            run, _, name = member.name.partition("/")
            if name in ("summary.json", "provenance.json", "costs.json") and (
                file := archive.extractfile(member)
            ):
                files[run][name] = json.load(file)
            elif (
                name == "metrics.jsonl"
                and (run.startswith("cifar10-") or run in low)
                and (file := archive.extractfile(member))
            ):
                files[run][name] = [json.loads(line) for line in file if run in low or CURVES.search(line)]
    return files


def planned(name: str) -> PlannedItem:
    (item,) = (item for item in shipped("published").items if item.id == name)
    return item


def low_rate() -> list[Entry]:
    """Runs of FedAvg at a fifth of the best rate, by initialisation and input scaling."""
    return [entry for entry in planned("fedavg/explanation").entries if entry.labels["rate"] == "0.0464"]


def test_rounds_of_fedavg_at_a_lower_rate_are_stated() -> None:
    """Runs end at the target; we interpolate from the best accuracy before."""
    rounds: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for entry in low_rate():
        rows = records()[entry.spec.run_id]["metrics.jsonl"]
        *earlier, last = (row["accuracy"] for row in rows if row["kind"] == "evaluation")
        assert max(earlier) < 0.97 <= last
        number = len(earlier) + (0.97 - max(earlier)) / (last - max(earlier))
        rounds[entry.labels["setting"], entry.labels["inputs"]][entry.labels["initialisation"]] = number
    ends = {
        place: f"{min(numbers.values()):.0f} to {max(numbers.values()):.0f}"
        for place, numbers in rounds.items()
    }
    assert {len(numbers) for numbers in rounds.values()} == {3}
    usual, standard = "from 0 to 1", "standardised"
    page, ours = (
        " ".join(written(name).split()) for name in ("docs/papers/fedavg.md", "published/README.md")
    )
    assert f"IID clients need {ends['IID', usual]} rounds" in page
    assert f"non-IID clients {ends['non-IID', usual]} (paper: 664)" in page
    first = rounds["IID", usual]
    assert (
        "{:.0f} (truncated normal weights), {:.0f} (Glorot's), {:.0f} (PyTorch's)".format(
            *(first[name] for name in ("truncated normal", "Glorot", "PyTorch"))
        )
        in ours
    )
    assert f"need only {ends['IID', standard]} and {ends['non-IID', standard]} rounds" in ours
    assert f"| {ends['non-IID', usual]} | 664 |" in ours


def test_rounds_without_an_effect_of_flfa_are_stated() -> None:
    """It selects the first layer, or no layer in the first round."""
    item = planned("replication_cifar10/flfa_bases")
    rounds = [
        row
        for run in set(item.run_ids)
        for row in records()[run].get("metrics.jsonl", ())
        if row["kind"] == "flfa"
    ]
    idle = [row for row in rounds if not row["effective"]]
    assert all(row["selected"] == ["conv1.0"] if row["round"] > 1 else not row["selected"] for row in idle)
    text = f"n {len(idle)} of {len(rounds)} rounds, FLFA has no effect: it selects the first layer, or no"
    for page in (item.sheet.caption, " ".join(written("docs/replication.md").split())):
        assert text in page


def test_the_lower_rate_of_ecgr_is_stated() -> None:
    """Figure 8a has no table, so its runs come from the records."""
    runs = set(planned("ecgr/figure8a").run_ids)
    summaries = [records()[run]["summary.json"]["accuracy"] for run in runs]
    above = sorted(100 * summary["last"] for summary in summaries if summary["best"] > 0.5)
    page = " ".join(written("docs/papers/ecgr.md").split())
    register = " ".join((ROOT / "config" / "register.yaml").read_text(encoding="utf-8").split())
    levels = f"reach {above[0]:.0f} to {above[-1]:.0f} %"
    assert f"{len(runs) - len(above)} of {len(runs)} runs stay below our limit of 50 %" in page
    assert levels in page and f"{len(above)} of {len(runs)} runs still {levels} (figure 8a" in register


def test_the_machines_of_the_records_are_stated() -> None:
    provenance = {run: parts["provenance.json"] for run, parts in records().items()}
    machines = Counter(
        "GPU" if machine["gpu"] else f"{machine['processor']} {machine.get('cpu_capability')}"
        for machine in provenance.values()
    )
    text = " ".join(written("docs/records.md").split())
    amd, older = machines["AMD EPYC AVX512"], machines["AMD EPYC None"]
    assert f"an AMD EPYC: {amd} with AVX-512, {machines['AMD EPYC AVX2']} with AVX2" in text
    assert f"and {older} older records" in text
    assert f"AVX-512: {machines['Intel(R) Xeon(R) Processor AVX512']} (" in text
    assert f"an NVIDIA H100: {machines['GPU']} (" in text and machines.total() == len(provenance)
    assert f"An NVIDIA H100 trained {machines['GPU']} of our runs" in written("docs/gpus.md")
    of_figures = [set(planned(f"ecgr/figure{name}").run_ids) for name in ("8a", "8b")]
    on_gpu = [sum(provenance[run]["gpu"] is not None for run in runs) for runs in of_figures]
    page = " ".join(written("published/README.md").split())
    assert {len(runs) for runs in of_figures} == {40}
    assert f"the records of {len(provenance):,} runs" in page
    assert f"{on_gpu[0]} of the 40 runs of figure 8a and {on_gpu[1]} of the 40 of figure 8b" in page
    runs = {run for item in shipped("published").items if item.paper.paper == "ecgr" for run in item.run_ids}
    assert len({records()[run]["summary.json"]["digests"]["data"] for run in runs}) == 1


PARTS = ("FLFA* with random feedback", "FLFA without scaling", "DFA (direct feedback)")
WITHOUT = ("feature alignment", "decision fusion", "hierarchical optimisation")


def gains_of(item: str) -> list[np.ndarray]:
    rows = [
        row for row in read(f"replication_cifar10/{item}.csv") if row["gains"] and row["row"] != "average"
    ]
    return [np.array(row["gains"].split(), float) for row in rows]


def minus(item: str, method: str, others: Iterable[str]) -> list[np.ndarray]:
    file = f"replication_cifar10/{item}.csv"
    return [paired(file, "final_accuracy", method, other) for other in others]


def chance_of_support(samples: list[np.ndarray], effects: Numbers, seeds: int, together: bool) -> float:
    """Simulate the probability that the gain is significant in each case (``docs/protocol.md``)."""
    random, runs = np.random.default_rng(0), 1500
    supported = 0
    for _ in range(runs):
        cases = [
            Sample(random.normal(effect, sample.std(ddof=1), seeds).tolist(), family="cases")
            for effect, sample in zip(effects, samples, strict=True)
        ]
        contrasts = map(contrast, moderated(cases) if together else cases)
        supported += all(case is not None and case.p_above() < LEVEL for case in contrasts)
    return supported / runs


@pytest.mark.parametrize(
    ("line", "effects", "seeds", "together", "samples"),
    [
        ("ECGR, eight cases | one point in each", 8 * (1.0,), 5, True, lambda end: gains_of("ecgr" + end)),
        (
            *("FLFA, four methods | one point on each", 4 * (1.0,), 8, True),
            lambda end: gains_of("flfa" + (end or "_bases")),
        ),
        (
            *("FLFA, four methods | the paper's: 1.5, 1.0, 0.0 and 0.8 points", (1.53, 0.98, 0.01, 0.84)),
            *(8, True, lambda end: gains_of("flfa" + (end or "_bases"))),
        ),
        (
            "FLFA's parts | the paper's: 4.0 and 2.8 points; DFA: 20 points",
            *((4.03, 2.84, 20.0), 6, False, lambda end: minus("flfa_parts" + end, "FLFA", PARTS)),
        ),
        (
            *("FedFCD's parts | the paper's: 1.9, 0.7 and 1.4 points", (1.87, 0.69, 1.38), 5, False),
            lambda end: minus("fedfcd" + end, "FedFCD", [f"without {part}" for part in WITHOUT]),
        ),
        (
            *("FedFCD, four rivals | one point over each", 4 * (1.0,), 5, False),
            lambda end: minus("fedfcd" + end, "FedFCD", ("local only", "FedProto", "FedGH", "FedPer")),
        ),
    ],
)
def test_the_power_of_claims_with_several_cases_is_simulated(
    line: str,
    effects: Numbers,
    seeds: int,
    together: bool,
    samples: Callable[[str], list[np.ndarray]],
) -> None:
    match = re.search(
        rf"\| {re.escape(line)} \| (0\.\d\d|1\.00) \| (0\.\d\d|1\.00) \|", written("docs/replication.md")
    )
    assert match
    for stated, end in zip(map(float, match.groups()), ("_pilot", ""), strict=True):
        assert abs(chance_of_support(samples(end), effects, seeds, together) - stated) < 0.04, end
    assert len(samples("")[0]) == seeds


def test_the_readme_states_the_limits_of_the_replications() -> None:
    means: dict[bool, list[float]] = {False: [], True: []}
    seeds, rounds = set(), set()
    for item, measure in (
        *(("fed2", "last_accuracy"), ("fedimpro", "final_accuracy"), ("flfa_bases", "final_accuracy")),
        *(("flfa_parts", "final_accuracy"), ("fedfcd", "final_accuracy"), ("ecgr", "final_accuracy")),
    ):
        rounds |= {entry.spec.rounds for entry in planned(f"replication_cifar10/{item}").entries}
        for row in read(f"replication_cifar10/{item}.csv"):
            if row["measure"] == measure and row["mean"]:
                means[item == "fedfcd"].append(float(row["mean"]))
                seeds.add(int(row["n"]))
    levels = [f"{min(values):.0f} to {max(values):.0f} %" for values in means.values()]
    text = " ".join(written("README.md").split())
    assert f"{min(rounds)} to {max(rounds)} rounds, {min(seeds)} to {max(seeds)} seeds" in text
    assert f"accuracies of {levels[0]} (FedFCD: {levels[1]})" in text


def test_ranges_of_fedavg_are_published() -> None:
    rounds, explained = (read(f"fedavg/{name}.csv") for name in ("table1_2nn", "explanation"))
    page = " ".join(written("published/README.md").split())
    decided = [row for row in rounds if row["verdict"] == "not reproduced"]
    ratios = sorted(float(row["mean"]) / float(row["published"]) for row in decided)
    assert f"{100 * ratios[0]:.0f} to {100 * ratios[-1]:.0f} % of the published rounds" in page
    low, high = (100 * ratio for ratio in (ratios[0], ratios[-1]))
    assert f"need {low:.0f} to {high:.0f} % of the published rounds" in written("README.md")
    (batches,) = (row for row in read("fedavg/claims.csv") if row["claim"].startswith("batches of 10"))
    saved = re.findall(r"average of 3 cases: -([\d.]+) %", batches["number"])
    assert "of 10 instead of full ones: {} % fewer rounds (IID), {} % (non-IID)".format(*saved) in written(
        "README.md"
    )
    iid, others = (
        sorted(float(row["mean"]) for row in explained if row["panel"] == panel)
        for panel in ("IID", "non-IID")
    )
    assert f"need {iid[0]:.0f} to {iid[-1]:.0f} rounds with IID clients (published: 87) and " in page
    assert f"and {others[0]:.0f} to {others[-1]:.0f} with others (664)" in page


def test_ranges_of_the_further_seeds_are_published() -> None:
    base, ours = read("fair/further_seeds.csv")
    ends = [sorted(map(float, text.split())) for text in (ours["gains"], base["values"], ours["values"])]
    places = (2, 1, 1)
    gains, low, high = (f"{end[0]:.{n}f} {{}} {end[-1]:.{n}f}" for end, n in zip(ends, places, strict=True))
    text = " ".join(written("docs/fair-table.md").split())
    assert f"The eight differences range from {gains.format('to')} points." in text
    assert f"FedAvg ends between {low.format('and')} %, FedDyn between {high.format('and')} %" in text


def test_the_baseline_of_the_fair_table_that_tuning_did_not_help_is_stated() -> None:
    tuned, default, flfa, flfa_default = (
        next(row for row in read("fair/accuracy.csv") if [row["row"], row["panel"], row["column"]] == place)
        for method in ("FedAvg", "FedAvg + FLFA")
        for place in ([method, "Dirichlet 0.1", "tuned"], [method, "Dirichlet 0.1", "default"])
    )
    ours, others, *gain = (
        float(text)
        for text in (
            tuned["mean"],
            default["mean"],
            *(default[f"gain{end}"] for end in ("", "_low", "_high")),
        )
    )
    assert default["gain_verdict"] == "inconclusive"
    page, note = (
        " ".join(written(name).split()) for name in ("docs/fair-table.md", "config/papers/fair.yaml")
    )
    reason = "because its interval contains the margin of 0.5"
    assert f"ends at {ours:.2f} % with tuned settings and at {others:.2f} % with default ones" in page
    assert "{:.2f} points [{:.2f}, {:.2f}] is *inconclusive*, {}".format(*gain, reason) in page
    assert f"ends at {ours:.2f} % with tuned settings and at {others:.2f} % with default settings" in note
    assert "{:.2f} points [{:.2f}, {:.2f}] is inconclusive".format(*gain) in note
    means = [float(row["mean"]) for row in (flfa, flfa_default)]
    assert "ends at {:.2f} % tuned and at {:.2f} % with default settings".format(*means) in note
    lowest, second, *_ = sorted(map(float, tuned["values"].split()))
    assert f"One of FedAvg's five tuned seeds ends at {lowest:.0f} %" in note and second - lowest > 10


def values(row: dict[str, str], column: str = "values") -> np.ndarray:
    return np.array(row[column].split(), float)


def test_numbers_of_the_fair_table_are_stated() -> None:
    cells = {(row["panel"], row["column"], row["row"]): row for row in read("fair/accuracy.csv")}
    strong, weak = "Dirichlet 0.1", "Dirichlet 0.5"
    methods = [method for skew, settings, method in cells if (skew, settings) == (strong, "tuned")]
    base = values(cells[strong, "tuned", "FedAvg"])
    gaps = [values(cells[strong, "tuned", method]) - base for method in methods if method != "FedAvg"]
    page, ours = (" ".join(written(name).split()) for name in ("docs/fair-table.md", "published/README.md"))
    assert base.argmin() == 1
    assert f"the tuned methods end {np.mean(gaps, axis=0)[1]:.1f} points above it on average" in page
    above = sorted(gap.mean() for gap in gaps if 0 < gap.mean() < 7)
    assert (
        f"{WORDS[len(above)].title()} of them lie above FedAvg, by {above[0]:.1f} to {above[-1]:.1f}" in ours
    )
    changes = {
        skew: {
            method: float(cells[skew, "tuned", method]["mean"])
            - float(cells[skew, "default", method]["mean"])
            for method in methods
        }
        for skew in (strong, weak)
    }
    large = [f"{changes[strong][method]:.0f}" for method in ("FedACG", "FedAvgM", "FedNova")]
    assert (
        "FedACG gains {} points over its default settings, FedAvgM {} and FedNova {}.".format(*large) in ours
    )
    sizes = [sorted(abs(change) for change in changes[skew].values()) for skew in (strong, weak)]
    equal = sizes[0].count(0)
    assert f"{WORDS[equal].title()} methods keep their default settings." in ours
    small = [size for size in sizes[0] if 0 < size < 1.1]
    assert f"{WORDS[len(small)].title()} others change by {small[0]:.1f} to {small[-1]:.1f} points." in ours
    medians = [f"{np.median(size):.1f}" for size in sizes]
    assert "is {} points at Dirichlet 0.1 and {} at 0.5".format(*medians) in ours
    assert f"({sum(int(row['diverged']) for row in read('fair/trials.csv'))} of them diverge)" in ours
    gap = values(cells[strong, "tuned", "FedDyn"]) - base
    draws = gap[np.indices(5 * (5,)).reshape(5, -1)]
    t = (draws.mean(axis=0) - 0.5) / np.maximum(draws.std(axis=0, ddof=1), 1e-9) * np.sqrt(5)
    power = (t > stats.t.ppf(0.95, 4)).mean()
    assert f"With five seeds, the probability of *better* is {power:.2f}" in page


def test_numbers_of_the_controls_are_stated() -> None:
    page = " ".join(written("published/README.md").split())
    half = stats.t.ppf(0.95, 4) * 0.7 * np.sqrt(2 / 5)
    assert f"give ± {half:.1f} points" in page and f"if the difference is below {1 - half:.1f}." in page
    (row,) = read("controls/other_seeds.csv")
    accuracies = values(row)
    draws = accuracies[np.random.default_rng(0).random((40_000, 60)).argpartition(10, axis=1)[:, :10]]
    gaps = np.abs(draws[:, :5].mean(axis=1) - draws[:, 5:].mean(axis=1))
    share = 100 * (gaps >= accuracies[:5].mean() - 95.88).mean()
    assert f"FedAvg ends at {accuracies[:5].mean():.2f} % with seeds 0 to 4, and at 95.88 %" in page
    assert f"Seeds 0 to 59 have a mean of {accuracies.mean():.2f} %" in page
    assert f"of five from seeds 0 to 59 differ as much in only {share:.1f} % of draws" in page
    chances = sum(float(row["expected_reproduced"]) for row in read("controls/positive.csv"))
    assert f"confirm {chances:.1f} of the six true values" in page


def test_limits_of_the_rule_are_those_of_the_published_cells() -> None:
    """Wider intervals: the spread of the paper is the same share of its value as ours."""
    text = " ".join(written("docs/protocol.md").split())
    factors, decided = [], []
    for row in read("fedavg/table1_2nn.csv"):
        if row["verdict"] == "not reproduced":
            mean, published, spread = (float(row[name]) for name in ("mean", "published", "spread"))
            wide = spread * np.hypot(1 / np.sqrt(3), published / mean)
            factors.append(wide / (spread * np.sqrt(4 / 3)))
            half = stats.t.ppf(0.95, float(row["spread_df"])) * wide
            decided.append(abs(mean - published) - half > float(row["margin"]))
    assert f"by a factor of up to {max(factors):.1f}." in text
    assert all(decided) and f"all {WORDS[len(decided)]} *not reproduced* cells keep" in text
    gains = [values(row, "gains") for row in read("ecgr/confirmatory.csv") if row["gains"]]
    correlations = np.corrcoef(gains)[np.triu_indices(4, 1)]
    assert f"have correlations of {min(correlations):.2f} to {max(correlations):.2f}" in text


def test_suspicious_values_of_flfa_are_stated() -> None:
    def cells(table: int, variant: str = "") -> dict[tuple[str, str, str], float]:
        path = ROOT / "config" / "reported" / f"flfa_table{table}.csv"
        with path.open(encoding="utf-8", newline="") as file:
            return {
                (row["dataset"], row["method"], row["plugin"]): float(row["value"])
                for row in csv.DictReader(file)
                if row["metric"] == "acc" and row["variant"] == variant
            }

    page = " ".join(written("docs/papers/flfa.md").split())
    gains = {
        table: [
            value - accuracies[dataset, method, "none"]
            for (dataset, method, plugin), value in accuracies.items()
            if plugin == "flfa"
        ]
        for table in (1, 3, 5, 6, 7, 8, 9)
        for accuracies in (cells(table),)
    }
    falls = {table: sum(gain < -1e-9 for gain in numbers) for table, numbers in gains.items()}
    total = sum(map(len, gains.values()))
    assert f"accuracy falls in {sum(falls.values())} of {total} pairs of cells" in page
    assert f"In table 1, it falls in {falls[1]} of {len(gains[1])}." in page
    first = cells(1)
    distances = [
        abs(value - first[place]) for n in (10, 11) for place, value in cells(n, "fa_layers=1").items()
    ]
    assert f"differ from table 1 by {np.mean(distances):.2f} points on average" in page
    assert f"gain in table 1 is only {np.median(gains[1]):.2f}," in page
    held = [
        np.mean(
            [
                (shares.counts(np.full(10, 5000), np.random.default_rng(seed)) > 0).sum() / 100
                for seed in range(20)
            ]
        )
        for capped in (False, True)
        for shares in (Dirichlet(clients=100, alpha=0.3, capped=capped, min_size=10),)
    ]
    assert "holds {:.1f} classes without the cap and {:.1f} with it".format(*held) in page


def reported(name: str) -> list[dict[str, str]]:
    with (ROOT / "config" / "reported" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def printed(name: str, **place: str) -> float:
    """The printed value of a place; columns without a value in ``place`` do not matter."""
    rows = [row for row in reported(name) if all(row[key] == value for key, value in place.items())]
    (value,) = {row["value"] for row in rows if row["metric"] in ("acc", "best_acc")}
    return float(value)


def text_of(page: str) -> str:
    return " ".join(written(page).split())


def test_effects_that_the_papers_print_are_stated() -> None:
    fed2 = {(row["where"], row["claim"]): float(row["value"] or 0) for row in reported("fed2_claims.csv")}
    norm = [
        fed2["fig. 12", f"{name} with group normalisation" if name else "FedAvg without normalisation"]
        for name in ("Fed2", "FedAvg", "")
    ]
    table1 = [
        printed("fed2_table1.csv", partition="nxc(10x5)", model="vgg9", method=name)
        for name in ("fed2", "fedavg")
    ]
    setting = {"dataset": "cifar10", "partition": "lda(0.1)", "clients": "10", "local_epochs": "1"}
    ours, base = (printed("fedimpro_table1.csv", method=name, **setting) for name in ("fedimpro", "fedavg"))
    noise, deep = (
        printed("fedimpro_table7.csv", variant="noise=0.5"),
        printed("fedimpro_table3.csv", variant="split=17"),
    )
    flfa = [
        printed("flfa_table1.csv", dataset="cifar10", method=name, plugin="flfa")
        - printed("flfa_table1.csv", dataset="cifar10", method=name, plugin="none")
        for name in ("fedavg", "fedprox", "moon", "fedlc")
    ]
    whole, random, unscaled = (
        printed("flfa_table4.csv", plugin="flfa", variant=name)
        for name in ("", "random_feedback", "no_scaling")
    )
    parts = [
        printed("fedfcd_table3.csv", partition=partition, variant="")
        - printed("fedfcd_table3.csv", partition=partition, variant=variant)
        for partition in ("pathological(2)", "dirichlet(0.1)")
        for variant in ("without_fa", "without_fd", "without_ho")
    ]
    bp = printed("flfa_table4.csv", plugin="none")
    over_fedma = fed2["fig. 6", "Fed2 over FedMA"]
    page, register = text_of("docs/replication.md"), text_of("config/papers/replication_cifar10.yaml")
    assert f"{table1[0] - table1[1]:+.0f} over FedAvg (table 1), {norm[0] - norm[1]:+.1f} over FedAvg" in page
    assert f"{over_fedma:+.1f} over FedMA (figure 6;" in page
    assert f"GroupNorm lowers FedAvg from {norm[2]:.2f} to {norm[1]:.2f} %" in page
    impro = f"{ours - base:+.1f} over FedAvg, {noise - base:+.2f} with noise 0.5, {ours - deep:+.1f} over the"
    assert impro in page
    assert (
        "{:+.1f} on FedAvg, {:+.1f} on FedProx, {:+.1f} on MOON, {:+.1f} on FedLC (table 1)".format(*flfa)
        in page
    )
    assert f"The paper's gain on MOON is only {flfa[2]:.2f} points (table 1, CIFAR-10)" in page
    assert "gains are {:.1f}, {:.1f}, {:.1f} and {:.1f} points".format(*flfa) in register
    assert f"{whole - random:+.1f} over random feedback, {whole - unscaled:+.1f} over FLFA without" in page
    assert f"The paper states {random - bp:.1f}." in page
    assert f"{min(parts):+.1f} to {max(parts):+.1f} from each part (table 3)" in page
    smallest = min(ours - base, noise - base, ours - deep)
    assert smallest / 2 > 2 and "Two points are less than half of each effect" in text_of(
        "docs/replication-audit.md"
    )


def seeds_for(spread: float, points: float = 1) -> int:
    """Number of seeds by the rule of the protocol."""
    return max(5, math.ceil(6.2 * (spread / points) ** 2 + 1.4))


def spread(sample: np.ndarray) -> float:
    return float(sample.std(ddof=1))


def root_mean_square(samples: Iterable[np.ndarray]) -> float:
    return math.sqrt(np.mean([spread(sample) ** 2 for sample in samples]))


def test_numbers_of_seeds_follow_from_the_pilots() -> None:
    audit, page = text_of("docs/replication-audit.md"), text_of("docs/replication.md")
    lost = re.findall(r"\n\| 10[012] \| (.+) \|\n", written("published/README.md").replace("|\n", "|\n\n"))
    fedavg, _, middle, noise, deep = np.array([line.split(" | ") for line in lost], float).T
    largest = max(map(spread, (middle - fedavg, middle - deep, noise - fedavg)))
    assert f"s of a claim is {largest:.2f}, so one point needs {seeds_for(largest)} seeds" in audit
    assert f"**FedImpro** (**n = {seeds_for(largest, 2)}**)" in audit
    fed2 = [
        paired("replication_cifar10/fed2_pilot.csv", "last_accuracy", *pair)
        for pair in (
            *(("Fed2", other) for other in ("FedAvg", "FedAvg + GroupNorm", "FedMA")),
            ("Fed2 (averaged over all nodes)", "FedAvg"),
        )
    ]
    assert f"**Fed2** (**n = {seeds_for(max(map(spread, fed2)))}**)" in audit
    rivals = ("local only", "FedProto", "FedGH", "FedPer", *(f"without {part}" for part in WITHOUT))
    questions = {
        "FLFA on four base methods": gains_of("flfa_pilot"),
        "ECGR": gains_of("ecgr_pilot"),
        "FedFCD": minus("fedfcd_pilot", "FedFCD", rivals),
    }
    for name, samples in questions.items():
        s = root_mean_square(samples)
        assert f"* {s:.2f} for {name} (**n = {seeds_for(s)}**)" in audit
    parts = minus("flfa_parts_pilot", "FLFA", ("FedAvg (BP)", *PARTS))
    fewer, more = (seeds_for(root_mean_square(samples)) for samples in (parts[:-1], parts))
    assert f"**FLFA's parts** (**n = {fewer}**)" in audit
    assert f"a spread of {spread(parts[-1]):.0f} points, which would need {more} seeds" in audit
    powers = [
        stats.nct.sf(stats.t.ppf(0.95, n - 1), n - 1, math.sqrt(n * 6.2 / (n - 1.4))) for n in range(5, 21)
    ]
    assert min(powers) >= 0.77 and "The exact power is at least 0.77" in page


def test_extent_and_time_of_the_replications_are_stated() -> None:
    page = text_of("docs/replication.md")

    def extent(*names: str) -> tuple[int, int, float]:
        items = [planned(f"replication_cifar10/{name}") for name in names]
        runs = {run for item in items for run in item.run_ids}
        seconds = sum(records()[run]["costs.json"]["seconds"]["total"] for run in runs)
        return len(runs), len({entry.seed for entry in items[0].entries}), seconds / 3600

    for name, items, device in (
        *(("Fed2", ("fed2",), "core"), ("FedImpro", ("fedimpro", "fedimpro_dissimilarity"), "GPU")),
        *(("FLFA", ("flfa_bases",), "GPU"), ("ECGR", ("ecgr",), "core"), ("FedFCD", ("fedfcd",), "GPU")),
    ):
        runs, seeds, hours = extent(*items)
        number = f"(?:{seeds}|{WORDS[seeds]})"
        assert re.search(
            rf"\*\*{name}\*\* has {runs} runs with {number} seeds, which took {hours:.1f} {device} h", page
        ), name
    runs, seeds, hours = extent("flfa_parts")
    assert f"use {runs} runs with {WORDS[seeds]} seeds, which took {hours:.1f} hours" in page
    pilots = {
        run for name in ("rates", "pilot") for run in planned(f"replication_cifar10/fed2_{name}").run_ids
    }
    mnist = {
        run
        for item in shipped("published").items
        if item.id.startswith("replication/")
        for run in item.run_ids
    }
    text = text_of("published/README.md")
    assert f"and {len(pilots)} pilot runs" in text and f"all {len(mnist)} runs are complete" in text
    commits = Counter(records()[run]["provenance.json"]["commit"][:7] for run in mnist)
    assert f"commit `c7d65c4`, which the first {commits['c7d65c4']} runs name" in text


def of_runs(name: str, label: str, value: Callable[[str], Any]) -> dict[str, np.ndarray]:
    """Values of an item's runs in the order of the seeds, by method or variant."""
    item, values = planned(f"replication_cifar10/{name}"), defaultdict(list)
    for entry, run in zip(item.entries, item.run_ids, strict=True):
        values[entry.labels[label]].append((entry.seed, value(run)))
    return {key: np.array([number for _, number in sorted(pairs)]) for key, pairs in values.items()}


@cache
def averaged_over_clients() -> dict[str, np.ndarray]:
    """FedFCD minus each rival, by the mean of the clients' accuracies (there is one test, the last round)."""
    values = of_runs(
        "fedfcd", "method", lambda run: 100 * records()[run]["summary.json"]["accuracy"]["best_macro"]
    )
    return {
        rival: values["FedFCD"] - values[rival] for rival in ("local only", "FedProto", "FedGH", "FedPer")
    }


def test_averages_over_the_clients_of_fedfcd_are_stated() -> None:
    ends = {rival: interval(gaps) for rival, gaps in averaged_over_clients().items()}
    assert [rival for rival, (_, low, _) in ends.items() if low > 0] == ["FedProto"]
    (mean, low, high), (below, *outer) = ends["FedPer"], ends["local only"]
    text = (
        f"FedFCD is {mean:.2f} points [{low:.2f}, {high:.2f}] above FedPer, and "
        f"{-below:.2f} [{-outer[1]:.2f}, {-outer[0]:.2f}] below local training"
    )
    assert text in text_of("docs/replication.md")


def test_gradients_and_drift_of_the_replications_are_stated() -> None:
    def mean_of(kind: str, field: str) -> Callable[[str], Any]:
        def value(run: str) -> Any:
            rows = [row[field] for row in records()[run]["metrics.jsonl"] if row["kind"] == kind]
            return np.mean([list(row.values()) if isinstance(row, dict) else row for row in rows], axis=0)

        return value

    page = text_of("docs/replication.md")
    values = of_runs("fedimpro_dissimilarity", "method", mean_of("dissimilarity", "blocks"))
    fedavg, changes = values["FedAvg"], (values[MIDDLE] - values["FedAvg"]).T
    assert f"FedAvg's sum is {fedavg[:, 3:].sum(axis=1).mean():.1f}." in page
    ends = [interval(change) for change in changes]
    assert [low > 0 for _, low, _ in ends] == [True] * 5 + [False] * 2  # conv1 to conv5, fc1, classifier
    assert all(high < 0 for *_, high in ends[5:])
    _, low, high = interval(changes[3:6].sum(axis=0))
    assert low < 0 < high and "Without the classifier, the sum is inconclusive." in page
    drift = of_runs("flfa_parts", "variant", mean_of("updates", "drift"))["FedAvg (BP)"]
    assert f"BP's drift is {drift.mean():.2f}." in page


def test_the_budget_and_its_pilot_of_fed2_are_stated() -> None:
    page = text_of("docs/papers/fed2.md")

    def moved(steps: int) -> float:
        return sum((1 - 0.9**step) / 0.1 for step in range(1, steps + 1))

    unit = 10 * math.ceil(50_000 / 64)
    assert f"moves them by {unit:,} times the learning rate" in page
    for nodes in (10, 20, 50, 100):
        steps = math.ceil(50_000 / nodes / 64)
        short, long = moved(steps) / unit, moved(20 * steps) / unit
        first = f"{100 * short:.2f}" if nodes == 100 else f"{100 * short:.1f}"
        assert f"| {nodes} | {steps} | {first} | {1000 * short:.1f} | {100 * long:.1f} |" in page
    best = {}
    with tarfile.open(ROOT / "published" / "fed2_pilot.tar.gz") as archive:
        for member in archive:
            if member.name.endswith("summary.json") and (file := archive.extractfile(member)):
                summary = json.load(file)
                best["fed2" in member.name, summary["rounds"]] = 100 * summary["accuracy"]["best"]
    plain, ours = best[False, 100], best[True, 100]
    assert f"stays at chance: {plain:.2f} % in all tests of 100 rounds" in page
    assert f"it reaches {best[False, 10]:.2f} % in the last of the 10 rounds" in page
    assert f"with 1 epoch reaches {ours:.1f} %, {ours - plain:.0f} points more than FedAvg" in page


def test_norm_layers_of_the_replication_of_fed2_are_stated() -> None:
    """FedAvg with GroupNorm has other groups than Fed2 behind the last two convolutions."""
    item = planned("replication_cifar10/fed2")
    specs = {entry.labels["method"]: entry.spec for entry in item.entries}
    groups = []
    for name in ("FedAvg + GroupNorm", "Fed2"):
        network = build(specs[name].model, 3, 16, 10, seed=0)
        method = specs[name].method
        network = method.adapt(network, 10) if isinstance(method, Fed2) else network
        groups.append([layer.num_groups for layer in network.modules() if hasattr(layer, "num_groups")])
    (plain, ours) = groups
    assert plain[:3] == ours[:3] and (set(plain[3:]), set(ours[3:])) == ({5}, {10})
    assert "they have five groups, Fed2's have ten" in item.sheet.caption


def test_numbers_of_the_replications_on_mnist_are_stated() -> None:
    def gains(name: str, column: str = "row") -> dict[str, float]:
        rows = [row for row in read(f"replication/{name}.csv") if row["gain"]]
        return {row[column]: float(row["gain"]) for row in rows}

    text = text_of("published/README.md")
    bases, depth, noise = gains("flfa_bases"), gains("fedimpro_depth"), gains("fedimpro_noise")
    losses = sorted(-bases[name] for name in ("FedAvg", "FedProx", "FedLC"))
    assert f"FLFA loses {losses[0]:.2f} to {losses[-1]:.2f} points on average" in text
    first, second = depth["FedImpro (cut after conv1)"], depth["FedImpro (cut after conv2)"]
    assert f"it gains {first:.1f} points over FedAvg, noise of 0.5 costs nothing" in text and noise["0.5"] > 0
    assert f"the deeper cut is {first - second:.1f} points worse" in text
    fed2 = {(row["row"], row["column"]): row for row in read("replication/fed2.csv") if row["gain"]}
    five, ten = (-float(fed2[f"{count} classes per node", "Fed2"]["gain"]) for count in (5, 10))
    assert f"ends {five:.1f} points below FedAvg with 5 classes per node, {ten:.1f} below with 10" in text
    unshared = sorted(-float(row["gain"]) for (_, name), row in fed2.items() if "nothing" in name)
    assert f"They end {unshared[0]:.1f} to {unshared[-1]:.1f} points below FedAvg" in text
    sizes = {
        name: records()[row["runs"].split()[0]]["summary.json"]["parameters"]
        for (_, name), row in fed2.items()
    }
    assert f"with {sizes['Fed2, nothing shared']:,} parameters instead of FedAvg's" in text
    rivals, parts = gains("fedfcd"), gains("fedfcd_parts")
    ours = rivals["FedFCD"]
    above = [ours - rivals[name] for name in ("FedProto", "FedAMP", "local only")]
    form = "{:.0f} points above FedAvg, {:.1f} above FedProto and {:.1f} above FedAMP"
    assert form.format(ours, *above[:2]) in text and f"({above[2]:.2f} points less)" in text
    assert max(map(abs, parts.values())) < 0.15
    assert (
        f"Without feature alignment, accuracy is higher by {parts['without feature alignment']:.2f}." in text
    )


def test_averages_of_fedfcd_that_its_text_names_are_checked() -> None:
    """Five personalised methods give the printed averages, except two."""
    rivals = ("perfedavg", "fedamp", "fedproto", "gpfl", "fedgh")

    def value(method: str, table: int = 1, **place: str) -> float:
        return printed(f"fedfcd_table{table}.csv", dataset="cifar10", method=method, **place)

    page, skew = text_of("docs/papers/fedfcd.md"), {"partition": "dirichlet(0.1)"}
    means = [
        value("fedfcd", 2, **place) - np.mean([value(rival, 2, **place) for rival in rivals])
        for place in ({**skew, "clients": "50"}, {**skew, "clients": "100"})
    ]
    assert "five methods give {:.2f} and {:.2f}".format(*means) in page
    falls = [
        value(method, clients="20", **skew) - value(method, 2, clients=clients, **skew)
        for method in ("fedavg", "fedprox")
        for clients in ("50", "100")
    ]
    assert "{:.2f} and {:.2f} for FedAvg, {:.2f} and {:.2f} for FedProx".format(*falls) in page


def counted(name: str, start: str = "") -> Counter[str]:
    return Counter(row["verdict"] for row in read(name) if row.get("where", "").startswith(start))


def test_captions_state_the_learning_rates_of_fedavg() -> None:
    def rates(name: str) -> dict[tuple[str, str], float]:
        entries = planned(f"fedavg/{name}").entries
        return {(cell.labels["setting"], cell.labels["clients"]): cell.spec.training.lr for cell in entries}

    two, cnn = rates("table1_2nn"), rates("table1_cnn_iid")
    usual = {
        size: mode(rate for (setting, _), rate in two.items() if setting.endswith(size))
        for size in ("10", "inf")
    }
    others = [place for place, rate in two.items() if rate != usual[place[0].rpartition(" ")[2]]]
    lrs = {setting: rate for (setting, clients), rate in two.items() if clients == "C = 0"}
    fifth = ("non-IID, B = inf", "C = 0.2")
    assert {*others} == {*((setting, "C = 0") for setting in lrs), fifth} and len(lrs) == 4
    text = (
        f"The rate is {usual['10']} for B = 10 and {usual['inf']} for B = inf, with five exceptions. "
        f"With C = 0, IID clients have {lrs['IID, B = 10']} (B = 10) and {lrs['IID, B = inf']} (B = inf), "
        f"others {lrs['non-IID, B = 10']} (B = 10) and {lrs['non-IID, B = inf']} (B = inf). "
        f"With C = 0.2, non-IID clients and B = inf, the rate is {two[fifth]}."
    )
    assert text in planned("fedavg/table1_2nn").sheet.caption
    (single,) = {rate for (_, clients), rate in cnn.items() if clients == "C = 0"}
    (common,) = {rate for (_, clients), rate in cnn.items() if clients != "C = 0"}
    caption = planned("fedavg/table1_cnn_iid").sheet.caption
    assert f"The learning rate is {single} for C = 0 and {common} otherwise." in caption


def test_the_readme_has_all_verdicts_on_published_values() -> None:
    """Own protocols: only two tables have published values; README states the verdicts of both."""
    pages = [path for name in ("fedavg", "ecgr") for path in (ROOT / "published" / name).glob("*.csv")]
    judged = [
        row for path in pages if path.stem != "claims" for row in read(f"{path.parent.name}/{path.name}")
    ]
    verdicts = Counter(row["verdict"] for row in judged if row["published"])
    assert verdicts == counted("fedavg/table1_2nn.csv") + counted("fedavg/table1_cnn_iid.csv")
    text = " ".join(written("README.md").split())
    cnn = read("fedavg/table1_cnn_iid.csv")
    ratios = sorted(float(row["mean"]) / float(row["published"]) for row in cnn)
    share = f"{100 * ratios[0]:.0f} to {100 * ratios[-1]:.0f} %"
    stated = f"with the CNN on MNIST: {share} of the published rounds in four cells | four *inconclusive* |"
    assert stated in text and [row["verdict"] for row in cnn] == ["inconclusive"] * 4


def test_counts_of_verdicts_are_published() -> None:
    rounds, fedavg, mnist = map(
        counted, ("fedavg/table1_2nn.csv", "fedavg/claims.csv", "replication/claims.csv")
    )
    cifar, fed2 = (counted("replication_cifar10/claims.csv", start) for start in ("", "Fed2"))
    bases = [
        row for row in read("ecgr/claims.csv") if re.fullmatch(r"ECGR improves \w+ on MNIST", row["claim"])
    ]
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
    (against,) = (row for row in read("replication/claims.csv") if "with 3, 5 and 10 classes" in row["claim"])
    assert against["verdict"] == "contradicted" and against["exploratory"] == "True"
    assert "5 classes per node" in against["evidence"] and float(against["high"]) < 0
    worse = [row for row in read("replication/fed2.csv") if row["column"] == "Fed2" and row["gain_high"]]
    below = {row["row"]: float(row["gain_high"]) < 0 for row in worse}
    assert below == {"3 classes per node": False, "5 classes per node": True, "10 classes per node": True}
    sizes = [row for row in read("ecgr/claims.csv") if "by one to two points" in row["claim"]]
    assert [row["claim"].split()[2] for row in sizes if row["verdict"] == "supported"] == ["SCAFFOLD"]
    assert Counter(row["verdict"] for row in sizes) == {"supported": 1, "inconclusive": 3}
    assert "| one *supported* (SCAFFOLD), three *inconclusive* |" in written("README.md")
    published = rounds.total() + counted("fedavg/table1_cnn_iid.csv").total()
    stated: dict[str, list[tuple[Any, ...]]] = {
        "README.md": [
            (f"on MNIST: {rounds['not reproduced']} of {rounds.total()} cells need ",),
            (f"| {rounds['not reproduced']} *not reproduced*, {{}} *inconclusive* |", rounds["inconclusive"]),
            ("gain on MNIST over each of {} base methods: ", len(bases)),
            (
                "rejects all {} false values (each raised by three points) and no true one",
                len(cells) - len(true),
            ),
            (
                f"Of {len(true)} true values ({len(values)} different numbers), it confirms {{}}. The others",
                len(true) - len(open_cells),
            ),
        ],
        "docs/results.md": [
            (f"Of {published} published numbers of rounds, {rounds['not reproduced']} are *not reproduced*",)
        ],
        "published/README.md": [
            *(("{} cells are " + verdict, number) for verdict, number in rounds.items()),
            *(("{} claims are " + verdict, fedavg[verdict]) for verdict in ("supported", "inconclusive")),
            ("{} claims are supported: Fed2", fed2["supported"]),
            ("{} claims of five papers", cifar.total()),
            ("of the {} claims, ", mnist.total()),
            *(("{} is " + verdict, mnist[verdict]) for verdict in ("supported", "contradicted")),
            ("and {} are inconclusive", mnist["inconclusive"]),
        ],
    }
    for page, phrases in stated.items():
        text = " ".join(written(page).split()).lower()
        expected = [form.format(*(WORDS[number] for number in numbers)) for form, *numbers in phrases]
        assert not [phrase for phrase in expected if phrase.lower() not in text], page


CONCLUSIONS: dict[str, dict[str, str]] = {
    "fedavg": {"fewer rounds than one client": "supported"},
    "ecgr": {"improves FedAvg on": "supported", "improves FedNova on": "supported"},
    "replication_cifar10/ECGR": {"four base methods": "inconclusive"},
    "replication_cifar10/Fed2": {
        **{"FedAvg with ten": "supported", "FedMA with ten": "supported", "with GroupNorm": "inconclusive"},
    },
    "replication/Fed2": {"3, 5 and 10 classes": "contradicted"},
    "replication_cifar10/FedImpro": {"FedImpro is better than FedAvg": "contradicted"},
    "replication/FedImpro": {"": "inconclusive"},
    "replication_cifar10/FLFA": {"methods, on average": "contradicted", "and FedLC": "inconclusive"},
    "replication/FLFA": {"DFA does not converge": "supported", "on average": "inconclusive"},
    "replication_cifar10/FedFCD": {"better than local training": "inconclusive"},
    "replication/FedFCD": {"FedFCD is best": "inconclusive"},
}
"""Verdicts behind the conclusions of the front page, by a part of the claim."""


@pytest.mark.parametrize("key", CONCLUSIONS)
def test_conclusions_of_the_front_page_agree_with_the_verdicts(key: str) -> None:
    paper, _, cited = key.partition("/")
    rows = [row for row in read(f"{paper}/claims.csv") if row["where"].startswith(cited)]
    for part, verdict in CONCLUSIONS[key].items():
        assert {row["verdict"] for row in rows if part in row["claim"]} == {verdict}, part
    assert shipped("published").scale.conclusions.keys() == CONCLUSIONS.keys() | {"fair"}


def test_fair_methods_below_fedavg_are_stated() -> None:
    rows = [row for row in read("fair/accuracy.csv") if row["panel"] == "Dirichlet 0.5" and row["gain"]]
    gains = {row["row"]: row for row in rows if row["column"] == "tuned"}
    lower = [row for row in gains.values() if float(row["gain"]) < 0 and row["gain_verdict"] != "equivalent"]
    ends = sorted(-float(row["gain"]) for row in lower)
    page = " ".join(written("published/README.md").split())
    stated = (
        f"* {WORDS[len(lower)].capitalize()} methods lie lower, by {ends[0]:.1f} to {ends[-1]:.1f} points"
    )
    assert stated in page and {row["gain_verdict"] for row in lower} == {"inconclusive"}
    clear = sorted(
        (row for row in lower if float(row["gain_high"]) < -0.5), key=lambda row: float(row["gain"])
    )
    assert {row["reason"] for row in clear} == {"not significant after correction"}
    names = [f"{row['row'].rpartition(' + ')[2]} ({float(row['gain']):.1f})" for row in clear]
    assert f"{', '.join(names[:-1])} and {names[-1]}, have intervals wholly below -0.5" in page


def test_the_conclusion_on_the_fair_table_agrees_with_its_verdicts() -> None:
    decided = {
        (row["panel"], row["row"], row["gain_verdict"])
        for file in ("accuracy", "further_seeds")
        for row in read(f"fair/{file}.csv")
        if row["column"] != "default" and row["gain_verdict"] in ("better", "worse")
    }
    assert decided == {("Dirichlet 0.1", "FedDyn", "better"), ("Dirichlet 0.1", "FedAvg + FLFA", "worse")}


def test_the_confirmatory_table_of_ecgr_is_published() -> None:
    gains = {row["row"]: row for row in read("ecgr/confirmatory.csv") if row["gain"]}
    table = re.findall(r"\n\| (\w+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ", written("docs/papers/ecgr.md"))
    stated = {cells[0]: cells[1:] for cells in table if cells[0] in gains}
    assert stated == {
        name: (
            f"{float(row['gain']):+.2f}",
            f"[{float(row['gain_low']):+.2f}, {float(row['gain_high']):+.2f}]",
            ", ".join(f"{float(gain):.2f}" for gain in row["gains"].split()),
        )
        for name, row in gains.items()
    }


TRAINING = {
    "model.name": {"vgg_tiny": "`vgg_tiny`", "resnet18": "ResNet-18", "mobilenetv2": "MobileNetV2"}
    | {"ecgr_cnn": "a CNN", "fedavg_cnn": "a CNN", "vgg9": "VGG-9 and others"},
    "model.initialisation": {"he": "with `he`", "he_fan_in": "with `he_fan_in`", "pytorch": "with `pytorch`"},
    "dataset.image_size": {16: "16 x 16 pixels", None: ""},
    "dataset.normalisation": {"default": "`dataset.normalisation: default`", "ecgr": "`normalisation: ecgr`"},
    "training.augmentation.crop_padding": {0: "no augmentation", 4: "augmentation"},
    "training.augmentation.flip": {False: "no augmentation", True: "augmentation"},
    "training.augmentation.padding_mode": {"zeros": "no augmentation", "reflect": "augmentation"},
    "training.lr": {0.03: "the best of three rates", 0.01: "rate 0.01", 0.001: "rate 0.001"},
    "training.lr_schedule.name": {"cosine": "a cosine schedule", "constant": ", constant"}
    | {"step": "halved every ten rounds", "exponential": "0.998 a round"},
    "training.last_batch": {"keep": "incomplete batches kept", "drop": "incomplete ones dropped"},
    "training.batch_size": {size: f"batches of {size}" for size in (32, 64, 128)},
    "training.epochs": {1: "one epoch", 20: "20 epochs"},
    "partition.alpha": {0.1: "Dirichlet 0.1 and 0.5", 0.01: "Dirichlet 0.01"},
    "rounds": {rounds: "10 to 30 rounds" for rounds in (10, 14, 20, 30)}
    | {100: "; 100 rounds", 500: "500 rounds", 1000: "1,000 rounds"},
}
"""Setting -> the text of each value in the table of training settings."""

OTHERWISE_STATED = re.compile(
    r"seed|methods?\b|plugins|evaluation|model\.norm|training\.lr_schedule\.rounds|model\.width"
)
"""Settings that another table has, that do not matter for training, or that the network decides."""


def flat(settings: dict[str, Any], path: str = "") -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for key, value in settings.items():
        pairs |= flat(value, f"{path}{key}.") if isinstance(value, dict) else {path + key: value}
    return pairs


def usual_settings(specs: Iterable[RunSpec]) -> dict[str, Any]:
    """The most frequent value of each setting."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for spec in specs:
        for key, value in flat(spec.model_dump(mode="json")).items():
            counts[key][json.dumps(value)] += 1
    return {key: json.loads(values.most_common(1)[0][0]) for key, values in counts.items()}


@pytest.mark.parametrize("method", ["Fed2", "FedImpro", "FLFA", "FedFCD", "ECGR"])
def test_training_settings_that_differ_from_the_papers_are_stated(method: str) -> None:
    paper = method.lower()
    theirs = usual_settings(
        entry.spec
        for item in shipped("paper").items
        for entry in item.entries
        if item.paper.paper == paper and entry.spec.dataset.name == "cifar10"
    )
    table = written("published/README.md").partition("#### Settings of training on CIFAR-10")[2]
    lines = {
        cells[1].strip(): cells[2:4]
        for cells in (line.split("|") for line in table.splitlines()[:12])
        if cells[1:]
    }
    (all_ours, _), (our_text, their_text) = lines["all"], lines[method]
    names = [
        item.id
        for item in shipped("published").items
        if item.id.startswith(f"replication_cifar10/{paper}") and not re.search("rates|pilot", item.name)
    ]
    assert names
    for name in names:
        ours, missing = usual_settings(entry.spec for entry in planned(name).entries), []
        for key, value in ours.items():
            if key not in theirs or value == theirs[key] or OTHERWISE_STATED.match(key):
                continue
            texts = TRAINING[key]
            missing += [f"{key}: {value}"] * (texts[value] not in f"{all_ours} {our_text}")
            missing += [f"{key}: {theirs[key]} in the paper"] * (texts[theirs[key]] not in their_text)
        assert not missing, name


def test_settings_of_methods_that_differ_from_the_papers_are_stated() -> None:
    """Options that a replication sets for all its runs of a method, unlike most of the paper's own runs."""

    def options(runs: Iterable[RunSpec]) -> dict[str, list[dict[str, Any]]]:
        methods: dict[str, list[dict[str, Any]]] = {}
        for spec in runs:
            for method in spec.composition.methods:
                methods.setdefault(method.name, []).append(method.model_dump(mode="json"))
        return methods

    papers: dict[str, list[RunSpec]] = {}
    for item in shipped("paper").items:
        papers.setdefault(item.paper.paper, []).extend(entry.spec for entry in item.entries)
    declared = {paper: options(runs) for paper, runs in papers.items()}
    page, missing = written("published/README.md"), []
    for item in shipped("published").items:
        paper = re.match("[a-z0-9]+", item.name)[0]  # type: ignore[index]
        if not item.paper.paper.startswith("replication") or re.search("rates|pilot", item.name):
            continue
        for method, ours in options(entry.spec for entry in item.entries).items():
            for key, value in ours[0].items() if all(other == ours[0] for other in ours) else ():
                usual = Counter(json.dumps(theirs[key]) for theirs in declared[paper].get(method, ()))
                if usual and json.dumps(value) != usual.most_common(1)[0][0]:
                    setting = f"{method}.{key}: {value}"
                    missing += [f"{item.id}: {setting}"] * (f"`{setting}`" not in page)
    assert not missing
