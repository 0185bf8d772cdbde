"""The command `fltrain train`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fltrain.cli.options import ResultsOption, number_of_seeds
from fltrain.core.config import check_known
from fltrain.core.errors import FltrainError, Problems, together
from fltrain.core.shell import command
from fltrain.core.strict_yaml import read_plain, read_text
from fltrain.runs.record import Record, Results
from fltrain.runs.spec import RunSpec
from fltrain.runs.today import already_trained
from fltrain.runs.where import alternatives
from fltrain.runtime.determinism import Profile
from fltrain.runtime.devices import check_device, pick_device
from fltrain.runtime.signals import Stopping


def _option(envvar: str, metavar: str, text: str, min: float | None = None) -> Any:
    """Return an option that can also be set by an environment variable."""
    return typer.Option(envvar=envvar, metavar=metavar, help=text, min=min)


def runs_of(path: Path | None, changes: Sequence[str]) -> list[RunSpec]:
    """Return the runs that a file describes after changes of settings, one for each combination.

    Args:
        path: file with a run, or a record's spec; None is standard input. Its settings may be incomplete
            without the changes.
        changes: ``training.lr=0.05``, or alternatives with commas between them.
    """
    settings, where = read_plain(path), str(path or "standard input")
    if not changes:
        return [RunSpec.recorded(settings, where)]
    from fltrain.experiments.layers import merge  # not for jobs of a workflow, which change nothing

    if not isinstance(settings, Mapping):
        raise FltrainError(f"{where}: not a run; write a mapping from settings to values")
    choices: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not (all(key.split(".")) and equals and text):
            raise FltrainError(f"--set: {change!r}: write KEY=VALUE, for example training.lr=0.05")
        if key in choices:
            raise FltrainError(f"--set: {key!r} is set twice; write alternatives with commas: {key}=A,B")
        choices[key] = [(f"{key}={value}", _patch(key, value)) for value in alternatives(text)]
    specs, faults = list[RunSpec](), Problems()
    for combination in itertools.product(*choices.values()):
        patches = dict(zip(choices, combination, strict=True))
        changed, place = settings, f"{where} with {' '.join(text for text, _ in combination)}"
        with faults.collected():
            for key in sorted(choices, key=lambda key: key.count(".")):  # a component, then its options
                _, patch = patches[key]
                if key.startswith("plugins."):
                    patch = _plugin_patch(patch["plugins"], changed, place)
                changed = merge(changed, patch)
                changed.place = changed.places[key.partition(".")[0]] = None  # --set has no lines
            specs.append(RunSpec.recorded(changed, place))
    if remedy := _lacking_in_some(choices, list(map(str, faults))):
        raise together(where, [(place, f"{text}{remedy}") for error in faults for place, text in error.parts])
    faults.refuse(where)
    return specs


def _lacking_in_some(choices: Mapping[str, Sequence[tuple[str, Any]]], errors: Sequence[str]) -> str:
    """Return the remedy if the only fault is that some alternatives, such as methods, lack an option."""
    for key, values in choices.items():
        component, _, option = key.partition(".")
        names = [text.partition("=")[2] for text, _ in choices.get(component, ())]
        lacking = {word for error in errors for word in error.partition(":")[0].split()}
        having = [name for name in names if f"{component}={name}" not in lacking]
        simple = 0 < len(having) < len(names) and not any("{" in name for name in names)
        if simple and all(f" {key}: unknown key" in error for error in errors):
            value = values[0][0].partition("=")[2]
            texts = (f"{{name: {name}, {option}: {value}}}" if name in having else name for name in names)
            return f"; write --set '{component}={','.join(texts)}'"
    return ""


def _plugin_patch(options: Mapping[str, Any], settings: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return a change of a plug-in's options, by its name, as a change of the run's list of plug-ins.

    Raises:
        FltrainError: if the run does not have the plug-in; the message begins with ``place``.
    """
    from fltrain.experiments.layers import merge

    plugins = settings.get("plugins", [])
    if not isinstance(plugins, list):
        return {}
    by_name = {str(entry.get("name") if isinstance(entry, Mapping) else entry): entry for entry in plugins}
    names = list(by_name) or ["none"]
    check_known(f"{place}: plugins: the run has no plug-in", options, names, "its plug-ins")
    return {"plugins": list(merge(by_name, options).values())}


def _patch(key: str, text: str) -> dict[str, Any]:
    """Return a change of a setting by its dotted name; its value is written as in a file."""
    patch: Any = read_text(text, f"--set {key}")
    for name in reversed(key.split(".")):
        patch = {name: patch}
    return dict(patch)


def train(
    specs: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="YAML or JSON files with one run each; - reads one from stdin."),
    ],
    results: ResultsOption = Path("results"),
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or cuda:N.")] = "auto",
    runs_per_device: Annotated[
        int, _option("FLTRAIN_RUNS_PER_DEVICE", "N", "Processes that may share a GPU.", min=1)
    ] = 1,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="CPU threads.")] = 1,
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes that divide the clients of a round (CPU).")
    ] = 1,
    checkpoint_seconds: Annotated[
        float,
        _option(
            "FLTRAIN_CHECKPOINT_SECONDS", "N", "Seconds between checkpoints; 0: one after every round.", min=0
        ),
    ] = 120.0,
    determinism: Annotated[
        Profile, _option("FLTRAIN_DETERMINISM", "NAME", "exact: the same bits every time; or fast (CUDA).")
    ] = "exact",
    cuda_graph: Annotated[
        bool,
        typer.Option(
            "--cuda-graph", envvar="FLTRAIN_CUDA_GRAPH", help="Replay local steps as CUDA graphs (a GPU)."
        ),
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting: training.lr=0.05; alternatives make several runs: method=fedavg,fedprox; "
            "repeatable.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(parser=number_of_seeds, metavar="N", help="Train each run with the seeds 0 to N - 1."),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", envvar="FLTRAIN_AGAIN", help="Train runs even if they have a record."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Write progress to train.log only.")] = False,
) -> None:
    """Train runs and write their records to RESULTS/runs/<run id>/.

    --set and --seeds train variants of a run, one after another; `fltrain compare` then compares them. For
    many runs at a time, declare a table (docs/add-an-experiment.md) and run `snakemake --cores N`.

    A stopped (Ctrl-C, SIGTERM, SIGUSR1) or killed run resumes from its last checkpoint.
    """
    paths, stopping = [None if name == "-" else Path(name) for name in specs], Stopping()
    if seeds and any(change.partition("=")[0] == "seed" for change in changes or ()):
        raise FltrainError(f"--seeds {seeds} and --set seed=... contradict each other; leave out one of them")
    all_changes = [*(changes or ()), *([f"seed={','.join(map(str, range(seeds)))}"] if seeds else ())]
    parsed, faults = dict[str, RunSpec](), Problems()  # each run once, even if several files describe it
    for path in paths:
        with faults.collected():
            parsed |= {spec.run_id: spec for spec in runs_of(path, all_changes)}
    faults.refuse("train")
    check_device(device)
    where = Results(results)
    records = dict[str, Record | None]()
    stopping.heed()
    for run, spec in parsed.items():
        with faults.collected():
            records[run] = None if again else where.trained(spec, "--again")
    faults.refuse("train")  # before any run is trained
    for run, record in records.items():
        if record:
            typer.echo(already_trained(record, parsed[run], "--again"))
    due = [parsed[run] for run, record in records.items() if not record]
    if due:
        with stopping.interruptible():  # all GPUs may be taken for long
            from fltrain.engine import train as training

            chosen = pick_device(device, runs_per_device)
        execution = training.Execution(
            device=chosen,
            threads=threads,
            checkpoint_seconds=checkpoint_seconds,
            determinism=determinism,
            cuda_graph=cuda_graph,
            workers=workers,
        )
        for spec in due:
            stopping.poll()
            record = training.train(spec, where, execution, again=again, quiet=quiet, stopping=stopping)
            accuracy = record.summary["accuracy"]["final"]
            final = "" if accuracy is None else f", final accuracy {100 * accuracy:.2f} %"
            typer.echo(f"{record.run_id}: {record.summary['status']}{final}, see {record.folder}")
    if len(parsed) > 1:
        typer.echo(f"compare them: {command('fltrain compare', results)}", err=True)
