"""The latent learns known distributions, continues a stopped run, comes back from disk, and refuses strangers."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from diti.core.errors import InputError
from diti.core.rng import torch_generator
from diti.core.runs import RunFolder
from diti.data.sources import open_data
from diti.diffusion.schedule import Schedule, gather
from diti.representation.models.latent import encoder_file_hash, load_latent
from diti.representation.networks.latent import LatentShape, default_shape, new_latent
from diti.representation.train_latent import (
    Gaussian,
    energy_distance,
    fit_latent,
    latent_config,
    start_latent_run,
    train_latent,
    two_sample_auroc,
    validation_loss,
)

SHARE = 0.7  # of the first blob
BLOBS = torch.tensor([[2.0, 5.0], [-2.0, 6.0]])  # in z's own scale


def blobs(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(count, 2) codes from two narrow blobs, and which blob each is from."""
    rng = torch_generator(seed, "blobs")
    first = torch.rand(count, generator=rng) < SHARE
    return torch.where(first[:, None], *BLOBS) + 0.3 * torch.randn((count, 2), generator=rng), first


def correlated(count: int, seed: int) -> torch.Tensor:
    """(count, 3) standard normal codes of which the first two are correlated by 0.9."""
    x = torch.randn((count, 3), generator=torch_generator(seed, "correlated"))
    return torch.stack([x[:, 0], 0.9 * x[:, 0] + 0.19**0.5 * x[:, 1], x[:, 2]], 1)


def trained(folder, codes, held_out, codes_seen):
    """A small latent trained on codes, and what was measured."""
    shape = LatentShape(dims=codes.shape[1], width=48, layers=3)
    config = latent_config("codes", shape, codes_seen)
    config = replace(config, training=replace(config.training, learning_rate=3e-3))
    latent = new_latent(shape, codes.mean(0), codes.std(0), seed=0)
    facts = train_latent(latent, codes, held_out, config, start_latent_run(folder, config, {}))
    return latent, facts


@pytest.fixture(scope="module")
def of_blobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blobs")
    return trained(folder, blobs(8_000, 0)[0], blobs(3_000, 1)[0], 80_000)


def test_two_blobs_are_learnt_in_their_shares(of_blobs):
    latent, _ = of_blobs
    z = latent.sample(4_000, seed=0)
    distance, nearest = torch.cdist(z, BLOBS).min(1)
    assert (nearest == 0).float().mean().item() == pytest.approx(SHARE, abs=0.04)
    for index in (0, 1):
        inside = z[nearest == index]
        assert torch.allclose(inside.mean(0), BLOBS[index], atol=0.08)
        assert torch.allclose(inside.std(0), torch.full((2,), 0.3), atol=0.1)
    assert (distance > 1.2).float().mean() < 0.02, "a normal with the same covariance puts 45 % there"


def test_the_facts_show_that_blobs_are_no_gaussian(of_blobs):
    _, facts = of_blobs
    assert facts["validation_loss"] < 0.85 * facts["validation_loss_gaussian"]
    assert facts["auroc_gaussian"] > 0.75 > 0.6 > facts["auroc"] > 0.4 and 0.45 < facts["auroc_real"] < 0.55
    assert facts["energy_distance"] < 0.2 * facts["energy_distance_gaussian"]
    assert abs(facts["energy_distance_real"]) < 0.01


def test_a_correlated_gaussian_is_learnt_to_its_best_loss(tmp_path):
    latent, facts = trained(tmp_path, correlated(8_000, 0), correlated(3_000, 1), 50_000)
    assert facts["validation_loss"] == pytest.approx(facts["validation_loss_gaussian"], rel=0.03)
    found = torch.corrcoef(latent.sample(4_000, seed=1).T)
    assert torch.allclose(found, torch.corrcoef(correlated(100_000, 2).T), atol=0.06)


def test_a_new_latent_is_exact_for_standard_normal_codes():
    latent = new_latent(LatentShape(dims=4, width=8, layers=2), torch.zeros(4), torch.ones(4), seed=0)
    x, t = torch.randn((3, 4), generator=torch_generator(0, "x")), torch.tensor([0, 500, 999])
    assert torch.allclose(latent(x, t), (1 - gather(latent.schedule.alpha_bar, t, x)).sqrt() * x, atol=1e-6)
    assert torch.allclose(latent.sample(5_000, seed=0).std(0), torch.ones(4), atol=0.05)


def test_time_and_every_layer_matter():
    latent = new_latent(LatentShape(dims=4, width=8, layers=3), torch.zeros(4), torch.ones(4), seed=0)
    torch.nn.init.normal_(latent.last.weight, generator=torch_generator(0, "last"))
    x = torch.randn((2, 4), generator=torch_generator(0, "x"))
    v = latent(x, torch.tensor([400, 400])), latent(x, torch.tensor([400, 401]))
    assert torch.equal(v[0][0], v[1][0]) and not torch.allclose(v[0][1], v[1][1], atol=1e-4)
    latent(x, torch.tensor([10, 700])).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in latent.parameters())


def test_samples_follow_the_seed_and_nothing_else(of_blobs):
    latent, _ = of_blobs
    before = torch.get_rng_state()
    first = latent.sample(8, seed=3, sampling_steps=10)
    assert torch.equal(before, torch.get_rng_state()) and torch.equal(
        first, latent.sample(8, seed=3, sampling_steps=10)
    )
    assert not torch.allclose(first, latent.sample(8, seed=4, sampling_steps=10))
    with pytest.raises(InputError, match=r"count is 0"):
        latent.sample(0, seed=0)
    with pytest.raises(InputError, match=r"--sampling-steps is 1001"):
        latent.sample(1, seed=0, sampling_steps=1001)


def test_a_continued_run_equals_an_uninterrupted_one(tmp_path):
    codes, held_out = correlated(500, 0), correlated(200, 1)
    whole, _ = trained(tmp_path / "whole", codes, held_out, 5_120)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    left = tmp_path / "killed" / "latent"
    states = sorted(path.name for path in (left / "state").iterdir())
    assert states == [f"{4608:012d}", f"{5120:012d}"]
    shutil.rmtree(left / "state" / states[1])  # as if killed after the state before the last
    for name in ("config.json", "model.safetensors", "checks.json"):
        (left / name).unlink()
    again, _ = trained(tmp_path / "killed", codes, held_out, 5_120)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    saved = [(tmp_path / run / "latent" / "model.safetensors").read_bytes() for run in ("whole", "killed")]
    assert saved[0] == saved[1]
    lines = [
        [r["loss"] for r in RunFolder(tmp_path / run / "latent").read_log() if "loss" in r]
        for run in ("whole", "killed")
    ]
    assert lines[0] == lines[1] and len(lines[0]) > 10
    with pytest.raises(
        InputError, match=r"settings \(training\.images.*\); repeat.*, or remove .*latent to start"
    ):
        trained(tmp_path / "whole", codes, held_out, 6_400)


@pytest.fixture
def folder(model, tmp_path):
    """A model folder with a latent made by the verb's function."""
    model.save(tmp_path / "model")
    fit_latent(tmp_path / "model", "toyfaces:60", codes_seen=512)
    return tmp_path / "model"


def test_fit_latent_leaves_a_latent_with_its_facts(folder, model):
    facts = json.loads((folder / "latent" / "checks.json").read_text())
    names = ("energy_distance", "auroc")
    assert {f"{name}{kind}" for name in names for kind in ("", "_gaussian", "_real")} < facts.keys()
    assert facts["codes_seen"] == 512 and np.isfinite(list(facts.values())).all()
    latent = load_latent(folder)
    assert latent.shape == default_shape(12, encoder_file_hash(folder)) and latent.shape.width == 48
    faces = open_data("toyfaces:60", 16)  # the model does not know its statistics: those of the training codes
    z = model.encode(np.asarray(faces.images[faces.rows("train")]))
    torch.testing.assert_close(latent.mean, z.mean(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(latent.std, z.std(0, correction=0), atol=1e-5, rtol=0)
    assert not latent.training
    assert torch.equal(latent.sample(3, 1), load_latent(folder).sample(3, 1))
    assert fit_latent(folder, "toyfaces:60", codes_seen=512) == facts, "a finished run is measured again"


def test_fit_latent_takes_the_statistics_that_a_model_knows(model, tmp_path):
    known = replace(model, mean=torch.linspace(-1, 1, 12), std=torch.linspace(0.5, 2, 12))
    known.save(tmp_path)
    fit_latent(tmp_path, "toyfaces:60", codes_seen=512)
    latent = load_latent(tmp_path)
    assert torch.equal(latent.mean, known.mean) and torch.equal(latent.std, known.std)


def test_the_scale_of_z_comes_back(model, tmp_path):
    model.save(tmp_path)
    shape = LatentShape(dims=3, width=8, layers=1, encoder=encoder_file_hash(tmp_path))
    mean, std = torch.tensor([1.0, -5.0, 100.0]), torch.tensor([0.1, 2.0, 30.0])
    latent = new_latent(shape, mean, std, seed=0)
    torch.nn.init.normal_(latent.last.bias, generator=torch_generator(0, "bias"))
    latent.save(tmp_path)
    loaded = load_latent(tmp_path)
    z = loaded.sample(4, seed=2)
    assert torch.equal(z, latent.sample(4, seed=2))
    plain = new_latent(shape, torch.zeros(3), torch.ones(3), seed=0)
    plain.load_state_dict({**latent.state_dict(), "mean": torch.zeros(3), "std": torch.ones(3)})
    assert torch.allclose(z, mean + std * plain.sample(4, seed=2)) and torch.allclose(
        loaded.standardise(z), plain.sample(4, seed=2), atol=1e-4
    )


def test_strangers_are_refused(folder, model, tmp_path):
    model.save(tmp_path / "bare")
    with pytest.raises(InputError, match=r"no finished latent/.*diti train-latent .*bare --data"):
        load_latent(tmp_path / "bare")
    shutil.copytree(folder / "latent", tmp_path / "bare" / "latent")
    assert load_latent(tmp_path / "bare").dims == 12
    config = folder / "latent" / "config.json"
    settings = json.loads(config.read_text())

    def complaint(changes: dict[str, object], without: str = "") -> str:
        config.write_text(json.dumps({k: v for k, v in (settings | changes).items() if k != without}))
        with pytest.raises(InputError) as caught:
            load_latent(folder)
        return str(caught.value)

    assert "misshapen" in complaint({"dims": 13}) and "missing: layers.4" in complaint({"layers": 5})
    assert "check colour" in complaint({"colour": 1}) and "check width" in complaint({}, without="width")
    assert "width must be int, got 'wide'" in complaint({"width": "wide"})
    assert "timesteps is 0; it must be" in complaint({"timesteps": 0})
    assert "made for an encoder other" in complaint({"encoder": "0" * 64})
    config.write_text(json.dumps(settings))
    (folder / "latent" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors is missing"):
        load_latent(folder)


def test_another_encoder_in_the_folder_is_noticed(folder, model):
    with torch.no_grad():
        model.encoder.head.weight.add_(0.1)
    model.save(folder)
    with pytest.raises(InputError, match=r"made for an encoder other"):
        load_latent(folder)
    with pytest.raises(InputError, match=r"shape\.encoder.*remove"):
        fit_latent(folder, "toyfaces:60", codes_seen=512)


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"2 and 3 dims, the latent 3"):
        new_latent(LatentShape(dims=3), torch.zeros(2), torch.ones(3), seed=0)
    with pytest.raises(InputError, match=r"is not a folder"):
        fit_latent(tmp_path / "nowhere", "toyfaces:60")


# ---- The measures ------------------------------------------------------------------------------------------


def test_the_gaussian_is_the_best_linear_denoiser():
    codes = correlated(2_000, 0) * torch.tensor([1.0, 2.0, 0.5]) + torch.tensor([3.0, 0.0, -1.0])
    gaussian = Gaussian.fit(codes)
    x, abar = torch.randn((4, 3), generator=torch_generator(0, "x")), 0.3
    covariance = np.cov(codes.numpy().T)
    noisy = abar * covariance + (1 - abar) * np.eye(3)
    expected = (1 - abar) ** 0.5 * np.linalg.solve(noisy, (x.numpy() - abar**0.5 * codes.mean(0).numpy()).T).T
    assert np.allclose(gaussian.eps(x, torch.tensor(abar)), expected, atol=1e-4)
    drawn = gaussian.sample(100_000, seed=0)
    assert np.allclose(np.cov(drawn.numpy().T), covariance, atol=0.05)
    assert torch.allclose(drawn.mean(0), codes.mean(0), atol=0.03)


def test_validation_loss_of_known_denoisers():
    codes, schedule = correlated(500, 0), Schedule.linear(100)
    assert validation_loss(lambda x, t: torch.zeros_like(x), codes, schedule) == pytest.approx(1, abs=0.03)

    def from_the_code(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Knows the codes, which are fixed, so it knows the noise."""
        abar = gather(schedule.alpha_bar, t, x)
        return (x - abar.sqrt() * codes[torch.arange(len(x)) % 500]) / (1 - abar).sqrt()

    assert validation_loss(from_the_code, codes, schedule) < 1e-6


def test_energy_distance_is_its_definition():
    a, b = correlated(7, 0), correlated(5, 1) + 1
    pairs = {
        "ab": [float((x - y).norm()) for x in a for y in b],
        "aa": [float((x - y).norm()) for i, x in enumerate(a) for j, y in enumerate(a) if i != j],
        "bb": [float((x - y).norm()) for i, x in enumerate(b) for j, y in enumerate(b) if i != j],
    }
    expected = 2 * np.mean(pairs["ab"]) - np.mean(pairs["aa"]) - np.mean(pairs["bb"])
    assert energy_distance(a, b) == pytest.approx(expected, rel=1e-5)


def test_auroc_tells_distributions_apart():
    one, other = correlated(1_000, 0), correlated(1_000, 1)
    assert 0.42 < two_sample_auroc(one, other) < 0.58
    assert two_sample_auroc(one, other + 2) > 0.95
    independent = torch.randn((1_000, 3), generator=torch_generator(0, "independent"))
    assert two_sample_auroc(one, independent) > 0.75, "same margins, other correlation"
