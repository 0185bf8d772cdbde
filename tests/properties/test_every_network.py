"""Properties of every network, also of those added later: every method trains on it, or refuses it."""

import pytest

from fltrain.core.errors import FltrainError
from fltrain.models.networks import MODELS

from .helpers import BASES, PLUGINS, digits, trained

METHODS = [(base(),) for base in BASES] + [(plugin(),) for plugin in PLUGINS]
SMALL = ("lenet5", "mlp", "mobilenet_tiny")
"""Networks that every method trains; the others take minutes."""

FEW = ("fedavg", "fedma", "fed2", "fedproto", "gpfl", "flfa", "fedimpro")
"""Methods that look into a network, and federated averaging, for the large networks."""


@pytest.mark.parametrize(
    "name", [name if name in SMALL else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_every_method_trains_or_refuses(name: str) -> None:
    model = MODELS[name]()
    data = digits(8 * -(-model.min_side // 8))
    refused = []
    for methods in METHODS if name in SMALL else [pair for pair in METHODS if pair[0].name in FEW]:
        try:
            federation = trained(
                *methods, model=model, data=data, rounds=1, fraction=0.34, batch_size=32, lr=0.001
            )
        except FltrainError as error:
            assert "\n" not in str(error)
            refused.append(methods[0].name)
        else:
            assert federation.server.weights.isfinite().all()
    assert set(refused) <= {"fedma", "fed2", "fedimpro"}, "they need chains of layers, or a cut"
