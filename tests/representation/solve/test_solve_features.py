"""`diti.solve(features=...)`: z from the features of any other network."""

import json

import numpy as np
import pytest
import torch

import diti
from diti.cli import main
from diti.core.images import to_float
from diti.core.runs import RunFolder
from diti.data.sources import open_data
from diti.reporting.build import size_of

DATA = "toyfaces:300"
SMALL = {"code_dim": 6, "subsets": 3, "stretches": 3, "images": 256}


def features_of(dataset) -> np.ndarray:
    """(N, 48) the images on a grid of 4 x 4, then something that no linear map of pixels is."""
    pixels = np.asarray(dataset.images, np.float64) / 255
    small = pixels.reshape(len(dataset), 4, 4, 4, 4, 3).mean((2, 4)).reshape(len(dataset), -1)
    return np.concatenate([small[:, :36], np.tanh(3 * small[:, 36:])], 1)


@pytest.fixture(scope="module")
def made(folder, shared_cache):
    """Dataset, features and the model solved over them."""
    dataset = open_data(DATA, 16)
    features = features_of(dataset)
    return dataset, features, diti.solve(dataset, str(folder / "backbone"), features=features, **SMALL)


def test_rows_of_features_are_encoded(made):
    dataset, features, model = made
    z = model.encode(features)
    assert z.shape == (300, 6) and torch.isfinite(z).all()
    for given in (features[:5].astype(np.float32), torch.from_numpy(features[:5]), features[:5].tolist()):
        torch.testing.assert_close(model.encode(given), z[:5], atol=1e-4, rtol=0)
    train = z[torch.from_numpy(dataset.rows("train"))].double()
    torch.testing.assert_close(train.mean(0).float(), model.mean, atol=0.1, rtol=0)
    torch.testing.assert_close(train.T @ train / len(train), torch.eye(6).double(), atol=0.15, rtol=0)


def test_codes_are_linear_in_the_features(made):
    _, features, model = made
    z = model.encode(features).double().numpy()
    rows = np.concatenate([features, np.ones((300, 1))], 1)
    left = z - rows @ np.linalg.lstsq(rows, z, rcond=None)[0]
    assert np.abs(left).max() < 1e-3


def test_the_code_and_the_noise_of_an_image_give_it_back(made):
    dataset, features, model = made
    rows = dataset.rows("test")[:4]
    images, z = to_float(dataset.pixels(rows)), model.encode(features[rows])
    noise = model.infer_noise(images, z, sampling_steps=25)
    assert (model.decode(z, noise, sampling_steps=25, clamp=False) - images).square().mean() < 0.05


def test_images_are_refused_in_one_line(made, tmp_path, capsys):
    dataset, _, model = made
    for images in (np.array(dataset.images[:2]), to_float(dataset.pixels(np.arange(2)))):
        with pytest.raises(
            diti.InputError, match=r"features of another network, numbers \(N, 48\), and got shape"
        ):
            model.encode(images)
    for draws in (model.reconstruct, model.edit, lambda images: model.interpolate(images[:1], images[1:])):
        with pytest.raises(diti.InputError, match=r"use z = model\.encode\(features\), then model\.reconstruct"):
            draws(dataset.images[:2])
    with pytest.raises(diti.InputError, match=r"features of another network, .* and images were given"):
        diti.encode(model, dataset)
    model.save(tmp_path / "model")
    assert main(["encode", str(tmp_path / "model"), DATA, "--out", str(tmp_path / "z.parquet")]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("diti: ") and "features of another network" in last
    assert not (tmp_path / "z.parquet").exists()


def test_a_run_folder_is_whole_and_knows_its_features(made, folder, tmp_path):
    """As of the verb; the card tells what z removes, and other features are another run."""
    dataset, features, model = made
    out, backbone = tmp_path / "run", diti.load_backbone(folder / "backbone")
    found = diti.solve(dataset, backbone, features=features, out=out, **SMALL)
    torch.testing.assert_close(found.encode(features), model.encode(features), atol=1e-4, rtol=0)
    assert not RunFolder(out).missing()
    checks = json.loads((out / "checks.json").read_text())
    assert checks["loss_removed"] > 0.01 > checks["loss_removed_shuffled"]
    rows = dataset.rows("valid")[:8]
    images, z = dataset.images[rows], found.encode(features[rows])
    error = (found.reconstruct(images, z=z) - to_float(images)).square().mean().item()
    assert checks["reconstruction_mse"] == pytest.approx(error, rel=1e-3)
    for others in (features + 1, None):
        with pytest.raises(diti.InputError, match=r"other settings \(features_hash\)"):
            diti.solve(dataset, backbone, features=others, out=out, **SMALL)
    with pytest.raises(diti.InputError, match="encodes features of another network, and a report encodes images"):
        size_of([out])


def test_the_folder_brings_it_back(made, tmp_path):
    _, features, model = made
    model.save(tmp_path / "model")
    again = diti.load(tmp_path / "model")
    assert torch.equal(again.encode(features), model.encode(features)) and again.partition == model.partition
    noise = model.new_noise(2, seed=0)
    z = model.encode(features[:2])
    torch.testing.assert_close(again.decode(z, noise, sampling_steps=3), model.decode(z, noise, sampling_steps=3))


@pytest.mark.parametrize(
    ("features", "settings", "complaint"),
    [
        (lambda f: np.ones_like(f), {}, "vary in 0 directions"),
        (lambda f: f[:, :1] * np.ones(48), {}, "vary in 1 directions over the given images, the code has 6 dims"),
        (lambda f: f[:-1], {}, r"shape \(299, 48\); give floats \(300, F\)"),
        (lambda f: np.where(f == f[7, 7], np.nan, f), {}, "not finite"),
        (lambda f: f[:, :5], {}, "--code-dim is 6, but this encoder has 5 features: .*give more features"),
        (lambda f: f, {"subsets": 7}, "7 subsets do not fit in 6 dims"),
        (lambda f: f, {"images": 20}, "--images 20 is too short"),
        (lambda f: np.concatenate([f, f**2], 1), {"code_dim": 62}, "246 training images are too few"),
        (lambda f: f, {"taus": 0.1}, "unknown setting 'taus'.*Did you mean"),
        (lambda f: f, {"tau": 1.5}, "--tau is 1.5"),
        (lambda f: f, {"method": "tcvae"}, "method must be 'diti' or 'pdae'"),
        (lambda f: f, {"lost_in": "features"}, 'lost_in is "features", but .* use lost_in="pixels"'),
    ],
    ids=[
        "constant",
        "one direction",
        "short",
        "nan",
        "few",
        "subsets",
        "pass",
        "long",
        "name",
        "tau",
        "method",
        "lost in features",
    ],
)
def test_what_cannot_be_solved_is_refused(made, folder, tmp_path, features, settings, complaint):
    dataset, given, _ = made
    settings = {**SMALL, **settings}
    with pytest.raises(diti.InputError, match=complaint):
        diti.solve(dataset, str(folder / "backbone"), features=features(given), out=tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()
