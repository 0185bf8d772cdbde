"""Run records -> MLflow: a view for browsing and comparing that can be deleted and made again at any time.

One experiment per paper, one MLflow run per run id. Exporting again changes nothing: a run is found by its
tag ``fltrain.run_id`` and left alone if its tag ``fltrain.record``, written last, is still the fingerprint of
its record; otherwise it is replaced. MLflow is imported inside functions only: it takes seconds.
"""

from __future__ import annotations

import logging
import math
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

from filelock import FileLock, Timeout

from fltrain.component import canonical_json, short_hash
from fltrain.errors import FltrainError
from fltrain.files import replacing
from fltrain.records import Record

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

REVISION = 1
"""Raised whenever an MLflow run would be written otherwise: all runs are then replaced."""

UNASSIGNED = "unassigned"
_CURVES = {
    "test_accuracy": ("evaluation", "accuracy"),
    "test_loss": ("evaluation", "loss"),
    "train_loss": ("train", "loss"),
    "drift": ("updates", "drift"),
    "similarity_skewness": ("updates", "skewness"),
    "separability_ratio": ("separability", "ratio"),
}
"""Metrics that have a value per round: kind of row and its value."""

_EXTRA_KEYS = 2
"""Further data sets whose final accuracy is a metric: the user interface slows down with many keys."""

_SQLITE = "sqlite:///"
_ARTEFACTS = "mlflow-artifacts:"  # no artefact is written; by default the database holds an absolute path
_METRICS_AT_ONCE, _PARAMS_AT_ONCE, _PARAM_CHARACTERS, _PAGE = 1000, 100, 6000, 1000


@dataclass(frozen=True)
class Patience:
    """How long an export waits, in seconds.

    Attributes:
        lock: for another export, and then for another program that writes to the database.
        server: for a tracking server to answer at all.
    """

    lock: float = 60.0
    server: float = 10.0


@dataclass(frozen=True)
class Exported:
    """How many MLflow runs an export created, found unchanged, and replaced."""

    created: int
    unchanged: int
    replaced: int


def export(
    records: Iterable[Record],
    memberships: Mapping[str, Sequence[str]],
    uri: str,
    patience: Patience = Patience(),
) -> Exported:
    """Bring an MLflow store in line with run records. Runs that are in the store only are left alone.

    Args:
        records: complete records.
        memberships: paper items by run id, such as ``flfa/table1``, of a whole scale, so that runs do not
            lose items when only some of these are asked for; a run goes to the experiment of its first item's
            paper, or to ``unassigned``.
        uri: address of the store, ``sqlite:///path`` or that of a tracking server.
        patience: how long it waits for others.

    Raises:
        FltrainError: if the store cannot be written to, or a record cannot be read. What was exported before
            stays; the next export goes on from there.
    """
    counts = {"created": 0, "unchanged": 0, "replaced": 0}
    with _store(uri, patience) as client:
        wanted = [(record, list(memberships.get(record.run_id, ()))) for record in records]
        # Experiments come first: reviving one that was deleted brings its runs back, too.
        names = sorted({_papers(items)[0] for _, items in wanted})
        experiments = {name: _experiment(client, name, uri) for name in names}
        present = _present(client)
        for record, items in wanted:
            fingerprint = short_hash([REVISION, record.spec, record.summary, record.metrics, items])
            old = present.pop(record.run_id, [])
            same = next((run for run in old if run.data.tags.get("fltrain.record") == fingerprint), None)
            for run in old:
                if run is not same:
                    client.delete_run(run.info.run_id)
            if same is None:
                _create(client, experiments[_papers(items)[0]], record, items, fingerprint)
            counts["unchanged" if same else "replaced" if old else "created"] += 1
    return Exported(**counts)


def _papers(items: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(item.partition("/")[0] for item in items)) or [UNASSIGNED]


# -------------------------------------------------------------------------------------------------- the store
@contextmanager
def _store(uri: str, patience: Patience) -> Iterator[MlflowClient]:
    """Open a store for this process alone; whatever goes wrong with it becomes one line."""
    # Read by MLflow when it is imported; what the user has set stays.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    # A server that fails in the middle would be tried again for a quarter of an hour.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    try:
        import mlflow
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise FltrainError(f"tracking needs MLflow: install 'fltrain[workflow]' ({error})") from None
    if "://" not in uri:
        raise FltrainError(f"tracking address {uri!r}: use sqlite:///path/to/file.db or http://host:port")

    # MLflow logs what it also raises, and every step of the making of a database.
    logging.getLogger("mlflow").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        if not uri.startswith(_SQLITE):
            _check_reachable(uri, patience.server)
            yield mlflow.MlflowClient(uri)
            return
        path = Path(uri.removeprefix(_SQLITE).partition("?")[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=patience.lock):
            if not path.exists():
                # Making the tables takes seconds, and MLflow cannot finish what a killed process has begun.
                with replacing(path) as temporary:
                    SqlAlchemyStore(f"{_SQLITE}{temporary}", _ARTEFACTS).engine.dispose()  # type: ignore[no-untyped-call]
            _check_writable(path, patience.lock)
            # MLflow remembers having made the tables, also those of a database that was deleted since.
            store = SqlAlchemyStore(uri, _ARTEFACTS)  # type: ignore[no-untyped-call]
            try:
                yield mlflow.MlflowClient(uri)
            finally:
                store.engine.dispose()  # an open connection would keep a deleted database alive
    except Timeout:
        raise FltrainError(f"{uri}: another process has been exporting to it; try again later") from None
    except (OSError, ImportError, sqlite3.Error, SQLAlchemyError, mlflow.MlflowException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FltrainError(
            f"{uri}: cannot write to this MLflow store ({reason}); {_remedy(uri, reason)}"
        ) from error


def _remedy(uri: str, reason: str) -> str:
    if not uri.startswith(_SQLITE):
        return "start the server or check its address, then export again"
    if "locked" in reason:
        return "end the program that uses it, then export again"
    if "full" in reason or "I/O" in reason:
        return "make room, then export again"
    return "delete it, then export again: it is made anew from the records"


# MLflow retries hopeless cases for minutes, and reports them in many words; so they are tried beforehand.
def _check_reachable(uri: str, seconds: float) -> None:
    if uri.startswith("http"):
        try:
            urlopen(uri, timeout=seconds).close()
        except HTTPError as answer:
            if answer.code >= 500:  # whatever else it is, somebody is there
                raise


def _check_writable(path: Path, seconds: float) -> None:
    connection = sqlite3.connect(path, timeout=seconds)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.rollback()
    finally:
        connection.close()


def _experiment(client: MlflowClient, name: str, uri: str) -> str:
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        local = uri.startswith(_SQLITE)
        return client.create_experiment(name, f"{_ARTEFACTS}/{name}" if local else None)
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    return str(experiment.experiment_id)


def _present(client: MlflowClient) -> dict[str, list[Run]]:
    """All MLflow runs that an export made, in whatever experiment, by run id."""
    experiments: list[str] = []
    token: str | None = None
    while True:
        page = client.search_experiments(max_results=_PAGE, page_token=token)
        experiments += [experiment.experiment_id for experiment in page]
        token = page.token
        if not token:
            break
    runs: dict[str, list[Run]] = defaultdict(list)
    while True:
        found = client.search_runs(experiments, max_results=_PAGE, page_token=token)
        for run in found:
            if "fltrain.run_id" in run.data.tags:
                runs[run.data.tags["fltrain.run_id"]].append(run)
        token = found.token
        if not token:
            return runs


# ---------------------------------------------------------------------------------------------------- one run
def _create(
    client: MlflowClient, experiment: str, record: Record, items: Sequence[str], fingerprint: str
) -> None:
    from mlflow.entities import Metric, Param, RunTag

    # Records hold durations, no dates: the run ended when its last file was written. Whatever date that has,
    # MLflow knows none before 1970, and takes 0 for none.
    duration = round(1000 * record.costs["seconds"]["total"])
    ended = max(int(1000 * record.written), duration + 1)
    started = ended - duration
    run = client.create_run(experiment, started, {"fltrain.run_id": record.run_id}, record.run_id).info.run_id

    metrics = [Metric(key, value, ended, step) for key, value, step in _metrics(record)]
    params = [Param(key, value[:_PARAM_CHARACTERS]) for key, value in sorted(_flat(record.spec))]
    for start in range(0, len(metrics), _METRICS_AT_ONCE):
        client.log_batch(run, metrics=metrics[start : start + _METRICS_AT_ONCE])
    for start in range(0, len(params), _PARAMS_AT_ONCE):
        client.log_batch(run, params=params[start : start + _PARAMS_AT_ONCE])
    client.log_batch(run, tags=[RunTag(key, value) for key, value in _tags(record, items).items()])
    client.set_terminated(run, "FINISHED", ended)
    client.set_tag(run, "fltrain.record", fingerprint)  # an export that was cut short never comes here


def _metrics(record: Record) -> Iterator[tuple[str, float, int]]:
    """Key, value and step of every metric; what is no finite number is left out."""
    split = "local_test" if record.spec.get("local_test") else "test"
    for key, (kind, name) in _CURVES.items():
        for row in record.rows(kind):
            other = kind == "evaluation" and (row["split"] != split or row["view"] != "global")
            if not other and _is_number(row.get(name)):
                yield key, row[name], row["round"]
    extra = record.summary.get("extra", {})
    once = {
        "final_accuracy": record.summary["accuracy"]["final"],
        "best_accuracy": record.summary["accuracy"]["best"],
        "seconds": record.costs["seconds"]["total"],
        "bytes": sum(record.summary["bytes"].values()),
        **{f"final_accuracy.{name}": extra[name] for name in sorted(extra)[:_EXTRA_KEYS]},
    }
    rounds: int = record.summary["rounds"]
    for key, value in once.items():
        if _is_number(value):
            yield key, value, rounds


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _tags(record: Record, items: Sequence[str]) -> dict[str, str]:
    spec, commit = record.spec, record.provenance.get("commit") or "unknown"
    return {
        "paper": " ".join(_papers(items)),
        "items": " ".join(items) or "none",
        "method": spec["method"]["name"],
        "plugins": "+".join(plugin["name"] for plugin in spec["plugins"]) or "none",
        "dataset": spec["dataset"]["name"],
        "partition": spec["partition"]["name"],
        "model": spec["model"]["name"],
        "seed": str(spec["seed"]),
        "status": record.summary["status"],
        "commit": f"{commit}-dirty" if record.provenance.get("dirty") else commit,
        # Where the record's files are, relative to the results folder: both can be moved together.
        "folder": f"{record.folder.parent.name}/{record.folder.name}",
    }


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Settings as text by dotted name: ``training.lr``, ``plugins.flfa.n_fa``."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {item["name"]: item for item in value}
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(item, f"{key}.{name}" if key else name)
    else:
        yield key, value if isinstance(value, str) else canonical_json(value)
