"""Jobs of the workflow: their files, parameters and resources, from the plan of a scale. Imports no torch.

The rules in ``workflow/rules`` only pass wildcards to these look-ups.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fltrain.core.config import hint
from fltrain.core.errors import FltrainError, count, listed, together
from fltrain.data.datasets import Dataset
from fltrain.experiments.items import FORMS, PlannedItem
from fltrain.experiments.plan import Plan, no_item, plan
from fltrain.experiments.schema import Paper, reported_folder
from fltrain.experiments.selection import Request, Resource
from fltrain.runs.record import MODELS_FILE, Results
from fltrain.runs.spec import RunSpec
from fltrain.runs.today import IF_CHANGED, changed_runs

if TYPE_CHECKING:
    from snakemake.settings.types import DAGSettings

CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True, eq=False)
class Jobs:
    """Jobs of a scale.

    Attributes:
        request: the workflow's configuration.
        plan: the requested part, as far as it can be made.
        results: the results folder.
        config: folder of the declarations.
        complete: the runs of the requested part that have a record.
    """

    request: Request
    plan: Plan
    results: Results
    config: Path
    complete: frozenset[str]

    @classmethod
    def of(
        cls, settings: Mapping[str, Any], config: Path = Path("config"), results: Path = Path("results")
    ) -> Self:
        """Return the jobs for a configuration of the workflow."""
        request = Request.parse(settings, "config/config.yaml or --config")
        part, folder = plan(config, request.scale).restricted(request), Results(results)
        complete = frozenset(run for run in part.runs if folder.record(run).complete)
        for run in complete:
            folder.record(run).check_settings(part.runs[run])
        part = part if request.train else _from_records(part, folder, complete)
        return cls(request, part, folder, config, complete)

    @property
    def folder(self) -> str:
        """Folder of the scale's tables and figures."""
        return f"{self.results.root}/{self.request.scale}"

    def refuse_damaged(self) -> None:
        """Refuse damaged records: Snakemake takes them for finished, and tables would leave them out."""
        records = [self.results.record(run) for run in self.plan.runs if run in self.complete]
        if damages := [entry.refusal("delete its folder to retrain it") for entry in records if entry.damage]:
            raise together("damaged records", [("", damage) for damage in damages])

    def notes(self) -> list[str]:
        """Return lines to print before the workflow starts: trained runs, and records older than the code."""
        scale, runs = self.request.scale, len(self.plan.runs)
        notes = []
        if self.request.train and 0 < len(self.complete) < runs:
            notes.append(f"{scale}: {len(self.complete):,} of {count(runs, 'run')} are trained")
        complete = {run: spec for run, spec in self.plan.runs.items() if run in self.complete}
        if changed := changed_runs(complete, self.results):
            modules = sorted({module for names in changed.values() for module in names})
            records = count(len(changed), "record")
            notes.append(
                f"{listed(modules, 2)} changed after {records}; {IF_CHANGED}; to train "
                f"again: snakemake --config scale={scale} -R $(fltrain status --changed --scale {scale})"
                if self.request.train
                else f"an earlier version of the code made {len(changed):,} of "
                f"{count(len(complete), 'record')}; their run IDs are unchanged, so they count as valid "
                "(docs/records.md#changed-code)"
            )
        return notes

    def hint(self, target: str) -> str:
        """Return a line on a target that does not exist: an item, a file of one, or a paper."""
        scale = self.request.scale
        if target in self.papers:
            return f"the paper {target!r} is no target; run snakemake --config scale={scale} items={target}"
        name = target.removeprefix(f"{self.folder}/").partition(".")[0]
        if name in self.items:
            return f"there is no target {target!r}; did you mean {name!r}?"
        items = plan(self.config, scale).items
        if any(name in item.names for item in items):
            return f"{target!r} is not in the requested part of the scale; leave out items, where and train"
        return str(no_item(self.config, name, f"scale {scale!r}", [item.id for item in items]))

    # ------------------------------------------------------------ data and partitions
    @cached_property
    def datasets(self) -> dict[str, Dataset]:
        """Datasets of the plan by ID."""
        return {dataset.id: dataset for spec in self.plan.specs for dataset in spec.datasets}

    def data_files(self, datasets: Iterable[Dataset] | None = None) -> list[str]:
        """Return the files of datasets (default: of all)."""
        chosen = self.datasets.values() if datasets is None else datasets
        return sorted({str(self.results.data(dataset)) for dataset in chosen})

    def dataset(self, name: str) -> dict[str, Any]:
        """Return settings and revision of a dataset of the plan, or of any dataset in the registry."""
        dataset = self.datasets.get(name) or Dataset.parse({"name": name}, "dataset")
        return {"settings": dataset.prepared.model_dump(mode="json"), "revision": dataset.revision}

    def fetch_options(self, name: str) -> list[str]:
        """Return name and options with which ``fltrain data fetch`` prepares a dataset."""
        settings = self.dataset(name)["settings"]
        size = settings["image_size"]
        return [settings["name"], *(["--image-size", str(size)] if size else [])]

    @cached_property
    def partitions(self) -> dict[str, RunSpec]:
        """A run of the plan for each partition ID."""
        return {spec.partition_id: spec for spec in self.plan.specs}

    def partition_files(self) -> list[str]:
        """Return the files of all partitions."""
        return [str(self.results.partition(partition)) for partition in self.partitions]

    def partition(self, name: str) -> dict[str, Any]:
        """Return the settings of a partition and of its dataset."""
        spec = self.partitions[name]
        return {"dataset": self.dataset(spec.dataset.id), **spec.division.settings}

    # ------------------------------------------------------------ runs
    # Snakemake looks up each of thousands of runs several times, hence the dictionaries.
    @cached_property
    def run_specs(self) -> dict[str, str]:
        """Specification of each run as JSON."""
        return {run: spec.to_json() for run, spec in self.plan.runs.items()}

    @cached_property
    def run_inputs(self) -> dict[str, list[str]]:
        """Data and partition files of each run, unless it has a record and one of them is missing.

        An imported record needs none. For others, Snakemake would notice that inputs have gone.
        """
        files = [*self.data_files(), *self.partition_files()]
        missing = {file for file in files if not Path(file).exists()}
        inputs = {
            run: [*self.data_files(spec.datasets), str(self.results.partition(spec.partition_id))]
            for run, spec in self.plan.runs.items()
        }
        gone = {run for run in self.complete if not missing.isdisjoint(inputs[run])}
        return {run: [] if run in gone else files for run, files in inputs.items()}

    def resource(self, name: Resource) -> Callable[..., int]:
        """Return a function of wildcards and attempt (1, 2 ...): the amount that a run's job requests."""
        amount, runs = self.request.resources.amount, self.plan.runs
        return lambda wildcards, attempt: amount(name, runs[wildcards.run].model.name, attempt)

    def summaries(self, runs: Iterable[str]) -> list[str]:
        """Return the files that stand for the records of runs: the summary is written last.

        Without training, runs without a record are left out.
        """
        recorded = [run for run in runs if self.request.train or run in self.complete]
        return [f"{self.results.root}/runs/{run}/summary.json" for run in recorded]

    # ------------------------------------------------------------ tables and figures
    @cached_property
    def items(self) -> dict[str, PlannedItem]:
        """Items of the plan by ID."""
        return {item.id: item for item in self.plan.items}

    def outputs(self, *names: str) -> list[str]:
        """Return the files of tables and figures: of all, or of some papers or items by ID."""
        return [
            f"{self.folder}/{item.id}.{form}"
            for item in self.plan.items
            if not names or item.names & set(names)
            for form in FORMS[item.rule]
        ]

    def item_inputs(self, name: str) -> dict[str, list[str]]:
        """Return the files that a table or figure is made from: records, and data or published values."""
        item = self.items[name]
        inputs = {"records": [*self.summaries(item.run_ids), *self.data_files(_datasets_behind(item))]}
        return inputs | {"published": self.published([item])} if item.item.table else inputs

    def pattern(self, rule: str) -> str:
        """Return a regular expression for the IDs of the items that a rule makes."""
        return "|".join(re.escape(item.id) for item in self.plan.items if item.rule == rule) or "(?!)"

    # ------------------------------------------------------------ papers and published values
    @cached_property
    def papers(self) -> dict[str, Paper]:
        """Papers of the plan by name."""
        return {item.paper.paper: item.paper for item in self.plan.items}

    def published(self, items: Iterable[PlannedItem]) -> list[str]:
        """Return the files of the items' published values."""
        return sorted({str(file) for item in items if (file := item.published(self.config))})

    def paper_inputs(self, name: str) -> dict[str, list[str]]:
        """Return the files that a paper's claims are judged by."""
        claims_file = str(reported_folder(self.config, name) / f"{name}_claims.csv")
        return {
            "made": self.outputs(name),
            "claims": [claims_file] if self.papers[name].claims else [],
            "published": self.published(item for item in self.plan.items if item.paper.paper == name),
        }

    def paper_job(self, name: str) -> dict[str, Any]:
        """Return a paper's title, scale, texts of its page, sheets of its items, and claims."""
        items = [item for item in self.plan.items if item.paper.paper == name]
        scale, declared = self.plan.scale, self.papers[name]
        reduced = scale.reduces(declared)
        covers = {item.name: list(item.item.covers) for item in items}
        paper_places = [place for item in declared.items.values() for place in item.covers]
        covered = {place for places in covers.values() for place in places}
        others = {place: "not part of these results" for place in paper_places if place not in covered}
        return {
            "paper": name,
            "title": declared.title,
            "note": "" if reduced else declared.note,
            "kind": declared.kind,
            "scale": scale.scale,
            "reduced": reduced,
            "conclusions": {
                key.partition("/")[2]: text
                for key, text in scale.conclusions.items()
                if key.partition("/")[0] == name
            },
            "about": {
                "citation": declared.citation,
                "covers": covers,
                "untrained": {**declared.untrained, **others},
                "elsewhere": self._elsewhere(name),
            },
            "sheets": [item.sheet.model_dump(mode="json") for item in items],
            "claims": [claim.model_dump(mode="json") for claim in declared.claims],
        }

    def _elsewhere(self, name: str) -> dict[str, str]:
        """Return the other papers with claims on this one, for example replications: titles by name."""
        return {other.paper: other.title for other in self.papers.values() if other.judges(name)}

    def track_options(self) -> list[str]:
        """Return the options with which ``fltrain track`` exports the requested part of the scale."""
        request = self.request
        seeds = ["--seeds", str(request.seeds)] if request.seeds else []
        where = [word for condition in request.where for word in ("--where", condition)]
        store = f"sqlite:///{self.results.tracking}"
        return ["--uri", store, "--scale", request.scale, *seeds, *where, *request.items]

    def listing(self) -> dict[str, Any]:
        """Return the plan's headings and restrictions, and tables and figures of each paper with their runs.

        The title is empty if items have different scales.
        """
        papers: dict[str, dict[str, Any]] = {}
        for item in self.plan.items:
            name = item.paper.paper
            heading = {"name": name, "title": item.paper.title}
            contents = {"name": item.name, "title": item.item.title, "table": item.item.table is not None}
            paper = papers.setdefault(name, {**heading, "contents": []})
            paper["contents"].append({**contents, "runs": item.run_cells})
        return {
            "scale": self.plan.scale.scale,
            "heading": self.plan.scale.page or f"Results at the scale “{self.plan.scale.scale}”",
            "title": self.plan.title,
            "reduced": self.plan.scale.reduced,
            "restrictions": list(self.plan.restrictions),
            "papers": list(papers.values()),
        }


def check_command(arguments: Sequence[str], folder: Path = Path()) -> None:
    """Refuse arguments and a folder that Snakemake would misunderstand.

    It takes words in braces for wildcards, deletes finished runs with all other output (the option can be
    abbreviated), and runs on this machine if a workflow profile does not exist.
    """
    path = str(folder.absolute())
    if "{" in path or "}" in path:
        raise FltrainError(f"Snakemake cannot run in a path with braces: move {path!r}")
    for word, following in itertools.pairwise([*arguments, ""]):
        name, _, value = word.partition("=")
        if len(name) > len("--delete-") and "--delete-all-output".startswith(name):
            raise FltrainError(
                f"{word}: would delete finished runs; delete results/<scale> to make tables and figures, "
                "or use `fltrain train --again` to train a run again"
            )
        profile = value or following
        if name == "--workflow-profile" and profile != "none" and not Path(profile).exists():
            profiles = sorted(path.name for path in (CHECKOUT / "workflow" / "profiles").iterdir())
            raise FltrainError(
                f"--workflow-profile: there is no folder {profile}"
                f"{hint(Path(profile).name, profiles, 'in workflow/profiles')}"
            )


def train_again_if_forced(settings: DAGSettings) -> None:
    """Let jobs train runs that have a record after ``-F``, or ``-R`` or ``-f`` with ``train`` or runs."""
    chosen = {*settings.forcerun, *(settings.targets if settings.forcetargets else ())}
    if settings.forceall or any(name == "train" or "runs/" in name for name in chosen):
        os.environ["FLTRAIN_AGAIN"] = "true"


def use_this_python() -> None:
    """Let the shell commands of all jobs find this process's Python."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _datasets_behind(item: PlannedItem) -> list[Dataset]:
    """Return the datasets that an item is made from, in addition to records."""
    needed = not item.trains or item.rule == "model_figure"
    return [entry.spec.dataset for entry in item.entries] if needed else []


def _from_records(part: Plan, results: Results, complete: frozenset[str]) -> Plan:
    """Return the items that can be made without training, because some run has a complete record.

    They keep all their cells; tables show missing runs.
    """

    def possible(item: PlannedItem) -> bool:
        models = item.run_ids if item.rule == "model_figure" else []
        files = [results.data(dataset) for dataset in _datasets_behind(item)]
        files += [results.run(run) / MODELS_FILE for run in models]
        recorded = not item.trains or not complete.isdisjoint(item.run_ids)
        return recorded and all(file.exists() for file in files)

    available = part.reduced_to([item for item in part.items if possible(item)], "what records allow")
    if not available.items:
        raise FltrainError(
            f"scale {part.scale.scale!r}: none of its runs has a record (`fltrain status` names stale ones); "
            "import records (`fltrain records import`), or train the runs"
        )
    return available
