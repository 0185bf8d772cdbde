"""The networks of the five papers: published or counted sizes, structure, cuts, views, options."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import pytest
import torch
import torchvision
from torch import Tensor, nn

from fltrain.core.errors import FltrainError
from fltrain.experiments.work import network_work
from fltrain.models.base import Model, build
from fltrain.models.flat import FlatModel
from fltrain.models.network import Network, layers
from fltrain.models.networks import MODELS

from .helpers import tiny

GN = {"norm": "gn"}
B, T = {"variant": "b"}, {"variant": "t"}
IMAGENET = {"stem": "imagenet"}

Case = tuple[str, dict[str, Any], int, int, int]
"""Model, options, channels, side, classes."""

NETWORKS: dict[str, tuple[Case, int | None, int]] = {
    # every network once, and every option that changes its structure; published or counted parameters, layers
    "mobilenet_tiny": (("mobilenet_tiny", {}, 1, 8, 10), None, 9),
    "mobilenetv2 a": (("mobilenetv2", {}, 3, 32, 10), 2_254_090, 54),
    "mobilenetv2 a gn": (("mobilenetv2", GN, 3, 32, 10), 2_254_090, 54),
    "mobilenetv2 b": (("mobilenetv2", B, 3, 32, 10), 2_237_770, 54),
    "mobilenetv2 t": (("mobilenetv2", T, 3, 32, 10), 2_236_682, 53),
    "mobilenetv2 t stride 2": (("mobilenetv2", {**T, "stem_stride": 2}, 3, 32, 10), 2_236_682, 53),
    "mobilenetv1": (("mobilenetv1", {}, 3, 32, 10), 3_217_226, 28),
    "resnet18": (("resnet18", {}, 3, 32, 10), 11_173_962, 21),
    "resnet18 imagenet": (("resnet18", IMAGENET, 3, 32, 100), 11_227_812, 21),
    "resnet18 gn": (("resnet18", GN, 3, 32, 10), 11_173_962, 21),
    "resnet50": (("resnet50", {}, 3, 32, 10), 23_520_842, 54),
    "lenet5": (("lenet5", {}, 1, 28, 10), 61_706, 5),
    "ecgr_cnn": (("ecgr_cnn", {}, 3, 32, 10), 1_167_872, 7),
    "vgg_tiny": (("vgg_tiny", {}, 3, 16, 10), 130_194, 7),
    "vgg9": (("vgg9", {}, 3, 32, 10), 3_491_530, 9),
    "vgg9 bn": (("vgg9", {"norm": "bn"}, 3, 32, 10), None, 9),
    "vgg9 gn": (("vgg9", GN, 3, 32, 10), None, 9),
    "vgg11": (("vgg11", {}, 3, 32, 10), 9_750_922, 11),
    "vgg16": (("vgg16", {}, 3, 32, 100), 15_291_300, 16),
    "vgg16 one fc": (("vgg16", {"fc_layers": 1}, 3, 32, 100), 14_765_988, 14),
    "mlp": (("mlp", {}, 1, 28, 10), 79_510, 2),
    "2nn": (("2nn", {}, 1, 28, 10), 199_210, 3),
    "fedavg_cnn": (("fedavg_cnn", {}, 3, 32, 10), 878_538, 4),
    "fedavg_cnn padded": (("fedavg_cnn", {"padding": 2}, 3, 32, 10), 2_156_490, 4),
}


def declared(name: str, options: dict[str, Any]) -> Model:
    return MODELS[name].parse({"name": name, **options}, "model")


def built(name: str, options: dict[str, Any], *image: int) -> Network:
    """The network of seed 0 for these channels, side and classes."""
    return build(declared(name, options), *image, seed=0)


def images(channels: int, side: int, count: int = 2) -> Tensor:
    return torch.randn(count, channels, side, side, generator=torch.Generator().manual_seed(1))


def upper(network: Network, maps: Tensor, split: int) -> Tensor:
    """The logits of maps from the part above a cut."""
    result: Tensor = network.classifier(network.upper_features(maps, split))
    return result


LARGE = (
    *("resnet50", "resnet18 imagenet", "resnet18 gn", "vgg9 bn", "vgg9 gn", "vgg11", "vgg16", "vgg16 one fc"),
    *("mobilenetv2 a gn", "mobilenetv2 b", "mobilenetv2 t stride 2"),
)
"""Networks that take long and have a smaller relative, or one that differs in its norm only."""


every_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=pytest.mark.slow if name in LARGE else ())
        for name, (case, *_) in NETWORKS.items()
    ],
)


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_and_layers(name: str) -> None:
    (model, options, *image), parameters, depth = NETWORKS[name]
    with torch.device("meta"):
        network = declared(model, options).network(*image)
    assert parameters in (None, sum(parameter.numel() for parameter in network.parameters()))
    assert sum(isinstance(module, nn.Conv2d | nn.Linear) for module in network.modules()) == depth


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(
        FltrainError, match=r"'vgg16' needs images of at least 32 pixels.*dataset\.image_size"
    ):
        tiny(model="vgg16")
    with pytest.raises(FltrainError, match="'fedavg_cnn' needs images of at least 16 pixels"):
        tiny(model="fedavg_cnn")
    assert tiny(model={"name": "fedavg_cnn", "padding": 2}).model.min_side == 4


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("channels", "larger"), [(1, 0), pytest.param(3, 5, marks=pytest.mark.slow)])
def test_networks_accept_images_from_their_minimum_size(name: str, channels: int, larger: int) -> None:
    model = MODELS[name]()
    side = model.min_side + larger
    network = build(model, channels, side, 7, seed=0)
    assert isinstance(network, Network)
    batch = images(channels, side, count=3)
    features = network.eval().features(batch)
    assert (features.dim(), len(features)) == (2, 3)
    assert network(batch).shape == (3, 7)
    assert torch.equal(network.classifier(features), network(batch))
    layout = FlatModel(network, batch[:1]).layout
    assert layout.size == sum(parameter.numel() for parameter in network.parameters())
    assert layout.size - layout.head == sum(tensor.numel() for tensor in network.classifier.parameters())


@every_case
def test_composition_of_the_parts_at_a_cut_is_the_network(case: Case) -> None:
    _, _, channels, side, _ = case
    network = built(*case).train()
    batch = images(channels, side)

    def seeded(function: Any, *arguments: Any) -> Tensor:
        torch.manual_seed(3)  # dropout, if there is any
        result: Tensor = function(*arguments)
        return result

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        logits = seeded(network, batch)
        assert torch.equal(logits, seeded(lambda: network.classifier(network.features(batch))))
        for split in network.splits:
            assert torch.equal(logits, seeded(lambda at: upper(network, network.lower(batch, at), at), split))


@pytest.mark.parametrize(
    ("case", "shapes"),
    [
        (
            ("resnet18", {}, 3, 32, 10),
            {1: (64, 32, 32), 5: (64, 32, 32), 9: (128, 16, 16), 13: (256, 8, 8), 17: (512,)},
        ),
        (
            ("resnet50", {}, 3, 32, 100),
            {1: (64, 32, 32), 10: (256, 32, 32), 22: (512, 16, 16), 40: (1024, 8, 8), 49: (2048,)},
        ),
        (
            ("vgg9", {}, 3, 32, 10),
            {
                **{1: (32, 32, 32), 2: (64, 16, 16), 3: (128, 16, 16)},
                **{4: (128, 8, 8), 5: (256, 8, 8), 6: (4096,)},
            },
        ),
    ],
    ids=["resnet18", "resnet50", "vgg9"],
)
def test_maps_at_the_cuts_of_fedimpro(case: Case, shapes: dict[int, tuple[int, ...]]) -> None:
    network = built(*case).eval()
    assert list(network.splits) == list(shapes)
    maps = images(*case[2:4], count=1)
    with torch.no_grad():
        for split, shape in shapes.items():
            assert network.lower(maps, split).shape == (1, *shape)


def test_a_model_without_blocks_is_refused() -> None:
    class Empty(Model):
        name: Literal["empty"] = "empty"
        min_side: ClassVar[int] = 1

    with pytest.raises(FltrainError, match="model 'empty': its class has to define blocks or network"):
        Empty().network(1, 8, 10)


@pytest.mark.parametrize(
    ("blocks", "names"),
    [
        ({}, "none"),
        ({"flatten": nn.Flatten(), "fc": nn.Linear(64, 10)}, "'flatten', 'fc'"),
        ({"classifier": nn.Linear(64, 10), "flatten": nn.Flatten()}, "'classifier', 'flatten'"),
        ([nn.Linear(64, 10)], "list"),
    ],
)
def test_blocks_that_do_not_end_in_a_classifier_are_refused(blocks: Any, names: str) -> None:
    class Wrong(Model):
        """A network."""

        name: Literal["wrong"] = "wrong"
        min_side: ClassVar[int] = 1

        def blocks(self, channels: int, side: int, classes: int) -> Any:
            return blocks

    with pytest.raises(FltrainError, match=f"model 'wrong': .* called 'classifier'; found {names}$"):
        Wrong().network(1, 8, 10)


def test_a_fault_names_the_block_and_the_shape_of_its_input() -> None:
    parts: tuple[tuple[int, int, str], ...] = ((65, 20, "fc1"), (64, 21, "classifier"))
    for width, features, name in parts:
        network = Network(flatten=nn.Flatten(), fc1=nn.Linear(width, 20), classifier=nn.Linear(features, 10))
        with pytest.raises(RuntimeError, match="cannot be multiplied") as refused:
            network(torch.zeros(1, 1, 8, 8))
        shape = [1, 64] if name == "fc1" else [1, 20]
        assert refused.value.__notes__ == [f"block {name!r} of the network, input {shape}"]


def test_unknown_cuts_are_refused() -> None:
    network = built(*NETWORKS["resnet18"][0])
    for part in (network.lower, network.upper_features):
        with pytest.raises(FltrainError, match=r"split at convolution 7 \(possible: 1, 5, 9, 13, 17\)"):
            part(images(3, 16), 7)
    with pytest.raises(FltrainError, match="it has no convolutions"):
        built(*NETWORKS["mlp"][0]).lower(images(1, 8), 1)


@every_case
def test_inputs_of_layers_and_flat_views(case: Case) -> None:
    _, _, channels, side, _ = case
    network = built(*case)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    model = FlatModel(network, images(channels, side))

    wired = model.layout.layers
    fed = {consumer for layer in wired for consumer in layer.consumers}
    assert fed == set(range(1, len(wired))), "the first layer alone reads images"
    assert [layer.name for layer in wired if not layer.consumers] == ["classifier"]

    now = network.state_dict()
    vectors = (model.weights, model.buffers, model.counters)
    layouts = (model.layout.parameters, model.layout.buffers, model.layout.counters)
    assert sum(map(len, layouts)) == len(before)
    for vector, laid_out in zip(vectors, layouts, strict=True):
        assert len(vector) == (laid_out[-1].stop if laid_out else 0)
        for slot in laid_out:
            assert torch.equal(slot.of(vector), before[slot.name])
            assert now[slot.name].data_ptr() == slot.of(vector).data_ptr()

    with torch.random.fork_rng(devices=[]):
        network.train()(images(channels, side)).sum().backward()
    for slot, parameter in zip(model.layout.parameters, network.parameters(), strict=True):
        assert parameter.grad is not None
        assert parameter.grad.data_ptr() == slot.of(model.gradient).data_ptr()
    network.zero_grad()


def test_inputs_of_shortcuts() -> None:
    """A shortcut has the input of its block, and the next layer reads both outputs."""
    for name, path, shortcut, end, following in (
        ("resnet18", "stage2.0.conv1", "stage2.0.downsample.0", "stage2.0.conv2", "stage2.1.conv1"),
        ("resnet50", "stage1.0.conv1", "stage1.0.downsample.0", "stage1.0.conv3", "stage1.1.conv1"),
    ):
        case, *_ = NETWORKS[name]
        wired = layers(built(*case), images(*case[2:4]))
        readers = {layer.name: {wired[index].name for index in layer.consumers} for layer in wired}
        producers = {layer: {name for name in readers if layer in readers[name]} for layer in readers}
        assert producers[path] == producers[shortcut] != set()
        assert producers[following] == {shortcut, end}


@pytest.mark.parametrize(
    "look", [layers, lambda *seen: network_work(*seen, classes=10)], ids=["layers", "work"]
)
def test_no_hook_stays_after_a_failed_pass(look: Callable[..., Any]) -> None:
    network = built("lenet5", {}, 3, 32, 10)
    with pytest.raises(RuntimeError):
        look(network, images(1, 32))
    assert network.training and not any(module._forward_hooks for module in network.modules())


def test_groups_of_groupnorm() -> None:
    def groups(case: Case) -> list[int]:
        return [module.num_groups for module in built(*case).modules() if isinstance(module, nn.GroupNorm)]

    assert groups(NETWORKS["vgg9 gn"][0]) == [2, 4, 8, 8, 16, 16]
    assert set(groups(NETWORKS["mobilenetv2 a gn"][0])) == {2}
    assert groups(("vgg9", {"norm": "gn", "norm_groups": 32}, 3, 16, 10)) == [32] * 6
    narrow = groups(("mobilenetv2", {"norm": "gn", "norm_groups": None}, 3, 16, 10))
    assert narrow[:4] == [2, 2, 2, 1]  # 32, 32, 32 and 16 channels


@pytest.mark.parametrize(
    ("scheme", "names"),
    [
        ("he", ("vgg11", "vgg16", "resnet18")),
        ("he_fan_in", ("mobilenetv2", "resnet50")),
        ("glorot", ("2nn", "fedavg_cnn")),
        ("normal", ("2nn", "fedavg_cnn")),
    ],
)
def test_initialisations(scheme: str, names: tuple[str, ...]) -> None:
    """Spread of the weights, limits of a uniform and of a cut normal distribution, and biases."""
    for name in names:
        image = (3, 32, 10) if scheme.startswith("he") else (1, 28, 10)
        for module in built(name, {"initialisation": scheme}, *image).modules():
            if not isinstance(module, nn.Conv2d if scheme == "he" else nn.Conv2d | nn.Linear):
                continue
            weight, fan_in = module.weight, module.weight[0].numel()
            fan_out = module.weight[0, 0].numel() * len(weight)
            deviation, largest = {
                "he": (math.sqrt(2 / fan_out), math.inf),
                "he_fan_in": (math.sqrt(2 / fan_in), math.inf),
                "glorot": (math.sqrt(2 / (fan_in + fan_out)), math.sqrt(6 / (fan_in + fan_out))),
                "normal": (0.0880, 0.2),
            }[scheme]
            if weight.numel() > 5_000:
                assert weight.std().item() == pytest.approx(deviation, rel=0.05)
            assert weight.abs().max() <= largest
            assert module.bias is None or (module.bias == (0.1 if scheme == "normal" else 0.0)).all()


@pytest.mark.parametrize(
    ("name", "options", "theirs"),
    [
        ("resnet18", IMAGENET, torchvision.models.resnet18),
        ("resnet50", IMAGENET, torchvision.models.resnet50),
        ("mobilenetv2", {**T, "stem_stride": 2}, torchvision.models.mobilenet_v2),
    ],
    ids=["resnet18", "resnet50", "mobilenetv2"],
)
def test_outputs_equal_torchvisions(name: str, options: dict[str, Any], theirs: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        original = theirs(num_classes=10)
        with torch.no_grad():
            original(images(3, 64, count=3))  # running statistics that are not 0 and 1
        network = declared(name, options).network(3, 64, 10)
    state = zip(network.state_dict(), original.state_dict().values(), strict=True)
    network.load_state_dict(dict(state))
    with torch.no_grad():
        assert torch.equal(network.eval()(images(3, 64)), original.eval()(images(3, 64)))


@pytest.mark.parametrize(("stem_stride", "side"), [(1, 2), (2, 1)])
def test_total_stride_of_mobilenetv1(stem_stride: int, side: int) -> None:
    maps, network = images(3, 32), built("mobilenetv1", {"stem_stride": stem_stride}, 3, 32, 10)
    for name, block in network.named_children():
        if name.startswith(("stem", "block")):
            maps = block(maps)
    assert maps.shape[1:] == (1024, side, side)
