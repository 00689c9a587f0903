"""The encoder f: its trunks against slow definitions, the fitted head against an SVD, freezing, and files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler
from torch import Tensor

from diti.config import BackboneConfig, EncoderConfig
from diti.core.errors import InputError
from diti.diffusion.backbone import Backbone
from diti.diffusion.schedule import Schedule
from diti.diffusion.unet import UNetBackbone, Wrapping, assemble_unet, build_backbone, unet_config
from diti.representation.networks.encoder import (
    Encoder,
    build_encoder,
    component_order,
    encoder_from_description,
    load_encoder,
)
from diti.representation.networks.principal import Moments, principal_axes
from diti.representation.networks.trunks import BackboneTrunk, pooled_side

SMALL = BackboneConfig(size=16, unshuffle=2, channels=(16, 32), layers=2, attention=(4,), head_channels=8)


def backbone(config: BackboneConfig = SMALL, **unet: Any) -> Backbone:
    """Random weights in every layer, as after training."""
    wrapping = Wrapping(unshuffle=config.unshuffle)
    net = assemble_unet({**unet_config(config), **unet}, wrapping, seed=1)
    rng = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=rng)
    return UNetBackbone(net, DDPMScheduler(), wrapping)


def images(count: int = 3, size: int = 16, seed: int = 3) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def settings(kind: str, **changes: Any) -> EncoderConfig:
    return replace(EncoderConfig(encoder=kind, code_dim=12, encoder_channels=(8, 16)), **changes)  # type: ignore[arg-type]


def gradients(encoder: Encoder, x: Tensor) -> dict[str, Tensor | None]:
    encoder(x).square().sum().backward()
    return {name: parameter.grad for name, parameter in encoder.named_parameters()}


# ---- Every kind -------------------------------------------------------------------------------------------

EVERY = {"authors": (64, "authors"), "residual": (16, "residual"), "backbone": (16, "backbone")}


@pytest.mark.parametrize(("size", "kind"), EVERY.values(), ids=EVERY.keys())
def test_each_kind_builds_codes_and_comes_back_from_its_folder(size, kind, tmp_path):
    frozen = backbone(replace(SMALL, size=size, attention=(size // 4,)))
    state = torch.random.get_rng_state()
    encoder, same, other = (build_encoder(settings(kind), frozen, seed).eval() for seed in (5, 5, 6))
    x = images(size=size)
    with torch.no_grad():
        z = encoder(x)
        assert z.shape == (3, 12) == (len(x), encoder.dims)
        assert encoder.size == size
        assert (z[0] - z[1]).abs().max() > 1e-3  # z tells images apart
        assert torch.equal(same(x), z)
        assert not torch.allclose(other(x), z, atol=1e-3)
        assert encoder.features(x).shape == (3, encoder.trunk.features)
        encoder.feature_mean += 0.3
        encoder.feature_std *= 1.7
        encoder.save(tmp_path / "f")
        again = load_encoder(tmp_path / "f")
        assert torch.equal(again(x), encoder(x))
        assert not torch.allclose(again(x), z, atol=1e-3)  # mean and std are part of the file
    assert again.description == encoder.description == json.loads(json.dumps(encoder.description))
    assert not again.training
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(("size", "kind"), EVERY.values(), ids=EVERY.keys())
def test_every_weight_of_a_trained_encoder_gets_a_gradient(size, kind):
    encoder = build_encoder(
        settings(kind, trunk="fine-tuned"), backbone(replace(SMALL, size=size, attention=(size // 4,))), 0
    )
    if kind == "residual":  # its blocks start as the identity
        for block in encoder.trunk.blocks:
            torch.nn.init.normal_(block.conv2.weight)
    found = gradients(encoder.train(), images(size=size))
    # The last level is not downsampled; a bias of keys alone does not change attention.
    idle = [name for name, grad in found.items() if grad is None or grad.abs().max() == 0]
    assert not [name for name in idle if not name.endswith("to_k.bias")]


def test_wrong_images_and_settings_are_refused():
    encoder = build_encoder(settings("residual"), backbone(), 0)
    for shape in ((2, 3, 32, 32), (2, 1, 16, 16), (3, 16, 16)):
        with pytest.raises(InputError, match=r"this encoder takes \(B, 3, 16, 16\)"):
            encoder(torch.zeros(shape))
    with pytest.raises(
        InputError, match=r"--code-dim is 257, but this encoder has 256 features.*widen --encoder-channels"
    ):
        build_encoder(settings("residual", code_dim=257), backbone(), 0)
    with pytest.raises(InputError, match=r"--code-dim is 769, but this encoder has 768.*use --encoder residual"):
        build_encoder(settings("backbone", code_dim=769), backbone(), 0)
    with pytest.raises(InputError, match=r"64 px and 128 px, got 16 px; use --encoder residual"):
        build_encoder(settings("authors"), backbone(), 0)
    with pytest.raises(InputError, match=r"--encoder-time is 1000; give 0 to 999, in thousandths of T"):
        build_encoder(settings("backbone", encoder_time=(1000,)), backbone(), 0)
    with pytest.raises(InputError, match="--encoder-channels are"):
        build_encoder(settings("residual", encoder_channels=()), backbone(), 0)
    odd = {"kind": "residual", "size": 15, "dims": 4, "frozen": False, "channels": [8]}
    with pytest.raises(InputError, match="15 px; the residual encoder takes an even size of 8 px"):
        encoder_from_description(odd)


def test_a_description_is_closed(tmp_path):
    encoder = build_encoder(settings("residual"), backbone(), 0)
    with pytest.raises(InputError, match="kind is 'vit'; use authors, residual, backbone"):
        encoder_from_description({**encoder.description, "kind": "vit"})
    with pytest.raises(InputError, match="missing: size; unknown: depth"):
        encoder_from_description({k: v for k, v in encoder.description.items() if k != "size"} | {"depth": 3})
    encoder.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(encoder.description | {"channels": [8, 24]}))
    with pytest.raises(InputError, match=r"misshapen: feature_mean"):
        load_encoder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(InputError, match="not a whole safetensors file"):
        load_encoder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors is missing"):
        load_encoder(tmp_path)


# ---- The residual trunk -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "channels"), [(8, (4,)), (20, (8, 8, 8)), (32, (8, 16, 16, 16)), (68, (8, 8)), (128, (4, 8))]
)
def test_the_residual_encoder_takes_any_even_size(size, channels):
    description = {"kind": "residual", "size": size, "dims": 5, "frozen": False, "channels": list(channels)}
    encoder = encoder_from_description(description)
    assert encoder.trunk.features == 16 * channels[-1]
    assert encoder(images(2, size)).shape == (2, 5)


def test_the_residual_encoder_keeps_where_things_are():
    encoder = encoder_from_description(
        {"kind": "residual", "size": 32, "dims": 5, "frozen": False, "channels": [8, 8]}
    )
    x = images(1, 32)
    changed = x.clone()
    changed[:, :, :4, :4] *= -1
    with torch.no_grad():
        moved = (encoder.features(changed) - encoder.features(x)).abs().reshape(8, 4, 4).sum(0)
    assert moved[0, 0] > 5 * moved[3, 3]


# ---- The backbone trunk -----------------------------------------------------------------------------------


def slow_features(frozen: Backbone, x: Tensor, time: int) -> Tensor:
    """Each level's last layer before the downsampling, caught inside the U-Net, cells averaged one by one."""
    caught: list[Tensor] = []
    for block in frozen.unet.down_blocks:
        layers = block.attentions if hasattr(block, "attentions") else block.resnets
        layers[-1].register_forward_hook(lambda _module, _inputs, output: caught.append(output))
    frozen.unet.eval()
    frozen(x, torch.full((len(x),), time))
    columns = []
    for h in caught:
        cells = pooled_side(h.shape[1], h.shape[2])
        step = h.shape[2] // cells
        for channel in range(h.shape[1]):
            for i in range(cells):
                for j in range(cells):
                    columns.append(
                        h[:, channel, i * step : (i + 1) * step, j * step : (j + 1) * step].mean((1, 2))
                    )
    return torch.stack(columns, 1)


@pytest.mark.parametrize("unet", [{}, {"resnet_time_scale_shift": "default"}], ids=["scale_shift", "default"])
def test_the_backbone_trunk_sees_what_the_u_net_sees(unet):
    frozen = backbone(**unet)
    encoder = build_encoder(settings("backbone", encoder_time=(70,)), frozen, 0).eval()
    x = images()
    with torch.no_grad():
        expected = slow_features(frozen, x, 70)
        torch.testing.assert_close(encoder.features(x), expected, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(slow_features(backbone(**unet), x, 71), expected, atol=1e-4)  # time matters


@pytest.mark.parametrize(
    ("width", "side", "grid"),
    [(64, 16, 4), (65, 16, 3), (128, 4, 2), (512, 8, 1), (4096, 8, 1), (16, 2, 2), (16, 1, 1)],
)
def test_the_grid_of_a_level_is_bounded(width, side, grid):
    assert pooled_side(width, side) == grid


def test_a_frozen_trunk_gets_no_gradient_and_stays_in_inference_mode():
    encoder = build_encoder(settings("backbone"), backbone(dropout=0.5), 0)
    for mode in (None, True, False, True):
        if mode is not None:
            torch.nn.Sequential(encoder).train(mode)
        assert not any(module.training for module in encoder.trunk.modules())
        assert encoder.head.training is (mode is not False)
    x = images()
    assert torch.equal(encoder(x), encoder(x))  # no dropout
    encoder.requires_grad_(True)  # even then
    found = gradients(encoder, x)
    assert {name for name, grad in found.items() if grad is not None} == {"head.weight", "head.bias"}


def test_the_copied_trunk_is_a_copy():
    frozen = backbone()
    encoder = build_encoder(settings("backbone", trunk="fine-tuned"), frozen, 0)
    assert encoder.trunk.training
    before = frozen.unet.conv_in.weight.clone()
    with torch.no_grad():
        encoder.trunk.conv_in.weight += 1
    assert torch.equal(frozen.unet.conv_in.weight, before)
    assert isinstance(encoder.trunk, BackboneTrunk)


# ---- The fitted head --------------------------------------------------------------------------------------


def fitted(order: Any = "descending", **keywords: Any) -> tuple[Encoder, Tensor, Tensor]:
    encoder = build_encoder(settings("backbone"), backbone(), 0)
    x = images(80)
    share = encoder.fit_head(x.split(20), order, **keywords)
    return encoder, x, share


def svd_scores(features: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Whitened scores of the standardised features and each component's variance, without a covariance matrix."""
    a = features.double().numpy()
    a = (a - a.mean(0)) / a.std(0)
    u, s, _ = np.linalg.svd(a, full_matrices=False)
    return u * np.sqrt(len(a)), s**2 / len(a)


def test_the_fitted_head_gives_the_principal_components():
    encoder, x, share = fitted()
    with torch.no_grad():
        z = encoder(x).numpy()
        scores, variance = svd_scores(encoder.features(x))
    np.testing.assert_allclose(np.abs(z), np.abs(scores[:, :12]), atol=1e-3)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(z.T, bias=True), np.eye(12), atol=1e-3)
    np.testing.assert_allclose(share.numpy(), variance[:12] / variance.sum(), rtol=1e-5)
    largest = encoder.head.weight.detach().gather(1, encoder.head.weight.abs().argmax(1, keepdim=True))
    assert (largest > 0).all()


def test_very_many_features_give_the_same_head(monkeypatch):
    exact, x, share = fitted()
    monkeypatch.setattr("diti.representation.networks.principal.MANY_FEATURES", 20)
    quick, _, quick_share = fitted()
    assert quick.trunk.features > 20
    with torch.no_grad():
        torch.testing.assert_close(quick(x), exact(x), atol=0.1, rtol=0)
    torch.testing.assert_close(quick_share, share, atol=1e-3, rtol=1e-3)


def test_even_scaling_keeps_the_ratios_of_the_variances():
    encoder, x, share = fitted(scale="even")
    with torch.no_grad():
        variance = encoder(x).var(0, correction=0)
    torch.testing.assert_close(variance.mean(), torch.tensor(1.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(variance / variance.sum(), (share / share.sum()).float(), atol=1e-4, rtol=1e-3)


def test_the_order_assigns_components_to_dims():
    descending, x, share = fitted()
    chosen = [3, 0, 11, 1, 2, 4, 5, 6, 7, 8, 9, 10]
    for order, places in (("ascending", list(range(11, -1, -1))), (chosen, chosen), (np.array(chosen), chosen)):
        other, _, other_share = fitted(order)
        with torch.no_grad():
            torch.testing.assert_close(other(x), descending(x)[:, places], atol=1e-5, rtol=0)
        torch.testing.assert_close(other_share, share[places])
    assert (share.diff() < 0).all()
    assert component_order("ascending", 3) == [2, 1, 0]


@pytest.mark.parametrize("order", ["random", [0, 1], [0] * 12, list(range(1, 13))])
def test_an_order_that_is_none_is_refused(order):
    with pytest.raises(InputError, match=r"give descending, ascending, or each of 0\.\.11 once"):
        fitted(order)


def test_the_fit_does_not_depend_on_how_the_images_come():
    encoder, x, _ = fitted()
    other = build_encoder(settings("backbone"), backbone(), 9).train()
    other.fit_head(iter(x.flip(0).split(33)))
    with torch.no_grad():
        torch.testing.assert_close(other(x), encoder(x), atol=1e-3, rtol=0)
    assert other.training and other.head.training


def test_a_fit_measures_without_dropout_and_leaves_the_rest_alone():
    encoder = build_encoder(settings("backbone", trunk="fine-tuned"), backbone(dropout=0.5), 0).train()
    trunk = {key: tensor.clone() for key, tensor in encoder.trunk.state_dict().items()}
    x = images(80)
    encoder.fit_head([x])
    assert encoder.training and encoder.trunk.training
    assert all(torch.equal(tensor, trunk[key]) for key, tensor in encoder.trunk.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval()(x).var(0, correction=0), torch.ones(12), atol=1e-3, rtol=0)
    assert encoder.head.weight.requires_grad


def test_too_few_images_are_refused_and_nothing_is_changed():
    encoder = build_encoder(settings("backbone"), backbone(), 0)
    before = {key: tensor.clone() for key, tensor in encoder.state_dict().items()}
    for few, message in (
        (images(9), "vary in 8 directions .* 12 dims: give more"),
        (images(1), "1 images were given"),
    ):
        with pytest.raises(InputError, match=message):
            encoder.fit_head([few])
    with pytest.raises(InputError, match="0 images were given"):
        encoder.fit_head([])
    with pytest.raises(InputError, match="scale is 'none'; allowed: whitened, even"):
        encoder.fit_head([images(80)], scale="none")  # type: ignore[arg-type]
    assert all(torch.equal(tensor, before[key]) for key, tensor in encoder.state_dict().items())


def test_a_constant_feature_is_left_out():
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 4, generator=rng) * torch.tensor([1.0, 10.0, 0.1, 0.0]) + torch.tensor(
        [0.0, 5.0, 3.0, 7.0]
    )
    moments = Moments(4)
    for part in rows.split(64):
        moments.add(part)
    mean, std, correlation = moments.standardised()
    np.testing.assert_allclose(mean, rows.double().mean(0), rtol=1e-9)
    np.testing.assert_allclose(std[:3], rows[:, :3].double().std(0, correction=0), rtol=1e-9)
    assert std[3] == 1
    np.testing.assert_allclose(correlation[:3, :3], np.corrcoef(rows[:, :3].double().numpy().T), atol=1e-9)
    assert correlation[3].abs().max() == 0
    variance, axes = principal_axes(correlation, 3)
    assert axes[3].abs().max() < 1e-9 and (variance.diff() <= 0).all()
    with pytest.raises(InputError, match="vary in 3 directions"):
        principal_axes(correlation, 4)


def test_an_unfitted_backbone_head_is_orthonormal():
    encoder = build_encoder(settings("backbone"), build_backbone(SMALL, 0), 0)
    weight = encoder.head.weight.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(12), atol=1e-5, rtol=0)
    assert F.mse_loss(encoder.head.bias, torch.zeros(12)) == 0


def test_features_of_several_time_steps_stand_side_by_side_and_pixels_after_them():
    frozen, x = backbone(), images()
    one = build_encoder(settings("backbone", encoder_time=(70,)), frozen, 0).eval()
    both = build_encoder(settings("backbone", encoder_time=(0, 70), encoder_pixels=True), frozen, 0).eval()
    with torch.no_grad():
        alone, wide = one.features(x), both.features(x)
    width = alone.shape[1]
    assert wide.shape[1] == 2 * width + 3 * 16 * 16
    torch.testing.assert_close(wide[:, width : 2 * width], alone)
    assert not torch.allclose(wide[:, :width], alone, atol=1e-4)
    torch.testing.assert_close(wide[:, 2 * width :], x.flatten(1))  # 16 px images: nothing to average


def test_the_whole_u_net_has_the_features_of_its_down_path_and_more():
    frozen, x = backbone(), images()
    down = build_encoder(settings("backbone", encoder_time=(70,)), frozen, 0).eval()
    whole = build_encoder(settings("backbone", encoder_time=(70,), encoder_path="whole"), frozen, 0).eval()
    seen: list[torch.Tensor] = []
    blocks = [frozen.unet.mid_block, *frozen.unet.up_blocks]
    hooks = [block.register_forward_hook(lambda m, given, out: seen.append(out)) for block in blocks]
    with torch.no_grad():
        frozen.unet.eval()(F.pixel_unshuffle(x, frozen.wrapping.unshuffle), torch.full((len(x),), 70))
        features = whole.features(x)
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(features[:, : down.trunk.features], down.features(x))
    sides = [min(4, h.shape[-1]) for h in seen]
    expected = torch.cat(
        [F.adaptive_avg_pool2d(h, side).flatten(1) for h, side in zip(seen, sides, strict=True)], 1
    )
    torch.testing.assert_close(features[:, down.trunk.features :], expected)
    assert features.shape[1] == whole.trunk.features


def test_a_mirrored_encoder_knows_no_left_and_right():
    frozen, x = backbone(), images()
    plain = build_encoder(settings("backbone", encoder_pixels=True), frozen, 0).eval()
    mirrored = build_encoder(settings("backbone", encoder_pixels=True, encoder_mirror=True), frozen, 0).eval()
    with torch.no_grad():
        assert not torch.allclose(plain(x), plain(x.flip(3)), atol=1e-3)
        torch.testing.assert_close(mirrored(x), mirrored(x.flip(3)))
        expected = (plain.features(x) + plain.features(x.flip(3))) / 2
        torch.testing.assert_close(mirrored.features(x), expected)


def test_an_encoder_of_several_times_is_read_back(tmp_path):
    chosen = settings(
        "backbone", encoder_time=(0, 70), encoder_pixels=True, encoder_path="whole", encoder_mirror=True
    )
    encoder = build_encoder(chosen, backbone(), 0).eval()
    encoder.save(tmp_path / "encoder")
    again = load_encoder(tmp_path / "encoder")
    with torch.no_grad():
        assert torch.equal(again(images()), encoder(images()))
    assert again.description["time"] == [0, 70]


@pytest.mark.parametrize("times", [(), (5, 5)])
def test_times_are_given_once_each(times):
    with pytest.raises(InputError, match="one or more time-steps, each once"):
        build_encoder(settings("backbone", encoder_time=times), backbone(), 0)


@pytest.mark.parametrize(("steps", "time", "row"), [(1000, 50, 50), (40, 50, 2), (4000, 50, 200), (3, 999, 2)])
def test_times_are_the_same_share_of_any_number_of_steps(steps, time, row):
    frozen = backbone()
    frozen.schedule = Schedule.linear(steps)
    encoder = build_encoder(settings("backbone", encoder_time=(time,)), frozen, 0)
    assert encoder.description["time"] == row
