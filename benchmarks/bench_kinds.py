"""What `diti solve` costs over well-known diffusion models: computed from their shapes, without their weights.

`python -m benchmarks.bench_kinds`: FLOPs, weights and most memory of each network, laid out without memory; the
minutes follow from a rate that is assumed, not measured. Nothing is downloaded, and nothing here says how good a
code is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import diffusers
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from diti.config import SolveConfig
from diti.diffusion.backbone import KINDS, forward_flops, located
from diti.diffusion.clock import Clock
from diti.diffusion.kinds.pipeline import LARGE, Choices, PipelineBackbone
from diti.diffusion.pictures import Latents
from diti.representation.solve.collect import GROWTH, PER_REGRESSOR
from diti.representation.solve.evidence import VALIDATION
from diti.representation.solve.look import LOOKED_AT

RATE = 100e12  # FLOP/s in bfloat16, a third of what an A100's data sheet says
RATE_FULL = RATE / 2  # of TF32, in which autoencoders and small networks stay
BYTES, BYTES_FULL = 2, 4  # of a number
EDIT_STEPS = 50  # network calls to invert an image, and as many to draw it again


class Known(NamedTuple):
    """A model people have: class and config of its network, and of its autoencoder."""

    name: str
    network: str
    config: dict[str, Any]
    latents: int  # channels
    levels: int  # of the autoencoder, each half the grid of the one before
    told: dict[str, tuple[int, ...]]  # what it is told besides the time, by shape


_XL = {
    "block_out_channels": (320, 640, 1280), "attention_head_dim": (5, 10, 20), "cross_attention_dim": 2048,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10), "use_linear_projection": True, "sample_size": 128,
    "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}  # fmt: skip
_LDM = {
    "sample_size": 64, "in_channels": 3, "out_channels": 3, "block_out_channels": (224, 448, 672, 896),
    "attention_head_dim": 32, "down_block_types": ("DownBlock2D", *("AttnDownBlock2D",) * 3),
    "up_block_types": (*("AttnUpBlock2D",) * 3, "UpBlock2D"),
}  # fmt: skip
_SD35 = {
    "num_layers": 24, "num_attention_heads": 24, "caption_projection_dim": 1536, "pos_embed_max_size": 384,
    "dual_attention_layers": tuple(range(13)), "qk_norm": "rms_norm",
}  # fmt: skip
MODELS = (
    Known("LDM, CelebA-HQ", "UNet2DModel", _LDM, 3, 3, {}),
    Known("Stable Diffusion 1.5", "UNet2DConditionModel", {"cross_attention_dim": 768, "sample_size": 64}, 4, 4,
          {"text": (1, 77, 768)}),
    Known("Stable Diffusion XL", "UNet2DConditionModel", _XL, 4, 4, {"text": (1, 77, 2048), "pooled": (1, 1280)}),
    Known("DiT-XL/2, 256 px", "DiTTransformer2DModel", {"out_channels": 8}, 4, 4, {"label": (1,)}),
    Known("PixArt-XL/2, 512 px", "PixArtTransformer2DModel", {"sample_size": 64, "caption_channels": 4096}, 4, 4,
          {"text": (1, 120, 4096), "mask": (1, 120)}),
    Known("Stable Diffusion 3.5 medium", "SD3Transformer2DModel", _SD35, 16, 4,
          {"text": (1, 333, 4096), "pooled": (1, 2048)}),
    Known("Flux.1 dev", "FluxTransformer2DModel", {"guidance_embeds": True}, 16, 4,
          {"text": (1, 512, 4096), "pooled": (1, 768)}),
)  # fmt: skip


def laid_out(model: Known) -> PipelineBackbone:
    """The backbone of that shape, without memory for its numbers."""
    kind = located(KINDS[model.network])
    widths = (128, 256, 512, 512)[: model.levels]
    with torch.device("meta"):
        network = getattr(diffusers, model.network)(**model.config)
        autoencoder = diffusers.AutoencoderKL(
            latent_channels=model.latents, block_out_channels=widths,
            down_block_types=("DownEncoderBlock2D",) * model.levels,
            up_block_types=("UpDecoderBlock2D",) * model.levels,
        )  # fmt: skip
        told = {name: torch.zeros(shape, dtype=_kind_of(name)) for name, shape in model.told.items()}
    pictures, place = Latents(autoencoder).to("meta"), Path("nowhere")
    pictures.autoencoder.use_tiling = False  # at its own size
    return kind(network, Clock.of("linear"), "epsilon", pictures, place, place, Choices(), told)


def _kind_of(name: str) -> torch.dtype:
    return torch.int64 if name in ("label", "mask") else torch.float32


class _Fused(TorchFunctionMode):
    """Attention as on a GPU, which never holds all pairs of tokens."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            return torch.empty_like(args[0] if args else kwargs["query"])
        return function(*args, **(kwargs or {}))


class _Living(TorchDispatchMode):
    """Bytes of all that is computed and not yet let go, and the most that there were. held: counted elsewhere."""

    def __init__(self, held: Iterable[Tensor]) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata: 0 for tensor in held}
        self.now = self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = function(*args, **(kwargs or {}))
        for one in given if isinstance(given, tuple | list) else [given]:
            if torch.is_tensor(one) and (key := one.untyped_storage()._cdata) not in self.known:
                self.known[key] = one.untyped_storage().nbytes()
                self.now += self.known[key]
                self.most = max(self.most, self.now)
                weakref.finalize(one.untyped_storage(), self._let_go, key)
        return given

    def _let_go(self, key: int) -> None:
        self.now -= self.known.pop(key, 0)


@torch.no_grad()
def most_bytes(backbone: PipelineBackbone, work: Callable[[], Tensor]) -> int:
    """The most bytes that `work` holds at once, besides weights and what it is given."""
    with _Fused(), _Living([*backbone.parameters(), *backbone.buffers()]) as living:
        work()
    return living.most


@torch.no_grad()
def flops_of(work: Callable[[], Tensor]) -> int:
    """FLOPs of `work`; a multiply-add counts as 2."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


class Cost(NamedTuple):
    """Of one image."""

    call: float  # seconds
    encode: float
    decode: float
    memory: float  # bytes, with all weights


def cost(backbone: PipelineBackbone) -> Cost:
    """Of one image at the model's own size."""
    with torch.device("meta"):
        x, t = torch.zeros(1, *backbone.shape), torch.zeros(1, dtype=torch.int64)
        pixels = torch.zeros(1, 3, backbone.size, backbone.size)
    encode, decode = (lambda: backbone.encode(pixels)), (lambda: backbone.decode(x))
    size, rate = (BYTES, RATE) if backbone.weights >= LARGE else (BYTES_FULL, RATE_FULL)
    held = sum(parameter.numel() for parameter in backbone.pictures.parameters())
    network = most_bytes(backbone, lambda: backbone(x, t)) * size / BYTES_FULL  # laid out in float32
    memory = max(network, most_bytes(backbone, encode), most_bytes(backbone, decode))
    memory += size * backbone.weights + BYTES_FULL * held
    way_in, way_out = flops_of(encode) / RATE_FULL, flops_of(decode) / RATE_FULL
    return Cost(forward_flops(backbone) / rate, way_in, way_out, memory)


def images_of_pass(config: SolveConfig) -> int:
    """Images at the second look, the earliest at which the pass can end."""
    return round(GROWTH * PER_REGRESSOR * (1 + config.solution.pixel_axes + config.code_dim))


def main() -> None:
    """Print the table."""
    config = SolveConfig()
    images, stretches = images_of_pass(config), config.solution.stretches
    drawn = VALIDATION + images
    calls = LOOKED_AT + drawn * stretches
    table = Table(title=f"computed for {images:,} images × {stretches} stretches at {RATE / 1e12:.0f} TFLOP/s")
    for column in ("model", "px", "weights", "TFLOP a call", "GB, one image", "solve, min", "an edit, s"):
        table.add_column(column)
    for model in MODELS:
        backbone = laid_out(model)
        found = cost(backbone)
        seconds = calls * found.call + (LOOKED_AT + drawn) * found.encode
        edit = 2 * EDIT_STEPS * found.call + found.encode + found.decode
        call = f"{forward_flops(backbone) / 1e12:.2f}"
        table.add_row(
            model.name, str(backbone.size), f"{backbone.weights / 1e6:,.0f} M", call, f"{found.memory / 1e9:.1f}",
            f"{seconds / 60:.0f}", f"{edit:.1f}",
        )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
