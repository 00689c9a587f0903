"""The authors' U-Net against a plain re-implementation over their own state-dict names, and their fixture."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from diti.config import BackboneConfig
from diti.core.errors import InputError
from diti.diffusion.backbone import load_backbone
from diti.diffusion.unet import build_backbone
from diti.interop.authors import convert, convert_unet, read_authors_checkpoint, unet_state

State = dict[str, Tensor]


def settings(**changes: Any) -> dict[str, Any]:
    """A config.yml of the authors, small."""
    unet = {
        "model": "AnyDenoiseFn", "input_channel": 3, "base_channel": 32, "channel_multiplier": [1, 2],
        "num_residual_blocks_of_a_block": 1, "attention_resolutions": [2], "num_heads": 2, "head_channel": -1,
        "use_new_attention_order": False, "dropout": 0.1, "learn_sigma": False,
    }  # fmt: skip
    return {"denoise_fn_config": {**unet, **changes}}


# ---- The reference: layout, random weights, evaluation ----------------------------------------------------


def layout(unet: dict[str, Any]) -> dict[str, list[tuple[str, int, int]]]:
    """Their blocks by name: each a list of (kind, channels in, channels out)."""
    widths = [int(m * unet["base_channel"]) for m in unet["channel_multiplier"]]
    repeats, top = unet["num_residual_blocks_of_a_block"], len(widths) - 1
    blocks = {"input_blocks.0": [("conv", unet["input_channel"], widths[0])]}
    now, skips = widths[0], [widths[0]]
    for level, width in enumerate(widths):
        attention = [("attention", width, width)] * (2**level in unet["attention_resolutions"])
        for _ in range(repeats):
            blocks[f"input_blocks.{len(skips)}"] = [("same", now, width), *attention]
            now = width
            skips.append(now)
        if level < top:
            blocks[f"input_blocks.{len(skips)}"] = [("down", now, now)]
            skips.append(now)
    blocks["middle_block"] = [("same", now, now), ("attention", now, now), ("same", now, now)]
    index = 0
    for level in range(top, -1, -1):
        width = widths[level]
        attention = [("attention", width, width)] * (2**level in unet["attention_resolutions"])
        for repeat in range(repeats + 1):
            last = [("up", width, width)] * (level > 0 and repeat == repeats)
            blocks[f"output_blocks.{index}"] = [("same", now + skips.pop(), width), *attention, *last]
            now, index = width, index + 1
    return blocks


def random_state(unet: dict[str, Any], seed: int = 0) -> State:
    """Random weights under the authors' names, of a size that keeps activations near 1."""
    rng = torch.Generator().manual_seed(seed)
    state: State = {}

    def layer(name: str, *shape: int) -> None:
        fan_in = math.prod(shape[1:])
        state[f"{name}.weight"] = torch.randn(shape, generator=rng) / math.sqrt(fan_in)
        state[f"{name}.bias"] = 0.1 * torch.randn(shape[0], generator=rng)

    def norm(name: str, width: int) -> None:
        state[f"{name}.weight"] = 1 + 0.2 * torch.randn(width, generator=rng)
        state[f"{name}.bias"] = 0.2 * torch.randn(width, generator=rng)

    base, emb = unet["base_channel"], 4 * unet["base_channel"]
    layer("time_embed.0", emb, base)
    layer("time_embed.2", emb, emb)
    for block, parts in layout(unet).items():
        for index, (kind, before, after) in enumerate(parts):
            name = f"{block}.{index}"
            if kind == "conv":
                layer(name, after, before, 3, 3)
            elif kind == "attention":
                norm(f"{name}.norm", after)
                layer(f"{name}.qkv", 3 * after, after, 1)
                layer(f"{name}.proj_out", after, after, 1)
            else:
                norm(f"{name}.in_layers.0", before)
                layer(f"{name}.in_layers.2", after, before, 3, 3)
                layer(f"{name}.emb_layers.1", 2 * after, emb)
                norm(f"{name}.out_layers.0", after)
                layer(f"{name}.out_layers.3", after, after, 3, 3)
                if before != after:
                    layer(f"{name}.skip_connection", after, before, 1, 1)
    first = int(unet["channel_multiplier"][0] * base)
    norm("out.0", first)
    layer("out.2", unet["input_channel"] * (2 if unet["learn_sigma"] else 1), first, 3, 3)
    return state


def of(state: State, name: str) -> tuple[Tensor, Tensor]:
    return state[f"{name}.weight"], state[f"{name}.bias"]


def residual(state: State, name: str, kind: str, x: Tensor, emb: Tensor, emb_z: Tensor | None = None) -> Tensor:
    """Their residual block; emb_z: that of g, which z scales and shifts once more."""
    resample = {
        "same": lambda h: h,
        "down": lambda h: F.avg_pool2d(h, 2),
        "up": lambda h: h.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3),
    }[kind]
    h = F.silu(F.group_norm(x, 32, *of(state, f"{name}.in_layers.0")))
    h = F.conv2d(resample(h), *of(state, f"{name}.in_layers.2"), padding=1)
    h = F.group_norm(h, 32, *of(state, f"{name}.out_layers.0"))
    for layer, given in (("emb_layers", emb), ("emb_z_layers", emb_z)):
        if given is not None:
            scale, shift = F.linear(F.silu(given), *of(state, f"{name}.{layer}.1"))[..., None, None].chunk(2, 1)
            h = h * (1 + scale) + shift
    h = F.conv2d(F.silu(h), *of(state, f"{name}.out_layers.3"), padding=1)
    x = resample(x)
    if f"{name}.skip_connection.weight" in state:
        x = F.conv2d(x, *of(state, f"{name}.skip_connection"))
    return x + h


def attention(state: State, name: str, x: Tensor, unet: dict[str, Any]) -> Tensor:
    """Head by head; where the rows of a head's q, k and v lie depends on the order."""
    width = x.shape[1]
    heads = unet["num_heads"] if unet["head_channel"] == -1 else width // unet["head_channel"]
    each = width // heads
    flat = x.flatten(2)  # (B,C,N)
    qkv = F.conv1d(F.group_norm(flat, 32, *of(state, f"{name}.norm")), *of(state, f"{name}.qkv"))
    outputs = []
    for head in range(heads):
        if unet["use_new_attention_order"]:
            starts = [part * width + head * each for part in range(3)]
        else:
            starts = [(3 * head + part) * each for part in range(3)]
        q, k, v = (qkv[:, start : start + each] for start in starts)
        weight = (q.transpose(1, 2) @ k / math.sqrt(each)).softmax(-1)  # (B,N,N)
        outputs.append(v @ weight.transpose(1, 2))
    return x + F.conv1d(torch.cat(outputs, 1), *of(state, f"{name}.proj_out")).reshape(x.shape)


def reference(unet: dict[str, Any], state: State, x: Tensor, t: Tensor, z: Tensor | None = None) -> Tensor:
    """The authors' U-Net from its definition; z: g of their decoder, with a middle and an up path of its own."""
    own = "" if z is None else "shift_"
    half = unet["base_channel"] // 2
    angle = t[:, None] * torch.exp(-math.log(10000) * torch.arange(half) / half)
    emb = F.linear(torch.cat([angle.cos(), angle.sin()], 1), *of(state, "time_embed.0"))
    emb = F.linear(F.silu(emb), *of(state, "time_embed.2"))
    emb_z = None if z is None else F.linear(z, *of(state, "label_emb"))
    skips: list[Tensor] = []
    for block, parts in layout(unet).items():
        down = block.startswith("input")
        if block.startswith("output"):
            x = torch.cat([x, skips.pop()], 1)
        for index, (kind, _, _) in enumerate(parts):
            name = f"{'' if down else own}{block}.{index}"
            if kind == "conv":
                x = F.conv2d(x, *of(state, name), padding=1)
            elif kind == "attention":
                x = attention(state, name, x, unet)
            else:
                x = residual(state, name, kind, x, emb, None if down else emb_z)
        if down:
            skips.append(x)
    assert not skips
    return F.conv2d(F.silu(F.group_norm(x, 32, *of(state, f"{own}out.0"))), *of(state, f"{own}out.2"), padding=1)


def noisy(size: int = 8, count: int = 2) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    return torch.randn(count, 3, size, size, generator=rng), torch.tensor([3, 870])[:count]


# ---- Equality ---------------------------------------------------------------------------------------------

THREE_LEVELS = {"channel_multiplier": [1, 2, 3], "attention_resolutions": [1, 2], "num_heads": 4}
NEW_ORDER = {"use_new_attention_order": True}
CASES = {
    "plain": {},
    "no attention but the middle": {"attention_resolutions": []},
    "two blocks a level": {"num_residual_blocks_of_a_block": 2},
    "three levels, attention at two widths, fixed heads": THREE_LEVELS,
    "the same, new order": THREE_LEVELS | NEW_ORDER,
    "heads of fixed width": {"head_channel": 16, "attention_resolutions": [1, 2], "num_heads": 1},
    "heads of fixed width, new order": {"head_channel": 16, "attention_resolutions": [1], **NEW_ORDER},
    "one head": {"num_heads": 1, "attention_resolutions": [1, 2], "channel_multiplier": [1, 2, 2]},
    "first multiplier 2": {"channel_multiplier": [2, 2, 1]},
    "first multiplier a half": {"base_channel": 64, "channel_multiplier": [0.5, 1.5]},
    "learns sigma": {"learn_sigma": True, "num_residual_blocks_of_a_block": 2, **NEW_ORDER},
    "one level": {"channel_multiplier": [2], "attention_resolutions": [1]},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_the_converted_network_computes_the_same(changes, tmp_path):
    config = settings(**changes)
    unet = config["denoise_fn_config"]
    state = random_state(unet)
    x, t = noisy()
    expected = reference(unet, state, x, t)
    assert expected.shape[1] == (6 if unet["learn_sigma"] else 3)
    assert expected.std() > 0.3
    backbone = convert_unet(config, state, size=8)
    with torch.no_grad():
        torch.testing.assert_close(backbone.eps(x, t), expected[:, :3], atol=1e-4, rtol=1e-4)
        backbone.save(tmp_path / "b")
        assert torch.equal(load_backbone(tmp_path / "b").eps(x, t), backbone.eps(x, t))


@pytest.mark.parametrize("wrong", [NEW_ORDER, {"num_heads": 4}, {"head_channel": 16}], ids=str)
def test_the_attention_settings_matter(wrong):
    """The comparison above would notice a wrong order or number of heads."""
    right = settings()
    state = random_state(right["denoise_fn_config"])
    x, t = noisy()
    with torch.no_grad():
        difference = convert_unet(settings(**wrong), state, 8).eps(x, t) - convert_unet(right, state, 8).eps(x, t)
    assert difference.abs().max() > 1e-2


def test_the_authors_own_numbers(parity):
    expected = torch.load(parity / "pdae_tiny" / "expected.pt", weights_only=True)
    backbone = convert(parity / "pdae_tiny")
    assert backbone.size == 64
    with torch.no_grad():
        eps = backbone.eps(expected["x_t"], expected["t"])
    torch.testing.assert_close(eps, expected["eps_frozen"], atol=1e-4, rtol=0)
    abar = backbone.schedule.alpha_bar.float()
    torch.testing.assert_close(abar, expected["alphas_cumprod"], atol=1e-6, rtol=0)


# ---- Strictness -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "name", "weight"),
    [
        ("missing", "output_blocks.1.2.emb_layers.1.bias", None),
        ("unexpected", "label_emb.weight", torch.zeros(2)),
        ("misshapen", "middle_block.1.qkv.weight", torch.zeros(190, 64, 1)),
    ],
)
def test_a_weight_that_does_not_fit_is_named(fault, name, weight):
    config = settings()
    state = random_state(config["denoise_fn_config"]) | {name: weight}
    if weight is None:
        del state[name]
    with pytest.raises(InputError, match=re.escape(f"{fault}: {name}")):
        convert_unet(config, state)


def test_weights_of_another_depth_do_not_fit():
    state = random_state(settings()["denoise_fn_config"])
    with pytest.raises(InputError, match=r"missing: input_blocks.* and \d+ more; unexpected"):
        convert_unet(settings(num_residual_blocks_of_a_block=2), state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_class": 10}, "num_class"),
        ({"dims": 3}, "dims"),
        ({"input_channel": 1}, "takes 1 channels"),
        ({"base_channel": 40}, "multiples of 32"),
        ({"num_heads": 3}, "num_heads 3"),
        ({"channel_multiplier": "1,2"}, "channel_multiplier"),
    ],
)
def test_settings_that_cannot_serve_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        convert_unet(settings(**changes), {})


def test_missing_settings_are_named():
    config = settings()
    del config["denoise_fn_config"]["num_heads"]
    with pytest.raises(InputError, match="lacks num_heads"):
        convert_unet(config, {})
    with pytest.raises(InputError, match="no denoise_fn_config"):
        convert_unet({"encoder_config": {}}, {})


# ---- Files ------------------------------------------------------------------------------------------------


def authors_folder(folder: Path, **extra: Any) -> tuple[dict[str, Any], State]:
    config = settings() | extra
    state = random_state(config["denoise_fn_config"])
    folder.mkdir()
    (folder / "config.yml").write_text(yaml.safe_dump(config))
    torch.save({"step": 7, "denoise_fn": {"x": torch.zeros(1)}, "ema_denoise_fn": state}, folder / "checkpoint.pt")
    return config, state


def test_convert_takes_the_averaged_weights_of_a_folder(tmp_path):
    folder = tmp_path / "faces128"
    config, state = authors_folder(folder)
    (folder / "other.yml").write_text("encoder_config: {}\n")
    torch.save({"ema_encoder": {}}, folder / "other.pt")
    x, t = noisy()
    for source in (folder, folder / "config.yml", folder / "checkpoint.pt", str(folder)):
        backbone = convert(source)
        assert backbone.size == 128  # as the folder's name says
        with torch.no_grad():
            expected = reference(config["denoise_fn_config"], state, x, t)
            torch.testing.assert_close(backbone.eps(x, t), expected, atol=1e-4, rtol=1e-4)
    assert convert(folder, size=32).size == 32


def test_the_plain_weights_serve_where_there_is_no_average():
    state = random_state(settings()["denoise_fn_config"])
    assert unet_state({"denoise_fn": state}, "x.pt").keys() == state.keys()
    with pytest.raises(InputError, match=r"x\.pt holds ema_encoder; expected ema_denoise_fn or denoise_fn"):
        unet_state({"ema_encoder": {}}, "x.pt")


def test_size_and_betas_of_the_config_are_used(tmp_path):
    diffusion = {"timesteps": 50, "betas_type": "linear", "linear_beta_start": 0.001, "linear_beta_end": 0.2}
    authors_folder(tmp_path / "run64", dataset_config={"image_size": 32}, diffusion_config=diffusion)
    backbone = convert(tmp_path / "run64")
    assert backbone.size == 32
    betas = torch.linspace(0.001, 0.2, 50, dtype=torch.float64)
    torch.testing.assert_close(backbone.schedule.betas, betas, atol=1e-7, rtol=0)
    with pytest.raises(InputError, match="betas_type 'cosine'"):
        convert(authors_copy(tmp_path / "run64", tmp_path / "cosine", {"betas_type": "cosine"}))


def authors_copy(folder: Path, copy: Path, diffusion: dict[str, Any]) -> Path:
    shutil.copytree(folder, copy)
    config = yaml.safe_load((copy / "config.yml").read_text()) | {"diffusion_config": diffusion}
    (copy / "config.yml").write_text(yaml.safe_dump(config))
    return copy


def test_a_folder_without_the_files_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no \*\.yml with denoise_fn_config"):
        convert(tmp_path / "empty")
    (tmp_path / "empty" / "config.yml").write_text(yaml.safe_dump(settings()))
    with pytest.raises(InputError, match=r"no \*\.pt with ema_denoise_fn"):
        convert(tmp_path / "empty")
    with pytest.raises(InputError, match="nothing is called"):
        convert(tmp_path / "nowhere")


def test_two_checkpoints_are_named(tmp_path):
    authors_folder(tmp_path / "f")
    torch.save({"denoise_fn": {}}, tmp_path / "f" / "another.pt")
    with pytest.raises(InputError, match=r"more than one .*another\.pt, checkpoint\.pt"):
        convert(tmp_path / "f")


def test_files_of_another_kind_are_refused(tmp_path):
    junk = tmp_path / "junk.pt"
    with pytest.raises(InputError, match="no checkpoint"):
        read_authors_checkpoint(junk)
    junk.write_bytes(b"not a torch file at all")
    with pytest.raises(InputError, match=r"junk\.pt is not a torch file"):
        read_authors_checkpoint(junk)
    for content, complaint in (
        ({"a": torch.zeros(1)}, "holds a; expected state dicts"),
        ([torch.zeros(1)], "holds a list"),
        ({"model": torch.nn.Linear(1, 1)}, "not a torch file of plain tensors"),  # it would run code of the file
    ):
        torch.save(content, junk)
        with pytest.raises(InputError, match=complaint):
            read_authors_checkpoint(junk)
    (tmp_path / "readme.txt").write_text("x")
    with pytest.raises(InputError, match="neither a config"):
        convert(tmp_path / "readme.txt")


def test_convert_passes_a_diffusers_folder_on(tmp_path):
    backbone = build_backbone(BackboneConfig(size=8, channels=(32,), layers=1), seed=3)
    backbone.save(tmp_path / "b")
    again = convert(tmp_path / "b")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), backbone.parameters(), strict=True))
    with pytest.raises(InputError, match="images are 64 px"):
        convert(tmp_path / "b", size=64)
