"""The scikit-learn transformer: the model's numbers for every form of X, and scikit-learn's own contract."""

import pickle
import shutil
from dataclasses import replace

import joblib
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import diti
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.data import toyfaces
from diti.representation.models.metric import metric_root, regressed_metric
from diti.representation.models.transformer import DiTiFeatures

SIZE = 16
PIXELS = toyfaces.render(toyfaces.sample(7, seed=4), SIZE)  # uint8 (7, 16, 16, 3)
ROWS = PIXELS.reshape(7, -1)


@pytest.fixture
def model(model):
    """With statistics that are not neutral, and a metric that is."""
    found = replace(model, mean=torch.linspace(-1, 1, model.dims), std=torch.linspace(0.5, 2, model.dims))
    found.metric = torch.eye(model.dims)
    return found


@pytest.fixture
def folder(model, tmp_path):
    model.save(tmp_path / "model")
    return tmp_path / "model"


FORMS = {
    "images": PIXELS,
    "a list of arrays": list(PIXELS),
    "a list of PIL images": [Image.fromarray(pixels) for pixels in PIXELS],
    "rows": ROWS,
    "rows of floats": ROWS.astype(np.float64),
    "rows as lists": ROWS.tolist(),
    "floats in [-1, 1], channels first": to_float(PIXELS),
}


@pytest.mark.parametrize("form", FORMS)
def test_z_is_the_models_whatever_the_form_of_the_images(form, model, folder):
    expected = (model.encode(PIXELS).numpy() - model.mean.numpy()) / model.std.numpy()
    transformer = DiTiFeatures(folder)
    for z in (transformer.transform(FORMS[form]), transformer.fit_transform(FORMS[form])):
        assert z.dtype == np.float32 and z.shape == (7, model.dims)
        np.testing.assert_allclose(z, expected, rtol=0, atol=1e-5)
    assert transformer.n_features_in_ == SIZE * SIZE * 3


def test_z_itself_and_the_names_of_its_columns(model, folder):
    transformer = DiTiFeatures(folder, standardise=False, batch_size=3).fit(PIXELS)
    np.testing.assert_allclose(transformer.transform(PIXELS), model.encode(PIXELS), rtol=0, atol=1e-5)
    names = transformer.get_feature_names_out()
    assert isinstance(names, np.ndarray) and list(names) == model.feature_names()
    assert list(DiTiFeatures(model).get_feature_names_out(["ignored"])) == model.feature_names()


def test_images_of_another_size_are_resized_as_the_model_does(model, folder):
    large = toyfaces.render(toyfaces.sample(3, seed=4), 24)
    z = DiTiFeatures(folder, standardise=False).fit(PIXELS).transform(large)
    np.testing.assert_allclose(z, model.encode(large), rtol=0, atol=1e-5)


def test_at_most_batch_size_images_are_encoded_at_once(model):
    seen = []
    model.encoder.register_forward_hook(lambda module, given, z: seen.append(len(z)))
    DiTiFeatures(model, batch_size=3).transform(PIXELS)
    assert seen == [3, 3, 1]


def test_a_pipeline_learns_and_can_be_cross_validated(folder):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 60, (40, SIZE, SIZE, 3), dtype=np.uint8)
    red = np.arange(40) % 2
    images[red == 1, :, :, 0] += 150
    pipeline = make_pipeline(DiTiFeatures(folder), LogisticRegression(C=100))
    assert cross_val_score(pipeline, images, red, cv=3).min() > 0.9
    pipeline.fit(images.reshape(40, -1), red)
    assert list(pipeline[:-1].get_feature_names_out()) == list(DiTiFeatures(folder).get_feature_names_out())
    coded = cross_val_score(pipeline, [Image.fromarray(image) for image in images], 1 - red, cv=2)
    assert coded.min() > 0.9


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (0, 255)])
def test_floats_of_any_range_that_is_said(folder, low, high):
    z = DiTiFeatures(folder).fit_transform(PIXELS)
    rows = low + ROWS / 255 * (high - low)
    transformer = DiTiFeatures(folder, value_range=(low, high))
    images = rows.reshape(PIXELS.shape).transpose(0, 3, 1, 2)
    for given in (rows, images, torch.from_numpy(images)):
        np.testing.assert_allclose(transformer.fit_transform(given), z, atol=1e-4)
    with pytest.raises(InputError, match="outside value_range="):
        transformer.transform(rows + (high - low))


def test_paths_of_images(folder, tmp_path):
    paths = [tmp_path / f"{index}.png" for index in range(len(PIXELS))]
    for pixels, path in zip(PIXELS, paths, strict=True):
        Image.fromarray(pixels).save(path)
    z = DiTiFeatures(folder).transform(PIXELS)
    names = [str(path) for path in paths]
    for given in (paths, names, np.array(names), np.array(names, dtype=object)):
        np.testing.assert_allclose(DiTiFeatures(folder, batch_size=3).fit_transform(given), z, atol=1e-5)


def test_clones_and_pickles_hold_the_path_only(folder, tmp_path):
    fitted = DiTiFeatures(folder, batch_size=5, standardise=False).fit(PIXELS)
    z = fitted.transform(PIXELS)
    given = {"model": folder, "batch_size": 5, "standardise": False, "value_range": None, "metric": None}
    assert clone(fitted).get_params() == given
    content = pickle.dumps(fitted)
    assert len(content) < 1_000
    joblib.dump(fitted, tmp_path / "t.joblib")
    for again in (clone(fitted), pickle.loads(content), joblib.load(tmp_path / "t.joblib")):
        assert np.array_equal(again.transform(PIXELS), z)


def test_another_model_takes_effect_at_once_and_a_rewritten_folder_when_fitted(model, folder, tmp_path):
    def shifted(by):
        return replace(model, mean=model.mean + by * model.std)

    shifted(1).save(tmp_path / "one")
    transformer = DiTiFeatures(folder).fit(PIXELS)
    z = transformer.transform(PIXELS)
    np.testing.assert_allclose(transformer.set_params(model=tmp_path / "one").transform(PIXELS), z - 1, atol=1e-5)
    shutil.rmtree(tmp_path / "one")
    np.testing.assert_allclose(transformer.transform(PIXELS), z - 1, atol=1e-5)
    shifted(2).save(tmp_path / "one")
    np.testing.assert_allclose(transformer.fit(PIXELS).transform(PIXELS), z - 2, atol=1e-5)


@pytest.mark.parametrize(
    ("X", "complaint"),
    [
        (ROWS[:, :-1], r"rows of X have 767 numbers; this model takes 16×16×3 = 768, or images"),
        (ROWS / 255, r"range from .* to 1 in float64; give pixels, whole numbers 0\.\.255"),
        (ROWS.astype(np.int64) * 2, r"to \d+ in int64; give pixels"),
        (ROWS.astype(np.float32) - 300, "Negative values in data"),
        (np.where(ROWS > 200, np.nan, ROWS), "NaN"),
        (PIXELS[0], r"shape \(16, 16, 3\); give several images"),
        (PIXELS[:0], "give at least one image"),
        (ROWS[:0], "0 sample"),
        ([], "Expected 2D array"),
        (PIXELS[..., :1], r"shape \([17], 16, 16, 1\)"),
        (PIXELS.astype(np.float32), r"give floats \(N, 3, H, W\)"),
    ],
)
def test_what_is_no_image_is_refused_when_fitting_and_when_transforming(X, complaint, model):
    for method in (DiTiFeatures(model).fit, DiTiFeatures(model).transform):
        with pytest.raises(ValueError, match=complaint):
            method(X)


@pytest.mark.parametrize("batch_size", [0, 2.5, None])
def test_a_bad_batch_size_is_refused_by_fit_not_by_init(batch_size, model):
    transformer = DiTiFeatures(model, batch_size=batch_size)
    with pytest.raises(InputError, match=r"batch_size is .*; give a whole number"):
        transformer.fit(PIXELS)


def test_the_public_name_and_a_model_that_is_not_there():
    assert diti.DiTiFeatures is DiTiFeatures
    with pytest.raises(InputError, match="nowhere"):
        DiTiFeatures("nowhere").fit(PIXELS)


def test_the_earlier_name_still_works_and_says_so():
    with pytest.warns(DeprecationWarning, match=r"diti\.Transformer is called diti\.DiTiFeatures now") as told:
        assert diti.Transformer is DiTiFeatures
    assert told[0].filename == __file__, "the warning points to the line that uses the name"
    assert "Transformer" not in diti.__all__


# ---- scikit-learn's own checks: they feed small tables of real numbers ---------------------------------------


class AnyTable(DiTiFeatures):
    """Takes any table, by drawing each row as an image; all else is the transformer's."""

    def _pixels(self, rows, size):
        shades = np.round(255 / (1 + np.exp(-rows.astype(float)))).astype(np.uint8)
        return np.resize(shades.T, (3 * size**2, len(rows))).T.reshape(-1, size, size, 3)


def test_the_contract_of_scikit_learn_is_kept(folder):
    # One image at a time: in larger batches the last bit of a convolution may depend on its neighbours.
    transformer = AnyTable(folder, batch_size=1)
    results = check_estimator(transformer, on_fail=None, on_skip=None)
    assert {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"} == {}
    assert sum(r["status"] == "passed" for r in results) >= 40


def test_without_such_drawing_the_checks_fail_only_because_their_tables_are_no_images(folder):
    results = check_estimator(DiTiFeatures(folder), on_fail=None, on_skip=None)
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "failed"}
    assert {name for name, reason in failed.items() if "numbers; this model takes 16×16×3" not in reason} == set()
    assert sum(r["status"] == "passed" for r in results) >= 15


# ---- Models that do not know mean and std of z --------------------------------------------------------------


@pytest.fixture
def stranger(model, tmp_path):
    """The folder of a model that was converted without images."""
    replace(model, mean=None, std=None).save(tmp_path / "stranger")
    return tmp_path / "stranger"


def test_fit_learns_mean_and_std_that_the_model_does_not_know(model, stranger):
    z = model.encode(PIXELS).numpy()
    fitted = DiTiFeatures(stranger, batch_size=3, metric=False).fit(PIXELS[:5])
    expected = (z - z[:5].mean(0)) / z[:5].std(0)
    for transformer in (fitted, pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_allclose(transformer.transform(PIXELS), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(DiTiFeatures(stranger, standardise=False).transform(PIXELS), z, atol=1e-5)


def test_without_fit_unknown_statistics_are_refused(stranger, folder):
    with pytest.raises(InputError, match=r"std of z are not known.*call fit first, give standardise=False"):
        DiTiFeatures(stranger).transform(PIXELS)
    moved = DiTiFeatures(stranger).fit(PIXELS).set_params(model=folder)
    np.testing.assert_allclose(moved.transform(PIXELS), DiTiFeatures(folder).transform(PIXELS), atol=1e-6)
    assert not hasattr(moved.fit(PIXELS), "mean_"), "this model knows them"


def test_codes_come_in_the_metric_unless_they_are_not_wanted_so(model, tmp_path):
    scales = torch.linspace(0.1, 2, model.dims).square()
    model.metric = torch.diag(scales * model.dims / scales.sum())
    model.save(tmp_path / "scaled")
    plain = DiTiFeatures(tmp_path / "scaled", metric=False).transform(PIXELS)
    measured = DiTiFeatures(tmp_path / "scaled").transform(PIXELS)
    np.testing.assert_allclose(measured, plain * model.metric.diagonal().sqrt().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(measured, model.in_metric(model.encode(PIXELS)).numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="metric=True is for standardised codes"):
        DiTiFeatures(tmp_path / "scaled", standardise=False, metric=True).transform(PIXELS)


def test_fit_learns_the_metric_that_an_older_folder_lacks_and_says_so(model, tmp_path, caplog):
    model.metric = None
    model.save(tmp_path / "older")
    with pytest.raises(InputError, match=r"metric of z is not known.*call fit first, or give metric=False"):
        DiTiFeatures(tmp_path / "older").transform(PIXELS)
    fitted = DiTiFeatures(tmp_path / "older", batch_size=3).fit(PIXELS)
    assert "has no metric yet" in caplog.text
    with torch.no_grad():
        features = model.encoder.features(to_float(PIXELS))
    learnt = regressed_metric([(features, (model.encode(PIXELS) - model.mean) / model.std)])
    torch.testing.assert_close(fitted.metric_, learnt)
    codes = DiTiFeatures(tmp_path / "older", metric=False).transform(PIXELS)
    np.testing.assert_allclose(fitted.transform(PIXELS), codes @ metric_root(learnt).numpy(), atol=2e-3)
