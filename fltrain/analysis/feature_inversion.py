"""Feature inversion: images recovered from shared features (FedImpro, appendix F.7).

An attacker has the global model, and hence the map from an image to its features at a cut. The attack
searches for an image with the given features: the features of one private image, or only means over the
images of a client, with or without noise.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fltrain.analysis.trained_model import TrainedRun
from fltrain.core.errors import FltrainError
from fltrain.core.rng import Purpose, stream
from fltrain.engine.data import FederatedData
from fltrain.experiments.layout import Attack, Inversion, RecoveredRow, Target

Features = Callable[[Tensor], Tensor]
"""Maps images ``[n, channels, height, width]``, 0 to 1, to the output of the part below the cut."""

TOGETHER = 32
"""Targets attacked in one optimisation, independently of each other."""
BATCH = 256
"""Images whose features are computed at once."""

# The prior: settings and names of Ulyanov et al. (Deep image prior, CVPR 2018).
INPUT_CHANNELS = 32
INPUT_RANGE = 0.1
SKIP_CHANNELS = 4
SLOPE = 0.2
MOST_SCALES = 5
PERTURBATION = 1 / 30

# Structural similarity, after Wang et al. (Image quality assessment, IEEE TIP 2004).
WINDOW = 11
SMALL_WINDOW = 7
WINDOW_DEVIATION = 1.5
SSIM_CONSTANTS = (0.01**2, 0.03**2)


# ---------------------------------------------------------------- similarity of images
def psnr(images: Tensor, references: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio in dB of images ``[n, ...]`` from 0 to 1; infinite if equal."""
    return -10 * (images - references).square().flatten(1).mean(1).log10()


def ssim(images: Tensor, references: Tensor) -> Tensor:
    """Return the structural similarity ``[n]`` of images ``[n, channels, height, width]`` from 0 to 1.

    It is the mean over channels and over all places of a Gaussian window inside the image: 11 x 11 pixels, or
    at most 7 x 7 on smaller images.
    """
    channels, *sides = images.shape[1:]
    images, references = images.double(), references.double()
    side = WINDOW if min(sides) >= WINDOW else min(SMALL_WINDOW, (min(sides) - 1) // 2 * 2 + 1)
    places = torch.arange(side, device=images.device, dtype=images.dtype) - side // 2
    line = torch.exp(-(places**2) / (2 * WINDOW_DEVIATION**2))
    line = line / line.sum()
    window = (line[:, None] * line).expand(channels, 1, side, side)

    def local(values: Tensor) -> Tensor:
        return functional.conv2d(values, window, groups=channels)

    mean, reference_mean = local(images), local(references)
    variances = (local(images**2) - mean**2) + (local(references**2) - reference_mean**2)
    covariance = local(images * references) - mean * reference_mean
    first, second = SSIM_CONSTANTS
    similarity = (2 * mean * reference_mean + first) * (2 * covariance + second)
    similarity = similarity / ((mean**2 + reference_mean**2 + first) * (variances + second))
    return similarity.flatten(1).mean(1).float()


# ---------------------------------------------------------------- the attack
class _Prior(nn.Module):
    """Attacker with a deep image prior: encoder and decoder with skips make an image from fixed noise.

    It makes one image ``[targets, channels, height, width]`` per target. Targets share no parameters, start
    from the same ones and get the same noise. The networks of all targets form one network with grouped
    convolutions: maps ``[1, targets * channels, h, w]``. Hence BatchNorm uses the moments over the pixels of
    one target.
    """

    input: Tensor

    def __init__(self, attack: Attack, targets: int, shape: Sequence[int], random: torch.Generator) -> None:
        super().__init__()
        channels, *sides = shape
        self.targets = targets
        scales = max(1, min(MOST_SCALES, int(math.log2(min(sides))) - 1))
        width, joined = attack.channels, attack.channels + SKIP_CHANNELS
        # On the meta device layers draw no initial weights from PyTorch's own generator.
        with torch.device("meta"):
            inputs = [INPUT_CHANNELS, *[width] * (scales - 1)]
            self.skips = nn.ModuleList(self._layer(entering, SKIP_CHANNELS, 1) for entering in inputs)
            self.encoders = nn.ModuleList(
                nn.Sequential(self._layer(entering, width, 3, stride=2), self._layer(width, width, 3))
                for entering in inputs
            )
            self.decoders = nn.ModuleList(
                nn.Sequential(self._norm(joined), self._layer(joined, width, 3), self._layer(width, width, 1))
                for _ in inputs
            )
            self.last = nn.Conv2d(targets * width, targets * channels, 1, groups=targets)
        self.to_empty(device="cpu")
        self.register_buffer("input", INPUT_RANGE * torch.rand((1, INPUT_CHANNELS, *sides), generator=random))
        self._initialise(random)

    def _norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(self.targets * channels, track_running_stats=False)

    def _layer(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
        convolution = nn.Conv2d(
            self.targets * inputs,
            self.targets * outputs,
            kernel,
            stride,
            padding=kernel // 2,
            groups=self.targets,
            bias=False,
        )
        return nn.Sequential(convolution, self._norm(outputs), nn.LeakyReLU(SLOPE, inplace=True))

    @torch.no_grad()
    def _initialise(self, random: torch.Generator) -> None:
        """Draw the initial values of PyTorch's layers, the same for every target."""
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()
            elif isinstance(module, nn.Conv2d):
                weight = torch.empty(len(module.weight) // self.targets, *module.weight.shape[1:])
                nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=random)
                module.weight.copy_(weight.repeat(self.targets, 1, 1, 1))
                if module.bias is not None:
                    module.bias.zero_()

    def forward(self, random: torch.Generator) -> Tensor:
        noise = torch.randn(self.input.shape, generator=random).to(self.input.device)
        maps = (self.input + PERTURBATION * noise).repeat(1, self.targets, 1, 1)
        skipped = []
        for skip, encoder in zip(self.skips, self.encoders, strict=True):
            skipped.append(skip(maps))
            maps = encoder(maps)
        for skip, decoder in zip(reversed(skipped), self.decoders, strict=True):
            maps = functional.interpolate(maps, skip.shape[2:], mode="bilinear")
            joined = torch.cat([self._by_target(maps), self._by_target(skip)], 1)
            maps = decoder(joined.flatten(0, 1)[None])
        return self._by_target(self.last(maps)).sigmoid()

    def _by_target(self, maps: Tensor) -> Tensor:
        """Return the maps of each target: ``[targets, channels, h, w]``."""
        return maps.view(self.targets, -1, *maps.shape[2:])


class Inverted(NamedTuple):
    """Images ``[n, channels, height, width]`` from 0 to 1 that an attack recovered.

    ``loss`` is the mean square between their features and the targets ``[n]``, ``before`` the same for the
    initial images.
    """

    images: Tensor
    before: Tensor
    loss: Tensor


def invert(
    features: Features, targets: Tensor, shape: Sequence[int], attack: Attack, seed: int = 0
) -> Inverted:
    """Return images of a shape (channels, height, width) whose features approach the targets ``[n, ...]``.

    All random numbers come from ``seed``. The result for a target does not depend on the others, except for
    rounding.
    """
    parts = [_invert(features, part, shape, attack, seed) for part in targets.split(TOGETHER)]
    return Inverted(*map(torch.cat, zip(*parts, strict=True)))


def _invert(features: Features, targets: Tensor, shape: Sequence[int], attack: Attack, seed: int) -> Inverted:
    random = _generator(seed, "attack")
    attacker = _Prior(attack, len(targets), shape, random).to(targets.device)
    parameters = list(attacker.parameters())
    optimiser = torch.optim.Adam(parameters, lr=attack.lr, fused=True)
    power = targets.square().flatten(1).mean(1).clamp(min=torch.finfo(targets.dtype).tiny)

    def losses(images: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each image the mean square between features and target, and the minimised loss."""
        loss = (features(images) - targets).square().flatten(1).mean(1)
        return loss, loss / power

    average = torch.zeros((len(targets), *shape), device=targets.device)
    best, before, loss, lowest = average, *[average.new_full((len(targets),), math.inf)] * 3
    for step in range(attack.steps + 1):
        output = attacker(random)
        output_loss, output_objective = losses(output)
        with torch.no_grad():
            if step == 0:
                before = output_loss.detach()
            average = attack.ema * average + (1 - attack.ema) * output
            images = (average / (1 - attack.ema ** (step + 1))).clamp(0, 1)
            error, objective = losses(images) if attack.ema else (output_loss, output_objective)
            better = objective < lowest
            best = torch.where(better.view(-1, 1, 1, 1), images, best)
            loss, lowest = error.where(better, loss), objective.where(better, lowest)
        if step < attack.steps:
            optimiser.zero_grad()
            output_objective.sum().backward(inputs=parameters)
            optimiser.step()
    return Inverted(best, before, loss)


# ---------------------------------------------------------------- private images and targets
@dataclass(frozen=True)
class Private:
    """A private image and its client.

    ``image`` is its index in the training split; ``of_class`` are the indices of the client's images of its
    class, ``of_client`` the indices of all its images.
    """

    label: int
    client: int
    image: int
    of_class: Tensor
    of_client: Tensor

    def averaged(self, target: Target) -> int:
        """Return the number of images whose features the target averages."""
        return {"raw": 1, "class_mean": len(self.of_class), "mean": len(self.of_client)}[target]


def private_images(data: FederatedData) -> Iterator[Private]:
    """Yield the first image of every class, then the second ..., at the client with most of the class."""

    def of_class(label: int, client: int) -> Iterator[Private]:
        indices = data.clients[client]
        images = indices[data.train.labels.index_select(0, indices) == label]
        return (Private(label, client, image, images, indices) for image in images.tolist())

    holders = data.class_counts.argmax(0).tolist()
    for ranked in zip_longest(*(of_class(label, client) for label, client in enumerate(holders))):
        yield from filter(None, ranked)


@dataclass(frozen=True)
class Compared:
    """Images ``[n, channels, height, width]``, and their similarity to the nearest private image."""

    images: Tensor
    psnr: Tensor
    ssim: Tensor


@dataclass(frozen=True)
class Recovery:
    """Images recovered from one kind of target, one for every private image (see ``Inverted``)."""

    row: RecoveredRow
    recovered: Compared
    before: Tensor
    loss: Tensor


@dataclass(frozen=True)
class Recovered:
    """Result of an attack on a run, on the CPU.

    Attributes:
        private: the private images; ``images`` holds their pixels ``[n, channels, height, width]``, 0 to 1.
        class_means: mean image of the class at the client, for every private image.
        client_means: mean image of the client.
        recoveries: a row of recovered images for each target.
    """

    private: tuple[Private, ...]
    images: Tensor
    class_means: Compared
    client_means: Compared
    recoveries: tuple[Recovery, ...]

    def baseline(self, recovery: Recovery) -> Compared:
        """Return the mean images that recovered ones have to beat."""
        return self.client_means if recovery.row.target == "mean" else self.class_means


def recover(run: TrainedRun, figure: Inversion) -> Recovered:
    """Attack the global model of a run with a figure's settings; random numbers come from the run's seed.

    Raises:
        FltrainError: if the network has no such cut, or the run has fewer images than ``figure.images``.
    """
    run.load_global()
    network, train = run.network, run.data.train
    cut = network.cut(figure.split)
    private = tuple(islice(private_images(run.data), figure.images))
    if len(private) < figure.images:
        raise FltrainError(
            f"figure.images: {figure.images}, but the clients have only {len(private)} to show; "
            "use at most these"
        )

    def features(images: Tensor) -> Tensor:
        return network.lower(torch.addcmul(train.shift, 255 * images, train.scale), cut)

    def pictures(indices: Tensor) -> Tensor:
        return train.images.index_select(0, indices).float() / 255

    def means(sets: Sequence[Tensor], of: Features) -> Tensor:
        return torch.stack([_mean(of(pictures(part)) for part in images.split(BATCH)) for images in sets])

    def compared(images: Tensor, sets: Sequence[Tensor]) -> Compared:
        nearest = torch.stack(
            [_nearest(image, pictures(indices)) for image, indices in zip(images, sets, strict=True)]
        )
        return Compared(images.cpu(), psnr(images, nearest).cpu(), ssim(images, nearest).cpu())

    sets = {"class": [entry.of_class for entry in private], "client": [entry.of_client for entry in private]}
    originals = pictures(torch.tensor([entry.image for entry in private], device=train.images.device))
    with torch.no_grad():
        revealed = {
            "raw": features(originals),
            "class_mean": means(sets["class"], features),
            "mean": means(sets["client"], features),
        }
        mean_images = {
            name: compared(means(images, lambda pixels: pixels), images) for name, images in sets.items()
        }
    noise = torch.randn(revealed["raw"].shape, generator=_generator(run.spec.seed, "noise")).to(originals)
    targets = torch.cat([revealed[row.target] + row.noise * noise for row in figure.rows])
    inverted = invert(features, targets, originals.shape[1:], figure.attack, run.spec.seed)
    recoveries = []
    for place, row in enumerate(figure.rows):
        part = slice(place * len(private), (place + 1) * len(private))
        recoveries.append(
            Recovery(
                row,
                compared(inverted.images[part], sets["client" if row.target == "mean" else "class"]),
                inverted.before[part].cpu(),
                inverted.loss[part].cpu(),
            )
        )
    return Recovered(private, originals.cpu(), mean_images["class"], mean_images["client"], tuple(recoveries))


def _mean(parts: Iterable[Tensor]) -> Tensor:
    """Return the mean over all rows of tensors with equal rows."""
    sums, counts = zip(*[(part.sum(0, dtype=torch.float64), len(part)) for part in parts], strict=True)
    return torch.stack(sums).sum(0).div(sum(counts)).float()


def _nearest(image: Tensor, candidates: Tensor) -> Tensor:
    """Return the candidate with the smallest mean square distance from an image."""
    return candidates[psnr(candidates, image.expand_as(candidates)).argmax()]


def _generator(seed: int, use: str) -> torch.Generator:
    """Return a generator on the CPU, so that the numbers do not depend on the device."""
    place = zlib.crc32(f"inversion {use}".encode())  # a stream that no method uses
    return torch.Generator().manual_seed(int(stream(seed, Purpose.METHOD, epoch=place).integers(2**63)))
