"""Experiments: papers x scale -> the runs behind every table and figure. Does not import torch.

Grids are declared (``fltrain.experiments.schema``) and expanded here; ``fltrain.experiments.layers`` merges
the settings of a cell.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TypeVar

from fltrain.core.config import check_known, hint
from fltrain.core.errors import FltrainError, Problems, count, listed, problems
from fltrain.core.located import LocatedMapping, located, place_of
from fltrain.core.own import own_remedy, place_of_file
from fltrain.data.datasets import registry
from fltrain.experiments.claims import cited_paper, quantities
from fltrain.experiments.items import Entry, PlannedItem, names_of, with_labels
from fltrain.experiments.layers import SettingsLayer, SettingsLayers, merge
from fltrain.experiments.layout import Bubbles, Preference, Restriction, curves_of, measures_of
from fltrain.experiments.published import check_reported
from fltrain.experiments.schema import (
    Axis,
    DisplayLabels,
    Paper,
    Point,
    Reduction,
    Register,
    Scale,
    Special,
    folders_of,
    read_added,
    read_declaration,
    reported_folder,
)
from fltrain.experiments.selection import Selection
from fltrain.experiments.tuning import Search, Selected, read_selection
from fltrain.methods import METHODS
from fltrain.runs.measures import lacking, lacking_in_all
from fltrain.runs.spec import RunSpec, check_sort
from fltrain.runs.where import Condition, cell_text, choose, parse_where, settings_text, value_of

AnyDeclared = TypeVar("AnyDeclared", Paper, Scale)

Specs = dict[str, dict[int, RunSpec]]
"""Runs by their settings and seed; the seed -1 stands for the one that was checked."""


@dataclass(frozen=True)
class Plan:
    """All items of a scale. Runs that items share are one run.

    ``restrictions`` lists the restrictions that removed a cell; ``config`` is the folder of the declarations.
    """

    config: Path
    scale: Scale
    items: list[PlannedItem] = field(default_factory=list)
    restrictions: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<scale {self.scale.scale}: {count(len(self.runs), 'run')} for {count(len(self.items), 'item')}>"
        )

    @property
    def title(self) -> str:
        """Scale of the items in words; empty if they differ in it."""
        titles = {item.scale_title for item in self.items}
        return titles.pop() if len(titles) == 1 else ""

    @cached_property
    def runs(self) -> dict[str, RunSpec]:
        """Distinct runs to be trained, by id."""
        runs: dict[str, RunSpec] = {}
        for spec in (entry.spec for item in self.items if item.trains for entry in item.entries):
            other = runs.setdefault(spec.run_id, spec)
            if other is not spec and other.canonical != spec.canonical:
                raise FltrainError(
                    f"{spec.run_id}: two runs have this ID; choose another seed for one of them"
                )
        return runs

    @cached_property
    def specs(self) -> list[RunSpec]:
        """All specs, including those that only show their partition."""
        return [entry.spec for item in self.items for entry in item.entries]

    @cached_property
    def memberships(self) -> dict[str, list[str]]:
        """The items of each run, by run ID."""
        item_ids: dict[str, list[str]] = {}
        for item in self.items:
            for run_id in item.run_ids:
                item_ids.setdefault(run_id, []).append(item.id)
        return item_ids

    def restricted(self, selection: Selection) -> Plan:
        """Return the selected part of the plan: items with the matching cells, without empty items."""
        for name in selection.items:
            if not any(name in item.names for item in self.items):
                present = [item.id for item in self.items]
                raise no_item(self.config, name, f"scale {self.scale.scale!r}", present)
        items = [item for item in self.items if not selection.items or item.names & set(selection.items)]
        for item in items:
            if item.refused:
                raise FltrainError(item.refused)
        noun = "paper" if {item.paper.paper for item in self.items} >= {*selection.items} else "item"
        plural = "s" if len(selection.items) > 1 else ""
        reasons = [f"{noun}{plural} {', '.join(selection.items)}"] if selection.items else []
        part = self.reduced_to(items, *reasons)
        if seeds := selection.seeds:
            part = part._keeping(count(seeds, "seed"), lambda entry: entry.number < seeds)
        if conditions := parse_where(selection.where):
            texts = {spec.run_id: settings_text(spec) for spec in self.specs}
            run_ids = {spec.run_id for spec in part.specs}

            def meets(condition: Condition, entry: Entry) -> bool:
                return condition.meets(texts[entry.spec.run_id])

            # Refuses unknown keys and values.
            place = f"scale {self.scale.scale!r}{', '.join(['', *part.restrictions])}"
            choose(list(texts), conditions, texts.__getitem__, place, run_ids.__contains__)
            for condition in conditions:
                part = part._keeping(str(condition), partial(meets, condition))
        if not part.items:
            raise FltrainError(
                f"scale {self.scale.scale!r}: no run is left with {'; '.join(part.restrictions)}; "
                "drop one of these conditions"
            )
        return part

    def _keeping(self, reason: str, holds: Callable[[Entry], bool]) -> Plan:
        """Return the plan with the cells that meet a condition."""
        return self.reduced_to([item.keeping(reason, holds) for item in self.items], reason)

    def reduced_to(self, items: list[PlannedItem], *reasons: str) -> Plan:
        """Return the plan with the items that have cells; note ``reasons`` if a cell or item is removed."""
        items = [item for item in items if item.entries]
        if items == self.items:
            return self
        return replace(self, items=items, restrictions=(*self.restrictions, *reasons))


def plan(config: Path, scale: str) -> Plan:
    """Expand every item that the scale names into its runs.

    Args:
        config: folder with ``papers/`` and ``scales/``.
        scale: stem of a file in ``scales/``.
    """
    registry()  # a faulty entry is reported once, not for each cell
    labels = read_added(config, "labels.yaml", DisplayLabels).labels
    register = read_added(config, "register.yaml", Register)
    search = read_added(config, "search.yaml", Search)
    chosen, where = declared(config, scale, Scale, labels), f"scale {scale!r}"
    papers: dict[str, Paper] = {}
    mistakes = Problems()
    lines = read_declaration(config, "scale", scale)[1]["items"].places.values()
    at = {item: f"{file}: line {line}: " for item, (file, line) in zip(chosen.items, lines, strict=True)}
    for item_id in chosen.items:
        with mistakes.collected():
            if (name := item_id.partition("/")[0]) not in papers:
                papers[name] = declared(config, name, Paper, labels, at[item_id])
    for name, paper in papers.items():
        with mistakes.collected():
            check_reported(reported_folder(config, name), paper)
    cited = [(name, cited_paper(claim.where)) for name, paper in papers.items() for claim in paper.claims]
    sections = {*papers, *(f"{name}/{other}" for name, other in cited if other)}
    with mistakes.collected():
        check_known(f"{where}: conclusions: unknown paper", chosen.conclusions, sections)
    reductions: dict[tuple[str, str], Reduction] = {}
    for item_id, reduction in chosen.items.items():
        name, _, item = item_id.partition("/")
        if name not in papers:
            continue
        items = [item] if item else list(papers[name].items)
        with mistakes.collected():
            check_known(f"{at[item_id]}unknown item", [f"{name}/{item}" for item in items], papers[name].ids)
            reductions |= {(name, item): reduction for item in items}
    expanded: dict[tuple[str, str], PlannedItem] = {}
    specs: Specs = {}
    # Items that select from trials come after these.
    for name, item in sorted(reductions, key=lambda key: bool(papers[key[0]].items[key[1]].selects)):
        expand = partial(_expand, papers[name], item, chosen, reductions[name, item], register, config, specs)
        with mistakes.collected():
            expanded[name, item] = draft = expand(search)
            if source := draft.item.selects:
                trials = [key[1] for key in expanded if key[0] == name]
                check_known(f"{draft.id}: the scale lacks the trials", [source], trials)
                try:
                    expanded[name, item] = expand(read_selection(config, expanded[name, source]))
                except FltrainError as error:
                    expanded[name, item] = replace(draft, entries=[], refused=f"{draft.id}: {error}")
    mistakes.refuse(where)
    planned = [expanded[key] for key in reductions]
    parts = [(where, chosen), *((f"{where}: {name}", part) for name, part in chosen.items.items())]
    for place, part in parts:
        concerned = [item for item in planned if part is chosen or part is item.reduction]
        axes = sorted({axis for item in concerned for axis in item.axes})
        check_known(f"{place}: no item has the axis", part.axes, axes, "axes")
        _check_exceptions(place, part.exceptions, concerned)
    for draft in planned:
        names, places = draft.reduction.rejudged, sorted(draft.places)
        check_known(f"{where}: {draft.id}: rejudged: no cell", names, places, "cells")
    if not (chosen.settings or chosen.axes):
        for name, paper in papers.items():
            if chosen.items.get(name) == Reduction():
                _check_exceptions(name, paper.exceptions, [item for item in planned if item.paper is paper])
    return Plan(config, chosen, planned)


def unplanned(scale: str, error: FltrainError) -> str:
    """Return one line on a scale that cannot be planned, with the first problem."""
    first = " ".join(map(str.strip, str(error).splitlines()[:2])).removeprefix(f"scale {scale!r}: ")
    return f"scale {scale!r} cannot be planned and is left out: {first}"


def items_of_scales(config: Path) -> dict[str, list[str]]:
    """Return the IDs of all items by scale; faulty files are left out."""
    labels = read_added(config, "labels.yaml", DisplayLabels).labels
    files = [file for folder in folders_of(config, "scale") for file in folder.glob("*.yaml")]
    items: dict[str, list[str]] = {}
    papers = cache(lambda paper: declared(config, paper, Paper, labels).ids)
    for scale in sorted({file.stem for file in files}):
        with suppress(FltrainError):
            names = declared(config, scale, Scale, labels).items
            items[scale] = [item for name in names for item in ([name] if "/" in name else papers(name))]
    return items


def _judging(config: Path, name: str, ids: Iterable[str]) -> list[str]:
    """Return the papers of items, by ID, that have claims on a paper."""
    labels = read_added(config, "labels.yaml", DisplayLabels).labels
    papers = dict.fromkeys(item_id.partition("/")[0] for item_id in ids)
    return [paper for paper in papers if declared(config, paper, Paper, labels).judges(name)]


def no_item(config: Path, name: str, place: str, present: Collection[str] = ()) -> FltrainError:
    """Return the error that a place, such as a scale, has no item of this name, with the scales that have it.

    It also names the papers in the place with claims on it.

    If no scale has it, the error suggests a name, or lists the items of its paper, or the papers: of the IDs
    that are ``present`` in the place, or else of all scales, as for a paper that the place lacks.
    """
    if name.endswith(".yaml"):
        written = name.removesuffix(".yaml").rpartition("papers/")[2].removesuffix("/paper")
        remedy = (
            f"name the paper or item: {written}" if "papers/" in name else "name a paper or item: flfa/table1"
        )
        return FltrainError(f"{name!r} is a file; {remedy}")
    problem, scales = f"{place} has no item {name!r}", items_of_scales(config)
    paper = name.removesuffix("/claims")
    if matches := [scale for scale, ids in scales.items() if any(paper in names_of(item) for item in ids)]:
        scale = max(matches, key=lambda match: (repr(match) in place, match == "published"))
        if name != paper:
            return FltrainError(f"{problem}; claims are in results/{scale}/{paper}: index.html, claims.csv")
        has = "has it" if len(matches) == 1 else "have it"
        location = f"scale{'' if len(matches) == 1 else 's'} {listed(matches, 3)} {has}"
        remedy = f"add --scale {scale} (Snakemake, Python: scale={scale})"
        judging = _judging(config, paper.partition("/")[0], present)
        claims = f"; at {place}, claims on it are in {listed(judging, 3)}" if judging else ""
        return FltrainError(f"{problem}; {location}: {remedy}{claims}")
    if (Path(name) / "runs").is_dir():
        return FltrainError(f"{problem}; {name} is a folder with runs: write --results {name}")
    if re.search("-[0-9a-f]{10}$", name):
        return FltrainError(f"{problem}; it is a run ID: see RESULTS/runs/{name}")
    if name in METHODS:
        key = "plugins" if METHODS[name].plugin else "method"
        return FltrainError(f"{problem}; it is a method: fltrain compare --where {key}={name} shows its runs")
    all_ids = {item_id for ids in scales.values() for item_id in ids}
    papers = {item_id.partition("/")[0] for item_id in {*present} | all_ids}
    owner = max((stem for stem in papers if name.startswith((f"{stem}/", f"{stem}_"))), key=len, default="")
    if owner:
        of_paper = partial(filter, lambda item_id: item_id.startswith(f"{owner}/"))
        items = [item_id.partition("/")[2] for item_id in sorted([*of_paper(present)] or of_paper(all_ids))]
        word = name.removeprefix(owner)[1:]
        return FltrainError(problem + hint(word, items, f"items of {owner}", before=f"{owner}/"))
    papers = {item_id.partition("/")[0] for item_id in present or all_ids}
    return FltrainError(problem + hint(name.partition("/")[0], sorted(papers), remedy=own_remedy()))


def declared(
    config: Path, name: str, kind: type[AnyDeclared], labels: Mapping[str, str], named_at: str = ""
) -> AnyDeclared:
    """Return a paper or scale; its name must equal its file's name, because it names the results."""
    sort = kind.__name__.lower()
    file, data = read_declaration(config, sort, name, named_at)
    check_sort(data, sort, str(file))
    declaration = kind.parse(data, str(file), labels)
    if (declared_name := getattr(declaration, sort)) != name:
        raise FltrainError(f"{file}: {sort}: must be called {name!r} like the file, not {declared_name!r}")
    return declaration


def _check_exceptions(where: str, exceptions: Iterable[Special], items: Sequence[PlannedItem]) -> None:
    """Refuse exceptions that match no cell of the items."""
    for special in exceptions:
        if any(special in item.applied for item in items):
            continue
        cells = [cell_text(entry.spec, special.settings) for item in items for entry in item.entries]
        for condition in special.conditions:
            if not any(map(condition.meets, cells)):
                present = {name for cell in cells for name in value_of(cell, condition.key).split()}
                problem = f"{where}: exceptions: no cell has {condition.key}"
                check_known(problem, condition.values, sorted(present), "the cells have")
        raise FltrainError(f"{where}: exceptions: no cell has all of {special.when}; change 'when'")


def _expand(
    paper: Paper,
    name: str,
    scale: Scale,
    cut: Reduction,
    register: Register,
    config: Path,
    specs: Specs,
    tuning: Search | Selected,
) -> PlannedItem:
    """Return an item with the runs of its cells, in the order of the axes and seeds."""
    item_id = f"{paper.paper}/{name}"
    item = paper.items[name]
    caption = f"At full scale: {item.caption}" if item.caption and scale.reduces(paper) else item.caption
    texts = {"title": cut.heading or item.title, "caption": cut.caption or caption}
    item = item.model_copy(update=texts)
    layers = SettingsLayers(paper, item, scale, cut)
    seeds, limit = item.seeds or paper.seeds, cut.seeds or scale.seeds
    seeds = limit if isinstance(limit, tuple) else seeds[:limit]
    if isinstance(item.figure, Bubbles):
        seeds = seeds[:1]  # it shows the partitions of the first
    spaces = str(place_of_file(config, "search.yaml") / "search.yaml")
    entries: list[Entry] = []
    applied: list[Special] = []
    mistakes = Problems()
    for combination in itertools.product(*layers.axes.values()):
        labels = dict(zip(layers.axes, combination, strict=True))
        where = f"{item_id} ({', '.join(labels.values())})"
        try:
            of_cell, settings = layers.cell(labels, where)
        except FltrainError as error:
            mistakes.append(error)
            continue
        sources = [layer.source for layer in of_cell if layer.source]
        matching = [source for source in sources if isinstance(source, Special)]
        applied += [special for special in matching if special not in applied]
        if any(special.leave_out for special in matching):
            continue
        reported = {key: value for source in sources for key, value in source.reported.items()}
        try:
            runs, drawn = _checked(specs, settings, where), LocatedMapping()
            for source in sources:
                if isinstance(source, Point):
                    drawn = merge(drawn, located(tuning.patch(source, runs[-1], labels), (spaces, 1)))
            of_cell.append(SettingsLayer("trial", drawn))
            if drawn:
                runs = _checked(specs, merge(settings, drawn), where)
        except FltrainError as error:
            mistakes.append(error)
            continue
        for number, seed in enumerate(seeds):
            if seed not in runs:
                runs[seed] = runs[-1].model_copy(update={"seed": seed})
            entries.append(Entry(labels, reported, number, runs[seed], of_cell))
    # Labels without a cell are not part of the item: exceptions have left all of their cells out.
    used_axes = with_labels(layers.axes, (entry.labels for entry in entries))
    faulty = bool(mistakes)
    axes = {axis: list(labels) for axis, labels in (layers.axes if faulty else used_axes).items()}
    path, file = ("items", name), reported_folder(config, paper.paper).with_name("register.yaml")
    for keys, faults in {
        (): register.unknown(paper.assumptions, file),
        path: register.unknown(item.assumptions, file),
        (*path, "table" if item.table else "figure"): item.layout.faults(axes),
    }.items():
        mistakes.extend(_located(config, paper, item_id, keys, fault) for fault in faults)
    if faulty:
        mistakes.refuse(item_id)
    planned = PlannedItem(
        paper=paper,
        name=name,
        scale=scale,
        reduction=cut,
        item=item,
        assumptions=register.texts((*paper.assumptions, *item.assumptions)),
        axes=used_axes,
        entries=entries,
        applied=tuple(applied),
        restricted=() if scale.reduces(paper) else _shortened(item.axes, used_axes),
    )
    if not (scale.axes.keys() | cut.axes.keys()) & item.axes.keys() and not (scale.settings or cut.settings):
        with mistakes.collected():
            _check_exceptions(item_id, item.exceptions, [planned])
    with mistakes.collected():
        mistakes.extend(_unmet_needs(planned))
    mistakes.refuse(item_id)
    return planned


def _located(config: Path, paper: Paper, where: str, keys: Sequence[str], fault: str) -> FltrainError:
    """Return a fault of a paper's declaration with file and line; it begins with a path below ``keys``."""
    path = (*keys, *fault.partition(": ")[0].split("."))
    file, line = place_of(read_declaration(config, "paper", paper.paper)[1], path) or (config, 1)
    return problems(where, [f"{file}: line {line}: {fault}"])


def _checked(specs: Specs, settings: LocatedMapping, where: str) -> dict[int, RunSpec]:
    """Return the runs of a cell by seed, as far as they are known.

    Items share many cells, and a check takes a millisecond. Nothing that is checked depends on the seed, so
    one check is enough for all; nor has anything that depends on it been computed of the run -1.
    """
    if (key := repr(settings)) not in specs:
        specs[key] = {-1: RunSpec.parse(merge(settings, {"seed": 0}), where)}
    return specs[key]


def _unmet_needs(item: PlannedItem) -> Iterator[FltrainError]:
    """Yield reasons why the runs cannot give the numbers of the table, the figure or a claim.

    Every run needs the curves and models of a figure. At least one run needs each measure, and all that
    claims use.
    """
    specs = {", ".join(entry.labels.values()): entry.spec for entry in item.entries if entry.number == 0}
    for curve in curves_of(item.layout):
        for cell, spec in specs.items():
            if lack := lacking(spec, curve, item.id):
                yield problems(f"{item.id} ({cell})", [f"the curve {curve!r} needs {lack}; set it"])
    claimed = [
        (f"claim {claim.claim!r}", quantity.measure or quantity.curve or "")
        for claim in item.paper.claims
        for quantity in quantities(claim.test)
        if quantity.item == item.name
    ]
    for source, name in [*(("the layout", name) for name in measures_of(item.layout)), *claimed]:
        if lack := lacking_in_all(specs.values(), name, item.id):
            yield problems(item.id, [f"{source} uses {name!r}, which needs {lack}; set it"])
    if item.rule == "model_figure":
        allowed = ("clients",) if isinstance(item.layout, Preference) else ("model", "clients")
        for cell, spec in specs.items():
            if spec.evaluation.keep not in allowed:
                wanted = " or ".join(f"'{keep}'" for keep in allowed)
                keep = f"set evaluation.keep to {wanted}, not {spec.evaluation.keep!r}"
                yield problems(f"{item.id} ({cell})", [f"the figure analyses models; {keep}"])


def _shortened(axes: Mapping[str, Axis], used_axes: Mapping[str, Collection[str]]) -> tuple[Restriction, ...]:
    """Return a restriction for each axis that lacks some of the labels that the item declares."""
    return tuple(
        Restriction(to=f"{axis} {'; '.join(labels)}", axis=axis)
        for axis, labels in used_axes.items()
        if not axes[axis].keys() <= set(labels)
    )
