"""MLflow stores: opened for one writer at a time, written through MLflow's public client.

A SQLite database is written without waiting for the disk after each transaction, because it can be recreated
from the records. Files of runs are in a folder next to it (``--artifacts-destination`` of an MLflow server).
MLflow is imported inside functions because that takes seconds.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from fltrain.core.errors import FltrainError
from fltrain.core.files import replacing
from fltrain.core.hashing import short_hash

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
_AT_ONCE, _PARAMS_AT_ONCE, _PAGE = 900, 100, 1000  # limits of one request
_PARAM_CHARACTERS, _TAG_CHARACTERS = 6000, 5000
LOCK_SECONDS, DATABASE_SECONDS = 600.0, 60.0
"""Longest waits for another export, and for another program that uses the database."""
UNCHANGED = "unchanged"


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
    mlflow = import_mlflow()
    from sqlalchemy.exc import SQLAlchemyError

    path = Path(uri.removeprefix(SQLITE).partition("?")[0]) if uri.startswith(SQLITE) else None
    lock = Path(f"{path}.lock") if path else folder / f"mlflow-{short_hash(uri)}.lock"
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=LOCK_SECONDS), _fast():
            if path and not path.exists():
                # Creating the tables takes seconds; MLflow cannot use an incomplete database.
                with replacing(path) as temporary, _fast():
                    mlflow.MlflowClient(f"{SQLITE}{temporary}")
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


@contextmanager
def _fast() -> Iterator[None]:
    """Let SQLite not wait for the disk, and close its connections at the end: MLflow keeps them."""
    from sqlalchemy import Connection, Engine, event

    engines: set[Engine] = set()

    def no_waiting(connection: Any, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous=OFF")  # a killed process still leaves a whole database

    def remember(connection: Connection) -> None:
        engines.add(connection.engine)

    event.listen(Engine, "connect", no_waiting)
    event.listen(Engine, "engine_connect", remember)
    try:
        yield
    finally:
        event.remove(Engine, "connect", no_waiting)
        event.remove(Engine, "engine_connect", remember)
        for engine in engines:
            engine.dispose()


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


_REMEDIES = {
    ("locked",): "end the program that uses it, then export again",
    ("full", "I/O", "No space left"): "make room, then export again",
    ("readonly", "Read-only", "unable to open", "Permission denied"): (
        "allow writing to the file and its folder, or name another database with --uri"
    ),
    ("not a database", "malformed", "revision", "no such", "out-of-date"): (
        "delete it, then export again: it is made anew from the records"
    ),
}
"""Remedies of faults of a database, by words of the fault."""


def _remedy(uri: str, reason: str) -> str:
    if not uri.startswith(SQLITE):
        if "401" in reason or "403" in reason:
            return "set MLFLOW_TRACKING_TOKEN (or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD)"
        return "start the server or check its address, then export again"
    for words, remedy in _REMEDIES.items():
        if any(word in reason for word in words):
            return remedy
    return "mend the cause, then export again"


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

        self.client, self._artifacts = client, artifacts
        every = _pages(lambda **page: client.search_experiments(view_type=ViewType.ALL, **page))
        self._experiments: dict[str, Experiment] = {one.name: one for one in every}

    def experiment(self, name: str, tags: Mapping[str, str] = {}) -> str:
        """Return the ID of an experiment with these tags; create or restore it if needed."""
        experiment, client = self._experiments.get(name), self.client
        if experiment is None:
            location = f"{_PROXIED}/{name}" if self._artifacts else None
            # Otherwise MLflow shows pages for language models.
            training = {"mlflow.experimentKind": "custom_model_development"}
            experiment = client.get_experiment(client.create_experiment(name, location, training))
        elif experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
            experiment = client.get_experiment(experiment.experiment_id)
        if changed := _changed(experiment.tags, tags):
            for key, value in changed.items():
                client.set_experiment_tag(experiment.experiment_id, key, value)
            experiment = client.get_experiment(experiment.experiment_id)
        self._experiments[name] = experiment
        return str(experiment.experiment_id)

    def present(self, condition: str) -> dict[str, list[Run]]:
        """Return our runs that meet a condition in MLflow's filter language, by key."""
        active = [one for one in self._experiments.values() if one.lifecycle_stage == "active"]
        ids = [one.experiment_id for one in active]
        found: dict[str, list[Run]] = {}
        for run in _pages(lambda **page: self.client.search_runs(ids, condition, **page)):
            if key := run.data.tags.get(KEY):
                found.setdefault(key, []).append(run)
        return found

    def put(
        self,
        experiment: str,
        name: str,
        digest: str,
        tags: Mapping[str, str],
        present: Sequence[Run],
        times: tuple[int, int],
        write: Callable[[Run], object],
        status: str = "FINISHED",
    ) -> tuple[str, Run]:
        """Keep, retag, replace or create an MLflow run; return which of them, and the run.

        A run stays if it has ended, is in the experiment and has the digest; its tags are set in place. Its
        end comes last, so that an interrupted export can be recognised.

        Args:
            experiment: ID of the experiment.
            name: name of the run; ``tags`` contain its key.
            digest: digest of everything that ``write`` writes.
            tags: tags of the run.
            present: runs with the same key.
            times: start and end, in milliseconds since 1970.
            write: writes parameters, metrics and files of a new run.
            status: final status of a new run.
        """
        fitting = [
            run
            for run in present
            if run.info.status != "RUNNING"
            and run.info.experiment_id == experiment
            and run.data.tags.get(DIGEST) == digest
        ]
        if fitting:
            kept, done = fitting[0], UNCHANGED
            if changed := _changed(kept.data.tags, tags):
                self.tag(kept, changed)
                done = "retagged"
        else:
            done = "replaced" if present else "created"
            whole = _changed({}, {**tags, DIGEST: digest})
            kept = self.client.create_run(experiment, times[0], whole, name)
            write(kept)
            self.client.set_terminated(kept.info.run_id, status, times[1])
        for run in present:
            if run is not kept:
                self.delete(run)
        return done, kept

    def tag(self, run: Run, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        from mlflow.entities import RunTag

        self.client.log_batch(run.info.run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def log(
        self, run: Run, params: Mapping[str, str], metrics: Iterable[tuple[str, int, float]] = ()
    ) -> None:
        """Write parameters, and metrics with their steps, in as few requests as possible."""
        from mlflow.entities import Metric, Param

        points = [Metric(key, value, run.info.start_time, step) for key, step, value in metrics]
        settings = [Param(key, _cut(value, _PARAM_CHARACTERS)) for key, value in sorted(params.items())]
        while points or settings:
            some, settings = settings[:_PARAMS_AT_ONCE], settings[_PARAMS_AT_ONCE:]
            self.client.log_batch(run.info.run_id, points[:_AT_ONCE], some)
            points = points[_AT_ONCE:]

    def save(self, run: Run, files: Iterable[Path], folder: str = "") -> None:
        """Copy files to the place where an MLflow server looks for them, or upload them to a server."""
        for file in files:
            if self._artifacts is None:
                self.client.log_artifact(run.info.run_id, str(file), folder or None)
                continue
            place = self._folder(run, self._artifacts) / folder / file.name
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


def _changed(current: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the wanted tags that differ from the current ones."""
    tags = {key: _cut(value, _TAG_CHARACTERS) for key, value in wanted.items()}
    return {key: value for key, value in tags.items() if current.get(key) != value}


def _cut(text: str, most: int) -> str:
    """Shorten a text to ``most`` characters, between two words or numbers if it has several."""
    if len(text) <= most:
        return text
    shorter = text[: most - 2]
    end = max(shorter.rfind(mark) for mark in ", \n")
    return f"{shorter[:end] if end > 0 else shorter} …"


def _pages(search: Callable[..., Any]) -> Iterator[Any]:
    """Yield all results of a search of MLflow, page by page."""
    page = search(max_results=_PAGE)
    yield from page
    while page.token:
        page = search(max_results=_PAGE, page_token=page.token)
        yield from page
