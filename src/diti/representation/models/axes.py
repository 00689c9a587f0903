"""Axes that one can name: directions of z, each of which changes one place of the picture and can be seen.

The metric M (`metric.py`) says how far the features move along each direction of the code; where the code is
white, any rotation of it is as good a basis. Varimax takes the one in which each axis changes few places of the
picture: what changes one place one can name. It weighs a direction by what it tells of the features, and looks at
patches instead of pixels, for a mouth is wider than a pixel. What fills the picture, as light does, has no place
of its own: the few axes that tell most are turned once more, so that codes are spread flat along them, too. Codes
need not be white: with C the covariance of standardised codes u, C^-½u is, and the axes are found there.

For examples of a thing (`edit/examples.py`) two whole bases are kept beside the axes: one of places, in which all
directions weigh alike, for what changes one place a little; and one of independent codes, where there is one.
Notation: N images, S side of small images in px, D length of z, K axes, k subsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import avg_pool2d

from diti.core.errors import InputError
from diti.core.runs import atomic_path
from diti.diffusion.files import read_safetensors, require_finite
from diti.representation.partition import Partition

AXES = "axes.safetensors"
SMALL = 32  # px: images are averaged down to this side at most
PLACE, SEEN = 0.22, 0.1  # of the side: what varimax takes for one place, and the least that a person sees
USUAL = 4.0  # standard deviations from one end to the other of what is usual in the data: ±2
VISIBLE = 0.08  # change of a pixel, of its whole range, that a person notices
FEWEST, MOST = 8, 96  # axes, as far as z has as many dims
LEADING = 12  # axes that are turned once more
FLAT = 3.0  # what their flatness counts there, that of two heaps being 1, as all of varimax is at most
NORMAL = 0.37457  # E log cosh of a normal distribution
TWO_HEAPS = 0.0592  # E log cosh of ±1 above that
STEPS, TOLERANCE = 300, 1e-6  # of varimax
FLAT_STEPS = 150  # of independent codes
PENALTY = 1e-3  # added to the covariance of codes, of their mean variance: for fewer images than dims


@dataclass(frozen=True, eq=False)
class Axes:
    """K axes, the most visible first. z + s · direction moves s standard deviations along one."""

    directions: Tensor  # (K, D) in z
    readings: Tensor  # (K, D) where an image lies: (z - mean) · reading, of variance 1 in the data
    visibility: Tensor  # (K,) root mean square change of the pixels by one deviation, as a share of their range
    told: Tensor  # (K,) share of what z tells of the features
    subsets: Tensor  # (K, k) where it lives: share of its squared length by subset, z in its own deviations
    # (1 or 2, D, D) readings of bases for examples, see there; axes of earlier versions have none
    bases: Tensor = field(default_factory=lambda: torch.zeros(0))

    def __len__(self) -> int:
        return len(self.directions)

    def places(self, z: Tensor, mean: Tensor) -> Tensor:
        """(N, K): where codes z (N, D) lie on each axis, in standard deviations from the mean (D,)."""
        return (z - mean) @ self.readings.T.to(z)


def visible_axes(metric: Tensor, u: Tensor, images: Tensor, partition: Partition, std: Tensor) -> Axes:
    """The axes of standardised codes u (N, D) with their metric (D, D), seen in images (N, 3, S, S) in [0, 1].

    std (D,): of z. As many axes as change a patch of the picture visibly within what is usual in the data.
    """
    u, flat = u.double() - u.double().mean(0), images.double().flatten(1)
    flat = flat - flat.mean(0)
    covariance = u.T @ u / len(u)
    penalty = PENALTY * covariance.diagonal().mean() * torch.eye(len(covariance))
    directions, readings, told = white_basis(metric, covariance + penalty)
    pixels = ((u @ readings).T @ flat / len(u)).unflatten(1, images.shape[1:])  # (D, 3, S, S) by one deviation
    spread = flat.std(0).clamp(min=1e-3).unflatten(0, images.shape[1:])
    loadings = (told / told.mean()).sqrt()[:, None, None, None] * pixels / spread
    turn = varimax(loadings, PLACE)
    lead = (told @ turn.square()).argsort(descending=True)[:LEADING]
    turn[:, lead] @= varimax(_turned(loadings, turn[:, lead]), PLACE, u @ readings @ turn[:, lead])
    whole = [varimax(pixels / spread, PLACE), *independent(u @ readings, turn)]
    pixels = _turned(pixels, turn)
    order = _most_visible(pixels)
    turn, pixels = turn[:, order], pixels[order]
    squares = (directions @ turn).square()  # (D, K)
    lives = [squares[list(partition.dims_of(subset))].sum(0) for subset in range(partition.subsets)]
    return Axes(
        directions=((directions @ turn).T * std.double()).float(),
        readings=((readings @ turn).T / std.double()).float(),
        visibility=pixels.square().mean((1, 2, 3)).sqrt().float(),
        told=(told @ turn.square() / told.sum()).float(),
        subsets=(torch.stack(lives, 1) / squares.sum(0)[:, None]).float(),
        bases=torch.stack([((readings @ basis).T / std.double()).float() for basis in whole]),
    )


def white_basis(metric: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(D, D) directions in u and (D, D) readings, a column each, and (D,) what each tells of the features.

    metric, covariance (D, D): of standardised codes u. Places on all of them, u @ readings, are white; the first
    tell most. They are the principal components of the features as z tells them.
    """
    values, vectors = torch.linalg.eigh(covariance.double())
    values = values.clamp(min=1e-9 * float(values[-1]))
    root, inverse = vectors * values.sqrt() @ vectors.T, vectors * values.rsqrt() @ vectors.T
    told, turned = torch.linalg.eigh(root @ metric.double() @ root)
    told, turned = told.flip(0).clamp(min=0), turned.flip(1)
    return root @ turned, inverse @ turned, told


def varimax(pixels: Tensor, place: float = 0.0, codes: Tensor | None = None) -> Tensor:
    """(K, K) rotation R of what K axes change, pixels (K, C, H, W), such that each changes few places most.

    Kaiser's criterion, the variance of the squares, summed over axes; squares are summed over channels and
    averaged over patches of `place` of the side, 0 for single pixels. Given white codes (N, K), the mean of
    log cosh(codes R) counts, too: it is ICA for what is spread evenly or in two heaps, as things are that may be
    there or not, and blind to outliers. Both are convex; each step maximises the tangent.
    """
    patch, count = _odd(place * pixels.shape[-1]), len(pixels)
    loadings, shape = pixels.double().flatten(1).T, (-1, *pixels.shape[1:])
    everywhere = _over_patches(pixels.double().square().sum((0, 1), keepdim=True), patch)  # no rotation changes it
    whole = everywhere.square().sum().clamp(min=1e-30)
    rotation, before = torch.eye(count, dtype=torch.float64), 0.0
    for _ in range(STEPS):
        turned = (loadings @ rotation).T.reshape(shape)
        energy = _over_patches(turned.square().sum(1, keepdim=True), patch)
        slope = turned * (energy - energy.mean((1, 2, 3), keepdim=True)) * (4 / whole)
        gradient = loadings.T @ slope.flatten(1).T
        if codes is not None:
            gradient += FLAT / TWO_HEAPS / count * (codes.T @ (codes @ rotation).tanh()) / len(codes)
        u, s, v = torch.linalg.svd(gradient)
        rotation, reached = u @ v, float(s.sum())
        if reached <= before * (1 + TOLERANCE):
            break
        before = reached
    return rotation


def independent(codes: Tensor, start: Tensor) -> list[Tensor]:
    """[(D, D) rotation] that makes white codes (N, D) flat along each direction, from `start`; [] where none is.

    Found in every other image: where the codes of the rest are not flatter than normal, it was only chance.
    """
    found, rest = codes[::2], codes[1::2]
    rotation = start
    for _ in range(FLAT_STEPS):  # the mean of log cosh is convex; each step maximises its tangent
        u, _, v = torch.linalg.svd(found.T @ (found @ rotation).tanh())
        rotation = u @ v
    return [rotation] if len(rest) and flatness(rest @ rotation) > 0 else []


def flatness(codes: Tensor) -> float:
    """Mean over directions, of white codes (N, K): 0 where normal, 1 where in two heaps, below 0 with tails."""
    log_cosh = torch.logaddexp(codes, -codes).mean() - torch.tensor(2.0).log()
    return (float(log_cosh) - NORMAL) / TWO_HEAPS


def _turned(pixels: Tensor, turn: Tensor) -> Tensor:
    """(K, C, H, W) what axes change that are turned (D, K) out of D others, pixels (D, C, H, W)."""
    return torch.einsum("dk,dchw->kchw", turn, pixels)


def _odd(length: float) -> int:
    """The odd number of px nearest to a length: a patch that has a middle."""
    return 2 * max(0, round((length - 1) / 2)) + 1


def _over_patches(energy: Tensor, patch: int) -> Tensor:
    """(K, 1, H, W) averaged over the patch around each pixel."""
    return avg_pool2d(energy, patch, 1, patch // 2, count_include_pad=False)


def _most_visible(pixels: Tensor) -> Tensor:
    """Places of the axes that can be seen, given what each changes by one deviation (D, 3, H, W), by visibility.

    To be seen: within what is usual in the data some patch changes by more than a person notices.
    """
    patches = _over_patches(pixels.square().mean(1, keepdim=True), _odd(SEEN * pixels.shape[-1]))
    visible = USUAL * patches.amax((1, 2, 3)).sqrt() > VISIBLE
    most, dims = patches.amax((1, 2, 3)).argsort(descending=True), len(pixels)
    count = min(max(int(visible.sum()), FEWEST), MOST, dims)
    kept = most[:count]
    return kept[pixels[kept].square().mean((1, 2, 3)).argsort(descending=True)]


# ---- The file ------------------------------------------------------------------------------------------------


def write_axes(axes: Axes, path: Path) -> None:
    """Replace the axes of a model folder, or those kept elsewhere."""
    tensors = {part.name: getattr(axes, part.name).contiguous() for part in fields(axes)}
    if not len(axes.bases):
        del tensors["bases"]
    require_finite(tensors, "the axes of z")
    with atomic_path(path) as temporary:
        save_file(tensors, temporary)


def read_axes(path: Path, partition: Partition) -> Axes | None:
    """What `write_axes` wrote for a code that is cut like this; None where there is no file."""
    if not path.is_file():
        return None
    tensors, dims = read_safetensors(path), partition.dims
    count = len(tensors["directions"]) if "directions" in tensors and tensors["directions"].ndim else 0
    expected: dict[str, tuple[int, ...]] = dict.fromkeys(("visibility", "told"), (count,)) | dict.fromkeys(
        ("directions", "readings"), (count, dims)
    )
    expected["subsets"] = (count, partition.subsets)
    if "bases" in tensors:
        expected["bases"] = (min(max(len(tensors["bases"]), 1), 2), dims, dims)
    if not count or {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise InputError(f"{path} holds {shapes}; expected axes of {dims} dims; delete it: explore makes it again")
    require_finite(tensors, f"the axes of z in {path}")
    return Axes(**tensors)
