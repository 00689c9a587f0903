"""The metric of a code: known answers, a slow regression, and what a model folder keeps of it."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LinearRegression, RidgeCV
from sklearn.neighbors import KNeighborsRegressor

import diti
from diti.core.errors import InputError
from diti.probes.scores import pearson
from diti.representation.features import metric_of, metric_over
from diti.representation.models.metric import metric_root, regressed_metric, solved_metric


def random_rotation(dims, seed=0):
    return torch.linalg.qr(torch.randn(dims, dims, generator=torch.Generator().manual_seed(seed)).double())[0]


def test_principal_components_have_their_variances_for_a_metric():
    """z = whitened components, all or the first of them: Δz moves the features by Λ½Δz."""
    variance = torch.tensor([4.0, 2.0, 1.0, 0.5, 0.25]).double()
    found = solved_metric(torch.eye(5).double()[:, :3], variance, torch.ones(3))
    expected = torch.diag(variance[:3]) * 3 / variance[:3].sum()
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


def test_the_closed_form_is_the_regression_of_features_on_codes():
    """Gaussian features with a known covariance; z any mixture of their components, of any length."""
    n, f, d = 200_000, 6, 4
    rng = torch.Generator().manual_seed(1)
    rotation, spread = random_rotation(f), torch.tensor([3.0, 2, 1.5, 1, 0.5, 0.2]).double()
    covariance = rotation @ torch.diag(spread**2) @ rotation.T
    # the metric speaks of standardised features, so their components are those of the correlations
    std = covariance.diagonal().sqrt()
    variance, axes = torch.linalg.eigh(covariance / std.outer(std))
    h = torch.randn(f, d, generator=rng).double()
    features = torch.randn(n, f, generator=rng).double() @ torch.linalg.cholesky(covariance).T
    z = (features / std) @ axes / variance.sqrt() @ h
    code_std = (h.T @ h).diagonal().sqrt()
    exact = solved_metric(h, variance, code_std)
    parts = [(features[i : i + 777], (z / code_std)[i : i + 777]) for i in range(0, n, 777)]
    torch.testing.assert_close(regressed_metric(parts), exact, rtol=0.02, atol=0.01)


def test_sums_over_batches_are_one_slow_regression():
    rng = np.random.default_rng(0)
    u, noise = rng.normal(size=(300, 5)), rng.normal(size=(300, 9))
    f = u @ rng.normal(size=(5, 9)) + 0.3 * noise + 7
    f[:, 4] = 2.5  # a feature that never varies tells nothing
    varies = np.delete(f, 4, axis=1)
    b = LinearRegression().fit(u, (varies - varies.mean(0)) / varies.std(0)).coef_
    slow = b.T @ b
    batches = zip(torch.from_numpy(f).split(64), torch.from_numpy(u).split(64), strict=True)
    found = regressed_metric(batches).numpy()
    np.testing.assert_allclose(found, slow * 5 / np.trace(slow), atol=0.02)


def test_the_root_gives_the_distances_of_the_metric():
    a = random_rotation(6).numpy() * np.arange(1, 7)
    metric = torch.from_numpy(a @ a.T).float()
    u, v = torch.randn(2, 6, generator=torch.Generator().manual_seed(2))
    root = metric_root(metric)
    torch.testing.assert_close(((u - v) @ root).square().sum(), (u - v) @ metric @ (u - v), rtol=1e-4, atol=1e-4)
    blocks = metric_root(metric, ends=(2, 6))
    assert (blocks[:2, 2:] == 0).all() and (blocks[2:, :2] == 0).all(), "subsets stay apart"
    torch.testing.assert_close(blocks[:2, :2] @ blocks[:2, :2], metric[:2, :2], rtol=1e-4, atol=1e-4)


def test_a_solved_model_keeps_its_metric(solved_folder, solved_faces):
    model = diti.load(solved_folder)
    metric = model.metric
    assert metric.shape == (model.dims, model.dims) and metric.dtype == torch.float32
    assert torch.equal(metric, metric.T) and metric.trace().item() == pytest.approx(model.dims, rel=1e-5)
    assert torch.linalg.eigvalsh(metric).min() > 0
    measured = metric_over(model, solved_faces)
    agreement = torch.nn.functional.cosine_similarity(measured.flatten(), metric.flatten(), dim=0)
    assert agreement > 0.97, "few images were looked at, and the rest of the variance is left out"


def test_a_folder_of_an_earlier_version_gets_it_when_it_is_needed(solved_folder, solved_faces, caplog):
    stats = load_file(solved_folder / "stats.safetensors")
    del stats["metric"]
    save_file(stats, solved_folder / "stats.safetensors")
    model = diti.load(solved_folder)
    assert model.metric is None
    with pytest.raises(InputError, match="metric of z is not known"):
        model.in_metric(torch.zeros(1, model.dims))
    found = metric_of(model, solved_faces)
    assert "has no metric yet" in caplog.text
    assert torch.equal(found, metric_over(model, solved_faces))
    assert metric_of(model, solved_faces) is found, "measured once"
    model.save(solved_folder)
    assert torch.equal(diti.load(solved_folder).metric, found)


def test_a_metric_of_another_shape_is_refused(solved_folder):
    stats = load_file(solved_folder / "stats.safetensors")
    save_file(stats | {"metric": torch.eye(3)}, solved_folder / "stats.safetensors")
    with pytest.raises(InputError, match=r"holds .*metric \(3, 3\).*expected mean, std and metric"):
        diti.load(solved_folder)


@pytest.fixture(scope="module")
def faces_and_codes():
    """Labels (N, A) of toy faces, their z and their default codes from the shipped model."""
    faces = diti.open_data("toyfaces:420", 32)
    plain = diti.DiTiFeatures("toyfaces32-diti", metric=False).fit_transform(faces.images)
    root = metric_root(diti.load("toyfaces32-diti").metric).numpy()
    np.testing.assert_allclose(diti.DiTiFeatures().transform(faces.images[:8]), plain[:8] @ root, atol=1e-3)
    return faces.labels(), plain, plain @ root


@pytest.mark.parametrize(
    "estimator", [KNeighborsRegressor(5), RidgeCV(np.logspace(-2, 4, 7))], ids=["neighbours", "ridge"]
)
def test_scikit_learn_reads_more_from_the_default_codes(estimator, faces_and_codes):
    """With 20 labelled faces: mean correlation over all attributes, of 400 other faces."""
    labels, plain, default = faces_and_codes

    def reads(codes):
        told = estimator.fit(codes[:20], labels[:20]).predict(codes[20:])
        return np.mean(np.nan_to_num(pearson(told, labels[20:])))

    assert reads(default) > reads(plain) + 0.03
