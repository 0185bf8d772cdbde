"""RunSpec: all settings that decide the numbers of a run, validated and hashed. Does not import torch.

It has no paths, threads, devices or tracking addresses: the same spec gives the same numbers on every
machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from fltrain.core.config import Conflicts, ListOf, Settings, added
from fltrain.core.errors import FltrainError, count
from fltrain.core.hashing import canonical_json, short_hash
from fltrain.core.registry import choice
from fltrain.data.datasets import Dataset, own_normalisation
from fltrain.data.feature_skew import FeatureSkew
from fltrain.data.partition import SCHEMES, Division, LocalTest, Scheme
from fltrain.methods import METHODS
from fltrain.methods.base import Method
from fltrain.methods.composition import Composition
from fltrain.methods.training import Training
from fltrain.models.base import Model
from fltrain.models.networks import MODELS

ALONE = "alone"
"""Context in which ``RunSpec.parse`` checks each setting, but not if they fit together."""

ENGINE_REVISION = 1
"""Increase it if the engine computes other numbers for some run."""


AnyDataset = Annotated[
    Dataset,
    BeforeValidator(
        lambda value: {"name": value} if isinstance(value, str) else value,
        json_schema_input_type=str | Dataset,
    ),
]
FORMS = {f"fed{form}": f"is written {{name: fedopt, form: {form}}}" for form in ("adam", "yogi", "adagrad")}


ONE_SEED = (
    "a run has one seed (seed: 0); `fltrain train --seeds 3` trains it with seeds 0 to 2, in Python "
    "a loop that calls fltrain.train; papers have 'seeds' beside 'settings'"
)
_OPTIONS = {
    name: f"it is no setting of a run, but an option: `fltrain train --{name}`"
    + f", `fltrain.train(..., {name}=...)`" * (name in ("device", "threads"))
    + "; Snakemake has profiles (docs/gpus.md)"
    for name in ("device", "threads", "workers", "determinism")
}


def _one_seed(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        raise ValueError(ONE_SEED)
    return value


def choices() -> dict[str, Any]:
    """Return the annotations of the fields that name a network or methods, with all that are known now."""
    bases = {name: method for name, method in METHODS.items() if not method.plugin}
    plugins = {name: method for name, method in METHODS.items() if method.plugin}
    elsewhere = dict.fromkeys(plugins, "is a plug-in; write it under 'plugins'")
    plugin: Any = choice(plugins, "plug-in", dict.fromkeys(bases, "is no plug-in; write it under 'method'"))
    return {
        "model": choice(MODELS, "model"),
        "method": choice(bases, "method", {**elsewhere, **FORMS}),
        "plugins": ListOf[plugin],
    }


if TYPE_CHECKING:
    AnyScheme: TypeAlias = Scheme
    AnyModel: TypeAlias = Model
    AnyMethod: TypeAlias = Method
    AnyPlugins: TypeAlias = tuple[Method, ...]
else:
    AnyScheme = choice(SCHEMES, "partition scheme")
    AnyModel, AnyMethod, AnyPlugins = choices().values()


class Participation(Settings):
    """Share of the clients that trains in a round, drawn uniformly without replacement.

    Attributes:
        fraction: clients per round as a share of all: 0.04 for 4 of 100. The number is rounded (halves to the
            even number: half of 5 clients are 2); at least one client.
    """

    fraction: float = Field(default=0.1, gt=0, le=1)

    def per_round(self, clients: int) -> int:
        """Number of clients per round, at least one."""
        return max(1, round(self.fraction * clients))

    def in_words(self, clients: int) -> str:
        """Return, for example, ``1 of 10 clients per round``."""
        return f"{self.per_round(clients)} of {count(clients, 'client')} per round"


def _fraction(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(f"a share is a number from 0 to 1, such as 0.5, got {value!r}")
    return {"fraction": value} if isinstance(value, int | float) and not isinstance(value, bool) else value


AnyLocalTest = Annotated[LocalTest, BeforeValidator(_fraction, json_schema_input_type=float | LocalTest)]


def _cohort(value: Any, info: ValidationInfo) -> Any:
    """Return a cohort's settings; refuse a number of clients."""
    settings = _fraction(value)
    number = settings.get("fraction") if isinstance(settings, Mapping) else None
    clients = info.data["partition"].clients if "partition" in info.data else 0
    if isinstance(number, int | float) and 1 < number < 2:
        raise Conflicts([f"fraction: a share of the clients, at most 1 (all clients), got {number:g}"])
    if isinstance(number, int | float) and 1 < number <= clients and number == int(number):
        share = f"{number:g} of {count(clients, 'client')} are {number / clients:.4g}"
        raise Conflicts([f"fraction: a share of the clients, from 0 to 1, got {number:g}; {share}"])
    return settings


AnyParticipation = Annotated[
    Participation, BeforeValidator(_cohort, json_schema_input_type=float | Participation)
]

Precision = Literal["fp32", "tf32", "bf16"]

StatisticName = Literal["drift", "similarity", "divergence", "dissimilarity", "separability"]


def _in_order(statistics: tuple[str, ...]) -> tuple[str, ...]:
    """Return the statistics, each once, in the order of ``StatisticName``: every order measures the same."""
    return tuple(name for name in get_args(StatisticName) if name in statistics)


class Evaluation(Settings):
    """Tests and further measurements.

    On local test images (``local_test``) all clients are tested, whether in the cohort or not.

    Attributes:
        every: rounds between tests. Each of the last tenth of the rounds is tested, too; their mean is the
            final accuracy.
        point: ``after_download`` tests the model that a client gets next from the server (the global model,
            unless the method defines another one); ``after_local`` tests the client's model after its last
            local training. In both cases the payload is the latest one.
        statistics: ``drift`` and ``similarity`` of the clients' updates, ``divergence`` of their weights from
            the new global ones and ``dissimilarity`` of their gradients (which costs an epoch) in every
            round, ``separability`` of the features at every test.
        targets: accuracies (0 to 1) whose first round is reported.
        extra: further datasets whose test images the model is tested on, normalised like the run's own.
        keep: the record also holds the final ``model``, and the models of the last round's ``clients``, for
            figures that analyse them.
        until: the run ends at the first test that reaches this accuracy (0 to 1). If this is before the last
            tenth of the rounds, the last test gives the final accuracy.
        validation: share of the training images that is set aside for choices, for example of a learning
            rate. It is stratified by class, drawn by the seed before the images are partitioned, and tested
            whenever the test images are. With ``local_test`` it is a share of each client's own images.
    """

    every: int = Field(default=1, ge=1)
    point: Literal["after_download", "after_local"] = "after_download"
    statistics: Annotated[ListOf[StatisticName], AfterValidator(_in_order)] = ()
    targets: ListOf[Annotated[float, Field(gt=0, le=1)]] = ()
    extra: ListOf[AnyDataset] = ()
    keep: Literal["nothing", "model", "clients"] = "nothing"
    until: float | None = added(None, gt=0, le=1)
    validation: float = added(0.0, ge=0, lt=1)


_FILES = {
    "paper": {"paper", "title"},
    "scale": {"scale", "title"},
    "table or figure": {"axes"},
    "run": {"dataset", "partition", "model", "method"},
}
"""Keys of each sort of declaration."""


def check_sort(data: Any, sort: str, where: str) -> None:
    """Refuse data that have the keys of another sort of file: ``run``, ``paper``, ``scale`` ..."""
    keys = data.keys() if isinstance(data, Mapping) else set()
    actual_sort = next((name for name, needed in _FILES.items() if needed <= keys), sort)
    if actual_sort != sort and not _FILES[sort] <= keys:
        remedy = "`fltrain train` trains" if actual_sort == "run" else "`fltrain plan` and `snakemake` read"
        raise FltrainError(f"{where}: declares a {actual_sort}, not a {sort}; {remedy} such files")


class RunSpec(Settings):
    """One training run: everything that decides its numbers.

    Attributes:
        dataset: training and test images; a name, or a mapping with options.
        partition: division of the training images among the clients.
        feature_skew: changes of the images that differ between clients (default: none).
        local_test: share of each client's images for testing (default: the dataset's test images).
        model: network.
        method: base method.
        plugins: plug-ins on the base method, in the order in which their hooks run.
        training: local training.
        rounds: communication rounds.
        participation: share of the clients in a round.
        evaluation: tests and further measurements.
        batchnorm: running statistics of BatchNorm: ``average`` averages them by data size; ``local`` leaves
            them with the client, as SiloBN does. Scales and shifts are averaged, except by ``fedbn``.
        precision: precision of products in layers: ``fp32``; ``tf32``, ten bits of each factor, on CUDA
            devices that have it; ``bf16``, eight bits. Weights, sums over clients and statistics are in
            single precision.
        seed: seed of all random streams: partition (unless it has its own seed), initial weights, cohorts,
            batches, augmentation.
    """

    dataset: AnyDataset
    partition: AnyScheme
    feature_skew: FeatureSkew | None = added(None)
    local_test: AnyLocalTest | None = None
    model: AnyModel
    method: AnyMethod
    plugins: AnyPlugins = ()
    training: Training = Training()
    rounds: int = Field(default=100, ge=1)
    participation: AnyParticipation = Participation()
    evaluation: Evaluation = Evaluation()
    batchnorm: Literal["average", "local"] = "average"
    precision: Precision = "fp32"
    seed: Annotated[int, BeforeValidator(_one_seed)] = Field(default=0, ge=0, lt=2**63)

    HINTS: ClassVar[Mapping[str, str]] = {"seeds": ONE_SEED, **_OPTIONS}
    engine: ClassVar[int] = ENGINE_REVISION

    @model_validator(mode="after")
    def _parts_fit_together(self, info: ValidationInfo) -> Self:
        if info.context == ALONE:
            return self
        conflicts, side, entry = [*self._conflicts()], self.dataset.side, self.dataset.entry
        checks: list[Callable[[], object]] = [
            partial(self.training.lr_schedule.check, self.rounds),
            partial(entry.normalisation, self.dataset.normalisation),
            partial(self.partition.check, self._images, entry.classes or math.inf),
        ]
        checks += [partial(self.training.augmentation.check, side)] if side is not None else []
        for check in checks:
            try:
                check()
            except ValueError as error:
                conflicts.append(str(error))
        if conflicts:
            raise Conflicts(conflicts)
        return self

    def _conflicts(self) -> Iterator[str]:
        """Yield settings that do not fit together, each with a remedy."""
        composition, evaluation, name = self.composition, self.evaluation, self.method.name
        data, entry, needs = self.dataset, self.dataset.entry, self.composition.needs
        if entry.train_images == 0:
            yield f"dataset: {data.name!r} is for testing only; name it in evaluation.extra"
        if len({extra.id for extra in evaluation.extra}) > len({extra.name for extra in evaluation.extra}):
            yield "evaluation.extra: names a dataset in two sizes, but one would be tested; leave one out"
        for extra in evaluation.extra:
            if extra.normalisation != "default":
                yield (
                    f"evaluation.extra: {extra.name!r} is normalised like the run's own dataset; leave out "
                    "'normalisation'"
                )
        if self.training.batch_size == 1 and (parts := composition.schedule.batches) > 1:
            yield (
                f"training.batch_size: {name!r} takes {parts} different batches for a step, of two images or "
                "more; set it to 2 or more"
            )
        if data.side is not None and data.side < self.model.min_side:
            yield (
                f"model: {self.model.name!r} needs images of at least {self.model.min_side} pixels, "
                f"{data.id!r} has {data.side}; set dataset.image_size"
            )
        if self.training.augmentation.flip and not entry.horizontal_flip:
            yield (
                f"training.augmentation.flip: mirrored images of {data.name!r} leave their class; set it to "
                "false"
            )
        if self.participation.per_round(self.partition.clients) < self.partition.clients:
            for method in composition.methods:
                if method.needs.schedule and method.needs.schedule.all_clients:
                    yield (
                        f"method: {method.name!r} needs all clients in every round with these settings; set "
                        "participation.fraction to 1"
                    )
        for setting, used in {
            f"method: {name!r} makes a model for each client": composition.personal,
            "batchnorm: 'local' makes a model for each client": self.batchnorm == "local",
            "evaluation.point: 'after_local' tests each client": evaluation.point == "after_local",
        }.items():
            if used and not self.local_test:
                yield f"{setting}; set local_test, so that clients have images to test it on"
        if self.batchnorm == "local" or not needs.global_model:
            cause = "batchnorm 'local'" if needs.global_model else f"method {name!r}"
            if evaluation.keep == "model":
                yield f"evaluation.keep: 'model' is the global model, but {cause} has none; use 'clients'"
            if evaluation.extra:
                yield f"evaluation.extra: needs a global model; {cause} has none; leave it out"
        compared: tuple[str, ...] = () if needs.global_model else ("divergence", "dissimilarity")
        # Updates can still be compared in the parameters that clients share.
        if compared and needs.private in (None, "all"):
            compared += ("drift", "similarity")
        for statistic in evaluation.statistics:
            if statistic in compared:
                yield (
                    f"evaluation.statistics: {statistic!r} compares models that clients share; with method "
                    f"{name!r} they share none; leave it out"
                )
            if statistic == "separability" and self.local_test:
                yield (
                    "evaluation.statistics: 'separability' needs the global test images, not local_test; "
                    "leave out one of the two"
                )

    @classmethod
    def recorded(cls, data: Any, where: str = "spec.json") -> Self:
        """Return the settings in a run's file or a record's spec, which also has revisions of components."""
        if isinstance(data, dict):
            data = copy(data)
            data.pop("revisions", None)
        check_sort(data, "run", where)
        return cls.parse(data, where)

    @property
    def personal(self) -> bool:
        """True if each client is tested with its own model."""
        keeps_parts = self.batchnorm == "local" or self.evaluation.point == "after_local"
        return keeps_parts or self.composition.personal

    @property
    def _images(self) -> float:
        """Number of images to be divided over clients; infinite if the registry has none."""
        entry = self.dataset.entry
        if not entry.train_images or entry.test_images is None:
            return math.inf
        if self.local_test:
            return entry.train_images + entry.test_images
        return entry.train_images - math.ceil(self.evaluation.validation * entry.train_images)

    @property
    def test_split(self) -> str:
        """Name of the split whose accuracy counts: the global test images, or the clients' own."""
        return "local_test" if self.local_test else "test"

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The run's dataset, and further ones whose test images it uses."""
        return (self.dataset, *self.evaluation.extra)

    @cached_property
    def composition(self) -> Composition:
        """The method with its plug-ins, in order."""
        return Composition((self.method, *self.plugins))

    @cached_property
    def canonical(self) -> dict[str, Any]:
        """Plain data that the run ID hashes: all settings and the revisions of the components.

        It includes defaults, except of settings declared with ``fltrain.core.config.added``.
        """
        revisions = {
            "engine": self.engine,
            "dataset": self.dataset.revision,
            "extra": [data.revision for data in self.evaluation.extra],
            "partition": self.partition.revision,
            "model": self.model.revision,
            "methods": [method.revision for method in self.composition.methods],
            "lr_schedule": self.training.lr_schedule.revision,
        }
        if self.feature_skew is not None:
            revisions["feature_skew"] = self.feature_skew.revision
        # Two registries can state different values for one dataset.
        if normalisation := own_normalisation(self.dataset.name, self.dataset.normalisation):
            revisions["normalisation"] = normalisation
        return {**self.model_dump(mode="json"), "revisions": revisions}

    @cached_property
    def run_id(self) -> str:
        """Readable slug and ten hex digits, for example ``digits-fedprox+flfa-3f9c02ab41``."""
        return f"{self.dataset.name}-{self.composition.name}-{short_hash(self.canonical)}"

    @property
    def partition_seed(self) -> int:
        """Seed of the partition: the run's, unless the partition has its own."""
        return self.seed if self.partition.seed is None else self.partition.seed

    @cached_property
    def partition_id(self) -> str:
        """Name of the partition: runs that agree in data, scheme and seed share it."""
        data = {**self.dataset.prepared.model_dump(mode="json"), "revision": self.dataset.revision}
        scheme = {**self.partition.model_dump(mode="json"), "revision": self.partition.revision}
        local = self.local_test and self.local_test.model_dump(mode="json")
        settings: list[Any] = [data, scheme, local, self.partition_seed]
        settings += [self.evaluation.validation] if self.evaluation.validation else []
        return f"{self.dataset.id}-{self.partition.name}-{short_hash(settings)}"

    @property
    def division(self) -> Division:
        """Settings of the partition."""
        return Division(self.partition, self.local_test, self.partition_seed, self.evaluation.validation)

    @property
    def final_rounds(self) -> range:
        """The last tenth of the rounds (counted from 1), at least one."""
        return range(self.rounds - math.ceil(self.rounds / 10) + 1, self.rounds + 1)

    def evaluates(self, round: int) -> bool:
        """Return True if models are tested after the given round (counted from 1)."""
        return round % self.evaluation.every == 0 or round in self.final_rounds

    def to_json(self) -> str:
        """Return canonical JSON without revisions, for ``parse``."""
        return canonical_json(self.model_dump(mode="json"))
