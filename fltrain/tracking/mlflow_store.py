"""MLflow stores: opened for one writer at a time, written through MLflow's public client.

A SQLite database is written without waiting for the disk after each transaction, because it can be recreated
from the records. Files of runs are in a folder next to it (``--artifacts-destination`` of an MLflow server).
MLflow is imported inside functions because that takes seconds.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

from filelock import FileLock, Timeout

from fltrain.core.errors import FltrainError
from fltrain.core.files import replacing
from fltrain.core.hashing import short_hash

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Experiment, Run

SQLITE = "sqlite:///"
RUN_ID, FINGERPRINT = "fltrain.run_id", "fltrain.record"
"""Tags of MLflow runs: the run ID, and a fingerprint of the files that the MLflow run was made from."""
NOTE = "mlflow.note.content"
"""Tag with the description that MLflow shows, of runs and of experiments."""

_NOTE_HASH = "fltrain.note"
# Relative to the server's folder of artifacts, so that the database can be moved.
_PROXIED = "mlflow-artifacts:"
# Otherwise MLflow shows pages for language models.
_TRAINING = {"mlflow.experimentKind": "custom_model_development"}
_METRICS_AT_ONCE, _PARAMS_AT_ONCE, _PAGE = 1000, 100, 1000  # limits of one request
_PARAM_CHARACTERS, _TAG_CHARACTERS = 6000, 5000
_TABLE, _TABLES = "table.json", "mlflow.loggedArtifacts"  # name and tag of tables in MLflow's interface
_FEW = 20  # up to this number, runs are looked up one by one
LOCK_SECONDS, DATABASE_SECONDS, SERVER_SECONDS = 600.0, 60.0, 10.0
"""Longest waits for another export, for another program that uses the database, for a tracking server."""


@dataclass(frozen=True)
class NewRun:
    """An MLflow run to write. Times are milliseconds since 1970; ``metrics`` are key, step and value.

    ``inputs`` are the dataset and the partition behind it.
    ``files`` are copied into ``folder``; ``table`` is a table in the format of ``MlflowClient.log_table``.
    """

    name: str
    status: str
    started: int
    ended: int
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Sequence[tuple[str, int, float]] = ()
    inputs: Sequence[DatasetInput] = ()
    files: Sequence[Path] = ()
    folder: str = ""
    table: str = ""


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
    with _short_errors(uri):
        from mlflow import MlflowClient

        path = sqlite_path(uri) if uri.startswith(SQLITE) else None
        lock = Path(f"{path}.lock") if path else folder / f"mlflow-{short_hash(uri)}.lock"
        if path is None:
            _check_reachable(uri)
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(lock, timeout=LOCK_SECONDS), _sqlite_connections():
                if path and not path.exists():
                    # Creating the tables takes seconds; MLflow cannot use an incomplete database.
                    with replacing(path) as temporary, _sqlite_connections():
                        MlflowClient(f"{SQLITE}{temporary}")
                if path:
                    _check_database(path)
                yield Store(MlflowClient(uri), artifacts_of(path) if path else None)
        except Timeout:
            raise FltrainError(f"{uri}: another process is exporting to it; try again later") from None


@contextmanager
def _sqlite_connections() -> Iterator[None]:
    """Make SQLite connections fast, and close them at the end: MLflow keeps them, even to deleted files."""
    from sqlalchemy import Connection, Engine, event

    engines: set[Engine] = set()

    def make_fast(connection: Any, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous=OFF")  # a killed process still leaves a whole database

    def remember(connection: Connection) -> None:
        engines.add(connection.engine)

    listeners: dict[str, Callable[..., None]] = {"connect": make_fast, "engine_connect": remember}
    for name, listener in listeners.items():
        event.listen(Engine, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners.items():
            event.remove(Engine, name, listener)
        for engine in engines:
            engine.dispose()


@contextmanager
def _short_errors(uri: str) -> Iterator[None]:
    """Turn all errors of MLflow, SQLite and the network into one line with a remedy."""
    if "://" not in uri:
        raise FltrainError(f"tracking address {uri!r}: use sqlite:///path/to/file.db or http://host:port")
    # By default, MLflow retries for a quarter of an hour.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    mlflow = import_mlflow()
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (OSError, ImportError, sqlite3.Error, SQLAlchemyError, mlflow.MlflowException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FltrainError(
            f"{uri}: cannot write to this MLflow store ({reason}); {_remedy(uri, reason)}"
        ) from error


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
    if not uri.startswith(SQLITE):
        if "401" in reason or "403" in reason:
            return "set MLFLOW_TRACKING_TOKEN (or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD)"
        return "start the server or check its address, then export again"
    if "locked" in reason:
        return "end the program that uses it, then export again"
    if any(word in reason for word in ("full", "I/O", "No space left")):
        return "make room, then export again"
    if any(word in reason for word in ("readonly", "Read-only", "unable to open", "Permission denied")):
        return "allow writing to the file and its folder, or name another database with --uri"
    if any(word in reason for word in ("not a database", "malformed", "revision", "no such", "out-of-date")):
        return "delete it, then export again: it is made anew from the records"
    return "mend the cause, then export again"


def sqlite_path(uri: str) -> Path:
    """Return the file that ``sqlite:///path`` names."""
    return Path(uri.removeprefix(SQLITE).partition("?")[0])


def artifacts_of(database: Path) -> Path:
    """Return the folder of a database's artifacts, for ``mlflow server --artifacts-destination``."""
    return database.with_name(f"{database.stem}-artifacts")


# MLflow retries hopeless cases for minutes, and reports them in many words; so check them first.
def _check_reachable(uri: str) -> None:
    if uri.startswith("http"):
        try:
            urlopen(uri, timeout=SERVER_SECONDS).close()
        except HTTPError as answer:
            if answer.code >= 500:  # other codes come from a server that works
                raise


def _check_database(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=DATABASE_SECONDS)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SELECT name FROM sqlite_master").fetchall()
        connection.rollback()


# --------------------------------------------------------------------------------------------------- writing
class Store:
    """An open store: experiments by name, and the MLflow runs in them."""

    def __init__(self, client: MlflowClient, artifacts: Path | None = None) -> None:
        from mlflow.entities import ViewType

        self._client, self._artifacts = client, artifacts
        search = partial(client.search_experiments, view_type=ViewType.ALL)
        self._experiments: dict[str, Experiment] = {one.name: one for one in _pages(search)}

    def experiment(self, name: str, tags: Mapping[str, str] | None = None) -> str:
        """Return the ID of an experiment; create it, restore it or change its tags if needed."""
        experiment, client = self._experiments.get(name), self._client
        if experiment is None:
            location = f"{_PROXIED}/{name}" if self._artifacts else None
            experiment = client.get_experiment(client.create_experiment(name, location, _TRAINING))
        elif experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
            experiment = client.get_experiment(experiment.experiment_id)
        known: str = experiment.experiment_id
        for key, value in corrections(experiment.tags, tags or {}).items():
            client.set_experiment_tag(known, key, value)
            experiment = client.get_experiment(known)
        self._experiments[name] = experiment
        return known

    def search(self, condition: str) -> Iterator[Run]:
        """Return the runs of all experiments that meet a condition in MLflow's filter language."""
        active = [one for one in self._experiments.values() if one.lifecycle_stage == "active"]
        search = partial(self._client.search_runs, [one.experiment_id for one in active], condition)
        return _pages(search)

    def with_tag(self, key: str, values: Collection[str]) -> dict[str, list[Run]]:
        """Return the runs whose tag has one of the values, by value."""
        few = len(values) <= _FEW
        conditions = [f"= '{value}'" for value in values] if few else ["LIKE '%'"]
        found: dict[str, list[Run]] = {}
        for condition in conditions:
            for run in self.search(f"tags.`{key}` {condition}"):
                if (value := run.data.tags[key]) in values:
                    found.setdefault(value, []).append(run)
        return found

    def create(self, experiment: str, run: NewRun) -> None:
        """Write a run. Its end comes last, so that an interrupted run can be recognised."""
        from mlflow.entities import Metric, Param

        client, tags = self._client, dict(_shortened(run.tags, _TAG_CHARACTERS))
        if run.table:
            tags[_TABLES] = json.dumps([{"path": _TABLE, "type": "table"}])
        info = client.create_run(experiment, run.started, tags, run.name).info
        metrics = [Metric(key, value, run.ended, step) for key, step, value in run.metrics]
        params = [Param(key, value) for key, value in _shortened(run.params, _PARAM_CHARACTERS)]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            client.log_batch(info.run_id, params=params[start : start + _PARAMS_AT_ONCE])
        for start in range(0, len(metrics), _METRICS_AT_ONCE):
            client.log_batch(info.run_id, metrics=metrics[start : start + _METRICS_AT_ONCE])
        if run.inputs:
            client.log_inputs(info.run_id, run.inputs)
        self._save(info.artifact_uri, run.files, partial(client.log_artifact, info.run_id), run.folder)
        if run.table:
            with TemporaryDirectory() as folder:
                (file := Path(folder) / _TABLE).write_text(run.table, encoding="utf-8")
                self._save(info.artifact_uri, [file], partial(client.log_artifact, info.run_id))
        client.set_terminated(info.run_id, run.status, run.ended)

    def add_model(self, run: Run, name: str, file: Path) -> None:
        """Write a file of weights as the model of a run. The link comes last: it marks the model as whole."""
        from mlflow.entities import LoggedModelOutput

        client, ours = self._client, run.info.run_id
        model = client.create_logged_model(run.info.experiment_id, name, ours, params=run.data.params)
        self._save(model.artifact_location, [file], partial(client.log_model_artifact, model.model_id))
        client.finalize_logged_model(model.model_id, "READY")
        client.log_outputs(ours, [LoggedModelOutput(model.model_id, 0)])

    def _save(
        self, uri: str, files: Iterable[Path], upload: Callable[[str, str | None], object], folder: str = ""
    ) -> None:
        """Copy files to the place where an MLflow server looks for them, or upload them to a server."""
        for file in files:
            if self._artifacts is None:
                upload(str(file), folder or None)
                continue
            place = self._folder(uri) / folder / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)

    def _folder(self, artifact_uri: str) -> Path:
        """Return the folder in which an MLflow server looks for artifacts."""
        assert self._artifacts
        return self._artifacts / artifact_uri.removeprefix(f"{_PROXIED}/")

    def set_tags(self, run: Run, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        from mlflow.entities import RunTag

        changed = [RunTag(key, value) for key, value in _shortened(tags, _TAG_CHARACTERS)]
        self._client.log_batch(run.info.run_id, tags=changed)

    def delete(self, run: Run) -> None:
        """Delete a run, its models and their files."""
        places = [run.info.artifact_uri]
        for model in models_of(run):
            places.append(self._client.get_logged_model(model).artifact_location)
            self._client.delete_logged_model(model)
        for uri in places:
            if self._artifacts and uri.startswith(_PROXIED):
                shutil.rmtree(self._folder(uri).parent, ignore_errors=True)
        self._client.delete_run(run.info.run_id)


def models_of(run: Run) -> list[str]:
    """Return MLflow's IDs of the models of a run."""
    return [model.model_id for model in run.outputs.model_outputs] if run.outputs else []


def with_note(tags: Mapping[str, str], note: str) -> dict[str, str]:
    """Return tags with a description and its hash, by which ``corrections`` detects edited descriptions."""
    return {**tags, NOTE: note, _NOTE_HASH: short_hash(note[:_TAG_CHARACTERS])}


def corrections(current: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the wanted tags that differ from the current ones; edited descriptions stay."""
    edited = NOTE in current and current.get(_NOTE_HASH) != short_hash(current[NOTE])
    ours = {key: value for key, value in wanted.items() if not (edited and key in (NOTE, _NOTE_HASH))}
    return {key: value for key, value in _shortened(ours, _TAG_CHARACTERS) if current.get(key) != value}


def _shortened(values: Mapping[str, str], characters: int) -> Iterator[tuple[str, str]]:
    return ((key, value[:characters]) for key, value in sorted(values.items()))


def _pages(search: Any) -> Iterator[Any]:
    """Yield all results of a search of MLflow, page by page."""
    token: str | None = None
    while True:
        page = search(max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return
