"""The decoder: how g starts, what stays frozen, g's residual block and the linear part against the formula."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from decoder_cases import KINDS, batch, with_skip_blocks
from diffusers import DDPMScheduler
from diffusers.models.resnet import ResnetBlock2D
from safetensors.torch import load_file
from small_unet import SMALL, backbone, randomise
from torch import Tensor

from diti.core.errors import InputError
from diti.diffusion.schedule import gather, lambda_eps, reconstruction_loss_eps, w_eps, x0_from_eps
from diti.diffusion.unet import UNetBackbone
from diti.representation.networks.linear import LinearPart
from diti.representation.networks.modulated import ModulatedResnet
from diti.representation.networks.shift import Prediction, ShiftDecoder, load_decoder, weighted_loss


def trained(decoder: ShiftDecoder) -> ShiftDecoder:
    """As after training: no layer of g is neutral any more."""
    randomise(decoder.path, seed=4)
    return decoder


# ---- The start --------------------------------------------------------------------------------------------

NO_ATTENTION = {
    "add_attention": False,
    "down_block_types": ["DownBlock2D"] * 2,
    "up_block_types": ["UpBlock2D"] * 2,
}


@pytest.mark.parametrize("unet", [*KINDS.values(), NO_ATTENTION], ids=[*KINDS, "no attention"])
def test_the_copied_path_is_the_frozen_one_but_for_z(unet):
    frozen = backbone(**unet)
    decoder = ShiftDecoder(frozen, dims=6).eval()
    x, t, z = batch()
    assert decoder(x, t, z).g.abs().max() == 0
    for name, parameter in decoder.path.named_parameters():
        if ".z_proj." in name:
            torch.nn.init.zeros_(parameter)
    decoder.path.conv_out.load_state_dict(frozen.unet.conv_out.state_dict())
    with torch.no_grad():
        g = decoder(x, t, 10 * z).g
        torch.testing.assert_close(g, frozen(x, t), atol=1e-5, rtol=1e-5)
    assert g.std() > 0.1


@pytest.mark.parametrize("unshuffle", [1, 2])
@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("sigma", [False, True], ids=["mean only", "learns sigma"])
def test_eps_is_the_backbone_s(prediction, sigma, unshuffle):
    config = replace(SMALL, unshuffle=unshuffle, attention=())
    channels = 3 * unshuffle**2
    frozen = backbone(prediction, config, out_channels=channels * (1 + sigma))
    decoder = trained(ShiftDecoder(frozen, dims=6)).eval()
    x, t, z = batch()
    with torch.no_grad():
        eps, _, g = decoder(x, t, z)
        torch.testing.assert_close(eps, frozen.eps(x, t), atol=1e-5, rtol=1e-5)
        assert torch.equal(decoder.backbone.eps(x, t), frozen.eps(x, t))
    assert g.shape == x.shape
    assert g.std() > 0.05
    assert decoder.path.conv_out.out_channels == channels


@pytest.mark.parametrize("start", ["copy", "random"])
def test_only_the_last_convolution_hides_z_at_the_start(start):
    """Were z without effect below a zero last layer, neither would have a gradient to begin with."""
    decoder = ShiftDecoder(backbone(), dims=6, start=start).eval()
    torch.nn.init.normal_(decoder.path.conv_out.weight)
    if start == "random":  # the authors zero the end of every residual block too
        for name, parameter in decoder.path.named_parameters():
            if name.endswith("conv2.weight"):
                torch.nn.init.normal_(parameter)
    x_t, t, z = batch()
    assert (decoder(x_t, t, z).g - decoder(x_t, t, -z).g).abs().max() > 1e-3


def test_the_shared_down_path_runs_once():
    frozen = backbone()
    decoder = ShiftDecoder(frozen, dims=6)
    sampling_steps: list[int] = []
    frozen.unet.conv_in.register_forward_hook(lambda *_: sampling_steps.append(1))
    decoder(*batch())
    assert len(sampling_steps) == 1


def test_a_random_start_is_zero_reproducible_and_leaves_the_global_state_alone():
    frozen = backbone()
    before = torch.random.get_rng_state()
    one, same, other = (ShiftDecoder(frozen, dims=6, start="random", seed=s).eval() for s in (5, 5, 6))
    ShiftDecoder(frozen, dims=6, start="copy")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert one(*batch()).g.abs().max() == 0
    weights = [d.decoder_state()["up_blocks.0.resnets.0.conv1.weight"] for d in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.allclose(weights[0], weights[2], atol=1e-3)
    assert not torch.allclose(weights[0], frozen.unet.up_blocks[0].resnets[0].conv1.weight, atol=1e-3)
    state = one.decoder_state()
    assert state["mid_block.resnets.0.z_proj.weight"].std() > 0  # z matters from the first step on
    for zero in ("up_blocks.1.resnets.0.conv2.weight", "mid_block.attentions.0.to_out.0.weight", "conv_out.bias"):
        assert state[zero].abs().max() == 0, zero


# ---- The modulated residual block -------------------------------------------------------------------------


@pytest.mark.parametrize("up", [False, True], ids=["same", "up"])
@pytest.mark.parametrize("kind", ["scale_shift", "default"])
def test_a_residual_block_is_modulated_by_t_then_by_z(kind, up):
    torch.manual_seed(0)
    stock = ResnetBlock2D(
        in_channels=8, out_channels=16, temb_channels=5, groups=4, time_embedding_norm=kind, up=up,
        output_scale_factor=1.5,
    )  # fmt: skip
    block = ModulatedResnet(stock, 5, 5, shifts=True)
    torch.nn.init.normal_(block.z_proj.weight)
    torch.nn.init.normal_(block.z_proj.bias)
    x, emb_t, emb_z = torch.randn(2, 8, 4, 4), torch.randn(2, 5), torch.randn(2, 5)
    h = F.silu(F.group_norm(x, 4, stock.norm1.weight, stock.norm1.bias, 1e-6))
    if up:
        x, h = (a.repeat_interleave(2, 2).repeat_interleave(2, 3) for a in (x, h))
    h = stock.conv1(h)
    t = stock.time_emb_proj(F.silu(emb_t))[:, :, None, None]
    z = block.z_proj(emb_z)[:, :, None, None]
    norm = lambda a: F.group_norm(a, 4, stock.norm2.weight, stock.norm2.bias, 1e-6)  # noqa: E731
    h = norm(h) * (1 + t[:, :16]) + t[:, 16:] if kind == "scale_shift" else norm(h + t)
    h = h * (1 + z[:, :16]) + z[:, 16:]
    expected = (stock.conv_shortcut(x) + stock.conv2(F.silu(h))) / 1.5
    # The block takes z activated already, since all blocks share it.
    torch.testing.assert_close(block(x if not up else x[:, :, ::2, ::2], torch.cat([emb_t, emb_z], 1)), expected)


# ---- Frozen means frozen ----------------------------------------------------------------------------------


def test_training_moves_g_alone():
    frozen = backbone(dropout=0.5)
    decoder = trained(ShiftDecoder(frozen, dims=6))
    x, t, z = batch()
    x.requires_grad_()
    z.requires_grad_()
    kept = {key: tensor.clone() for key, tensor in frozen.state_dict().items()}
    moved = {key: tensor.clone() for key, tensor in decoder.decoder_state().items()}
    optimizer = torch.optim.SGD(decoder.parameters(), lr=0.1)
    decoder.train().requires_grad_(True)  # even then
    eps, _, g = decoder(x, t, z)
    assert not eps.requires_grad
    g.square().sum().backward()
    optimizer.step()
    assert z.grad is not None and z.grad.abs().min() > 0
    assert x.grad is None
    assert all(parameter.grad is None for parameter in frozen.parameters())
    assert all(torch.equal(tensor, kept[key]) for key, tensor in frozen.state_dict().items())
    assert all(not torch.equal(tensor, moved[key]) for key, tensor in decoder.decoder_state().items())


def test_the_backbone_stays_in_inference_mode_whoever_calls_train():
    frozen = backbone(dropout=0.5).train().requires_grad_(True)
    decoder = ShiftDecoder(frozen, dims=6)
    whole = torch.nn.ModuleDict({"decoder": decoder})
    for mode in (None, True, False, True):
        if mode is not None:
            whole.train(mode)
        assert not any(module.training for module in frozen.modules())
        assert decoder.path.training is (mode is not False)
        assert not any(parameter.requires_grad for parameter in frozen.parameters())
    x, t, z = batch()
    trained(decoder)
    with torch.no_grad():
        first, second = decoder(x, t, z), decoder(x, t, z)
    assert torch.equal(first.eps_theta, second.eps_theta)
    assert not torch.equal(first.g, second.g)  # dropout acts in g, and only there


CRASH = """
import torch
from diti.config import BackboneConfig
from diti.diffusion.unet import UNetBackbone, build_backbone
from diti.representation.networks.shift import ShiftDecoder
from diti.representation.networks.unet_paths import embed_time, run_down
config = BackboneConfig(size=16, channels=(32, 32), layers=1)
frozen = build_backbone(config, 0).to(memory_format=torch.channels_last)
decoder = ShiftDecoder(frozen, 4).to(memory_format=torch.channels_last)
x, t = torch.randn(4, 3, 16, 16).to(memory_format=torch.channels_last), torch.full((4,), 5)
h, _ = run_down(frozen.unet, x, embed_time(frozen.unet, t))
assert h.is_contiguous(memory_format=torch.channels_last) and not h.is_contiguous() and not h.requires_grad
for parameter in decoder.path.parameters():
    torch.nn.init.normal_(parameter, std=0.1)
decoder(x, t, torch.randn(4, 4)).g.sum().backward()
assert decoder.path.mid_block.resnets[0].norm1.weight.grad.abs().max() > 0
"""


def test_frozen_features_in_channels_last_do_not_crash_the_backward_pass():
    """torch 2.13's group norm does crash on them; a crash would take this process along."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", CRASH], capture_output=True, text=True, timeout=600, env=environment
    )
    assert result.returncode == 0, f"exit code {result.returncode}\n{result.stderr}"


# ---- The linear part --------------------------------------------------------------------------------------


def linear_part(dims: int = 6, size: int = 16) -> LinearPart:
    """Random but not trivial."""
    part = LinearPart(size, 5, dims, 3)
    rng = torch.Generator().manual_seed(7)
    part.times.copy_(torch.tensor([20.0, 300.0, 800.0]))
    part.weights.copy_(torch.randn(part.weights.shape, generator=rng))
    part.axes.mean.copy_(0.1 * torch.randn(part.axes.mean.shape, generator=rng))
    part.axes.axes.copy_(torch.linalg.qr(torch.randn(part.axes.axes.shape, generator=rng))[0])
    return part


def w(decoder: ShiftDecoder, x: Tensor, t: Tensor) -> Tensor:
    return gather(w_eps(decoder.backbone.schedule), t, x)


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("steps", [[0, 400, 999], [0, 0, 0], [650, 650, 650]], ids=str)
def test_the_linear_part_moves_eps_by_the_root_of_snr_and_x0_by_itself(prediction, steps):
    frozen = backbone(prediction)
    decoder = ShiftDecoder(frozen, dims=6, start="none", linear=linear_part()).eval()
    (x, _, z), t = batch(), torch.tensor(steps)
    with torch.no_grad():
        found = decoder(x, t, z)
        u = frozen.x0(x, t)
        part = decoder.linear
        p = (u.flatten(1) - part.axes.mean) @ part.axes.axes
        for i, step in enumerate(steps):
            left = 0 if step < 300 else 1
            share = min(max((step - part.times[left]) / (part.times[left + 1] - part.times[left]), 0), 1)
            matrix = (1 - share) * part.weights[left] + share * part.weights[left + 1]
            change = part.axes.axes @ (torch.cat([torch.ones(1), p[i], z[i]]) @ matrix)
            abar = frozen.schedule.alpha_bar[step].item()
            root = (abar / (1 - abar)) ** 0.5
            expected = frozen.eps(x, t)[i] - root * change.reshape(3, 16, 16)
            torch.testing.assert_close(found.eps(w(decoder, x, t))[i], expected, atol=1e-4 * (1 + root), rtol=1e-4)
        abar_t = gather(frozen.schedule.alpha_bar, t, x)
        x0 = x0_from_eps(found.eps(w(decoder, x, t)).double(), x.double(), abar_t.double())
        together = u + part(u, t, z)
        torch.testing.assert_close(x0.float(), together, atol=1e-4 * float(abar_t.rsqrt().max()), rtol=1e-3)
    assert found.g is None and (together - u).std() > 0.1


def test_pure_noise_has_a_finite_prediction():
    """Zero terminal SNR: u comes from the network's own output, so that nothing is divided by 0."""
    unet = backbone().unet
    scheduler = DDPMScheduler(prediction_type="v_prediction", rescale_betas_zero_snr=True)
    frozen = UNetBackbone(unet, scheduler, backbone().wrapping)
    decoder = ShiftDecoder(frozen, dims=6, start="none", linear=linear_part()).eval()
    x, _, z = batch()
    t = torch.full((3,), 999)
    assert frozen.schedule.alpha_bar[-1] < 1e-12
    with torch.no_grad():
        assert torch.allclose(decoder(x, t, z).eps(w(decoder, x, t)), frozen.eps(x, t), atol=1e-4)


def test_without_g_a_call_costs_what_the_frozen_model_costs():
    frozen = backbone()
    decoder = ShiftDecoder(frozen, dims=6, start="none", linear=linear_part())
    assert decoder.path is None
    assert sum(p.numel() for p in decoder.parameters()) == sum(p.numel() for p in frozen.parameters())
    assert not any(p.requires_grad for p in decoder.parameters())
    sampling_steps: list[str] = []
    for name, module in frozen.unet.named_modules():
        module.register_forward_hook(lambda *_, name=name: sampling_steps.append(name))
    with torch.no_grad():
        decoder(*batch())
        ours = list(sampling_steps)
        sampling_steps.clear()
        frozen.eps(*batch()[:2])
    assert ours == sampling_steps


def test_without_g_any_unet_will_do():
    decoder = ShiftDecoder(with_skip_blocks(), dims=6, start="none", linear=linear_part()).eval()
    x, t, z = batch()
    assert torch.equal(decoder(x, t, z).eps_theta, decoder.backbone.eps(x, t))


def test_a_zero_linear_part_is_the_frozen_model():
    decoder = ShiftDecoder(backbone(), dims=6, start="none", linear=LinearPart(16, 5, 6, 3)).eval()
    x, t, z = batch()
    assert torch.equal(decoder(x, t, z).eps(w(decoder, x, t)), decoder.backbone.eps(x, t))


@pytest.mark.parametrize("start", ["copy", "random"])
def test_linear_part_and_g_add_up(start):
    frozen = backbone()
    alone = ShiftDecoder(frozen, dims=6, start="none", linear=linear_part()).eval()
    both = ShiftDecoder(frozen, dims=6, start=start, linear=linear_part()).eval()
    x, t, z = batch()
    with torch.no_grad():
        expected = alone(x, t, z).eps(w(alone, x, t))
        torch.testing.assert_close(both(x, t, z).eps(w(both, x, t)), expected, atol=1e-4, rtol=1e-4)
        g = trained(both)(x, t, z).g
        torch.testing.assert_close(
            both(x, t, z).eps(w(both, x, t)), expected - w(both, x, t) * g, atol=1e-4, rtol=1e-4
        )
    assert g.std() > 0.05


def test_gradients_reach_z_through_the_linear_part_alone():
    decoder = ShiftDecoder(backbone(), dims=6, start="none", linear=linear_part()).train()
    x, t, z = batch()
    x.requires_grad_()
    z.requires_grad_()
    found = decoder(x, t, z)
    assert not found.eps_theta.requires_grad
    found.eps(w(decoder, x, t)).square().sum().backward()
    assert z.grad is not None and z.grad.abs().min() > 0
    assert x.grad is None


def test_one_run_of_the_frozen_network_serves_many_codes():
    frozen = backbone()
    decoder = trained(ShiftDecoder(frozen, dims=6, linear=linear_part())).eval()
    x, t, z = batch()
    with torch.no_grad():
        expected = [decoder(x, t, code) for code in (z, -z)]
        sampling_steps: list[int] = []
        frozen.unet.conv_in.register_forward_hook(lambda *_: sampling_steps.append(1))
        once = decoder.frozen(x, t)
        found = [decoder.respond(once, t, code) for code in (z, -z)]
    assert len(sampling_steps) == 1
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_loss_of_a_prediction_is_that_of_its_eps():
    decoder = trained(ShiftDecoder(backbone(), dims=6, linear=linear_part())).eval()
    x, t, z = batch()
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(8))
    lam = gather(lambda_eps(decoder.backbone.schedule), t, x)
    with torch.no_grad():
        whole = decoder(x, t, z)
        for parts in (whole, whole._replace(g=None), whole._replace(linear=None), Prediction(whole.eps_theta)):
            error = noise - parts.eps(w(decoder, x, t))
            found = weighted_loss(noise, parts, w(decoder, x, t), lam)
            torch.testing.assert_close(found, lam.flatten() * error.square().mean((1, 2, 3)))
        plain = reconstruction_loss_eps(noise, whole.eps_theta, whole.g, w(decoder, x, t), lam)
        assert torch.equal(weighted_loss(noise, whole._replace(linear=None), w(decoder, x, t), lam), plain)


# ---- Files and bad input ----------------------------------------------------------------------------------


def test_saved_and_loaded_without_the_backbone(tmp_path):
    decoder = trained(ShiftDecoder(backbone(), dims=6)).eval()
    decoder.save(tmp_path / "decoder")
    assert json.loads((tmp_path / "decoder" / "config.json").read_text()) == decoder.description
    weights = load_file(tmp_path / "decoder" / "model.safetensors")
    assert weights.keys() == decoder.decoder_state().keys()
    again = load_decoder(tmp_path / "decoder", backbone())
    assert not again.training
    with torch.no_grad():
        assert torch.equal(again(*batch()).g, decoder(*batch()).g)


@pytest.mark.parametrize("start", ["none", "copy"])
def test_a_linear_part_is_saved_and_loaded(start, tmp_path):
    decoder = ShiftDecoder(backbone(), dims=6, start=start, linear=linear_part()).eval()
    if start == "copy":
        trained(decoder)
    decoder.save(tmp_path)
    described = {"kind": "linear", "dims": 6, "pixel_axes": 5, "stretches": 3, "path": start == "copy"}
    assert json.loads((tmp_path / "config.json").read_text()) == decoder.description == described
    names = {key.split(".")[0] for key in load_file(tmp_path / "model.safetensors")}
    assert names == ({"linear"} if start == "none" else {"linear", "path"})
    again = load_decoder(tmp_path, backbone())
    assert not again.training and (again.path is None) is (start == "none")
    assert again.decoder_state().keys() == decoder.decoder_state().keys()
    assert all(torch.equal(tensor, decoder.decoder_state()[key]) for key, tensor in again.decoder_state().items())
    x, t, z = batch()
    with torch.no_grad():
        assert torch.equal(again(x, t, z).eps(w(again, x, t)), decoder(x, t, z).eps(w(decoder, x, t)))


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "shift", "path": True}, {"kind": "curved"}, {"kind": ["linear"]}, {"pixels": 5}],
    ids=str,
)
def test_a_foreign_description_is_refused(wrong, tmp_path):
    decoder = ShiftDecoder(backbone(), dims=6, start="none", linear=linear_part())
    decoder.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**decoder.description, **wrong}))
    with pytest.raises(InputError, match="kind 'shift' and dims, or kind 'linear', dims, pixel_axes, stretches"):
        load_decoder(tmp_path, backbone())


def test_a_path_that_the_description_hides_is_named(tmp_path):
    decoder = ShiftDecoder(backbone(), dims=6, linear=linear_part())
    decoder.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**decoder.description, "path": False}))
    with pytest.raises(InputError, match=r"unexpected: path\."):
        load_decoder(tmp_path, backbone())


def test_weights_that_do_not_fit_are_named(tmp_path):
    decoder = ShiftDecoder(backbone(), dims=6)
    state = decoder.decoder_state()
    del state["embed_z.bias"]
    with pytest.raises(InputError, match=r"missing: embed_z\.bias; unexpected: extra"):
        decoder.load_decoder_state(state | {"extra": torch.zeros(1)}, "a file")
    decoder.save(tmp_path)
    other = backbone(config=replace(SMALL, channels=(16, 48)))
    with pytest.raises(InputError, match=r"misshapen: (embed_z|mid_block)"):
        load_decoder(tmp_path, other)
    (tmp_path / "config.json").write_text('{"kind": "shift"}')
    with pytest.raises(InputError, match="has kind 'shift' and dims"):
        load_decoder(tmp_path, backbone())


def test_what_cannot_be_is_refused():
    frozen = backbone()
    with pytest.raises(InputError, match="the code has 0 dims"):
        ShiftDecoder(frozen, dims=0)
    with pytest.raises(InputError, match="start is 'zero'; allowed: copy, random, none"):
        ShiftDecoder(frozen, dims=6, start="zero")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="start is 'none', which leaves a decoder without parts"):
        ShiftDecoder(frozen, dims=6, start="none")
    for part in (linear_part(dims=5), linear_part(size=8)):
        with pytest.raises(InputError, match="the decoder for 6 dims and 3 of 16 px"):
            ShiftDecoder(frozen, dims=6, start="none", linear=part)
    x, t, z = batch(dims=5)
    with pytest.raises(InputError, match=r"z has shape \(3, 5\); this decoder takes \(B, 6\)"):
        ShiftDecoder(frozen, dims=6)(x, t, z)
    with pytest.raises(InputError, match="has a SkipDownBlock2D"):
        ShiftDecoder(with_skip_blocks(), dims=6)
