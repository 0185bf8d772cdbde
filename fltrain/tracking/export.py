"""Run records, tables and figures -> MLflow: a view for browsing that can be deleted and made again any time.

One experiment per paper, one MLflow run per run id, and one per table or figure, which holds its files. A run
can stand in several tables: tags say in which, and descriptions link both ways. Exporting again changes
nothing: a run is found by its tag ``fltrain.run_id`` and left alone if it has ended and its tag
``fltrain.record`` is still the fingerprint of its record; otherwise it is replaced. Tags alone are corrected
in place.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from urllib.parse import quote

from fltrain.core.errors import FltrainError
from fltrain.core.hashing import short_hash
from fltrain.runs.record import Record, Results
from fltrain.runs.spec import RunSpec
from fltrain.tracking.mlflow_store import (
    FINGERPRINT,
    ITEM_ID,
    NOTE,
    PATIENCE,
    RUN_ID,
    Data,
    Entry,
    Patience,
    Present,
    Writer,
    writing,
)
from fltrain.tracking.run_view import NONE, STALE, UNASSIGNED, Described, describe, membership, stale_records

REVISION = 2
"""Raised whenever an MLflow run would be written otherwise: all runs are then replaced."""

FORMS = (".html", ".md", ".csv", ".png", ".pdf")
"""Files of a table or figure that become artefacts, in this order."""

_AT_ONCE = 100  # runs of a transaction: what is lost when an export is killed
_ITEMS, _NOTED = "fltrain.items.", "fltrain.note"
# Shown by MLflow with a mark, so that they are not taken for usable results.
_STATUS = {"completed": "FINISHED", "diverged": "FAILED", STALE: "KILLED"}


@dataclass(frozen=True)
class Page:
    """A table or figure: ``flfa/table1``, its title and caption."""

    id: str
    title: str
    caption: str


@dataclass(frozen=True)
class Wanted:
    """What is to be exported.

    Attributes:
        results: where records, tables and figures are.
        scale: of which the runs are.
        memberships: paper items by run id, such as ``flfa/table1``, of the whole scale, so that runs do not
            lose items when only some of these are asked for. A run goes to the experiment of its first item's
            paper, or to ``unassigned``.
        runs: the runs, by id; those without a complete record are left out. With them go the stale records
            in their place.
        pages: tables and figures; those whose files are not there are left out.
    """

    results: Results
    scale: str
    memberships: Mapping[str, Sequence[str]]
    runs: Collection[str]
    pages: Sequence[Page] = ()

    def records(self) -> Iterator[Record]:
        """The records to be exported; each is read anew whenever it is asked for."""
        current = (self.results.record(run) for run in self.runs)
        stale = stale_records(set(self.runs), {*self.runs, *self.memberships}, self.results)
        return itertools.chain((record for record in current if record.usable), stale)

    def files(self, page: Page) -> list[Path]:
        """The files of a table or figure that are there."""
        folder, name = self.results.root / self.scale / Path(page.id).parent, Path(page.id).name
        files = [folder / f"{name}{form}" for form in FORMS]
        return [file for file in files if file.is_file()]


@dataclass
class Exported:
    """How many MLflow runs an export created, found unchanged, retagged or replaced; and how many items.

    Records whose settings today's code does not know are left out, ``unknown`` counts them.
    """

    created: int = 0
    unchanged: int = 0
    retagged: int = 0
    replaced: int = 0
    unknown: int = 0
    items: int = field(default=0, compare=False)

    def __str__(self) -> str:
        counts = {"created": self.created, "replaced": self.replaced, "retagged": self.retagged}
        said = [f"{count} {what}" for what, count in {**counts, "unchanged": self.unchanged}.items() if count]
        items = [f"{self.items} tables and figures written"] if self.items else []
        unknown = [f"{self.unknown} left out, as their settings are not known"] if self.unknown else []
        return ", ".join([*said, *items, *unknown]) or "nothing to export"


def export(wanted: Wanted, uri: str, patience: Patience = PATIENCE) -> Exported:
    """Bring an MLflow store in line with records, tables and figures. What else it holds is left alone.

    Args:
        wanted: what is to be exported.
        uri: address of the store, ``sqlite:///path`` or that of a tracking server.
        patience: how long it waits for others.

    Raises:
        FltrainError: if the store cannot be written to, or a record cannot be read. What was exported before
            stays; the next export goes on from there.
    """
    done = Exported()
    with writing(uri, wanted.results.root, patience) as store:
        # Experiments come first: reviving one that was deleted brings its runs back, too.
        experiments = _Experiments(store)
        for item in (*itertools.chain.from_iterable(wanted.memberships.values()), *_ids(wanted.pages)):
            experiments.of(_paper(item))
        runs = [record.run_id for record in wanted.records()]
        present = store.present(RUN_ID, set(runs))
        for start in range(0, len(runs), _AT_ONCE):
            # Records hold all that was read of them: they are forgotten with their batch.
            batch = [wanted.results.record(run) for run in runs[start : start + _AT_ONCE]]
            _export_runs(batch, wanted, store, experiments, present, done)
        _export_pages(wanted, store, experiments, done)
    return done


def _ids(pages: Iterable[Page]) -> list[str]:
    return [page.id for page in pages]


def _paper(item: str) -> str:
    return item.partition("/")[0]


class _Experiments:
    """Ids of experiments by name, looked up once."""

    def __init__(self, store: Writer) -> None:
        self._store = store
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = self._store.experiment(name)
        return self._known[name]


# ------------------------------------------------------------------------------------------------------ runs
def _export_runs(
    records: Sequence[Record],
    wanted: Wanted,
    store: Writer,
    experiments: _Experiments,
    present: Mapping[str, Sequence[Present]],
    done: Exported,
) -> None:
    new: list[Entry] = []
    old: list[str] = []
    changed: dict[str, dict[str, str]] = {}
    for record in records:
        there = present.get(record.run_id, ())
        spec = record.run_spec
        if spec is None:  # of another version; what was exported of it stays
            done.unknown += 1
            continue
        run = describe(record, spec, {wanted.scale: wanted.memberships} if wanted.scale else {})
        fingerprint = short_hash([REVISION, record.spec, record.summary, run.fields["status"]])
        kept = next((one for one in there if _stays(one, fingerprint)), None)
        tags = _tags(run, wanted, kept or next(iter(there), None), experiments)
        paper = tags["paper"].split()[0]
        if kept and kept.experiment != experiments.of(paper):
            kept = None
        old += [one.uuid for one in there if one is not kept]
        if kept is None:
            new.append(_entry(record, spec, run, experiments.of(paper), {**tags, FINGERPRINT: fingerprint}))
            done.replaced += bool(there)
            done.created += not there
        elif corrections := _corrections(kept, tags):
            changed[kept.uuid] = corrections
            done.retagged += 1
        else:
            done.unchanged += 1
    store.delete(old)
    if new:
        store.create(new)
    store.retag(changed)


def _stays(run: Present, fingerprint: str) -> bool:
    return run.ended and run.tags.get(FINGERPRINT) == fingerprint


def _corrections(run: Present, tags: Mapping[str, str]) -> dict[str, str]:
    """Tags that are not as they are to be; a description that somebody has edited stays as it is."""
    edited = run.tags.get(_NOTED) != short_hash(run.tags.get(NOTE))
    ours = {key: value for key, value in tags.items() if not (edited and key in (NOTE, _NOTED))}
    return {key: value for key, value in ours.items() if run.tags.get(key) != value}


def _tags(
    run: Described, wanted: Wanted, before: Present | None, experiments: _Experiments
) -> dict[str, str]:
    """All tags of a run; what other scales have said of it stays."""
    known = before.tags if before else {}
    items = {
        key.removeprefix(_ITEMS): value.split() for key, value in known.items() if key.startswith(_ITEMS)
    }
    if wanted.scale:
        items[wanted.scale] = [] if run.fields["scale"] != wanted.scale else run.fields["items"].split()
    belongs = membership({scale: named for scale, named in items.items() if named})
    note = _run_note(run, belongs, experiments)
    return {
        **run.fields,
        **belongs,
        "items": listed(belongs["items"]),
        **{f"{_ITEMS}{scale}": " ".join(named) for scale, named in items.items() if named},
        "kind": "run",
        RUN_ID: run.run_id,
        NOTE: note,
        _NOTED: short_hash(note),
    }


def _entry(record: Record, spec: RunSpec, run: Described, experiment: str, tags: Mapping[str, str]) -> Entry:
    # Records hold durations, no dates: the run ended when its last file was written. Whatever date that has,
    # MLflow knows none before 1970, and takes 0 for none.
    duration = round(1000 * record.costs["seconds"]["total"])
    ended = max(int(1000 * record.written), duration + 1)
    curves = [(key, *point) for key, curve in run.curves.items() for point in curve]
    finals = [(key, run.rounds, value) for key, value in run.finals.items()]
    digests = record.summary["digests"]
    return Entry(
        experiment=experiment,
        name=run.run_id,
        status=_STATUS[run.fields["status"]],
        started=ended - duration,
        ended=ended,
        tags=tags,
        params=run.settings,
        metrics=[*curves, *finals],
        data=[
            Data(spec.dataset.id, digests["data"], f"data/{spec.dataset.id}.safetensors", "data set"),
            Data(
                spec.partition_id,
                digests["partition"],
                f"partitions/{spec.partition_id}.safetensors",
                "partition",
            ),
        ],
    )


def _run_note(run: Described, belongs: Mapping[str, str], experiments: _Experiments) -> str:
    """The description of a run: what is the matter with it, and the way to its tables."""
    said = []
    if run.fields["status"] == STALE:
        said.append(f"**Stale**: {run.fields['stale']}. Train it again.")
    if run.fields["status"] == "diverged":
        said.append("**Diverged**: its loss was not finite any more.")
    if belongs["paper"] == UNASSIGNED:
        return "\n\n".join([*said, "Behind no table or figure."])
    links = [
        f"[{item}](#/experiments/{experiments.of(_paper(item))}/runs?searchFilter="
        f"{quote(f'tags.item = {_quoted(item)}')})"
        for item in belongs["items"].split()
    ]
    return "\n\n".join([*said, f"Behind {', '.join(links)}; record in `{run.fields['folder']}`."])


def listed(items: str) -> str:
    """Items with a comma after each, so that ``%flfa/table1,%`` is not like ``flfa/table10``."""
    return items if items == NONE else ", ".join(items.split()) + ","


def _quoted(text: str) -> str:
    return f"'{text}'"


# ---------------------------------------------------------------------------------------- tables and figures
def _export_pages(wanted: Wanted, store: Writer, experiments: _Experiments, done: Exported) -> None:
    pages = {f"{wanted.scale}/{page.id}": page for page in wanted.pages if wanted.files(page)}
    present = store.present(ITEM_ID, set(pages)) if pages else {}
    for name, page in pages.items():
        files, there = wanted.files(page), present.get(name, ())
        experiment = experiments.of(_paper(page.id))
        runs = sorted(run for run, items in wanted.memberships.items() if page.id in items)
        homes = {_paper(wanted.memberships[run][0]) for run in runs}
        note = _page_note(page, [experiments.of(home) for home in sorted(homes)])
        tags = {
            "kind": "item",
            "paper": _paper(page.id),
            "item": page.id,
            "scale": wanted.scale,
            ITEM_ID: name,
            NOTE: note,
            _NOTED: short_hash(note),
        }
        fingerprint = short_hash([REVISION, page.title, [[file.name, _digest(file)] for file in files]])
        kept = next((one for one in there if one.experiment == experiment and one.ended), None)
        store.delete([one.uuid for one in there if one is not kept])
        if kept is None:
            now = max(int(1000 * max(file.stat().st_mtime for file in files)), 2)
            entry = Entry(
                experiment,
                f"{page.id} ({wanted.scale})",
                "FINISHED",
                now - 1,
                now,
                tags,
                {"title": page.title},
            )
            (uuid,) = store.create([entry])
            corrections: Mapping[str, str] = {}
        else:
            uuid, corrections = kept.uuid, _corrections(kept, tags)
        # The fingerprint comes last: an export that was cut short is made good by the next one.
        if kept is None or kept.tags.get(FINGERPRINT) != fingerprint:
            store.attach(uuid, files)
            corrections = {**corrections, FINGERPRINT: fingerprint}
            done.items += 1
        if corrections:
            store.retag({uuid: corrections})


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _page_note(page: Page, homes: Sequence[str]) -> str:
    """The description of an item: its caption, and the way to its runs, in whatever experiments they are."""
    wanted = quote(f"tags.items LIKE {_quoted(f'%{page.id},%')}")
    if len(homes) == 1:
        address = f"#/experiments/{homes[0]}/runs?searchFilter={wanted}"
    else:
        listed = quote("[" + ",".join(f'"{home}"' for home in homes) + "]")
        address = f"#/compare-experiments/s?experiments={listed}&searchFilter={wanted}"
    links = f"[Runs behind it]({address}); its files are under *Artifacts*." if homes else ""
    return "\n\n".join(filter(None, [links, f"**{page.title}**", page.caption]))


# ---------------------------------------------------------------------------------------------------- follow
Stamp = tuple[int, int]


def follow(
    wanted: Wanted,
    uri: str,
    report: Callable[[str], object],
    interval: float = 10.0,
    patience: Patience = PATIENCE,
) -> None:
    """Export what is there, then whatever appears or changes, until an exception interrupts it.

    Records are only looked at, at low priority. A store that fails after the first export is tried again.

    Args:
        wanted: what is to be exported; its runs need no record yet.
        uri: address of the store.
        report: is told of every export that changed something, and of failures.
        interval: seconds between two looks.
        patience: how long each export waits for others.

    Raises:
        FltrainError: if the first export fails.
    """
    os.nice(10)  # training goes first
    seen = _stamps(wanted)
    report(f"{uri}: {export(wanted, uri, patience)}; following, Ctrl-C ends it")
    while True:
        sleep(interval)
        now = _stamps(wanted)
        changed = {name for name, stamp in now.items() if seen.get(name) != stamp}
        if not changed:
            continue
        part = Wanted(
            wanted.results,
            wanted.scale,
            wanted.memberships,
            [run for run in wanted.runs if run in changed],
            [page for page in wanted.pages if page.id in changed],
        )
        try:
            report(f"{uri}: {export(part, uri, patience)}")
        except FltrainError as error:
            report(f"{error}; trying again in {interval:g} s")
        else:
            seen = now


def _stamps(wanted: Wanted) -> dict[str, tuple[Stamp, ...]]:
    """Dates and sizes of what is to be exported, by run or item, as far as it is there."""
    files = {run: [wanted.results.run(run) / "summary.json"] for run in wanted.runs}
    files |= {page.id: wanted.files(page) for page in wanted.pages}
    found = {name: tuple(filter(None, map(_stamp, paths))) for name, paths in files.items()}
    return {name: stamps for name, stamps in found.items() if stamps}


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:  # not there yet, or gone meanwhile
        return None
    return (status.st_mtime_ns, status.st_size)
