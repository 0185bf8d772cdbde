"""Schema of the declarations: papers with their items, scales, the register of assumptions. No torch.

A paper file declares its tables and figures (*items*) as grids: named axes with labelled points, each a patch
of the settings. A scale file reduces the papers' protocol, for all items or for one.
``fltrain.experiments.plan`` expands both into runs.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    InstanceOf,
    Strict,
    ValidationInfo,
    model_validator,
)

from fltrain.core.config import (
    VERY_CLOSE,
    Conflicts,
    FileName,
    ListOf,
    Settings,
    check_known,
    file_name,
    suggest,
    unknown,
)
from fltrain.core.errors import FltrainError
from fltrain.core.files import natural
from fltrain.core.located import LocatedMapping, located, place_of
from fltrain.core.own import own_remedy, place_of_file, places
from fltrain.core.strict_yaml import AnySettings, read_linked, read_plain, read_settings
from fltrain.experiments.claims import Claim, cited_paper, quantities
from fltrain.experiments.layout import NO_AXES, Figure, Table
from fltrain.runs.spec import RunSpec
from fltrain.runs.where import Condition, text_of

Patch = InstanceOf[dict[str, Any]]
"""Settings to merge into others. The mapping itself is kept, not a copy: it has the lines of its values."""


def _none_of(*names: str, by: str = "in the results folder") -> AfterValidator:
    """Refuse names that are already in use."""

    def check(name: str) -> str:
        if name in names:
            raise ValueError(f"the name {name!r} is taken {by}; choose another one")
        return name

    return AfterValidator(check)


TRIAL = "trial"
"""Name of the axis of trials: its points are numbers of trials, see ``fltrain.experiments.tuning``."""

AxisName = Annotated[str, _none_of(*NO_AXES, by="by a column of the tables")]


class Point(Settings):
    """One value of an axis.

    Attributes:
        set: settings to merge into the cell's settings.
        reported: names of the value in the published table.
        trial: number of a trial, whose settings are drawn from ``config/search.yaml``; 0 draws none.
        selected: an item of the paper with an axis of trials. The settings come from the trial that
            ``fltrain select`` has chosen for the cell with the same labels.
    """

    set: Patch = {}
    reported: dict[str, str] = {}
    trial: int | None = Field(default=None, ge=0)
    selected: str | None = None


_LABELLED = "write a mapping from labels to values: {weak: fedprox, strong: {name: fedprox, mu: 1.0}}"
"""Remedy for values of an axis that cannot be their own labels."""


def spelled_out(axis: str, written: Any, labels: Mapping[str, str] | None = None) -> Patch:
    """Return the points of an axis in their long form, by label; ``labels`` label the values of lists."""

    def name(value: Any) -> str:
        return str(value.get("name", value) if isinstance(value, Mapping) else value)

    def point(value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            setting = axis in RunSpec.model_fields or "name" in value  # of a misspelled axis
            if not (value and setting) or set(value) & set(Point.model_fields):
                return value
        if axis == TRIAL:
            return {"trial": value}
        return {"set": located({axis: value}, place_of(written, [key])), "reported": {axis: name(value)}}

    if isinstance(written, Mapping):
        return {str(label): point(value, label) for label, value in written.items()}
    if not isinstance(written, Sequence) or isinstance(written, str):
        raise ValueError(f"axis {axis!r} must be a list of values or a mapping from labels to values")
    points: dict[str, Any] = {}
    for place, value in enumerate(written):
        label = (labels or {}).get(name(value), name(value))
        if isinstance(value, Mapping) and "name" not in value:
            raise ValueError(f"axis {axis!r}: {dict(value)} in a list has no 'name' as label; {_LABELLED}")
        if label in points:
            raise ValueError(f"axis {axis!r}: two values have the label {label!r}; {_LABELLED}")
        points[label] = point(value, str(place))
    return points


def _spelled_out(axes: Any, info: ValidationInfo) -> Any:
    return (
        {axis: spelled_out(axis, written, info.context) for axis, written in axes.items()}
        if isinstance(axes, Mapping)
        else axes
    )


Axis = dict[str, Point]
"""Labelled points of one dimension of a grid, in display order."""

Axes = Annotated[
    dict[AxisName, Annotated[Axis, Field(min_length=1)]],
    BeforeValidator(_spelled_out, json_schema_input_type=dict[AxisName, list[Any] | dict[str, Point | Any]]),
]
"""Axes by name, each written as a list of values or as ``label: value``."""

Value = bool | int | float | str | None


def _setting_paths(when: dict[str, Any]) -> dict[str, Any]:
    settings = [path.partition(".")[0] for path in when]
    check_known("a run has no setting", settings, RunSpec.model_fields)
    return when


class Special(Settings):
    """A patch for the cells whose settings match.

    Attributes:
        when: value of each setting by its path (``training.lr``), or a list of alternatives. A component
            matches by its name (``method: scaffold``), ``plugins`` by the name of any of them. The exceptions
            themselves do not change the compared settings, which include defaults.
        set: settings to merge into the cell's settings.
        reported: names of the cell in the published table.
        leave_out: the cells are not run.
    """

    when: Annotated[
        dict[str, Value | Annotated[ListOf[Value], Field(min_length=1)]],
        Field(min_length=1),
        AfterValidator(_setting_paths),
    ]
    set: Patch = {}
    reported: dict[str, str] = {}
    leave_out: bool = False

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of ``when``."""
        wanted = {key: value if isinstance(value, tuple) else (value,) for key, value in self.when.items()}
        return tuple(Condition(key, tuple(map(text_of, values))) for key, values in wanted.items())

    @cached_property
    def settings(self) -> frozenset[str]:
        """The settings of a run that ``when`` compares."""
        return frozenset(path.partition(".")[0] for path in self.when)

    def matches(self, texts: Mapping[str, str]) -> bool:
        """Return True if the patch applies to a cell with these settings, see ``cell_text``."""
        return all(condition.meets(texts) for condition in self.conditions)


class Ambiguity(Settings):
    """One entry of the register.

    Attributes:
        question: the setting that the text lacks.
        assumed: our value.
        alternatives: other values that fit the text.
    """

    question: str
    assumed: str
    alternatives: str = ""

    @property
    def text(self) -> str:
        """The entry as a sentence."""
        others = f" (alternatives: {self.alternatives})" if self.alternatives else ""
        return f"{self.question}: {self.assumed}{others}."


class Reported(Settings):
    """Published values behind an item.

    Attributes:
        file: file in ``config/reported``, for example ``flfa_table1.csv``.
        seeds: number of seeds that the paper averaged, if known (default: 1 is assumed).
    """

    file: FileName
    seeds: int | None = Field(default=None, ge=1)


def _file(value: Any) -> Any:
    return {"file": value} if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= 10_000:  # 20261127 is a seed, not a number of seeds
            raise ValueError(
                f"a number of seeds lies between 1 and 10,000, not {value}; list seeds as [0, 1, 42]"
            )
        return tuple(range(value))
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"write a number of seeds (3) or a list of seeds ([0, 1, 42]), not {value!r}")
    return value


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ValueError(f"the seed {seed} is listed twice; leave one out")
    return seeds


SeedList = Annotated[
    ListOf[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1), AfterValidator(_distinct)
]
"""Distinct seeds, in order."""

Seeds = Annotated[SeedList, BeforeValidator(_listed, json_schema_input_type=int | list[int])]
"""Seeds, written as a list, or as their number N for 0 to N - 1."""


class Item(Settings):
    """A table or figure of a paper: the grid of runs behind it, and its layout (``table`` or ``figure``).

    Attributes:
        title: its heading.
        caption: further text below it.
        settings: settings of a run, merged into the paper's settings.
        axes: dimensions of the grid, by name. An axis is a list of values, or ``label: value`` in display
            order; a value is a ``Point``, or short for a point that sets the axis's own setting.
        exceptions: patches for some cells.
        seeds: a list of seeds, or their number N for 0 to N - 1 (default: the paper's).
        table: layout of a table.
        figure: layout of a figure.
        reported: file of published values in ``config/reported``.
        covers: the paper's tables and figures that the item reproduces, by their names in
            ``config/reported/experiments.csv``; empty for our own items.
        counted: reason for a number of cells that differs from that file, if it does.
        assumptions: entries of ``config/register.yaml`` for settings that the text lacks, in addition to the
            paper's.
    """

    title: str
    caption: str = ""
    covers: ListOf[str] = ()
    counted: str = ""
    assumptions: ListOf[str] = ()
    settings: Patch = {}
    axes: Axes
    exceptions: ListOf[Special] = ()
    seeds: Seeds | None = None
    table: Table | None = None
    figure: Figure | None = None
    reported: Annotated[Reported | None, BeforeValidator(_file, json_schema_input_type=str | Reported)] = None

    @model_validator(mode="after")
    def _one_layout(self) -> Self:
        if (self.table is None) == (self.figure is None):
            raise ValueError("an item needs either a 'table' or a 'figure'")
        return self

    @model_validator(mode="after")
    def _one_source_of_trials(self) -> Self:
        points = [point for axis in self.axes.values() for point in axis.values()]
        selected = {point.selected for point in points if point.selected}
        if len(selected) + any(point.trial is not None for point in points) > 1:
            raise ValueError("an item has trials, or selects ('selected') from one item; make several items")
        return self

    @property
    def layout(self) -> Table | Figure:
        """Layout of the table or figure."""
        layout = self.table or self.figure
        assert layout is not None  # the item has one
        return layout

    @property
    def selects(self) -> str | None:
        """The item from whose trials points of this one are selected; None without such points."""
        points = (point for axis in self.axes.values() for point in axis.values())
        return next((point.selected for point in points if point.selected), None)


class Paper(Settings):
    """A paper: its protocol, its items, and the tests of its claims.

    Attributes:
        paper: its short name, which is also the name of the file.
        title: its title.
        citation: authors, venue and year.
        note: sentences that stand next to its verdicts, for example on the scale of its runs. A reduced
            scale has no verdicts, so it leaves them out.
        kind: ``paper``; ``comparison`` for runs that no single paper describes; ``control`` if the published
            values are our own. Totals leave out controls.
        assumptions: entries of ``config/register.yaml`` that concern all items.
        settings: settings of a run that all items share.
        exceptions: patches for the cells of all items whose settings match, before the item's.
        seeds: seeds of each cell: a list, or their number N for 0 to N - 1.
        items: tables and figures, by name.
        untrained: tables and figures of the paper that need no training, each with the reason.
        claims: claims of the text, with their tests.
    """

    paper: FileName
    title: str
    citation: str
    note: str = ""
    kind: Literal["paper", "comparison", "control"] = "paper"
    assumptions: ListOf[str] = ()
    settings: Patch = {}
    exceptions: ListOf[Special] = ()
    seeds: Seeds = (0, 1, 2)
    items: dict[Annotated[FileName, _none_of("claims")], Item]
    untrained: dict[str, str] = {}
    claims: ListOf[Claim] = ()

    @property
    def ids(self) -> list[str]:
        """IDs of its items, for example ``flfa/table1``."""
        return [f"{self.paper}/{item}" for item in self.items]

    def judges(self, name: str) -> bool:
        """Return True if it has claims on another paper, for example as a replication."""
        return self.paper != name and any(cited_paper(claim.where).lower() == name for claim in self.claims)

    @model_validator(mode="after")
    def _claims_of_items(self) -> Self:
        if messages := [*self._unknown_in_claims()]:
            raise Conflicts(messages)
        return self

    def _unknown_in_claims(self) -> Iterator[str]:
        """Yield items, axes and labels that claims name, but that do not exist."""
        for number, claim in enumerate(self.claims):
            problem = f"claims.{number}: claim {claim.claim!r}:"
            for quantity in quantities(claim.test):
                yield from unknown(f"{problem} there is no item", [quantity.item], self.items)
                if quantity.item not in self.items:
                    continue
                axes, choices = self.items[quantity.item].axes, list(quantity.choices)
                chosen = [*quantity.mean_over, *(axis for axis, _ in choices)]
                yield from unknown(f"{problem} {quantity.item} has no axis", chosen, axes, "axes")
                for axis, labels in choices:
                    has_no = f"{problem} {quantity.item} has no {axis!r}"
                    yield from unknown(has_no, labels, axes.get(axis, labels), "labels")


class Register(Settings):
    """Settings that the papers' texts lack or leave open, each with our assumption and alternatives.

    Attributes:
        entries: assumptions by name.
    """

    entries: dict[str, Ambiguity] = {}

    def texts(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the named entries as sentences; skip unknown ones."""
        entry_names = (name for name in dict.fromkeys(names) if name in self.entries)
        return tuple(f"{name}: {self.entries[name].text}" for name in entry_names)

    def unknown(self, names: Sequence[str], file: Path) -> Iterator[str]:
        """Yield each name without an entry, after its place in ``assumptions``, with the lines to add."""
        for number, name in enumerate(names):
            if name not in self.entries:
                near = suggest(name, self.entries, VERY_CLOSE)
                entry = f"`{name}: {{question: ..., assumed: ..., alternatives: ...}}`"
                problem = f"assumptions.{number}: register.yaml has no entry {name!r}{near}"
                yield f"{problem}; to add it, write below `entries:` in {file}: {entry}"


class Reduction(Settings):
    """Changes of an item.

    Attributes:
        title: the reduced item in a few words.
        heading: its title, if the full item's does not fit.
        caption: its caption; the full item's one begins with "At full scale" if the scale is reduced.
        settings: settings to merge into the item's settings.
        axes: axes that replace the item's axes of the same name.
        exceptions: further patches for some cells.
        seeds: maximum number of the item's seeds, or a list of seeds that replaces them. An item's entry
            replaces the scale's.
        seen: day by which all runs had been seen. A verdict is exploratory if its rule or test was decided on
            that day or later.
        rejudged: cells (panel / row / column) whose verdict a later version of the rule has changed, after
            the runs had been seen; their verdicts are exploratory.
    """

    title: str | None = None
    heading: str | None = None
    caption: str | None = None
    settings: Patch = {}
    axes: Axes = {}
    exceptions: ListOf[Special] = ()
    seeds: Annotated[int, Field(ge=1)] | SeedList | None = None
    seen: Annotated[datetime.date, Strict(False)] | None = None
    rejudged: ListOf[str] = ()


def _by_name(written: Any) -> Any:
    """Spell out the list of a scale's items: names, or ``name: reduction`` for a reduced item."""
    if not isinstance(written, Sequence) or isinstance(written, str):
        raise ValueError("write a list of papers and items, such as [flfa, fed2/table1]")
    items: dict[str, Any] = {}
    for entry in written:
        named = {entry: {}} if isinstance(entry, str) else entry
        if not isinstance(named, Mapping) or len(named) != 1:
            raise ValueError(
                "an item is a name (flfa/table1, or flfa for all items of the paper) or 'name: settings', "
                f"not {entry!r}"
            )
        for name, reduction in named.items():
            if name in items:
                raise ValueError(f"the item {name!r} is named twice")
            items[name] = reduction
    return items


FOLDERS = (
    *("benchmarks", "checkpoints", "data", "downloads"),
    *("logs", "mlflow-artifacts", "runs"),
)
"""Folders in the results folder that are not scales."""


class Scale(Reduction):
    """Selected items, and changes of the papers' protocol for all of them or for one.

    Attributes:
        scale: its name, which is also the name of the file.
        title: its protocol in a few words.
        page: heading of the front page (default: one with the scale's name).
        conclusions: sentence on each part of a card there: what its runs show. The key is a paper, or a
            comparison and the paper that its claims are on, such as ``replication/FLFA``.
        reduced: true if runs depart from the papers' protocol; pages then give verdicts on controls only.
        items: items (``flfa/table1``) or papers (``flfa``), each with optional further changes.
    """

    scale: Annotated[FileName, _none_of(*FOLDERS)]
    title: str
    page: str = ""
    conclusions: dict[str, str] = {}
    reduced: bool
    items: Annotated[
        dict[str, Reduction],
        BeforeValidator(_by_name, json_schema_input_type=list[str | dict[str, Reduction]]),
        Field(min_length=1),
    ]

    def reduces(self, paper: Paper) -> bool:
        """Return True if runs of a paper depart from its protocol; the protocol of a control is ours."""
        return self.reduced and paper.kind != "control"


class DisplayLabels(Settings):
    """Names of datasets, methods and models on pages, by their names in settings.

    An axis that is a list of values has these labels; a value without one is its own label.
    """

    labels: dict[str, str] = {}


def read_added(config: Path, name: str, kind: type[AnySettings]) -> AnySettings:
    """Return the mapping in an optional file of ``config``, with the entries of the user's own file added."""
    merged: dict[str, dict[str, Any]] = {}
    for place in places(config):
        if (file := place / name).exists():
            settings = read_settings(file, kind)
            for key in settings.model_fields_set:
                entries, added = merged.setdefault(key, {}), getattr(settings, key)
                if duplicates := entries.keys() & added.keys():
                    names = ", ".join(map(repr, sorted(duplicates)))
                    raise FltrainError(f"{file}: {key}: {config / name} has {names}, too; choose other names")
                entries.update(added)
    return kind(**merged)


def folders_of(config: Path, sort: str) -> list[Path]:
    """Return the folders of papers or scales: the project's one, which must exist, and the user's own."""
    first, *user_folders = (place / f"{sort}s" for place in places(config))
    if not first.is_dir():
        raise FltrainError(
            f"{first}: there is no such folder; work in the project's folder, or name its folder config: "
            "config=PATH in Python, --config PATH in a shell"
        )
    return [first, *user_folders]


def read_declaration(config: Path, sort: str, name: str, named_at: str = "") -> tuple[Path, Any]:
    """Return the file of a declaration, and its data with the lines of values.

    A paper is a file, ``papers/<name>.yaml``, or a folder: ``paper.yaml``, a file for each item, and
    ``claims.yaml``. ``use: name`` merges one of the paper's ``blocks``, or another item's file.

    Args:
        config: folder of the configuration.
        sort: ``paper`` or ``scale``.
        name: name of the file or folder, also in the user's own folder.
        named_at: file and line that name it, as the beginning of messages.
    """
    if name.endswith(".yaml"):
        raise FltrainError(f"{named_at}{name!r} is a file; write the {sort}'s name: {Path(name).stem}")
    if "/" in name and name[0].isalpha():
        raise FltrainError(f"{name!r} is no name of a {sort}; write the stem of a file in {config}/{sort}s")
    single = f"{file_name(name, sort)}.yaml"
    folders = folders_of(config, sort)
    possible = [path for folder in folders for path in (folder / single, folder / name / "paper.yaml")]
    files = [path for path in possible if path.exists()]
    if len(files) > 1:
        raise FltrainError(f"{files[1]}: the {sort} is also in {files[0]}; delete or rename one of them")
    if not files:
        names = sorted({path.stem for root in folders for path in (*root.glob("*.yaml"), *root.glob("*/"))})
        where = f"known from .yaml files in {' and '.join(map(str, folders))}"
        check_known(f"{named_at}unknown {sort}", [name], names, where, own_remedy())
    file = files[0]
    if sort == "scale":
        return file, read_plain(file)
    others = [] if file.name == single else [path for path in file.parent.glob("*.yaml") if path != file]
    others.sort(key=lambda path: natural(path.stem))
    paper, *parts = read_linked([file, *others])
    if isinstance(paper, LocatedMapping):
        paper.pop("blocks", None)
        for path, part in zip(others, parts, strict=True):
            place = place_of(part) or (str(path), 1)
            parent = paper if path.stem == "claims" else paper.setdefault("items", LocatedMapping())
            if not isinstance(parent, LocatedMapping) or path.stem in parent:
                raise FltrainError(f"{path}: {file} has {path.stem!r}, too, or no mapping of items")
            paper.places.setdefault("items", place)
            parent[path.stem], parent.places[path.stem] = part, place
    return file, paper


def reported_folder(config: Path, paper: str) -> Path:
    """Return the folder of a paper's published values, next to its declaration."""
    return place_of_file(config, f"papers/{paper}.yaml", f"papers/{paper}/paper.yaml") / "reported"
