"""Two random views of each image, as SimCLR compares them (Chen et al. 2020, appendix A), for a batch at once.

The transforms are mirror, colour jitter, grey, blur and, if asked for, crop-resize. Each is a function of images
(B,3,H,W) in [-1,1] and one number per image (B,).

Colour is linear here: grey is the luma Y of YIQ, saturation scales the chroma (I,Q), and hue rotates the chroma by
an angle, which keeps Y. Brightness, contrast, saturation and hue then commute, so their order, which others draw
at random, makes no difference, and one 3×3 matrix and one offset per image are enough. Values are clamped once,
at the end.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from diti.config import ViewsConfig
from diti.core.device import constant, sent
from diti.core.rng import Draws

MIRRORED, JITTERED, GREY, BLURRED = 0.5, 0.8, 0.2, 0.5  # share of the views
JITTER = {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}  # times the strength; hue in turns
SIGMA = (0.1, 2.0)  # of the blur, px
CROP_AREA, CROP_RATIO = (0.2, 1.0), (3 / 4, 4 / 3)  # share of the image; width / height

_YIQ = torch.tensor(  # NTSC: rows Y, I, Q
    [[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]], dtype=torch.float64
)
_TURN = torch.tensor([[0.0, 0, 0], [0, 0, 1], [0, -1, 0]], dtype=torch.float64)  # red → yellow → green, as in HSV
LUMA = _YIQ[0].float()  # (3,)
TO_GREY = LUMA.expand(3, 3)  # each channel becomes Y
QUARTER_TURN = (torch.linalg.inv(_YIQ) @ _TURN @ _YIQ).float()  # drops Y, rotates the chroma by 90°


def two_views(images: Tensor, draws: Draws, config: ViewsConfig) -> tuple[Tensor, Tensor]:
    """Two views of each image (B,3,H,W) in [-1,1]; with augment "none" both are the image itself."""
    if config.augment == "none":
        return images, images
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):  # pixels keep their precision
        first, second = _random_views(images, draws, config).chunk(2)
    return first, second


def _random_views(images: Tensor, draws: Draws, config: ViewsConfig) -> Tensor:
    """(2B,3,H,W): all first views, then all second ones.

    What is decided of each, a few numbers, is found on the CPU: counting those chosen would wait for a device.
    """
    numbers, there = _Numbers(draws), partial(sent, device=images.device)
    views = torch.cat([images, images])
    if config.crop_resize:
        box = random_box(*(numbers.uniform(name) for name in ("area", "ratio", "x", "y")))
        views = crop_resize(views, *map(there, box))
    views = mirror(views, there(numbers.chosen("mirror", MIRRORED)))
    if config.augment == "full":
        views = recolour(views, *map(there, _random_colours(numbers, config.jitter_strength)))
    (blurred,) = numbers.chosen("blur", BLURRED).nonzero(as_tuple=True)
    sigma, rows = there(numbers.between("sigma", *SIGMA)[blurred]), there(blurred)
    views[rows] = blur(views[rows], sigma)
    return views


class _Numbers:
    """Random numbers (2B,) for both views of a batch; each name has its own."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws

    def uniform(self, name: str) -> Tensor:
        return torch.cat([self.draws.uniform(f"view-{view}-{name}") for view in (1, 2)]).float()

    def between(self, name: str, low: float, high: float) -> Tensor:
        return low + (high - low) * self.uniform(name)

    def chosen(self, name: str, share: float) -> Tensor:
        return self.uniform(f"{name}-chosen") < share


def _random_colours(numbers: _Numbers, strength: float) -> tuple[Tensor, Tensor]:
    """Colour matrices (B,3,3) and contrasts (B,) of random jitter and grey."""
    spread = {name: strength * most for name, most in JITTER.items()}
    jittered = numbers.chosen("jitter", JITTERED)
    change = {name: jittered * numbers.between(name, -most, most) for name, most in spread.items()}
    matrix = hue_matrix(change["hue"]) @ saturation_matrix(1 + change["saturation"])
    matrix = matrix * (1 + change["brightness"]).view(-1, 1, 1)
    grey = numbers.chosen("grey", GREY).view(-1, 1, 1)
    return torch.where(grey, TO_GREY.to(matrix) @ matrix, matrix), 1 + change["contrast"]


def saturation_matrix(factor: Tensor) -> Tensor:
    """(B,3,3) that scale the distance to grey by (B,) factors: 0 gives grey, 1 leaves the colours."""
    grey = TO_GREY.to(factor)
    return grey + factor.view(-1, 1, 1) * (torch.eye(3).to(factor) - grey)


def hue_matrix(turns: Tensor) -> Tensor:
    """(B,3,3) that rotate the chroma (I,Q) of YIQ by (B,) parts of a full turn, red towards green; Y stays."""
    angle = 2 * math.pi * turns.view(-1, 1, 1)
    grey = TO_GREY.to(turns)
    return grey + angle.cos() * (torch.eye(3).to(turns) - grey) + angle.sin() * QUARTER_TURN.to(turns)


def recolour(images: Tensor, matrix: Tensor, contrast: Tensor) -> Tensor:
    """Colours, as [0,1], times (B,3,3); then their distance to the image's mean luma times (B,); then clamped."""
    mean = (images.mean((2, 3)) + 1) / 2  # (B,3) in [0,1]
    to_luma = constant(LUMA, images.dtype, images.device)
    luma = torch.einsum("bij,bj->bi", matrix, mean) @ to_luma  # (B,) the mean after the matrix
    scaled = contrast.view(-1, 1, 1) * matrix
    offset = 2 * ((1 - contrast) * luma).view(-1, 1, 1) + scaled.sum(2, keepdim=True) - 1  # from [0,1] to [-1,1]
    return torch.baddbmm(offset, scaled, images.flatten(2)).clamp_(-1, 1).view_as(images)


def mirror(images: Tensor, chosen: Tensor) -> Tensor:
    """The images chosen by (B,), with left and right swapped."""
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(3), images)


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur by (B,) sigma px in a window of about a tenth of the side; edges are mirrored."""
    count, channels, height, width = images.shape
    if count == 0:  # a convolution needs at least one group
        return images
    radius = max(1, height // 20)
    kernel = gaussian(sigma, radius).repeat_interleave(channels, 0)  # (3B, 2·radius + 1)
    padded = F.pad(images, (radius,) * 4, mode="reflect").flatten(0, 1)[None]  # (1, 3B, H + ..., W + ...)
    rows = F.conv2d(padded, kernel[:, None, :, None], groups=count * channels)
    return F.conv2d(rows, kernel[:, None, None, :], groups=count * channels).view(count, channels, height, width)


def gaussian(sigma: Tensor, radius: int) -> Tensor:
    """(B, 2·radius + 1) weights exp(-x² / 2σ²) that sum to 1."""
    x = torch.arange(-radius, radius + 1, device=sigma.device)
    return (-0.5 * (x / sigma[:, None]).square()).softmax(1)


def random_box(area: Tensor, ratio: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Boxes left, top, width, height (B,) in parts of the side, from uniform numbers (B,) in [0,1].

    Areas are uniform and ratios log-uniform in their ranges; a side longer than the image's is cut to it.
    """
    share = CROP_AREA[0] + (CROP_AREA[1] - CROP_AREA[0]) * area
    low, high = map(math.log, CROP_RATIO)
    stretch = (low + (high - low) * ratio).exp()
    width, height = (share * stretch).sqrt().clamp(max=1), (share / stretch).sqrt().clamp(max=1)
    return (1 - width) * x, (1 - height) * y, width, height


def crop_resize(images: Tensor, left: Tensor, top: Tensor, width: Tensor, height: Tensor) -> Tensor:
    """The contents of the boxes (B,), in parts of the side, enlarged to the whole image; bilinear."""
    zero = torch.zeros_like(left)
    across = torch.stack([width, zero, 2 * left + width - 1], 1)
    down = torch.stack([zero, height, 2 * top + height - 1], 1)
    grid = F.affine_grid(torch.stack([across, down], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
