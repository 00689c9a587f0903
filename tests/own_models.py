"""Small diffusion models as people write them by hand, without diffusers: see `diti.backbone`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CODE = """
import sys
import torch
import diti
from beside import Net

def make():
    torch.manual_seed({seed})
    model = {{"schedule": "{schedule}", "predicts": "{predicts}", "size": {size}, "channels": {channels}}}
    return diti.backbone(Net({channels}), **model)

def nothing():
    return 3

def broken():
    return 1 / 0

def leaves():
    sys.exit(3)
"""
BESIDE = "from own_models import HandUNet as Net\n"


class HandUNet(nn.Module):
    """A U-Net of three levels, told its time by one number added to every channel."""

    def __init__(self, channels: int = 3, width: int = 8) -> None:
        super().__init__()
        self.time = nn.Linear(1, width)
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.ModuleList([nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(width, 2 * width, 3, 2, 1)])
        self.middle = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.SiLU())
        self.up = nn.ModuleList([nn.Conv2d(2 * width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)])
        self.last = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.first(x) + self.time(time.float()[:, None] / 1000)[:, :, None, None]
        skips = []
        for layer in self.down:
            skips.append(h)
            h = F.silu(layer(h))
        h = self.middle(h)
        for layer, skip in zip(self.up, skips[::-1], strict=True):
            h = F.silu(layer(F.interpolate(h, skip.shape[-2:]))) + skip
        return self.last(h)


class HandTransformer(nn.Module):
    """Patches of 4 px, six blocks, and pixels again."""

    def __init__(self, channels: int = 3, width: int = 16, side: int = 16) -> None:
        super().__init__()
        self.cut = nn.Conv2d(channels, width, 4, 4)
        self.place = nn.Parameter(torch.randn(1, (side // 4) ** 2, width))
        layer = lambda: nn.TransformerEncoderLayer(width, 2, 32, batch_first=True)  # noqa: E731
        self.blocks = nn.ModuleList([layer() for _ in range(6)])
        self.last = nn.Linear(width, 16 * channels)
        self.channels = channels

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.cut(x).flatten(2).transpose(1, 2) + self.place + time.float()[:, None, None] / 1000
        for block in self.blocks:
            h = block(h)
        side = x.shape[-1] // 4
        cells = self.last(h).transpose(1, 2).unflatten(2, (side, side))
        return F.pixel_shuffle(cells, 4)
