import numpy as np
import pytest
import torch

from diti.config import TrainingConfig
from diti.core.loop import make_accelerator, train
from diti.core.rng import Draws, torch_generator
from diti.core.runs import RunFolder
from diti.diffusion.pretrain import denoising_loss
from diti.representation import checks
from diti.representation.methods.diti import Reconstruction, draw_time, reconstruction_loss, time_chances
from diti.representation.networks.encoder import given_encoder
from diti.representation.partition import Partition

IMAGES = torch.rand(6, 3, 16, 16, generator=torch_generator(0, "images")) * 2 - 1
DRAWS = Draws(7, 48, 6)


def slow_losses(model, partition, images, draws) -> list[float]:
    """Eq. 6 in its x0 form, image by image: λ_t ||x0 - (û_θ + w_t g)||², tables worked out here."""
    betas = np.linspace(1e-4, 0.02, 1000)
    alphas = 1 - betas
    abar = np.cumprod(alphas)
    t, noise = draws.integers("time-step", 1000), draws.normal("noise", (3, 16, 16))
    losses = []
    for i in range(len(images)):
        step = int(t[i])
        before = abar[step - 1] if step else 1.0
        snr = abar[step] / (1 - abar[step])
        x_t = (np.sqrt(abar[step]) * images[i] + np.sqrt(1 - abar[step]) * noise[i]).float()
        z = model.encoder(images[i : i + 1])[0].clone()
        for dim in range(len(z)):
            owner = next(s for s in range(partition.subsets) if dim in partition.dims_of(s))
            if owner > step * partition.subsets // 1000:
                z[dim] = 0.0
        eps, _, g = model.decoder(x_t[None], t[i : i + 1], z[None])
        x0 = (x_t - np.sqrt(1 - abar[step]) * eps[0]) / np.sqrt(abar[step])
        w = np.sqrt(alphas[step] / abar[step]) * (1 - before)
        weight = snr**0.1 / (1 + snr) * snr
        losses.append(weight * (images[i] - (x0 + w * g[0])).square().mean().item())
    return losses


def test_the_loss_is_eq_6_by_a_slow_loop_in_its_other_form(model):
    model.encoder.eval()
    model.decoder.eval()
    with torch.no_grad():
        report = Reconstruction(model.encoder, model.decoder, model.partition)(IMAGES, DRAWS)
        slow = slow_losses(model, model.partition, IMAGES, DRAWS)
    assert np.allclose(report.per_image, slow, rtol=2e-3)
    assert report.total.item() == pytest.approx(np.mean(slow), rel=2e-3)
    assert torch.allclose(report.time_share, DRAWS.integers("time-step", 1000) / 1000)


def test_pdae_is_diti_with_one_subset(model):
    single = Partition.single(1000, model.dims)
    with torch.no_grad():
        ours = Reconstruction(model.encoder, model.decoder, single)(IMAGES, DRAWS).per_image
        slow = slow_losses(model, single, IMAGES, DRAWS)
    assert np.allclose(ours, slow, rtol=2e-3)


def test_detach_keeps_values_and_cuts_the_gradient_of_earlier_subsets(model):
    draws = next(d for d in (Draws(s, 0, 1) for s in range(50)) if 500 <= d.integers("time-step", 1000) < 750)
    model.encoder.eval()

    def gradient(detach: bool):
        model.encoder.zero_grad()
        report = Reconstruction(model.encoder, model.decoder, model.partition, detach=detach)(IMAGES[:1], draws)
        report.total.backward()
        return report.total.item(), model.encoder.head.bias.grad.clone()

    (plain, full), (cut_value, cut) = gradient(False), gradient(True)
    assert plain == cut_value
    earlier, own, later = slice(0, 6), slice(6, 9), slice(9, 12)
    assert full[earlier].abs().min() > 0 and (cut[earlier] == 0).all()
    assert torch.allclose(full[own], cut[own]) and cut[own].abs().min() > 0
    assert (full[later] == 0).all() and (cut[later] == 0).all()


def test_the_frozen_model_gets_no_gradient_and_stays_in_inference_mode(model):
    objective = Reconstruction(model.encoder, model.decoder, model.partition).train()
    before = {k: v.clone() for k, v in model.backbone.state_dict().items()}
    adam = torch.optim.Adam([p for p in objective.parameters() if p.requires_grad], lr=0.1)
    objective(IMAGES, DRAWS).total.backward()
    adam.step()
    assert not model.backbone.training and all(p.grad is None for p in model.backbone.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.backbone.state_dict().items())
    assert all(p.grad is not None for p in objective.parameters() if p.requires_grad)


def test_loss_curves_are_those_losses_from_one_run_of_the_frozen_network(model, monkeypatch):
    t, noise = torch.tensor([0, 10, 200, 500, 800, 999]), DRAWS.normal("noise", (3, 16, 16))
    monkeypatch.setattr(checks, "fixed_batches", lambda *_: [(IMAGES, t, noise)])
    sampling_steps: list[int] = []
    model.backbone.unet.conv_in.register_forward_hook(lambda *_: sampling_steps.append(1))
    model.encoder.eval()
    found = checks.loss_curves(model.encoder, model.decoder.eval(), model.partition, None)
    assert len(sampling_steps) == 1
    with torch.no_grad():
        z = model.encoder(IMAGES)
        for code, losses in ((z, found.with_z), (z.roll(1, 0), found.shuffled)):
            expected = reconstruction_loss(model.decoder, IMAGES, t, noise, model.partition.mask(code, t))
            assert np.allclose(losses, expected, rtol=1e-6)
        assert np.allclose(found.frozen, weighted(denoising_loss(model.backbone, IMAGES, t, noise), t), rtol=1e-4)
    assert not np.allclose(found.with_z, found.frozen, rtol=1e-4)


def weighted(losses, t) -> np.ndarray:
    """λ_t of the ε form times each loss."""
    abar = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))[t]
    return (abar / (1 - abar)) ** 0.1 * (1 - abar) * losses.numpy()


def test_time_steps_by_loss_keep_the_expected_loss():
    """The weighted mean of any function of t equals its uniform mean, whatever the chances."""
    curve = torch.linspace(5, 0.1, 1000)
    chances = time_chances(curve)
    assert chances.sum().item() == pytest.approx(1) and chances.min() >= 0.5 / 1000
    t, weight = draw_time(Draws(0, 0, 40_000), 1000, chances)
    value = (t.double() / 1000).square()
    assert (weight * value).mean().item() == pytest.approx(1 / 3, abs=0.01)
    assert weight.mean().item() == pytest.approx(1, abs=0.02) and weight.max() <= 2.001
    assert t.double().mean() < 450, "early steps, where more is lost, are drawn more often"


def test_time_steps_follow_their_chances():
    chances = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)
    t, _ = draw_time(Draws(1, 0, 20_000), 3, chances)
    assert np.allclose(torch.bincount(t, minlength=3) / 20_000, chances, atol=0.015)


@pytest.mark.parametrize(
    ("features", "solved", "share"), [(2_560, True, 1), (10_240, True, 1 / 4), (256, True, 1), (10_240, False, 1)]
)
def test_a_solved_head_of_many_weights_learns_more_slowly(model, features, solved, share):
    """Adam moves every weight by the rate: all together they move by rate times weights."""
    encoder = given_encoder(16, 128, features)
    objective = Reconstruction(encoder, model.decoder, model.partition, encoder_rate=0.1, starts_solved=solved)
    assert objective.rate_factor("encoder.head.weight") == pytest.approx(0.1 * share)
    assert objective.rate_factor("encoder.head.bias") == pytest.approx(0.1 * share)
    assert objective.rate_factor("encoder.trunk.conv.weight") == 0.1, "a trunk that is fine-tuned"
    assert objective.rate_factor("decoder.path.conv_out.weight") == 1


def test_the_encoder_learns_at_its_share_of_the_rate(model, tmp_path):
    """Adam's first step is as long as the rate, whatever the gradient: so the share is seen exactly."""
    before = {name: p.detach().clone() for name, p in model.encoder.named_parameters()}
    g_before = model.decoder.path.conv_out.weight.detach().clone()
    objective = Reconstruction(model.encoder, model.decoder, model.partition, encoder_rate=0.1)
    config = TrainingConfig(images=6, train_batch_size=6, learning_rate=1e-3, max_grad_norm=0)
    train(
        objective, lambda start, count: IMAGES, config, RunFolder(tmp_path),
        label="one step", evaluate=lambda images: {}, accelerator=make_accelerator(config),
    )  # fmt: skip
    moved = {name: (p - before[name]).abs().max().item() for name, p in model.encoder.named_parameters()}
    assert max(moved.values()) == pytest.approx(1e-4, rel=0.01)
    assert (model.decoder.path.conv_out.weight - g_before).abs().max().item() == pytest.approx(1e-3, rel=0.01)
