"""The backbone: saved and loaded bit for bit, strict, seeded, and right for every prediction type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler
from diffusers.models.attention_processor import Attention
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from diti.config import BackboneConfig
from diti.core.errors import InputError
from diti.diffusion.backbone import Backbone, forward_flops, load_backbone, training_flops
from diti.diffusion.unet import UNetBackbone, Wrapping, assemble_unet, build_backbone, unet_config
from diti.presets import PRESETS

TINY = BackboneConfig(size=16, unshuffle=2, channels=(16, 32), layers=1, attention=(4,), head_channels=8)
WEIGHTS = "unet/diffusion_pytorch_model.safetensors"


def randomised(backbone: Backbone, seed: int = 1) -> Backbone:
    """Give the zero layers of a new network something to compute."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))
    return backbone.eval()


def noisy(backbone: Backbone, count: int = 2) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(count, 3, backbone.size, backbone.size, generator=rng)
    return x, torch.randint(0, backbone.timesteps, (count,), generator=rng)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    randomised(build_backbone(TINY, 0)).save(tmp_path / "b")
    return tmp_path / "b"


# ---- Build ------------------------------------------------------------------------------------------------


def test_weights_come_from_the_seed_alone_and_the_global_state_is_untouched():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = build_backbone(TINY, 3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    second, other = build_backbone(TINY, 3), build_backbone(TINY, 4)
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.unet.conv_in.weight, other.unet.conv_in.weight)


def test_loading_leaves_the_global_state_untouched(saved):
    before = torch.get_rng_state()
    load_backbone(saved)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_shape_follows_the_config():
    backbone = build_backbone(TINY, 0)
    assert (backbone.size, backbone.channels, backbone.timesteps, backbone.unshuffle) == (16, 3, 1000, 2)
    config = backbone.unet.config
    assert (config.sample_size, config.in_channels, config.out_channels) == (8, 12, 12)
    assert list(config.down_block_types) == ["DownBlock2D", "AttnDownBlock2D"]
    assert list(config.up_block_types) == ["AttnUpBlock2D", "UpBlock2D"]
    layers = [m for m in backbone.modules() if isinstance(m, Attention)]
    assert len(layers) == 1 + 2 + 1  # down, up, middle
    assert all(layer.heads == 4 and layer.group_norm is not None for layer in layers)


def test_a_new_network_starts_at_zero_and_every_weight_learns():
    backbone = build_backbone(TINY, 0)
    x, t = noisy(backbone, 4)
    assert backbone(x, t).abs().max() == 0
    optimizer = torch.optim.SGD(backbone.parameters(), lr=0.1)
    target = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    for _ in range(4):  # zero layers open one after the other
        optimizer.zero_grad()
        F.mse_loss(backbone(x, t), target).backward()
        optimizer.step()
    flat = [name for name, p in backbone.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    # A bias added to every key changes no softmax, so its gradient is rounding noise at most.
    assert [name for name in flat if not name.endswith("to_k.bias")] == []


@pytest.mark.parametrize(
    ("channels", "groups"),
    [((128, 256), 32), ((64, 128), 16), ((48, 96), 12), ((40, 80), 10), ((32, 32, 64), 8), ((6, 9), 1)],
)
def test_norm_groups_divide_every_width_with_four_channels_or_more(channels, groups):
    config = BackboneConfig(size=32, channels=channels, layers=1, head_channels=channels[-1])
    assert unet_config(config)["norm_num_groups"] == groups
    assert all(width % groups == 0 for width in channels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 18}, "need a multiple of 4"),
        ({"unshuffle": 0}, "unshuffle is 0"),
        ({"channels": ()}, "at least one level"),
        ({"layers": 0}, "--layers is 0"),
        ({"attention": (16,)}, r"sides \[16\], but the U-Net's grids have sides \[8, 4\]"),
        ({"head_channels": 24}, "--head-channels is 24"),
        ({"beta_schedule": "lineal"}, "Did you mean 'linear'"),
        ({"prediction": "noise"}, "--prediction is 'noise'"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(changes, message):
    base = {"size": 16, "unshuffle": 2, "channels": (16, 32), "layers": 1, "head_channels": 8}
    with pytest.raises(InputError, match=message):
        build_backbone(BackboneConfig(**{**base, **changes}), 0)


def test_the_schedule_of_the_config_is_used():
    backbone = build_backbone(BackboneConfig(size=8, channels=(8,), head_channels=8, timesteps=30), 0)
    expected = torch.linspace(1e-4, 0.02, 30, dtype=torch.float64)
    torch.testing.assert_close(backbone.schedule.betas, expected, atol=1e-8, rtol=0)
    cosine = BackboneConfig(size=8, channels=(8,), head_channels=8, beta_schedule="squaredcos_cap_v2")
    assert build_backbone(cosine, 0).schedule.alpha_bar[-1] < 1e-6


# ---- Compute ----------------------------------------------------------------------------------------------


def test_unshuffle_folds_blocks_of_pixels_into_channels():
    backbone = randomised(build_backbone(TINY, 0))
    x, t = noisy(backbone)
    # By hand: channel 4c + 2i + j of the grid is colour c at row i, column j of each 2×2 block.
    grid = torch.stack([x[:, c, i::2, j::2] for c in range(3) for i in range(2) for j in range(2)], 1)
    out = backbone.unet(grid, t).sample
    expected = torch.empty_like(x)
    for c in range(3):
        for i in range(2):
            for j in range(2):
                expected[:, c, i::2, j::2] = out[:, 4 * c + 2 * i + j]
    assert expected.std() > 0.1
    assert torch.equal(backbone(x, t), expected)


def test_a_network_that_learns_sigma_gives_its_mean():
    config = unet_config(TINY) | {"out_channels": 24}
    wrapping = Wrapping(unshuffle=2)
    backbone = UNetBackbone(assemble_unet(config, wrapping, 1), DDPMScheduler(), wrapping).eval()
    x, t = noisy(backbone)
    out = backbone.unet(F.pixel_unshuffle(x, 2), t).sample
    assert out.shape[1] == 24
    assert torch.equal(backbone(x, t), F.pixel_shuffle(out[:, :12], 2))


class Oracle(UNetBackbone):
    """Knows the image and the noise, and says them in the words of its prediction type."""

    def tell(self, x0: Tensor, noise: Tensor) -> Oracle:
        self.truth = (x0, noise)
        return self

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x0, noise = self.truth
        abar = self.scheduler.alphas_cumprod[t].double().reshape(-1, 1, 1, 1)
        said = {"epsilon": noise, "sample": x0, "v_prediction": abar.sqrt() * noise - (1 - abar).sqrt() * x0}
        return said[self.prediction_type].float()


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_eps_and_x0_are_right_for_every_prediction_type(prediction):
    unet = build_backbone(TINY, 0).unet
    oracle = Oracle(unet, DDPMScheduler(prediction_type=prediction), Wrapping(unshuffle=2))
    rng = torch.Generator().manual_seed(0)
    x0, noise = torch.randn(2, 3, 3, 16, 16, generator=rng).double()
    t = torch.tensor([40, 400, 800])
    x_t = oracle.scheduler.add_noise(x0, noise, t).float()
    oracle.tell(x0, noise)
    torch.testing.assert_close(oracle.eps(x_t, t), noise.float(), atol=2e-4, rtol=0)
    torch.testing.assert_close(oracle.x0(x_t, t), x0.float(), atol=2e-3, rtol=0)


def test_another_image_size_is_refused():
    backbone = build_backbone(TINY, 0)
    backbone.require_size(16)
    with pytest.raises(InputError, match=r"images are 32 px but the backbone is for 16 px.*--size 16"):
        backbone.require_size(32)


# ---- Save and load ----------------------------------------------------------------------------------------


def test_round_trip_is_bit_exact_and_writes_no_pickle(tmp_path):
    config = BackboneConfig(
        size=16, unshuffle=2, channels=(16, 32), layers=1, head_channels=8, prediction="sample"
    )
    backbone = randomised(build_backbone(config, 0))
    backbone.save(tmp_path / "b")
    again = load_backbone(tmp_path / "b")
    x, t = noisy(backbone)
    assert torch.equal(again.eps(x, t), backbone.eps(x, t))
    assert again.prediction_type == "sample"
    assert not again.training
    written = {
        path.relative_to(tmp_path / "b").as_posix() for path in (tmp_path / "b").rglob("*") if path.is_file()
    }
    assert written == {"unet/config.json", WEIGHTS, "scheduler/scheduler_config.json", "backbone.json"}


def test_heads_and_time_width_come_back(tmp_path):
    config = unet_config(TINY) | {"attention_head_dim": None, "time_embedding_dim": 40}
    config["down_block_types"] = ["AttnDownBlock2D", "AttnDownBlock2D"]
    config["up_block_types"] = ["AttnUpBlock2D", "AttnUpBlock2D"]
    wrapping = Wrapping(unshuffle=2, heads=4, time_width=10)
    backbone = UNetBackbone(assemble_unet(config, wrapping), DDPMScheduler(), wrapping).eval()
    assert {m.heads for m in backbone.modules() if isinstance(m, Attention)} == {4}
    assert backbone.unet.time_embedding.linear_1.weight.shape == (40, 10)
    backbone.save(tmp_path / "b")
    again = load_backbone(tmp_path / "b")
    x, t = noisy(backbone)
    assert again.wrapping == wrapping
    assert torch.equal(again(x, t), backbone(x, t))
    (tmp_path / "b" / "backbone.json").write_text(json.dumps({"unshuffle": 2, "heads": 1, "time_width": 10}))
    assert not torch.equal(load_backbone(tmp_path / "b")(x, t), backbone(x, t))


def test_float16_files_load_as_float32(tmp_path):
    backbone = randomised(build_backbone(TINY, 0))
    backbone.save(tmp_path / "half", dtype=torch.float16)
    assert {v.dtype for v in load_file(tmp_path / "half" / WEIGHTS).values()} == {torch.float16}
    assert backbone.unet.dtype == torch.float32  # the original is not touched
    again = load_backbone(tmp_path / "half")
    for (name, ours), theirs in zip(backbone.named_parameters(), again.parameters(), strict=True):
        assert theirs.dtype == torch.float32
        assert torch.equal(theirs, ours.half().float()), name


def edit_weights(folder: Path, **changes: Tensor | None) -> None:
    state = load_file(folder / WEIGHTS) | changes
    save_file({key: value for key, value in state.items() if value is not None}, folder / WEIGHTS)


def test_a_missing_unexpected_or_misshapen_weight_is_named(saved):
    edit_weights(saved, **{"conv_in.bias": None})
    with pytest.raises(InputError, match=r"missing: conv_in\.bias$"):
        load_backbone(saved)
    edit_weights(saved, **{"conv_in.bias": torch.zeros(16), "more.weight": torch.zeros(1)})
    with pytest.raises(InputError, match=r"unexpected: more\.weight$"):
        load_backbone(saved)
    edit_weights(saved, **{"more.weight": None, "conv_in.bias": torch.zeros(17)})
    with pytest.raises(InputError, match=r"misshapen: conv_in\.bias$"):
        load_backbone(saved)


def test_damaged_files_are_named(saved, tmp_path):
    (saved / "backbone.json").write_text('{"unshuffle": 2, "fold": 1}')
    with pytest.raises(InputError, match=r"unknown keys \['fold'\]"):
        load_backbone(saved)
    (saved / "backbone.json").write_text('{"unshuffle": "2"}')
    with pytest.raises(InputError, match="unshuffle is '2'"):
        load_backbone(saved)
    (saved / "backbone.json").write_text("[]")
    with pytest.raises(InputError, match="expected a JSON object"):
        load_backbone(saved)
    (saved / "backbone.json").write_text('{"unshuffle": 2}')
    (saved / WEIGHTS).write_bytes((saved / WEIGHTS).read_bytes()[:100])
    with pytest.raises(InputError, match="not a whole safetensors file"):
        load_backbone(saved)
    (saved / WEIGHTS).unlink()
    with pytest.raises(InputError, match="has no weights"):
        load_backbone(saved)
    with pytest.raises(InputError, match="holds no diffusers network"):
        load_backbone(tmp_path)


# ---- Cost -------------------------------------------------------------------------------------------------


def products_by_hand(backbone: Backbone) -> int:
    """Two operations per multiply-add, layer by layer, from the shapes that pass through."""
    total = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        if isinstance(module, nn.Conv2d):
            total += 2 * output.numel() * module.in_channels * module.kernel_size[0] ** 2
        elif isinstance(module, nn.Linear):
            total += 2 * output.numel() * module.in_features
        elif isinstance(module, Attention):  # q·k and the weighted sum of v, over all pairs of positions
            _, width, height, breadth = output.shape
            total += 2 * 2 * width * (height * breadth) ** 2

    for module in backbone.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        backbone(*noisy(backbone, 1))
    return total


def test_flops_are_counted_exactly():
    backbone = build_backbone(TINY, 0)
    counted = forward_flops(backbone)
    assert backbone.training  # left as it was
    assert training_flops(backbone) == 3 * counted
    assert counted == products_by_hand(backbone)


@pytest.mark.parametrize(("name", "gigaflops", "million_weights"), [("toyfaces32", 0.25, 4), ("celeba32", 1.0, 6)])
def test_the_presets_for_a_laptop_are_cheap(name, gigaflops, million_weights):
    backbone = build_backbone(PRESETS[name].config.backbone, 0)
    assert backbone.size == 32
    assert training_flops(backbone) <= gigaflops * 1e9
    assert sum(p.numel() for p in backbone.parameters()) <= million_weights * 1e6
