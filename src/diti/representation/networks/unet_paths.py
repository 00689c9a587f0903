"""The two halves of a diffusers U-Net, run apart: time embedding and down path, then middle and up path.

`net` is anything with the layers of a UNet2DModel under their names: the U-Net itself, the encoder's copy of its
down path, or the decoder's own up path. Notation: E width of the time embedding.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def embed_time(net: Any, t: Tensor) -> Tensor:
    """(B,) time-steps -> (B,E)."""
    sinusoids = net.time_proj(t)
    return net.time_embedding(sinusoids.to(net.time_embedding.linear_1.weight.dtype))


def run_down(net: Any, x: Tensor, emb: Tensor) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """Grid (B,C,H,W) -> what enters the middle block, and the skip connections: conv_in's, then each level's."""
    h = net.conv_in(x)
    skips: list[tuple[Tensor, ...]] = [(h,)]
    for block in net.down_blocks:
        h, outputs = block(h, emb)
        skips.append(outputs)
    return h, skips


def run_levels_up(net: Any, h: Tensor, skips: list[tuple[Tensor, ...]], emb: Tensor) -> list[Tensor]:
    """What `run_down` gives -> output of the middle, then of each level (B,Ci,Hi,Wi), coarsest first."""
    left = [skip for outputs in skips for skip in outputs]
    outputs = [net.mid_block(h, emb)]
    for block in net.up_blocks:
        count = len(block.resnets)
        outputs.append(block(outputs[-1], tuple(left[-count:]), emb))
        del left[-count:]
    return outputs


def run_up(net: Any, h: Tensor, skips: list[tuple[Tensor, ...]], emb: Tensor) -> Tensor:
    """The middle block's input and the skip connections of `run_down` -> output grid (B,C,H,W)."""
    h = run_levels_up(net, h, skips, emb)[-1]
    return net.conv_out(net.conv_act(net.conv_norm_out(h)))
