"""MLflow stores: opening one for a single writer, writing runs in batches, reading them back.

A SQLite database is written through its tables, thousands of rows at once: MLflow's client takes a third of
a second for a run of a hundred rounds. Whatever else MLflow can be reached by (a tracking server) is written
through its client. Both leave the same behind, which is tested. MLflow is imported inside functions only: it
takes seconds.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.error import HTTPError
from urllib.request import urlopen

from filelock import FileLock, Timeout

from fltrain.core.errors import FltrainError
from fltrain.core.files import replacing
from fltrain.core.hashing import short_hash
from fltrain.tracking.run_view import CURVES, FIELDS, NONE, SEVERAL, Curve, Described

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import Table

SQLITE = "sqlite:///"
RUN_ID, ITEM_ID, FINGERPRINT = "fltrain.run_id", "fltrain.item", "fltrain.record"
"""Tags by which an export knows its MLflow runs: that of a run, of an item; and what it was made from."""
NOTE = "mlflow.note.content"
"""The description that MLflow shows."""

_PROXIED = "mlflow-artifacts:"  # relative to wherever the server keeps artefacts; else it is an absolute path
_KIND = "mlflow.experimentKind"  # so that MLflow shows pages for training, not those for language models
_NAME = "mlflow.runName"
_METRICS_AT_ONCE, _PARAMS_AT_ONCE, _TAGS_AT_ONCE, _PAGE = 1000, 100, 100, 1000
_PARAM_CHARACTERS, _TAG_CHARACTERS = 6000, 5000
_DIGEST = 10  # characters that tell data apart; MLflow keeps 36, but lists have no room for them
_FEW = 20  # runs that a server is asked for one by one


@dataclass(frozen=True)
class Patience:
    """How long an export waits, in seconds.

    Attributes:
        lock: for another export.
        database: for another program that writes to the database.
        server: for a tracking server to answer at all.
    """

    lock: float = 600.0
    database: float = 60.0
    server: float = 10.0


PATIENCE = Patience()


@dataclass(frozen=True)
class Data:
    """What went into a run: a data set or partition. ``file`` is relative to the results folder."""

    name: str
    digest: str
    file: str
    context: str


@dataclass(frozen=True)
class Entry:
    """An MLflow run to be written. Times are in milliseconds since 1970, ``metrics`` key, step and value."""

    experiment: str
    name: str
    status: str
    started: int
    ended: int
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Sequence[tuple[str, int, float]] = ()
    data: Sequence[Data] = ()


@dataclass(frozen=True)
class Present:
    """An MLflow run that an export has made: its own id, its experiment's, whether it has ended, its tags."""

    uuid: str
    experiment: str
    ended: bool
    tags: Mapping[str, str]


class Writer(Protocol):
    """What an export does to a store."""

    def experiment(self, name: str) -> str:
        """Id of an experiment, which is made, or restored, if it is not there."""

    def present(self, key: str, values: Collection[str]) -> dict[str, list[Present]]:
        """The MLflow runs whose tag ``key`` has one of these values, by it."""

    def create(self, entries: Sequence[Entry]) -> list[str]:
        """Write runs; return their ids."""

    def retag(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        """Set tags, by the runs' ids."""

    def delete(self, runs: Collection[str]) -> None:
        """Delete runs by their ids."""

    def attach(self, run: str, files: Iterable[Path]) -> None:
        """Make files artefacts of a run, in place of those of the same names."""


# --------------------------------------------------------------------------------------------------- opening
@contextmanager
def writing(uri: str, folder: Path, patience: Patience = PATIENCE) -> Iterator[Writer]:
    """Open a store for this process alone; whatever goes wrong with it becomes one line.

    Args:
        uri: ``sqlite:///path`` or the address of a tracking server.
        folder: where the lock is, unless it is beside a database.
        patience: how long to wait for others.

    Raises:
        FltrainError: if the store cannot be written to.
    """
    with _one_line(uri, "write to"):
        try:
            if uri.startswith(SQLITE):
                with _writing_sqlite(uri, patience) as writer:
                    yield writer
                return
            _check_reachable(uri, patience.server)
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / f"mlflow-{short_hash(uri)}.lock", timeout=patience.lock):
                yield Server(_client(uri))
        except Timeout:
            raise FltrainError(f"{uri}: another process has been exporting to it; try again later") from None


@contextmanager
def _writing_sqlite(uri: str, patience: Patience) -> Iterator[Writer]:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    path = sqlite_path(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock", timeout=patience.lock):
        if not path.exists():
            # Making the tables takes seconds, and MLflow cannot finish what a killed process has begun.
            with replacing(path) as temporary:
                SqlAlchemyStore(f"{SQLITE}{temporary}", _PROXIED).engine.dispose()  # type: ignore[no-untyped-call]
        _check_writable(path, patience.database)
        # MLflow remembers having made the tables, also those of a database that was deleted since.
        store = SqlAlchemyStore(uri, _PROXIED)  # type: ignore[no-untyped-call]
        try:
            yield Database(store, artefacts_of(path))
        finally:
            store.engine.dispose()  # an open connection would keep a deleted database alive


@contextmanager
def reading(uri: str, patience: Patience = PATIENCE) -> Iterator[MlflowClient]:
    """Open a store to read from it; nothing is made if there is none.

    Raises:
        FltrainError: if there is no such store, or it cannot be read.
    """
    with _one_line(uri, "read"):
        if not uri.startswith(SQLITE):
            _check_reachable(uri, patience.server)
            yield _client(uri)
            return
        if not sqlite_path(uri).exists():
            raise FltrainError(f"{uri}: no such database; `fltrain track` makes one")
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        store = SqlAlchemyStore(uri, _PROXIED)  # type: ignore[no-untyped-call]
        try:
            yield _client(uri)
        finally:
            store.engine.dispose()


@contextmanager
def _one_line(uri: str, what: str) -> Iterator[None]:
    # Read by MLflow when it is imported; what the user has set stays.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    # A server that fails in the middle would be tried again for a quarter of an hour.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    try:
        import mlflow
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise FltrainError(f"tracking needs MLflow: install 'fltrain[workflow]' ({error})") from None
    if "://" not in uri:
        raise FltrainError(f"tracking address {uri!r}: use sqlite:///path/to/file.db or http://host:port")
    # MLflow logs what it also raises, and every step of the making of a database.
    logging.getLogger("mlflow").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        yield
    except (OSError, ImportError, sqlite3.Error, SQLAlchemyError, mlflow.MlflowException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FltrainError(
            f"{uri}: cannot {what} this MLflow store ({reason}); {_remedy(uri, reason)}"
        ) from error


def _remedy(uri: str, reason: str) -> str:
    if not uri.startswith(SQLITE):
        if "401" in reason or "403" in reason:
            return "set MLFLOW_TRACKING_TOKEN (or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD)"
        return "start the server or check its address, then export again"
    if "locked" in reason:
        return "end the program that uses it, then export again"
    if "full" in reason or "I/O" in reason:
        return "make room, then export again"
    return "delete it, then export again: it is made anew from the records"


def sqlite_path(uri: str) -> Path:
    """The file that ``sqlite:///path`` names."""
    return Path(uri.removeprefix(SQLITE).partition("?")[0])


def artefacts_of(database: Path) -> Path:
    """Folder of a database's artefacts: what ``mlflow ui --artifacts-destination`` is to be told."""
    return database.with_name(f"{database.stem}-artifacts")


def _client(uri: str) -> MlflowClient:
    import mlflow

    return mlflow.MlflowClient(uri)


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


# --------------------------------------------------------------------------------------------------- writing
class Server:
    """A store that is written through MLflow's client."""

    def __init__(self, client: MlflowClient) -> None:
        self._client = client

    def experiment(self, name: str) -> str:
        return _experiment(self._client, name, None)

    def present(self, key: str, values: Collection[str]) -> dict[str, list[Present]]:
        everywhere = _experiments(self._client)
        if len(values) <= _FEW:
            filters = [f"tags.`{key}` = '{value}'" for value in values]
        else:
            filters = [f"tags.`{key}` LIKE '%'"]
        found: dict[str, list[Present]] = {}
        for wanted in filters:
            for run in _search(self._client, list(everywhere), wanted):
                tags = run.data.tags
                if tags[key] in values:
                    ended = run.info.status != "RUNNING"
                    present = Present(run.info.run_id, run.info.experiment_id, ended, tags)
                    found.setdefault(tags[key], []).append(present)
        return found

    def create(self, entries: Sequence[Entry]) -> list[str]:
        return [self._create(entry) for entry in entries]

    def _create(self, entry: Entry) -> str:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param

        client, tags = self._client, dict(_shortened(entry.tags, _TAG_CHARACTERS))
        created = client.create_run(entry.experiment, entry.started, tags, entry.name)
        run: str = created.info.run_id
        metrics = [Metric(key, value, entry.ended, step) for key, step, value in entry.metrics]
        params = [Param(key, value) for key, value in _shortened(entry.params, _PARAM_CHARACTERS)]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            client.log_batch(run, params=params[start : start + _PARAMS_AT_ONCE])
        for start in range(0, len(metrics), _METRICS_AT_ONCE):
            client.log_batch(run, metrics=metrics[start : start + _METRICS_AT_ONCE])
        inputs = [
            DatasetInput(
                Dataset(data.name, data.digest[:_DIGEST], "local", _source(data), None, _profile(data)),
                [InputTag("mlflow.data.context", data.context)],
            )
            for data in entry.data
        ]
        if inputs:
            client.log_inputs(run, inputs)
        client.set_terminated(run, entry.status, entry.ended)  # one that was cut short never ends
        return run

    def retag(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        from mlflow.entities import RunTag

        for run, tags in changes.items():
            changed = [RunTag(key, value) for key, value in _shortened(tags, _TAG_CHARACTERS)]
            for start in range(0, len(changed), _TAGS_AT_ONCE):
                self._client.log_batch(run, tags=changed[start : start + _TAGS_AT_ONCE])

    def delete(self, runs: Collection[str]) -> None:
        for run in runs:
            self._client.delete_run(run)

    def attach(self, run: str, files: Iterable[Path]) -> None:
        for file in files:
            self._client.log_artifact(run, str(file))


class Database:
    """A SQLite database, written through its tables; each call is one transaction."""

    def __init__(self, store: SqlAlchemyStore, artefacts: Path) -> None:
        self._store, self._artefacts = store, artefacts
        self._client = _client(store.db_uri)
        self._locations: dict[str, str] = {}

    def experiment(self, name: str) -> str:
        return _experiment(self._client, name, f"{_PROXIED}/{name}")

    def present(self, key: str, values: Collection[str]) -> dict[str, list[Present]]:
        runs, tags = _tables("SqlRun", "SqlTag")
        from sqlalchemy import and_, select

        marked = tags.alias()
        query = (
            select(
                marked.c.value, runs.c.run_uuid, runs.c.experiment_id, runs.c.status, tags.c.key, tags.c.value
            )
            .join(runs, and_(runs.c.run_uuid == marked.c.run_uuid, runs.c.lifecycle_stage == "active"))
            .join(tags, tags.c.run_uuid == marked.c.run_uuid)
            .where(marked.c.key == key)
        )
        if len(values) <= _FEW:
            query = query.where(marked.c.value.in_(values))
        facts: dict[str, tuple[str, str, bool, dict[str, str]]] = {}
        with self._store.engine.connect() as connection:
            for value, run, experiment, status, name, tag in connection.execute(query):
                if value in values:
                    new = (value, str(experiment), status != "RUNNING", dict[str, str]())
                    facts.setdefault(run, new)[3][name] = tag
        found: dict[str, list[Present]] = {}
        for run, (value, experiment, ended, known) in facts.items():
            found.setdefault(value, []).append(Present(run, experiment, ended, known))
        return found

    def create(self, entries: Sequence[Entry]) -> list[str]:
        from sqlalchemy import insert

        names = ("SqlRun", "SqlTag", "SqlParam", "SqlMetric", "SqlLatestMetric", "SqlDataset", "SqlInput")
        tables = _tables(*names, "SqlInputTag")
        rows: tuple[list[dict[str, Any]], ...] = tuple([] for _ in tables)
        runs, tags, params, metrics, latest, data, inputs, input_tags = rows
        created: list[str] = []
        with self._store.engine.begin() as connection:
            known = self._datasets(connection, {entry.experiment for entry in entries})
            for entry in entries:
                run = uuid.uuid4().hex
                created.append(run)
                runs.append(self._run(entry, run))
                every = {**entry.tags, _NAME: entry.name}
                tags += ({"run_uuid": run, **pair} for pair in _pairs(every, _TAG_CHARACTERS))
                params += ({"run_uuid": run, **pair} for pair in _pairs(entry.params, _PARAM_CHARACTERS))
                points = [_point(run, entry, *point) for point in entry.metrics]
                metrics += points
                latest += {point["key"]: point for point in points}.values()  # steps are in order
                for one in entry.data:
                    place = (int(entry.experiment), one.name, one.digest[:_DIGEST])
                    if place not in known:
                        known[place] = uuid.uuid4().hex
                        data.append(_dataset(known[place], *place, one))
                    link = uuid.uuid4().hex
                    inputs.append(_input(link, known[place], run))
                    context = {"name": "mlflow.data.context", "value": one.context}
                    input_tags.append({"input_uuid": link, **context})
            for table, lines in zip(tables, rows, strict=True):
                if lines:
                    connection.execute(insert(table), lines)
        return created

    def _run(self, entry: Entry, run: str) -> dict[str, Any]:
        if (location := self._locations.get(entry.experiment)) is None:
            location = self._client.get_experiment(entry.experiment).artifact_location
            self._locations[entry.experiment] = location
        return {
            "run_uuid": run,
            "name": entry.name,
            "source_type": "UNKNOWN",
            "source_name": "",
            "entry_point_name": "",
            "user_id": "unknown",
            "status": entry.status,
            "start_time": entry.started,
            "end_time": entry.ended,
            "source_version": "",
            "lifecycle_stage": "active",
            "artifact_uri": f"{location}/{run}/artifacts",
            "experiment_id": int(entry.experiment),
        }

    def _datasets(self, connection: Any, experiments: Collection[str]) -> dict[tuple[int, str, str], str]:
        """Ids of the data that experiments have, by experiment, name and digest."""
        from sqlalchemy import select

        (data,) = _tables("SqlDataset")
        query = select(data.c.experiment_id, data.c.name, data.c.digest, data.c.dataset_uuid)
        query = query.where(data.c.experiment_id.in_([int(experiment) for experiment in experiments]))
        return {(one, name, digest): known for one, name, digest, known in connection.execute(query)}

    def retag(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        from sqlalchemy.dialects.sqlite import insert

        (tags,) = _tables("SqlTag")
        rows = [
            {"run_uuid": run, **pair}
            for run, changed in changes.items()
            for pair in _pairs(changed, _TAG_CHARACTERS)
        ]
        if rows:
            put = insert(tags)
            put = put.on_conflict_do_update(
                index_elements=["key", "run_uuid"], set_={"value": put.excluded.value}
            )
            with self._store.engine.begin() as connection:
                connection.execute(put, rows)

    def delete(self, runs: Collection[str]) -> None:
        for run in runs:
            self._client.delete_run(run)

    def attach(self, run: str, files: Iterable[Path]) -> None:
        # Where a server finds them whose --artifacts-destination is the folder.
        place = self._client.get_run(run).info.artifact_uri.removeprefix(f"{_PROXIED}/")
        for file in files:
            with replacing(self._artefacts / place / file.name) as temporary:
                temporary.write_bytes(file.read_bytes())


def _tables(*names: str) -> list[Table]:
    """MLflow's tables by the names of their classes."""
    from mlflow.store.tracking.dbmodels import models

    return [getattr(models, name).__table__ for name in names]


def _pairs(values: Mapping[str, str], characters: int) -> Iterator[dict[str, str]]:
    return ({"key": key, "value": value} for key, value in _shortened(values, characters))


def _shortened(values: Mapping[str, str], characters: int) -> Iterator[tuple[str, str]]:
    return ((key, value[:characters]) for key, value in sorted(values.items()))


def _point(run: str, entry: Entry, key: str, step: int, value: float) -> dict[str, Any]:
    point = {"key": key, "value": value, "timestamp": entry.ended, "step": step, "is_nan": False}
    return {"run_uuid": run, **point}


def _dataset(known: str, experiment: int, name: str, digest: str, data: Data) -> dict[str, Any]:
    return {
        "dataset_uuid": known,
        "experiment_id": experiment,
        "name": name,
        "digest": digest,
        "dataset_source_type": "local",
        "dataset_source": _source(data),
        "dataset_schema": None,
        "dataset_profile": _profile(data),
    }


def _input(link: str, known: str, run: str) -> dict[str, Any]:
    ends = {"source_type": "DATASET", "source_id": known, "destination_type": "RUN", "destination_id": run}
    return {"input_uuid": link, **ends}


def _source(data: Data) -> str:
    return json.dumps({"uri": data.file})


def _profile(data: Data) -> str:
    return json.dumps({"sha256": data.digest})


def _experiment(client: MlflowClient, name: str, location: str | None) -> str:
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return client.create_experiment(name, location, {_KIND: "custom_model_development"})
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    return str(experiment.experiment_id)


# --------------------------------------------------------------------------------------------------- reading
def _experiments(client: MlflowClient) -> dict[str, str]:
    """Names of all experiments that are not deleted, by id."""
    found: dict[str, str] = {}
    token: str | None = None
    while True:
        page = client.search_experiments(max_results=_PAGE, page_token=token)
        found.update({experiment.experiment_id: experiment.name for experiment in page})
        token = page.token
        if not token:
            return found


def _search(client: MlflowClient, experiments: list[str], wanted: str) -> Iterator[Run]:
    token: str | None = None
    while True:
        page = client.search_runs(experiments, wanted, max_results=_PAGE, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def exported_runs(client: MlflowClient, wanted: Mapping[str, str]) -> Iterator[Run]:
    """The MLflow runs that an export made of runs and that have these tags (texts without quotes)."""
    conditions = [
        f"tags.`{RUN_ID}` LIKE '%'",
        *(f"tags.`{key}` = '{value}'" for key, value in wanted.items()),
    ]
    yield from _search(client, list(_experiments(client)), " and ".join(conditions))


def stored(uri: str, wanted: Mapping[str, Sequence[str]]) -> list[Described]:
    """Describe the runs that an MLflow store holds; their curves are read when asked for.

    Args:
        uri: address of the store.
        wanted: names by field, as far as they are known; where there is one name, the store is asked for it.

    Raises:
        FltrainError: if the store cannot be read, or holds nothing that an export has made.
    """
    single = {
        name: values[0]
        for name, values in wanted.items()
        if len(values) == 1 and name not in SEVERAL and values[0].replace("_", "").replace("+", "").isalnum()
    }
    with reading(uri) as client:
        runs = list(exported_runs(client, single)) or list(exported_runs(client, {}))
    return [_described(run, uri) for run in runs]


def _described(run: Run, uri: str) -> Described:
    tags, finals = run.data.tags, run.data.metrics
    once = {name: value for name, value in finals.items() if name not in CURVES}
    rounds = int(run.data.params["rounds"])

    def curves() -> dict[str, Curve]:
        with reading(uri) as client:
            histories = {
                name: client.get_metric_history(run.info.run_id, name) for name in CURVES if name in finals
            }
        return {
            name: sorted((point.step, point.value) for point in history)
            for name, history in histories.items()
        }

    fields = {name: tags.get(name, NONE) for name in FIELDS}
    fields["items"] = fields["items"].replace(",", "")
    return Described(tags[RUN_ID], fields, run.data.params, once, rounds, curves)
