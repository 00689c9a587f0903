"""Trained PDAE and DiTi models: the authors' own numbers, and a plain re-implementation for other shapes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from parity import write_large_layout
from test_authors import NEW_ORDER, THREE_LEVELS, State, attention, noisy, of, random_state, reference, settings
from torch import Tensor

from diti.core.errors import InputError
from diti.diffusion.sampler import ddim
from diti.diffusion.schedule import gather, guidance_authors, lambda_eps, reconstruction_loss_eps, w_eps
from diti.interop.authors_model import authors_partition, convert_decoder, convert_encoder, convert_model
from diti.representation.partition import Partition

RUN = {"encoder_config": {"model": "CELEBA64Encoder"}, "decoder_config": {"model": "CELEBA64Decoder"}}


# ---- The authors' own numbers -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected(parity) -> dict[str, Any]:
    return torch.load(parity / "pdae_tiny" / "expected.pt", weights_only=True)


@pytest.fixture(scope="module")
def model(parity):
    return convert_model(parity / "pdae_tiny" / "diti_checkpoint.pt")


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_networks_of_the_fixture(model, expected):
    _, encoder, decoder, facts = model
    partition = Partition.balanced(1000, expected["k"], 64)
    x_t, t = expected["x_t"], expected["t"]
    with torch.no_grad():
        z = encoder(expected["x0"])
        close(z, expected["z"])
        for name, code in (("", z), ("_masked", partition.mask(z, t))):
            eps, _, g = decoder(x_t, t, code)
            close(eps, expected[f"eps{name}"])
            close(g, expected[f"gradient{name}"])
        close(partition.mask(z, t), expected["z_masked"])
        close(decoder.backbone.eps(x_t, t), expected["eps_frozen"])
    assert (facts.step, facts.averaged, facts.partition, facts.unused) == (7, True, None, ())
    assert not encoder.training and not decoder.training
    assert json.loads(json.dumps(encoder.description))["size"] == 64


def test_losses_of_the_fixture(model, expected):
    _, _, decoder, _ = model
    schedule, x_t, t = decoder.backbone.schedule, expected["x_t"], expected["t"]
    w, weight = gather(w_eps(schedule), t, x_t), gather(lambda_eps(schedule), t, x_t)
    for name, code in (("diti", expected["z_masked"]), ("pdae", expected["z"])):
        with torch.no_grad():
            eps, _, g = decoder(x_t, t, code)
        close(reconstruction_loss_eps(expected["noise"], eps, g, w, weight), expected[f"loss_{name}_per_image"])


def test_loops_of_the_fixture(model, expected):
    _, _, decoder, _ = model
    schedule, partition = decoder.backbone.schedule, Partition.balanced(1000, expected["k"], 64)
    guidance = guidance_authors(schedule)
    few = slice(0, 2)  # of the 4 images

    def eps_fn(x: Tensor, t: Tensor) -> Tensor:
        eps, _, g = decoder(x, t, partition.mask(expected["z"][few], t))
        return eps - gather(guidance, t, x) * g

    steps = range(0, 1000, 100)
    first = float(schedule.alpha_bar[0])
    x_T = ddim(eps_fn, expected["x0"][few], steps, schedule, clamp=True, start=first, end=0.0)
    image = ddim(eps_fn, expected["x_T"][few], steps[::-1], schedule, clamp=True)
    # x0 = (x - ...) / sqrt(abar) multiplies float32 rounding by up to 60 a step: in float64 the loops end as far
    # (1.3e-4) from these numbers as in float32. A wrong mask, step or coefficient shows in every pixel.
    for ours, theirs in ((x_T, expected["x_T"]), (image, expected["reconstruction"])):
        difference = (ours - theirs[few]).abs()
        assert difference.max() < 5e-4
        assert difference.mean() < 2e-5


def test_the_small_fixture_holds_the_weights_of_the_large_one(shared, tmp_path):
    """Which were drawn with torch, and are drawn again with NumPy."""
    small = write_large_layout(tmp_path) / "pdae_tiny"
    for file, names in (
        ("ddpm_checkpoint.pt", ["ema_denoise_fn"]),
        ("diti_checkpoint.pt", ["ema_encoder", "ema_decoder"]),
    ):
        ours, theirs = (torch.load(at / file, weights_only=True) for at in (small, shared / "parity/pdae_tiny"))
        for name in names:
            assert ours[name].keys() == theirs[name].keys()
            for key, tensor in theirs[name].items():
                torch.testing.assert_close(ours[name][key], tensor, atol=3e-7, rtol=0)


# ---- Other shapes: a plain re-implementation --------------------------------------------------------------


def decoder_state(unet: dict[str, Any], dims: int) -> State:
    """Random weights under the authors' names: the frozen U-Net, and g with its own middle, up path and output."""
    frozen, other = random_state(unet, seed=0), random_state({**unet, "learn_sigma": False}, seed=1)
    own = {f"shift_{key}": value for key, value in other.items() if key.startswith(("middle", "output", "out."))}
    rng = torch.Generator().manual_seed(2)
    for key in [key for key in own if ".emb_layers." in key]:
        name = key.replace("emb_layers", "emb_z_layers")
        own[name] = 0.1 * torch.randn(own[key].shape, generator=rng)
    width = 4 * unet["base_channel"]
    own["label_emb.weight"] = torch.randn(width, dims, generator=rng) / math.sqrt(dims)
    own["label_emb.bias"] = torch.randn(width, generator=rng)
    return {**frozen, **own}


SHAPES = {
    "plain": {},
    "two blocks a level": {"num_residual_blocks_of_a_block": 2},
    "learns sigma": {"learn_sigma": True},
    "three levels, fixed heads, new order": THREE_LEVELS | NEW_ORDER,
    "heads of fixed width": {"head_channel": 16, "attention_resolutions": [1, 2]},
    "first multiplier 2": {"channel_multiplier": [2, 1]},
}


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
def test_decoders_of_other_shapes(changes):
    config = settings(**changes)
    unet = config["denoise_fn_config"]
    state = decoder_state(unet, dims=7)
    x, t = noisy()
    z = torch.randn(2, 7, generator=torch.Generator().manual_seed(6))
    expected = reference(unet, state, x, t, z)
    assert expected.std() > 0.3
    decoder = convert_decoder(config, state, size=8)
    with torch.no_grad():
        eps, _, g = decoder(x, t, z)
        torch.testing.assert_close(g, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(eps, decoder.backbone.eps(x, t), atol=1e-5, rtol=1e-5)
        assert (decoder(x, t, z + 1).g - g).abs().max() > 1e-2


ENCODERS = {64: (64, 128, 128, 128), 128: (64, 128, 256, 256, 256)}


def encoder_state(size: int, dims: int) -> State:
    """Random weights in the places of their nn.Sequential."""
    rng = torch.Generator().manual_seed(size)
    state: State = {}

    def fill(name: str, *shape: int) -> None:
        state[f"{name}.weight"] = torch.randn(shape, generator=rng) / math.sqrt(math.prod(shape[1:]) or 1)
        state[f"{name}.bias"] = torch.randn(shape[0], generator=rng)

    convs = {64: (0, 3, 7, 10), 128: (0, 3, 6, 10, 13)}[size]
    norms = {64: (1, 5, 8, 11), 128: (1, 4, 8, 11, 14)}[size]
    attends, head = {64: (4, 14), 128: (7, 17)}[size]
    before = 3
    for conv, norm, width in zip(convs, norms, ENCODERS[size], strict=True):
        fill(f"encoder.{conv}", width, before, 3, 3)
        fill(f"encoder.{norm}", width)
        before = width
    width = {64: 128, 128: 256}[size]
    fill(f"encoder.{attends}.norm", width)
    fill(f"encoder.{attends}.qkv", 3 * width, width, 1)
    fill(f"encoder.{attends}.proj_out", width, width, 1)
    fill(f"encoder.{head}", dims, 16 * before)
    return state


def encoder_reference(state: State, x: Tensor) -> Tensor:
    """Their sequence, layer by layer, told by the shapes of the weights."""
    heads = {"num_heads": 4, "head_channel": -1, "use_new_attention_order": False}
    for place in range(18):
        name = f"encoder.{place}"
        weight = state.get(f"{name}.weight")
        if f"{name}.qkv.weight" in state:
            x = attention(state, name, x, heads)
        elif weight is None:
            continue
        elif weight.ndim == 4:
            x = F.conv2d(x, *of(state, name), stride=2, padding=1)
        elif weight.ndim == 1:
            x = F.silu(F.group_norm(x, 32, *of(state, name)))
        else:
            x = F.linear(x.flatten(1), *of(state, name))
    return x


@pytest.mark.parametrize("size", ENCODERS)
def test_both_encoders(size):
    state = encoder_state(size, dims=9)
    x = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(1)) * 2 - 1
    encoder = convert_encoder(state)
    with torch.no_grad():
        expected = encoder_reference(state, x)
        torch.testing.assert_close(encoder(x), expected, atol=1e-4, rtol=1e-4)
    assert (encoder.size, encoder.dims, expected.shape) == (size, 9, (2, 9))


# ---- Files ------------------------------------------------------------------------------------------------


def write_run(folder: Path, dims: int = 9, run: dict[str, Any] | None = None, **entries: Any) -> dict[str, State]:
    """A run as the authors' trainer leaves it, its DDPM elsewhere in the same tree."""
    ddpm = folder.parents[1] / "pre-trained-dpms" / "celeba64"
    ddpm.mkdir(parents=True, exist_ok=True)
    (ddpm / "config.yml").write_text(yaml.safe_dump(settings()))
    (folder / "checkpoints").mkdir(parents=True)
    named = {"trained_ddpm_config": "../pre-trained-dpms/celeba64/config.yml"}
    (folder / "config.yml").write_text(yaml.safe_dump({**RUN, **named, **(run or {})}))
    states = {"encoder": encoder_state(64, dims), "decoder": decoder_state(settings()["denoise_fn_config"], dims)}
    torch.save({"step": 5, **states, **entries}, folder / "checkpoints" / "latest.pt")
    return states


def test_a_run_folder_with_compiled_names_and_leftovers(tmp_path):
    folder = tmp_path / "runs" / "celeba64" / "diti"
    dims = 9
    averages = {
        "ema_encoder": {f"_orig_mod.{k}": 0.5 * v for k, v in encoder_state(64, dims).items()},
        "ema_decoder": {
            f"module._orig_mod.{k}": 0.5 * v
            for k, v in decoder_state(settings()["denoise_fn_config"], dims).items()
        },
    }
    ssl = {"k": 4, "pdae_mode": "stop_grad"}
    write_run(folder, dims, {"ssl_config": ssl}, **averages, optimizer={"state": {0: torch.ones(1)}})
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    for source in (folder, str(folder), folder / "checkpoints" / "latest.pt"):
        backbone, encoder, decoder, facts = convert_model(source)
        expected = encoder_reference({k: 0.5 * v for k, v in encoder_state(64, dims).items()}, x)
        with torch.no_grad():
            torch.testing.assert_close(encoder(x), expected, atol=1e-4, rtol=1e-4)
        assert decoder.backbone is backbone and backbone.size == 64
        assert facts.averaged and facts.detach and facts.step == 5
        assert facts.partition == Partition.balanced(1000, 4, dims)
        assert facts.unused == ("encoder", "decoder", "optimizer")


def test_the_plain_weights_serve_where_there_are_no_averages(tmp_path):
    folder = tmp_path / "runs" / "celeba64" / "pdae"
    states = write_run(folder)
    _, encoder, _, facts = convert_model(folder)
    torch.testing.assert_close(encoder.head.weight, states["encoder"]["encoder.14.weight"])
    assert not facts.averaged and not facts.detach
    assert facts.partition == Partition.single(1000, 9)


def test_a_flat_folder_with_the_ddpm_beside_the_model(parity):
    assert convert_model(parity / "pdae_tiny")[3].step == 7


def test_faults_are_named():
    state = encoder_state(64, 9)
    faults = r"authors' encoder .*missing: encoder\.8\.bias; unexpected: encoder\.9\.bias"
    with pytest.raises(InputError, match=faults):
        convert_encoder({k.replace("8.bias", "9.bias"): v for k, v in state.items()})
    with pytest.raises(InputError, match=r"has weights encoder\.conv1\.weight.*; known are .* for 64 and 128 px"):
        convert_encoder({"encoder.conv1.weight": torch.zeros(1)})
    config = settings()
    decoder = decoder_state(config["denoise_fn_config"], 9)
    for wrong, complaint in (
        (
            {k: v for k, v in decoder.items() if k != "shift_out.2.bias"},
            r"authors' decoder .*missing: shift_out\.2\.bias",
        ),
        ({k: v for k, v in decoder.items() if k != "out.2.bias"}, r"authors' U-Net .*missing: out\.2\.bias"),
        ({**decoder, "shift_extra": torch.zeros(1)}, "unexpected: shift_extra"),
        (random_state(config["denoise_fn_config"]), r"no label_emb\.weight"),
    ):
        with pytest.raises(InputError, match=complaint):
            convert_decoder(config, wrong, 8)


def test_files_that_are_missing_or_too_many_are_named(tmp_path):
    with pytest.raises(InputError, match="no model"):
        convert_model(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds no trained model; give the \.pt file"):
        convert_model(tmp_path / "empty")
    folder = tmp_path / "runs" / "celeba64" / "pdae"
    write_run(folder)
    latest = folder / "checkpoints" / "latest.pt"
    for name in ("save-10k.pt", "save-20k.pt"):
        (folder / "checkpoints" / name).write_bytes(latest.read_bytes())
    latest.unlink()
    with pytest.raises(InputError, match=r"more than one trained model: save-10k\.pt, save-20k\.pt"):
        convert_model(folder)
    chosen = folder / "checkpoints" / "save-10k.pt"
    assert convert_model(chosen)[3].step == 5
    (tmp_path / "runs" / "pre-trained-dpms" / "celeba64" / "config.yml").unlink()
    with pytest.raises(InputError, match=r"names \.\./pre-trained-dpms/celeba64/config\.yml, which is not found"):
        convert_model(chosen)
    (folder / "ddpm.yml").write_text(yaml.safe_dump(settings()))
    assert convert_model(chosen)[3].step == 5
    (folder / "other.yml").write_text(yaml.safe_dump(settings()))
    with pytest.raises(InputError, match="several configs of one kind"):
        convert_model(chosen)


def test_a_model_whose_halves_do_not_fit_is_refused(tmp_path):
    folder = tmp_path / "runs" / "celeba64" / "pdae"
    write_run(folder, dims=9, decoder=decoder_state(settings()["denoise_fn_config"], 8))
    with pytest.raises(InputError, match="the encoder gives 9 dims, the decoder takes 8"):
        convert_model(folder)
    torch.save(
        {"step": 1, "ema_encoder": {}, "optimizer": {"a": torch.ones(1)}}, folder / "checkpoints" / "latest.pt"
    )
    with pytest.raises(InputError, match="holds step, ema_encoder, optimizer; a trained model has"):
        convert_model(folder)


# ---- Partitions -------------------------------------------------------------------------------------------

STAGES = {"stages": "50,100,300,500,1000", "dims_per_stage": "10,25,327,100,50"}


@pytest.mark.parametrize("subsets", [16, 32, 64])
def test_the_staged_partition_is_the_authors(subsets, parity):
    ends = json.loads((parity / "staged_ends.json").read_text())
    partition = authors_partition({"ssl_config": {"k": subsets, **STAGES}}, 1000, 512)
    assert partition == Partition.staged(1000, subsets, 512)
    assert list(partition.ends) == ends[str(subsets)]


def test_partitions_of_a_config():
    assert authors_partition({}, 1000, 512) == Partition.single(1000, 512)
    assert authors_partition({"ssl_config": {"k": 64, "no_pdae": True}}, 1000, 512) == Partition.single(1000, 512)
    assert authors_partition({"ssl_config": {"k": 64}}, 1000, 512) == Partition.balanced(1000, 64, 512)
    own = {"k": 5, "stages": "200,1000", "dims_per_stage": "3,11"}  # one segment starts in 0-200, four after it
    assert authors_partition({"ssl_config": own}, 1000, 14).ends == (3, 5, 7, 9, 14)
    with pytest.raises(InputError, match="k_per_stage"):
        authors_partition({"ssl_config": {"k": 5, "k_per_stage": "2,3"}}, 1000, 14)
    with pytest.raises(InputError, match=r"dims_per_stage '3,x'; expected whole numbers"):
        authors_partition({"ssl_config": {**own, "dims_per_stage": "3,x"}}, 1000, 14)
