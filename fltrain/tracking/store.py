"""MLflow stores: opened for one writer at a time, written through MLflow's public client.

A SQLite database is written without waiting for the disk after each transaction, because it can be recreated
from the records. Files of runs are in a folder next to it (``--artifacts-destination`` of an MLflow server).
MLflow is imported inside functions because that takes seconds.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from filelock import Timeout

from fltrain.core.errors import FltrainError
from fltrain.core.files import locked, replacing
from fltrain.core.hashing import sha256, short_hash

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

SQLITE = "sqlite:///"
KEY, DIGEST = "fltrain.key", "fltrain.digest"
"""Tags of our MLflow runs: the name of the record, table or cell, and a digest of everything behind it."""
NOTE = "mlflow.note.content"
"""Tag with the description that MLflow shows, of runs and of experiments."""

# Relative to the server's folder of artifacts, so that the database can be moved.
_PROXIED = "mlflow-artifacts:"
LOCK_SECONDS, DATABASE_SECONDS = 600.0, 60.0
"""Longest waits for another export, and for another program that uses the database."""
UNCHANGED = "unchanged"


@dataclass(frozen=True)
class TrackedRun:
    """The content of an MLflow run: a record, table, figure or cell.

    Attributes:
        experiment: name of its experiment.
        key: its name, and the tag by which the next export finds it.
        tags: its other tags.
        made: its date, in seconds since 1970.
        seconds: its duration until then, if MLflow is to show one.
        params: its parameters.
        dataset: name, digest and file of its data, in the results folder.
        metrics: name, step and value of each.
        files: its files.
        folder: their folder.
        status: its final status.
    """

    experiment: str
    key: str
    tags: Mapping[str, str]
    made: float
    seconds: float | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    dataset: tuple[str, str, str] | None = None
    metrics: Sequence[tuple[str, int, float]] = ()
    files: Sequence[Path] = ()
    folder: str = ""
    status: str = "FINISHED"

    @property
    def digest(self) -> str:
        """Digest of everything but the date."""
        files = [(file.name, sha256(file.read_bytes())) for file in self.files]
        metrics = [(key, step, None if math.isnan(value) else value) for key, step, value in self.metrics]
        content = (self.key, sorted(self.tags.items()), sorted(self.params.items()), metrics)
        return short_hash([content, files, self.folder, self.status, self.seconds, self.dataset])


Present = Sequence["Run"]
"""MLflow runs with one key."""


# --------------------------------------------------------------------------------------------------- opening
@contextmanager
def writing(uri: str, folder: Path) -> Iterator[Store]:
    """Open a store for this process alone.

    Args:
        uri: ``sqlite:///path`` or the address of a tracking server.
        folder: folder of the lock for a tracking server; the lock of a database is next to it.

    Raises:
        FltrainError: if the store cannot be written to; one line names the reason and a remedy.
    """
    if "://" not in uri:
        raise FltrainError(f"tracking address {uri!r}: use sqlite:///path/to/file.db or http://host:port")
    # By default, MLflow retries for a quarter of an hour.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    # A connection that MLflow kept would hold the database open.
    os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
    mlflow = import_mlflow()
    from sqlalchemy import Engine, event
    from sqlalchemy.exc import SQLAlchemyError

    event.listen(Engine, "connect", _without_waiting)
    path = Path(uri.removeprefix(SQLITE).partition("?")[0]) if uri.startswith(SQLITE) else None
    lock = Path(f"{path}.lock") if path else folder / f"mlflow-{short_hash(uri)}.lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, f"exporting to {uri}", LOCK_SECONDS):
            if path and not path.exists():
                # Creating the tables takes seconds; MLflow cannot use an incomplete database.
                with replacing(path) as temporary:
                    # MLflow makes an experiment, which would stay empty.
                    mlflow.MlflowClient(f"{SQLITE}{temporary}").delete_experiment("0")
            if path:
                _check_database(path)
            yield Store(mlflow.MlflowClient(uri), artifacts_of(path) if path else None)
    except Timeout:
        raise FltrainError(f"{uri}: another process is exporting to it; try again later") from None
    except (OSError, ImportError, sqlite3.Error, SQLAlchemyError, mlflow.MlflowException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FltrainError(
            f"{uri}: cannot write to this MLflow store ({reason}); {_remedy(uri, reason)}"
        ) from error


def _without_waiting(connection: Any, _: object) -> None:
    """Let SQLite not wait for the disk: a killed process still leaves a whole database."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


def import_mlflow() -> ModuleType:
    """Return MLflow, which then prints nothing and reports nothing to its makers.

    Raises:
        FltrainError: if it is not installed.
    """
    # MLflow reads these variables when it is imported; values set by the user stay.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    try:
        import mlflow
    except ImportError as error:
        raise FltrainError(f"tracking needs MLflow: install 'fltrain[workflow]' ({error})") from None
    # It logs its exceptions, too, and every step of making a database.
    logging.getLogger("mlflow").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return mlflow


def _remedy(uri: str, reason: str) -> str:
    if "locked" in reason:
        return "end the program that uses it, then export again"
    if uri.startswith(SQLITE):
        return "allow writing, make room, or delete it: the next export makes it anew from the records"
    if "401" in reason or "403" in reason:
        return "set MLFLOW_TRACKING_TOKEN (or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD)"
    return "start the server or check its address, then export again"


def artifacts_of(database: Path) -> Path:
    """Return the folder of a database's artifacts, for ``mlflow server --artifacts-destination``."""
    return database.with_name(f"{database.stem}-artifacts")


def _check_database(path: Path) -> None:
    """Refuse a database that cannot be written; MLflow would retry for minutes."""
    with closing(sqlite3.connect(path, timeout=DATABASE_SECONDS)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SELECT name FROM sqlite_master").fetchall()
        connection.rollback()


# --------------------------------------------------------------------------------------------------- writing
class Store:
    """An open store: experiments by name, and the MLflow runs in them."""

    def __init__(self, client: MlflowClient, artifacts: Path | None = None) -> None:
        from mlflow.entities import ViewType

        self.client, self._artifacts, self.local = client, artifacts, artifacts is not None
        options: Any = {"view_type": ViewType.ALL, "order_by": ["last_update_time DESC"]}
        listing = _pages(lambda **page: client.search_experiments(**options, **page))
        self._experiments: dict[str, Experiment] = {home.name: home for home in listing}

    @property
    def experiments(self) -> list[str]:
        """Names of the experiments, in the order in which MLflow lists them."""
        return [name for name, home in self._experiments.items() if home.lifecycle_stage == "active"]

    def experiment(self, name: str, note: str = "") -> str:
        """Return the ID of an experiment; create or restore it, and set its description, if needed."""
        experiment, client = self._experiments.get(name), self.client
        if experiment is None:
            location = f"{_PROXIED}/{name}" if self._artifacts else None
            # Otherwise MLflow shows pages for language models.
            training = {"mlflow.experimentKind": "custom_model_development"}
            experiment = client.get_experiment(client.create_experiment(name, location, training))
        elif experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
            experiment = client.get_experiment(experiment.experiment_id)
        if note and experiment.tags.get(NOTE) != note:
            client.set_experiment_tag(experiment.experiment_id, NOTE, note)
        self._experiments[name] = experiment
        return str(experiment.experiment_id)

    def arrange(self, names: Sequence[str], notes: Mapping[str, str]) -> None:
        """Create experiments with descriptions, and let MLflow list them in this order.

        By default, it lists the experiment first that was changed last.
        """
        listed = [name for name in self.experiments if name in names]
        for name in names:
            self.experiment(name, notes.get(name, ""))
        if listed != [*names]:
            for name in reversed(names):
                self.client.rename_experiment(self.experiment(name), name)

    def present(self, condition: str) -> dict[str, Present]:
        """Return our runs that meet a condition in MLflow's filter language, by key."""
        active = [home for home in self._experiments.values() if home.lifecycle_stage == "active"]
        ids = [home.experiment_id for home in active]
        runs: dict[str, Present] = {}
        for run in _pages(lambda **page: self.client.search_runs(ids, condition, **page)):
            if key := run.data.tags.get(KEY):
                runs[key] = [*runs.get(key, ()), run]
        return runs

    def put(self, entry: TrackedRun, present: Present = ()) -> str:
        """Keep, replace or create an MLflow run; return which of them. ``present`` are runs with its key.

        A run stays if it is in the experiment, and complete with the digest of the entry. Its status comes
        last, so that an interrupted export can be recognised.
        """
        experiment, digest = self.experiment(entry.experiment), entry.digest
        fitting = [
            run
            for run in present
            if run.info.status != "RUNNING"
            and run.info.experiment_id == experiment
            and run.data.tags.get(DIGEST) == digest
        ]
        if not fitting:
            tags = {**entry.tags, KEY: entry.key, DIGEST: digest}
            start = int(1000 * (entry.made - (entry.seconds or 0)))
            new = self.client.create_run(experiment, start, tags, entry.key)
            self._log(new, entry)
            self._save(new, entry)
            if entry.seconds is None:
                self.client.update_run(new.info.run_id, entry.status)  # no end, so no duration
            else:
                self.client.set_terminated(new.info.run_id, entry.status, int(1000 * entry.made))
        for run in present:
            if run not in fitting[:1]:
                self.delete(run)
        return UNCHANGED if fitting else "replaced" if present else "created"

    def _log(self, run: Run, entry: TrackedRun) -> None:
        """Write parameters, dataset, and metrics with steps, within MLflow's limits of one request."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param

        params = [Param(key, value) for key, value in sorted(entry.params.items())]
        points = [Metric(key, value, run.info.start_time, step) for key, step, value in entry.metrics]
        while points or params:
            self.client.log_batch(run.info.run_id, points[:900], params[:100])
            points, params = points[900:], params[100:]
        if entry.dataset:
            name, digest, file = entry.dataset
            data = Dataset(name, digest[:36], "local", json.dumps({"uri": file}))
            context = InputTag("mlflow.data.context", "training")
            self.client.log_inputs(run.info.run_id, [DatasetInput(data, [context])])

    def _save(self, run: Run, entry: TrackedRun) -> None:
        """Copy files to the place where an MLflow server looks for them, or upload them to a server."""
        for file in entry.files:
            if self._artifacts is None:
                self.client.log_artifact(run.info.run_id, str(file), entry.folder or None)
                continue
            place = self._folder(run, self._artifacts) / entry.folder / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)

    def delete(self, run: Run) -> None:
        """Delete a run and its files."""
        if self._artifacts and run.info.artifact_uri.startswith(_PROXIED):
            shutil.rmtree(self._folder(run, self._artifacts).parent, ignore_errors=True)
        self.client.delete_run(run.info.run_id)

    @staticmethod
    def _folder(run: Run, artifacts: Path) -> Path:
        return artifacts / str(run.info.artifact_uri).removeprefix(f"{_PROXIED}/")


def _pages(search: Callable[..., Any]) -> Iterator[Any]:
    """Yield all results of a search of MLflow, page by page."""
    page = search(max_results=1000)
    yield from page
    while page.token:
        page = search(max_results=1000, page_token=page.token)
        yield from page
