"""Tuning: search spaces, trials drawn from them, and the selection of a trial for each cell. No torch.

``config/search.yaml`` declares the spaces. An item with an axis ``trial`` declares the trials, which are
ordinary runs. ``select`` chooses a trial for each cell by a validation measure and writes its evidence to
``config/selected``. Points of other items then refer to it (``selected``). Run IDs are therefore known when a
workflow is planned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import AfterValidator, Field, Strict, model_validator

from fltrain.core.config import ListOf, Settings, check_known
from fltrain.core.errors import FltrainError, count
from fltrain.core.files import write_text
from fltrain.core.floats import average
from fltrain.core.own import place_of_file
from fltrain.core.rng import Purpose, stream
from fltrain.core.shell import command, workflow
from fltrain.core.strict_yaml import read_settings
from fltrain.experiments.items import PlannedItem
from fltrain.experiments.layout import Labels
from fltrain.experiments.schema import TRIAL, Patch, Point
from fltrain.methods import METHODS
from fltrain.methods.training import Training
from fltrain.runs.measures import measure
from fltrain.runs.record import Results
from fltrain.runs.spec import RunSpec

TRAINING = "training"
"""Name of the space of local training, which all methods share."""


class Range(Settings):
    """Values of a setting, in one of three forms.

    Attributes:
        log_uniform: lower and upper end; the logarithm is uniform.
        uniform: lower and upper end.
        choice: values with equal chances.
        source: origin of the range.
    """

    log_uniform: Annotated[tuple[float, float], Strict(False)] | None = None
    uniform: Annotated[tuple[float, float], Strict(False)] | None = None
    choice: Annotated[ListOf[Any], Field(min_length=1)] | None = None
    source: str

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = ("log_uniform", "uniform", "choice")
        if sum(getattr(self, form) is not None for form in forms) != 1:
            raise ValueError(f"a range has one of {', '.join(forms)}")
        low, high = self.log_uniform or self.uniform or (1, 2)
        if low >= high or (self.log_uniform and low <= 0):
            raise ValueError(f"the ends must ascend, and be positive if log_uniform, got [{low:g}, {high:g}]")
        return self

    @property
    def ends(self) -> tuple[Any, ...]:
        """All choices, or the two ends."""
        return self.choice or self.log_uniform or self.uniform or ()

    def at(self, share: float) -> Any:
        """Return the value below which this share of the range lies, numbers with three digits."""
        if self.choice:
            return self.choice[int(share * len(self.choice))]
        low, high = self.ends
        value = low * (high / low) ** share if self.log_uniform else low + (high - low) * share
        return float(f"{value:.3g}")


def _checked(spaces: Mapping[str, Mapping[str, Range]]) -> Mapping[str, Mapping[str, Range]]:
    """Refuse unknown methods and settings, and ends that a setting cannot have."""
    check_known("no method or plug-in is called", spaces, (TRAINING, *METHODS))
    for name, space in spaces.items():
        kind: type[Settings] = Training if name == TRAINING else METHODS[name]
        for setting, values in space.items():
            for value in values.ends:
                named = {} if name == TRAINING else {"name": name}
                kind.parse({**named, setting: value}, f"space of {name!r}")
    return spaces


class Search(Settings):
    """Search spaces. The space of a run joins the spaces of its training, method and plug-ins, in this order.

    Attributes:
        spaces: ranges by method or plug-in (or ``training``) and setting.
    """

    spaces: Annotated[Mapping[str, Mapping[str, Range]], AfterValidator(_checked)] = {}

    def patch(self, point: Point, spec: RunSpec, labels: Labels) -> Patch:
        """Return the settings of a point's trial; none for trial 0, which keeps the settings of the spec.

        A trial does not depend on the number of trials.
        """
        if not point.trial:
            return {}
        shares = halton(point.trial)

        def drawn(name: str) -> Patch:
            return {setting: values.at(next(shares)) for setting, values in self.spaces.get(name, {}).items()}

        patch: dict[str, Any] = {TRAINING: drawn(TRAINING), "method": drawn(spec.method.name)}
        plugins = [(plugin, drawn(plugin.name)) for plugin in spec.plugins]
        if any(new for _, new in plugins):
            patch["plugins"] = [
                {"name": plugin.name, **plugin.model_dump(mode="json", exclude_defaults=True), **new}
                for plugin, new in plugins
            ]
        return {name: new for name, new in patch.items() if new}


def halton(trial: int) -> Iterator[float]:
    """Yield the coordinates of a trial (from 1) in the unit cube: a shifted Halton sequence.

    Dimension d is the radical inverse in the d-th prime, shifted by a random number that all spaces share
    (Cranley and Patterson 1976). So all methods have the same learning rates, and any number of trials covers
    a range evenly.
    """
    primes = (number for number in itertools.count(2) if all(number % less for less in range(2, number)))
    for dimension, base in enumerate(primes):
        shift = float(stream(0, Purpose.SEARCH, client=dimension).random())
        number, weight, inverse = trial - 1, 1.0, 0.0
        while number:
            weight /= base
            number, digit = divmod(number, base)
            inverse += weight * digit
        yield (inverse + shift) % 1.0


# ---------------------------------------------------------------- selection
class Trial(Settings):
    """Evidence of a trial: its runs and the mean of their validation measure over seeds, if they have one."""

    settings: Patch
    runs: ListOf[str]
    value: float | None


class Choice(Settings):
    """The chosen trial of a cell, and all its trials, by label."""

    labels: Labels
    chosen: str
    trials: dict[str, Trial]


class Selected(Settings):
    """A file in ``config/selected``: the choices of an item with an axis of trials, at a scale.

    ``measure`` is the validation measure that decided.
    """

    scale: str
    item: str
    measure: str
    cells: ListOf[Choice]

    def patch(self, point: Point, spec: RunSpec, labels: Labels) -> Patch:
        """Return the settings that are selected for a cell, if the point wants them."""
        if not point.selected:
            return {}
        for cell in self.cells:
            if cell.labels.items() <= labels.items():
                return cell.trials[cell.chosen].settings
        raise FltrainError(f"no trials of {', '.join(labels.values())}; {self.item} needs the same labels")


def selected_file(config: Path, item: PlannedItem) -> Path:
    """Return the file of an item's selection."""
    place = place_of_file(config, f"scales/{item.scale.scale}.yaml")
    return place / "selected" / item.scale.scale / f"{item.id.replace('/', '_')}.yaml"


def read_selection(config: Path, item: PlannedItem) -> Selected:
    """Return the selection among the trials of an item.

    Raises:
        FltrainError: if it is missing or was made from other trials; the message has the commands to make it.
    """
    path, scale = selected_file(config, item), item.scale.scale
    make = (
        f"train the trials ({workflow(f'scale={scale} items={item.id}')}), then run "
        f"`{command(f'fltrain select {item.id} --scale {scale}', config=config)}`"
    )
    if not path.exists():
        raise FltrainError(f"{path}: nothing is selected yet; {make}")
    selected = read_settings(path, Selected)
    values = {trial.runs: trial.value for cell in selected.cells for trial in cell.trials.values()}
    if _by_labels(selected) != _by_labels(_selection(item, selected.measure, values.get)):
        raise FltrainError(f"{path}: selected from other trials than those declared now; {make}")
    return selected


def _by_labels(selected: Selected) -> dict[frozenset[tuple[str, str]], Choice]:
    return {frozenset(cell.labels.items()): cell for cell in selected.cells}


def select(item: PlannedItem, results: Results) -> Selected:
    """Choose the best trial of each cell by the first measure of the item's table; ties: the first trial."""
    if TRIAL not in item.axes or item.item.table is None:
        raise FltrainError(f"{item.id}: has no trials; name an item that is a table with an axis {TRIAL!r}")
    name = item.item.table.measures[0].measure
    if not name.startswith("validation_"):
        raise FltrainError(
            f"{item.id}: its first measure is {name!r}; nothing may be selected on test images, so name a "
            "measure 'validation_...' first"
        )
    records = {run: results.record(run) for run in item.run_ids}
    missing = [run for run, record in records.items() if not record.usable]
    if missing:
        raise FltrainError(
            f"{item.id}: {len(missing)} of {count(len(records), 'trial')} without a record, for example "
            f"{missing[0]}; all count, so train them: "
            f"{workflow(f'scale={item.scale.scale} items={item.id}', results.root)}"
        )
    metric = measure(name)

    def value(runs: tuple[str, ...]) -> float | None:
        values = [(metric.of(records[run]) or {"": metric.of_diverged(records[run])})[""] for run in runs]
        mean = average(values)
        return round(mean, 10) if math.isfinite(mean) else None

    return _selection(item, name, value)


def _selection(item: PlannedItem, measure: str, value: Callable[[tuple[str, ...]], float | None]) -> Selected:
    """Return the choice among the trials of an item; ``value`` returns the measure of a trial's runs."""
    cells: dict[frozenset[tuple[str, str]], tuple[Labels, dict[str, Trial]]] = {}
    for labels, group in itertools.groupby(item.entries, lambda entry: entry.labels):
        entries = list(group)
        others = {axis: label for axis, label in labels.items() if axis != TRIAL}
        runs = tuple(entry.spec.run_id for entry in entries)
        _, trials = cells.setdefault(frozenset(others.items()), (others, {}))
        trials[labels[TRIAL]] = Trial(settings=entries[0].drawn, runs=runs, value=value(runs))
    choices = [
        Choice(labels=labels, chosen=_best(trials), trials=trials) for labels, trials in cells.values()
    ]
    return Selected(scale=item.scale.scale, item=item.id, measure=measure, cells=tuple(choices))


def _best(trials: Mapping[str, Trial]) -> str:
    """Return the label of the trial with the largest value; ties: the first."""
    values = {label: -math.inf if trial.value is None else trial.value for label, trial in trials.items()}
    return max(values, key=values.__getitem__)


def write_selection(path: Path, selected: Selected) -> None:
    """Write a selection with its evidence."""
    made_by = f"fltrain select {selected.item} --scale {selected.scale}"
    text = yaml.safe_dump(selected.model_dump(mode="json"), sort_keys=False, width=110)
    write_text(path, f"# Written by `{made_by}`; do not edit. Plans refuse it if the trials change.\n{text}")
