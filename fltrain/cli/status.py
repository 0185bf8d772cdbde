"""The command `fltrain status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fltrain.cli import options
from fltrain.cli.output import print_table, print_text
from fltrain.core.config import check_known
from fltrain.core.errors import count, listed
from fltrain.core.shell import command
from fltrain.experiments.plan import plan
from fltrain.experiments.selection import Selection
from fltrain.reporting.version import outdated_pages
from fltrain.runs.record import Record, Results
from fltrain.runs.spec import RunSpec
from fltrain.runs.today import IF_CHANGED, STATUSES, UNRECORDED, RunStatus, changed_runs, stale_runs
from fltrain.runs.where import Condition, parse_where

_MISSING = "not trained"
_VERIFIED = ("damaged", "stale", "unknown")
"""States whose runs `fltrain verify` lists."""
_TRAINED = ("completed", "diverged")
"""States whose detail is changed code."""


def status(
    items: options.ItemsArgument = None,
    scale: options.ScaleOption = options.DEMO,
    seeds: options.SeedsOption = None,
    where: options.WhereOption = None,
    results: options.ResultsOption = Path("results"),
    config: options.ConfigOption = Path("config"),
    changed: Annotated[
        bool,
        typer.Option(
            "--changed",
            help="Print only the summary files of runs whose code changed after training, for "
            "`snakemake -R $(fltrain status --changed)`.",
        ),
    ] = False,
) -> None:
    """Show status, final accuracy and wall time of each run.

    To choose runs by their status, add --where status=diverged,failed. Without a scale, the command lists all
    runs in a folder that you name, or in the default folder if the default scale has none there.

    A stopped run resumes from its last checkpoint. A failed run ended with an error: see its train.log. A
    stale run is older than a revision of one of its components; retrain it. An unknown run has settings that
    today's code lacks: set FLTRAIN_PATH if it has a method of your own. A damaged record was changed after
    training; tables leave it out.
    """
    by_status = [term for term in parse_where(where or ()) if term.key == "status"]
    for term in by_status:
        check_known("--where status: unknown status", term.values, map(_word, STATUSES))
    if by_status:
        where = [str(term) for term in parse_where(where or ()) if term not in by_status] or None
    wanted, folder = options.selection_of(items, seeds, where), options.read_from(results)
    full_plan = plan(config, scale)
    planned = full_plan.restricted(wanted)
    if changed:
        states = _meeting(_states(planned.runs, folder), by_status)
        for run in changed_runs({run: planned.runs[run] for run in states}, folder):
            typer.echo(folder.run(run) / "summary.json")
        if unknown := sum(state.detail == UNRECORDED for state in states.values()):
            text = (
                f"not listed: {count(unknown, 'run')} whose code is not recorded, so a change is not visible"
            )
            typer.echo(text, err=True)
        return
    specs: Mapping[str, RunSpec | None] = planned.runs
    states, others = _states(specs, folder), dict[str, RunSpec | None]()
    part = scale != options.DEMO or items or seeds or where
    if not part and (results != Path("results") or all(state.name == _MISSING for state in states.values())):
        records = {record.run_id: record for record in map(Record, folder.folders())}
        if records.keys() - specs.keys():
            others = {run: record.run_spec if record.usable else None for run, record in records.items()}
    if others:
        specs, states = others, _states(others, folder)
    states = _meeting(states, by_status)
    rows: list[tuple[str, ...]] = []
    for run, state in states.items():
        members, spec = listed(planned.memberships.get(run, ()), 2), specs[run]
        final = "" if state.final is None else f"{100 * state.final:.2f}"
        seconds = "" if state.seconds is None else f"{state.seconds:.1f}"
        rows.append((run, str(spec.seed) if spec else "", members, state.name, final, seconds))
    numbers = ("final accuracy, %", "seconds")
    if rows:
        headings: tuple[str, ...] = ("run", "seed", "items", "status", *numbers)
        if not any(row[1] for row in rows):  # of runs that have not ended, no file has the seed
            headings, rows = headings[:1] + headings[2:], [row[:1] + row[2:] for row in rows]
        print_table(headings, rows, right=numbers, unfolded=["run"])
    else:
        print_text(f"no run of {scale} has {' '.join(map(str, by_status))}")
    details: dict[str, dict[str, list[str]]] = {}
    for run, state in states.items():
        if state.detail:
            name = "" if state.name in _TRAINED else state.name
            details.setdefault(name, {}).setdefault(state.detail, []).append(run)
    for name, reasons in details.items():
        number = f"{sum(map(len, reasons.values())):,}"
        if len(reasons) > 1 and name in _VERIFIED:
            print_text(f"{number} {name}: see {command(f'fltrain verify --scale {scale}', results, config)}")
        elif len(reasons) > 1 and not (name or others):
            listing = command(f"fltrain status --changed --scale {scale}", results, config)
            print_text(f"{number} runs come from older or unrecorded code; {IF_CHANGED}: see {listing}")
        else:
            for detail, runs in reasons.items():
                text = f"{name}: {detail}" if name else f"{detail}; {IF_CHANGED}"
                print_text(f"{listed(runs, 1)}: {text}")
    further = [] if items or others else [run for run in folder.records() if run.run_id not in full_plan.runs]
    if further:
        listing = command("fltrain compare --out compared.csv", results, config)
        text = f"{count(len(further), 'other run')} in this folder, of other scales or of your own"
        print_text(f"{text}; compare them by settings: {listing}")
        if damaged := sum(bool(record.damage) for record in further):
            print_text(f"{damaged} of them damaged: see {command('fltrain verify', results, config)}")
    if outdated := outdated_pages(folder.root / scale):
        make = options.workflow_of(results, config, scale, Selection(), "false")
        text = "made by another version of the rule or of the reporting code" + f"; run {make}" * bool(make)
        print_text(f"{listed(outdated, 1)}: {text}")
    counts = Counter(state.name for state in states.values())
    train = options.workflow_of(results, config, scale, wanted)
    missing = f"; to train them: {train}" * bool(train and {*counts} == {_MISSING})
    if counts:
        print_text(", ".join(f"{number:,} {name}" for name, number in sorted(counts.items())) + missing)


def _states(specs: Mapping[str, RunSpec | None], results: Results) -> dict[str, RunStatus]:
    stale = stale_runs(specs, results)
    return {run: RunStatus.of(run, spec, results, stale.get(run)) for run, spec in specs.items()}


def _meeting(states: Mapping[str, RunStatus], conditions: Sequence[Condition]) -> dict[str, RunStatus]:
    """Return the runs that meet all conditions on their status."""
    return {
        run: state
        for run, state in states.items()
        if all(condition.meets({"status": _word(state.name)}) for condition in conditions)
    }


def _word(status: str) -> str:
    """Return the name of a status in conditions, which have no spaces."""
    return status.replace(" ", "-")
