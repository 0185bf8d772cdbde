"""The cluster of all tests here."""

from collections.abc import Iterator

import pytest

from .slurm import Slurm


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm")).started() as slurm:
        yield slurm
