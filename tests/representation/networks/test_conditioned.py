"""The U-Net that knows z: its residual block against the formula, what it starts as, and its files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from decoder_cases import KINDS, batch, with_skip_blocks
from diffusers.models.resnet import ResnetBlock2D
from small_unet import SMALL, backbone, randomise
from torch import Tensor

from diti.core.errors import InputError
from diti.representation.networks.conditioned import ConditionedUNet, load_conditioned
from diti.representation.networks.modulated import ModulatedResnet


def trained(network: ConditionedUNet) -> ConditionedUNet:
    """As after training: no layer is neutral any more."""
    randomise(network, seed=4)
    return network.eval()


def z_layers(network: ConditionedUNet) -> dict[str, ModulatedResnet]:
    modules = network.net.unet.named_modules()
    return {name: module for name, module in modules if isinstance(module, ModulatedResnet)}


# ---- The residual block -----------------------------------------------------------------------------------


def group_norm(x: Tensor, groups: int, norm: torch.nn.GroupNorm) -> Tensor:
    """Each group of channels of each image to mean 0 and variance 1, then the learned scale and shift."""
    out = torch.empty_like(x)
    size = x.shape[1] // groups
    for image in range(len(x)):
        for start in range(0, x.shape[1], size):
            group = x[image, start : start + size]
            spread = ((group - group.mean()) ** 2).mean()
            out[image, start : start + size] = (group - group.mean()) / (spread + 1e-6) ** 0.5
    for channel in range(x.shape[1]):
        out[:, channel] = out[:, channel] * norm.weight[channel] + norm.bias[channel]
    return out


def resampled(x: Tensor, way: str) -> Tensor:
    if way == "up":
        return x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    if way == "down":
        return (x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]) / 4
    return x


@pytest.mark.parametrize("way", ["same", "up", "down"])
@pytest.mark.parametrize("kind", ["scale_shift", "default"])
def test_the_block_is_adagn_with_t_first_and_z_second(kind, way):
    """AdaGN(h, t, z) = z_s (t_s GroupNorm(h) + t_b), both scales counted from 1, and z without a shift."""
    torch.manual_seed(0)
    stock = ResnetBlock2D(
        in_channels=8, out_channels=16, temb_channels=5, groups=4, time_embedding_norm=kind,
        up=way == "up", down=way == "down", output_scale_factor=1.5,
    )  # fmt: skip
    for norm in (stock.norm1, stock.norm2):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    block = ModulatedResnet(stock, 5, 3, shifts=False)
    x, emb_t, z = torch.randn(2, 8, 4, 4), torch.randn(2, 5), torch.randn(2, 3)
    with torch.no_grad():
        h = stock.conv1(resampled(F.silu(group_norm(x, 4, stock.norm1)), way))
        t = stock.time_emb_proj(emb_t * torch.sigmoid(emb_t))
        z_s = 1 + (z * torch.sigmoid(z)) @ block.z_proj.weight.T + block.z_proj.bias  # (2, 16): a scale alone
        assert z_s.shape == (2, 16)
        if kind == "scale_shift":
            t_s, t_b = 1 + t[:, :16], t[:, 16:]
            h = group_norm(h, 4, stock.norm2) * t_s[:, :, None, None] + t_b[:, :, None, None]
        else:
            h = group_norm(h + t[:, :, None, None], 4, stock.norm2)
        h = h * z_s[:, :, None, None]
        expected = (stock.conv_shortcut(resampled(x, way)) + stock.conv2(F.silu(h))) / 1.5
        found = block(x, torch.cat([emb_t, F.silu(z)], 1))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("unet", KINDS.values(), ids=KINDS.keys())
def test_every_residual_block_gets_t_and_the_activated_z(unet):
    frozen = backbone(**unet)
    blocks = [name for name, module in frozen.unet.named_modules() if isinstance(module, ResnetBlock2D)]
    network = trained(ConditionedUNet(frozen, dims=6))
    layers = z_layers(network)
    assert list(layers) == blocks
    assert {name.split("_")[0] for name in layers} == {"down", "mid", "up"}
    seen: list[Tensor] = []

    def note(module: torch.nn.Module, given: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        seen.append(named["temb"] if named else given[1])

    for layer in layers.values():
        layer.register_forward_pre_hook(note, with_kwargs=True)
    x, t, z = batch()
    with torch.no_grad():
        network(x, t, z)
        time = network.net.unet.time_embedding(network.net.unet.time_proj(t))
    assert len(seen) == len(blocks)
    for given in seen:
        torch.testing.assert_close(given, torch.cat([time, z * torch.sigmoid(z)], 1))


def test_z_acts_through_each_block_alone():
    network = trained(ConditionedUNet(backbone(), dims=6))
    layers = z_layers(network)
    x, t, z = batch()
    for chosen in layers:
        alone = trained(ConditionedUNet(backbone(), dims=6))
        for name, layer in z_layers(alone).items():
            if name != chosen:
                torch.nn.init.zeros_(layer.z_proj.weight)
        with torch.no_grad():
            assert (alone(x, t, z) - alone(x, t, -z)).abs().max() > 1e-4, chosen


# ---- The start --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unet", KINDS.values(), ids=KINDS.keys())
def test_a_copy_starts_as_the_backbone_whatever_z(unet):
    frozen = backbone(**unet)
    network = ConditionedUNet(frozen, dims=6).eval()
    x, t, z = batch()
    with torch.no_grad():
        torch.testing.assert_close(network(x, t, 10 * z), frozen(x, t), atol=1e-5, rtol=1e-5)
        assert frozen(x, t).std() > 0.1


@pytest.mark.parametrize("unshuffle", [1, 2])
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("sigma", [False, True], ids=["mean only", "learns sigma"])
def test_eps_follows_what_the_network_predicts(prediction, sigma, unshuffle):
    config = replace(SMALL, unshuffle=unshuffle, attention=())
    frozen = backbone(prediction, config, out_channels=3 * unshuffle**2 * (1 + sigma))
    network = ConditionedUNet(frozen, dims=6).eval()
    x, t, z = batch()
    t = t.clamp(min=200)  # the lowest t enlarge the rounding errors of x0 a hundred times
    with torch.no_grad():
        torch.testing.assert_close(network.eps(x, t, z), frozen.eps(x, t), atol=1e-5, rtol=1e-5)
    assert network.prediction_type == prediction and network.timesteps == 1000


def test_a_random_start_is_zero_reproducible_and_leaves_the_global_state_alone():
    frozen = backbone()
    before = torch.random.get_rng_state()
    one, same, other = (ConditionedUNet(frozen, dims=6, start="random", seed=s).eval() for s in (5, 5, 6))
    ConditionedUNet(frozen, dims=6, start="copy")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one(*batch()).abs().max() == 0
    states = [network.state_dict() for network in (one, same, other)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    for name in ("down_blocks.0.resnets.0.conv1.weight", "mid_block.resnets.0.z_proj.weight"):
        key = f"net.unet.{name}"
        assert states[0][key].std() > 0 and not torch.allclose(states[0][key], states[2][key], atol=1e-3)
    for zero in ("up_blocks.1.resnets.0.conv2.weight", "mid_block.attentions.0.to_out.0.weight", "conv_out.bias"):
        assert states[0][f"net.unet.{zero}"].abs().max() == 0, zero


def test_training_moves_the_whole_network_and_not_the_backbone_it_came_from():
    frozen = backbone(dropout=0.5).requires_grad_(False)
    kept = {key: tensor.clone() for key, tensor in frozen.state_dict().items()}
    network = ConditionedUNet(frozen, dims=6)
    assert all(module.training for module in network.modules())
    x, t, z = batch()
    z.requires_grad_()
    network(x, t, z).square().sum().backward()
    assert all(layer.z_proj.weight.grad.abs().max() > 0 for layer in z_layers(network).values()), "from step one"
    randomise(network, seed=4)
    network.zero_grad()
    network(x, t, z).square().sum().backward()
    assert z.grad is not None and z.grad.abs().min() > 0
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())
    torch.optim.SGD(network.parameters(), lr=0.1).step()
    assert all(torch.equal(tensor, kept[key]) for key, tensor in frozen.state_dict().items())


# ---- Files and bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_saved_and_loaded_on_its_own(prediction, tmp_path):
    network = trained(ConditionedUNet(backbone(prediction), dims=6))
    network.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decoder", "scheduler"], "no unconditional unet/"
    assert json.loads((tmp_path / "decoder" / "config.json").read_text()) == json.loads(
        json.dumps(network.description)
    )
    again = load_conditioned(tmp_path)
    assert not any(module.training for module in again.modules())
    with torch.no_grad():
        assert torch.equal(again.eps(*batch()), network.eps(*batch()))


def test_a_folder_that_does_not_fit_is_named(tmp_path):
    network = ConditionedUNet(backbone(), dims=6)
    network.save(tmp_path)
    config = tmp_path / "decoder" / "config.json"
    whole = json.loads(config.read_text())
    config.write_text(json.dumps(whole | {"dims": 7}))
    with pytest.raises(InputError, match=r"misshapen: down_blocks\.0\.resnets\.0\.z_proj\.weight"):
        load_conditioned(tmp_path)
    config.write_text(json.dumps({"kind": "shift", "dims": 6}))
    with pytest.raises(InputError, match=r"of kind 'shift'; this decoder has kind 'conditioned'"):
        load_conditioned(tmp_path)
    config.write_text(json.dumps(whole))
    (tmp_path / "scheduler" / "scheduler_config.json").unlink()
    with pytest.raises(InputError, match=r"scheduler_config\.json is missing"):
        load_conditioned(tmp_path)


def test_what_cannot_be_is_refused():
    frozen = backbone()
    with pytest.raises(InputError, match="the code has 0 dims"):
        ConditionedUNet(frozen, dims=0)
    with pytest.raises(InputError, match="start is 'zero'; allowed: copy, random"):
        ConditionedUNet(frozen, dims=6, start="zero")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"z has shape \(3, 5\); this decoder takes \(B, 6\)"):
        ConditionedUNet(frozen, dims=6)(*batch(dims=5))
    with pytest.raises(InputError, match="has a SkipDownBlock2D"):
        ConditionedUNet(with_skip_blocks(), dims=6)
