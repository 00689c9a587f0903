"""Reconstruction scores against slow loops, known Gaussians, other libraries, and networks made on the spot."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from diti.core.errors import InputError
from diti.core.rng import numpy_generator, torch_generator
from diti.probes.reconstruct import (
    bootstrap_interval,
    find_weights,
    frechet_distance,
    load_network,
    lpips_distance,
    mse,
    psnr,
    reconstruction_fid,
    reconstruction_scores,
    ssim,
)


def pair(count: int = 3, height: int = 16, width: int = 19) -> tuple[torch.Tensor, torch.Tensor]:
    """Smooth random images in [-1, 1] and noisy copies."""
    rng = torch_generator(1, "reconstruct-test", count)
    coarse = torch.rand(count, 3, 4, 4, generator=rng) * 2 - 1
    x = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return x, (x + 0.3 * torch.randn(x.shape, generator=rng)).clamp(-1, 1)


def slow_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """Wang et al. 2004 for one image (3, H, W) in [0, 255], window by window with centred moments, float64."""
    offsets = [(i, j) for i in range(-5, 6) for j in range(-5, 6)]
    weights = np.array([math.exp(-(i * i + j * j) / 4.5) for i, j in offsets])
    weights /= weights.sum()
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    found = []
    for a, b in zip(x, y, strict=True):
        for row in range(5, a.shape[0] - 5):
            for column in range(5, a.shape[1] - 5):
                u = np.array([a[row + i, column + j] for i, j in offsets])
                v = np.array([b[row + i, column + j] for i, j in offsets])
                mu, mv = weights @ u, weights @ v
                var_u, var_v = weights @ (u - mu) ** 2, weights @ (v - mv) ** 2
                cov = weights @ ((u - mu) * (v - mv))
                over = (2 * mu * mv + c1) * (2 * cov + c2)
                found.append(over / ((mu**2 + mv**2 + c1) * (var_u + var_v + c2)))
    return float(np.mean(found))


def test_ssim_equals_a_slow_loop_on_another_scale():
    x, y = pair()
    expected = [slow_ssim((a.numpy() + 1.0) * 127.5, (b.numpy() + 1.0) * 127.5) for a, b in zip(x, y, strict=True)]
    found = ssim(x, y)
    assert found.dtype == np.float64 and np.allclose(found, expected, rtol=0, atol=1e-6)
    assert found.min() > 0.1 and found.max() < 0.9, "the case must tell right from wrong"


def test_scores_equal_skimage():
    metrics = pytest.importorskip("skimage.metrics", reason="needs scikit-image, of the extra dev")
    x, y = pair()
    window = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    for index, (a, b) in enumerate(zip((x.double().numpy() + 1) / 2, (y.double().numpy() + 1) / 2, strict=True)):
        similarity = metrics.structural_similarity(a, b, channel_axis=0, data_range=1.0, **window)
        assert ssim(x, y)[index] == pytest.approx(similarity, abs=1e-9)
        assert psnr(x, y)[index] == pytest.approx(metrics.peak_signal_noise_ratio(a, b, data_range=1.0))


def test_ssim_equals_torchmetrics():
    image = pytest.importorskip("torchmetrics.functional.image", reason="needs torchmetrics, of the extra dev")
    x, y = pair(count=70)
    options = {"sigma": 1.5, "kernel_size": 11, "data_range": 1.0, "reduction": "none", "return_full_image": True}
    _, places = image.structural_similarity_index_measure((x.double() + 1) / 2, (y.double() + 1) / 2, **options)
    # Its mean counts windows that hang over the border, filled by mirroring; its map without the border does not.
    assert np.allclose(ssim(x, y), places[..., 5:-5, 5:-5].mean(dim=(1, 2, 3)), atol=1e-9)


def test_mse_and_psnr_of_a_known_difference():
    x = torch.full((2, 3, 4, 5), -0.5)
    y = x.clone()
    y[1] += 0.2  # 0.1 of the range everywhere
    y[1, 0] -= 0.2  # but not in one channel of three
    assert np.allclose(mse(x, y), [0, 0.01 * 2 / 3])
    assert psnr(x, y)[0] == np.inf and psnr(x, y)[1] == pytest.approx(-10 * math.log10(0.01 * 2 / 3))


def test_scores_do_not_depend_on_batches_or_on_the_kind_of_array():
    x, y = pair(count=70)
    frozen = y.numpy().copy()
    frozen.flags.writeable = False
    for score in (mse, psnr, ssim):
        one_by_one = np.concatenate([score(x[i : i + 1], y[i : i + 1]) for i in range(70)])
        assert np.allclose(score(x, y), one_by_one, rtol=1e-12)
        assert np.array_equal(score(x, y), score(x.numpy(), frozen))


def test_equal_images_are_perfect_and_the_record_is_json():
    x, _ = pair()
    found = reconstruction_scores(x, x, seed=0, resamples=20)
    assert found.mse.mean == 0 and found.ssim.mean == pytest.approx(1) and found.psnr.low == np.inf
    assert json.loads(json.dumps(found.record(), allow_nan=False))["psnr"]["mean"] is None


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda x: x[:2], r"images are \(3, 3, 16, 19\) and reconstructions \(2, 3, 16, 19\)"),
        (lambda x: x[:, :1], r"reconstructions are torch.float32 \(3, 1, 16, 19\); give floats"),
        (lambda x: x[:0], "reconstructions are"),
        (lambda x: x.to(torch.uint8), "torch.uint8"),
        (lambda x: x * 255, r"reconstructions reach \d+.*\[-1, 1\]"),
        (lambda x: x * float("nan"), "reconstructions reach nan"),
    ],
)
def test_bad_images_are_refused(change, line):
    x, y = pair()
    with pytest.raises(InputError, match=line):
        reconstruction_scores(x, change(y), seed=0, resamples=2)


def test_images_smaller_than_the_window_are_refused():
    x, y = pair(height=10)
    with pytest.raises(InputError, match="SSIM needs images of 11 px or more, got 10×19"):
        ssim(x, y)
    assert ssim(*pair(height=11)).shape == (3,)
    assert mse(x, y).shape == (3,)


def test_bootstrap_interval_is_that_of_the_normal_theory():
    values = numpy_generator(0, "bootstrap-test").normal(2, 3, 4000)
    low, high = bootstrap_interval(values, seed=5, resamples=1000)
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)
    assert (low, high) == bootstrap_interval(values, seed=5, resamples=1000)
    assert (low, high) != bootstrap_interval(values, seed=6, resamples=1000)
    with pytest.raises(InputError, match="resamples is 0"):
        reconstruction_scores(*pair(), seed=0, resamples=0)


def test_frechet_distance_of_diagonal_gaussians_is_exact():
    mean1, mean2 = np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.0, -1.0])
    sd1, sd2 = np.array([1.0, 2.0, 0.0]), np.array([3.0, 0.5, 0.0])
    expected = 1 + 9 + ((sd1 - sd2) ** 2).sum()
    assert frechet_distance(mean1, np.diag(sd1**2), mean2, np.diag(sd2**2)) == pytest.approx(expected, abs=1e-12)


def test_frechet_distance_equals_the_matrix_square_root():
    rng = numpy_generator(0, "frechet-test")
    a, b = rng.normal(size=(2, 40, 12))
    mean1, mean2 = a.mean(0), b.mean(0)
    cov1, cov2 = np.cov(a, rowvar=False), np.cov(b @ rng.normal(size=(12, 12)), rowvar=False)
    expected = ((mean1 - mean2) ** 2).sum() + np.trace(cov1 + cov2 - 2 * sqrtm(cov1 @ cov2).real)
    assert frechet_distance(mean1, cov1, mean2, cov2) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(mean1, cov1, mean1, cov1) == pytest.approx(0, abs=1e-9)
    few = np.cov(a[:4], rowvar=False)  # singular, as with fewer images than features
    assert frechet_distance(mean1, few, mean1, few) == pytest.approx(0, abs=1e-6)


class Inception(torch.nn.Module):
    """The convention of inception-2015-12-05.pt with two features: mean red, mean green × blue."""

    def forward(self, img: torch.Tensor, return_features: bool = False) -> torch.Tensor:
        assert img.dtype == torch.uint8 and return_features
        means = img.to(torch.float32).mean(dim=[2, 3])
        return torch.stack([means[:, 0], means[:, 1] * means[:, 2] / 255], dim=1)


class Vgg(torch.nn.Module):
    """The convention of vgg16.pt with the mean of each channel, 0..255, for features."""

    def forward(self, img: torch.Tensor, resize_images: bool = True, return_lpips: bool = False) -> torch.Tensor:
        assert return_lpips and not resize_images
        return img.to(torch.float32).mean(dim=[2, 3])


def save_script(module: torch.nn.Module, path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        torch.jit.script(module).save(path)


@pytest.fixture
def networks(tmp_path):
    save_script(Inception(), tmp_path / "inception-2015-12-05.pt")
    save_script(Vgg(), tmp_path / "vgg16.pt")
    return tmp_path


def test_lpips_and_fid_are_measured_where_their_files_are(networks, monkeypatch):
    x, y = pair(count=70)
    monkeypatch.setenv("DITI_METRICS", str(networks))
    found = reconstruction_scores(x, y, seed=0, resamples=50)
    a, b = (127.5 * (side.double().numpy() + 1) for side in (x, y))
    expected = ((a.mean((2, 3)) - b.mean((2, 3))) ** 2).sum(1)
    assert np.allclose(found.lpips.per_image, expected, rtol=1e-4, atol=1e-4)
    assert found.lpips.low < found.lpips.mean < found.lpips.high
    features = []
    for side in (np.rint(a), np.rint(b)):
        means = side.mean((2, 3))
        features.append(np.stack([means[:, 0], means[:, 1] * means[:, 2] / 255], 1))
    gaussians = [value for f in features for value in (f.mean(0), np.cov(f.T))]
    assert found.fid == pytest.approx(frechet_distance(*gaussians), rel=1e-3) and found.fid > 0.1
    assert found.record()["fid"] == found.fid and found.record()["lpips"]["mean"] == found.lpips.mean


def test_absent_networks_are_named_and_nothing_stands_in_for_them(tmp_path, monkeypatch):
    monkeypatch.delenv("DITI_METRICS", raising=False)
    found = reconstruction_scores(*pair(), seed=0, resamples=5)
    assert found.fid == "not measured: inception-2015-12-05.pt not found in any folder (DITI_METRICS is not set)"
    save_script(Vgg(), tmp_path / "vgg16.pt")
    monkeypatch.setenv("DITI_METRICS", "/nowhere")
    assert find_weights() == {
        "fid": "not measured: inception-2015-12-05.pt not found in /nowhere",
        "lpips": "not measured: vgg16.pt not found in /nowhere",
    }
    found = reconstruction_scores(*pair(), seed=0, resamples=5, weights=tmp_path)
    assert found.record()["fid"] == f"not measured: inception-2015-12-05.pt not found in {tmp_path}"
    assert found.lpips.mean > 0, "the argument goes before the environment"


def test_files_that_are_no_such_network_are_refused_in_one_line(networks):
    x, y = pair()
    broken = networks / "broken.pt"
    broken.write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"broken.pt cannot be read as TorchScript \([^\n]*\); replace"):
        load_network(broken)
    with pytest.raises(InputError, match=r"inception-2015-12-05.pt does not take images [^\n]*$"):
        lpips_distance(x, y, networks / "inception-2015-12-05.pt")
    save_script(torch.nn.Identity(), networks / "identity.pt")
    with pytest.raises(InputError, match=r"identity.pt does not take images"):
        reconstruction_fid(x, y, networks / "identity.pt")


def test_fid_needs_two_images(networks):
    x, y = pair(count=1)
    assert reconstruction_fid(x, y, networks / "inception-2015-12-05.pt").startswith("not measured: a covariance")
