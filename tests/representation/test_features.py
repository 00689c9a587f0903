"""Features are computed once per encoder and data, and are what the encoder says."""

import errno

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from numpy.testing import assert_allclose
from tiny import perturb, tiny_diffae, without_decoder

from diti.config import EncoderConfig
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.rng import torch_generator
from diti.data.prepare import prepare
from diti.data.prepared import Dataset
from diti.data.sources import cache_folder, open_data
from diti.diffusion.schedule import lambda_x0, w_x0
from diti.measure.baselines import baselines, pixels_flat, principal_scores
from diti.representation.features import (
    encode_dataset,
    encoder_codes,
    encoder_hash,
    explained_by_z,
    trunk_features,
)
from diti.representation.finish import training_statistics
from diti.representation.methods.base import fit_head
from diti.representation.models.explained import TIMES
from diti.representation.networks.encoder import build_encoder
from diti.representation.table import encode, write_features


@pytest.fixture(scope="module")
def faces(tmp_path_factory) -> Dataset:
    return prepare("toyfaces:600", tmp_path_factory.mktemp("faces"), 16)


def kept_files():
    return sorted((cache_folder() / "features").glob("*.npy"))


def test_codes_are_those_of_encode_in_order(model, faces):
    codes = encode_dataset(model, faces)
    assert codes.shape == (600, model.dims)
    assert_allclose(codes[590:], model.encode(np.asarray(faces.images[590:])).numpy(), atol=1e-5)


def test_second_call_reads_what_the_first_computed(model, faces):
    first = encode_dataset(model, faces)
    (path,) = kept_files()
    np.save(path, first + 1)  # only a call that reads the file can see this
    assert_allclose(encode_dataset(model, faces), first + 1)


def test_other_weights_other_data_and_mirrored_images_are_computed_anew(model, faces):
    first = encode_dataset(model, faces)
    encode_dataset(model, open_data("toyfaces:601", 16))
    mirrored = encode_dataset(model, faces, mirrored=True)
    assert_allclose(mirrored[:4], model.encode(np.asarray(faces.images[:4])[:, :, ::-1].copy()).numpy(), atol=1e-5)
    before = encoder_hash(model.encoder)
    with torch.no_grad():
        model.encoder.head.bias[0] += 1
    assert encoder_hash(model.encoder) != before
    assert_allclose(encode_dataset(model, faces)[:, 0], first[:, 0] + 1, atol=1e-5)
    trunk_features(model.encoder, faces)
    assert len(kept_files()) == 5


def test_codes_over_one_trunk_are_made_of_its_kept_features(model, faces):
    features = trunk_features(model.encoder, faces)
    (path,) = kept_files()
    np.save(path, features + 1)  # only codes that are made of the file can see this
    with torch.no_grad():
        expected = model.encoder.code(torch.from_numpy(features + 1)).numpy()
        assert_allclose(encode_dataset(model, faces), expected, atol=1e-5)
        model.encoder.head.bias[0] += 1  # another code over the same trunk
        expected[:, 0] += 1
        assert_allclose(encode_dataset(model, faces), expected, atol=1e-5)
        assert not np.allclose(encode_dataset(model, faces, mirrored=True), expected, atol=0.1)


def test_statistics_over_a_frozen_trunk_are_made_of_features_that_are_kept(backbone, faces):
    encoder = build_encoder(EncoderConfig(code_dim=4), backbone, 0).eval()
    z = encoder_codes(encoder, faces)[faces.rows("train")]
    codes = set(kept_files())
    mean, std = training_statistics(encoder, faces)
    assert_allclose(mean.numpy(), z.mean(0), atol=1e-5)
    assert_allclose(std.numpy(), z.std(0), atol=1e-5)
    (path,) = set(kept_files()) - codes
    np.save(path, np.load(path) + encoder.feature_std.numpy())  # only what is made of the file can see this
    shift = encoder.head.weight.detach().sum(1).numpy()
    assert_allclose(training_statistics(encoder, faces)[0].numpy(), z.mean(0) + shift, atol=1e-4)


def test_features_that_change_or_are_too_many_are_not_kept(backbone, faces, monkeypatch):
    learning = build_encoder(EncoderConfig(code_dim=4, trunk="fine-tuned"), backbone, 0).eval()
    expected = training_statistics(learning, faces)[0]
    frozen = build_encoder(EncoderConfig(code_dim=4), backbone, 0).eval()
    monkeypatch.setattr("diti.representation.features.MOST_KEPT", 600 * frozen.trunk.features * 4 - 1)
    torch.testing.assert_close(training_statistics(frozen, faces)[0], expected)
    assert not kept_files()


def test_a_head_is_fitted_to_features_that_were_kept(backbone, faces):
    heads = []
    for _ in range(2):
        encoder = build_encoder(EncoderConfig(code_dim=4), backbone, 0).eval()
        fit_head(encoder, faces, seed=0)
        heads.append(encoder.head.weight.detach().clone())
        features = trunk_features(encoder, faces)
    torch.testing.assert_close(*heads, atol=1e-4, rtol=1e-3)
    (path,) = kept_files()
    np.save(path, features * np.linspace(1, 9, features.shape[1], dtype=np.float32))
    fit_head(encoder, faces, seed=0)
    rows = np.sort(np.random.default_rng(0).permutation(faces.rows("train")))
    expected = features[rows].std(0) * np.linspace(1, 9, features.shape[1])
    assert_allclose(encoder.feature_std.numpy(), expected, rtol=1e-3)


def test_data_of_another_size_is_resized_not_refused(model):
    assert encode_dataset(model, open_data("toyfaces:5", 32)).shape == (5, model.dims)


def test_baselines_name_their_dims_and_keep_the_order_of_the_images(backbone, faces):
    found = dict(baselines(backbone, faces, dims=8, seed=0, wide=True))
    assert [name.rpartition(",")[0] for name in found] == [
        "PCA of pixels", "random encoder", "backbone features", "PCA of backbone features",
    ]  # fmt: skip
    for name, features in found.items():
        assert len(features) == 600, name
        assert f"{features.shape[1]:,} dims" in name
        assert np.isfinite(features).all()
    narrow = dict(baselines(backbone, faces, dims=8, seed=0))
    assert all(features.shape[1] == 8 for features in narrow.values()) and len(narrow) == 3


def test_baselines_see_what_the_encoder_sees(backbone, faces):
    mirrored = build_encoder(EncoderConfig(code_dim=4, encoder_mirror=True), backbone, 0)
    found = dict(baselines(backbone, faces, dims=8, seed=0, wide=True, encoder=mirrored))
    whole = next(features for name, features in found.items() if name.startswith("backbone features"))
    assert_allclose(whole, trunk_features(mirrored, faces))
    assert not np.allclose(whole, trunk_features(build_encoder(EncoderConfig(code_dim=4), backbone, 0), faces))


def test_principal_components_of_very_many_features_come_from_some_images(faces, monkeypatch):
    pixels = pixels_flat(faces, faces.rows())
    exact = principal_scores(lambda rows: pixels[rows], faces, dims=3)
    monkeypatch.setattr("diti.representation.networks.principal.MANY_FEATURES", 100)
    near = principal_scores(lambda rows: pixels[rows], faces, dims=3)
    assert all(abs(np.corrcoef(a, b)[0, 1]) > 0.999 for a, b in zip(near.T, exact.T, strict=True))
    assert_allclose(near.std(0), exact.std(0), rtol=0.01)


@pytest.mark.parametrize("features", [768, 300], ids=["more than images", "fewer than images"])
def test_principal_components_against_a_singular_value_decomposition(faces, features):
    components = principal_scores(lambda rows: pixels_flat(faces, rows)[:, :features], faces, dims=5)
    pixels = pixels_flat(faces, faces.rows())[:, :features].astype(np.float64)
    train = pixels[faces.rows("train")]
    std = train.std(0)
    _, _, axes = np.linalg.svd((train - train.mean(0)) / std, full_matrices=False)
    expected = ((pixels - train.mean(0)) / std) @ axes[:5].T
    assert_allclose(np.abs(components), np.abs(expected), atol=2e-2)
    assert_allclose(components, expected * np.sign((components * expected).sum(0)), atol=2e-2)


def test_large_images_are_averaged_down_before_principal_components():
    faces = open_data("toyfaces:3", 64)
    assert pixels_flat(faces, faces.rows()).shape == (3, 3 * 32 * 32)


# ---- What z explains -------------------------------------------------------------------------------------------


def slow_share(model, image):
    """Of one image, by the x0 form of eq. 6 and the definition, number by number."""
    schedule, pixels = model.schedule, to_float(image[None])
    z, losses = model.encode(pixels), {"frozen": 0.0, "with z": 0.0}
    for index, share in enumerate(TIMES):
        t = torch.tensor([int(share * 1000)])
        abar = float(schedule.alpha_bar[t])
        noise = torch.randn((3, 16, 16), generator=torch_generator(0, "explained", index))[None]
        x_t = abar**0.5 * pixels + (1 - abar) ** 0.5 * noise
        seen = torch.zeros(model.dims)
        for subset in range(model.partition.subset_of(int(t)) + 1):
            seen[list(model.partition.dims_of(subset))] = 1
        parts = model.decoder(x_t, t, z * seen)
        u = (x_t - (1 - abar) ** 0.5 * parts.eps_theta) / abar**0.5
        weight = float(lambda_x0(schedule)[t])
        losses["frozen"] += weight * float((pixels - u).square().mean())
        losses["with z"] += weight * float((pixels - u - float(w_x0(schedule)[t]) * parts.g).square().mean())
    return 1 - losses["with z"] / losses["frozen"]


def test_what_z_explains_is_the_share_of_eq_6_that_it_removes(model, few):
    perturb(model.decoder.path, 0.2)
    with torch.no_grad():
        slow = [slow_share(model, image) for image in few.images]
    assert_allclose(explained_by_z(model, few), slow, rtol=1e-4)
    assert np.ptp(slow) > 1e-3, "images differ"


def test_what_z_explains_is_computed_once_and_anew_for_other_weights(model, few):
    first = explained_by_z(model, few)
    assert len(kept_files()) == 2, "the codes, and what they explain"
    with torch.no_grad():
        model.decoder.path.conv_out.bias += 1
    other = explained_by_z(model, few)
    assert len(kept_files()) == 3 and not np.allclose(first, other)
    for path in kept_files():
        kept = np.load(path)
        np.save(path, kept + 1)  # only a call that reads the file can see this
    assert_allclose(explained_by_z(model, few), other + 1)


def test_what_z_explains_of_an_image_does_not_depend_on_the_others(model, few):
    more = explained_by_z(model, open_data("toyfaces:9", 16))
    assert_allclose(explained_by_z(model, few), more[:5], rtol=1e-3, atol=1e-5)


def test_the_table_has_what_z_explains_apart_from_the_dims_of_z(model, few, tmp_path):
    told = write_features(model, "toyfaces:5", tmp_path / "z.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "z.parquet")
    assert table.column_names == ["file", "split", *model.feature_names(), "explained"]
    assert_allclose(table["explained"].to_numpy(), explained_by_z(model, few))
    assert "for half the images z explains" in told
    told = write_features(model, "toyfaces:5", tmp_path / "z.parquet", explained=False)
    assert pyarrow.parquet.read_table(tmp_path / "z.parquet").column_names[-1] == model.feature_names()[-1]
    assert "explains" not in told


def test_models_without_a_frozen_one_cannot_tell_what_z_explains(model, few):
    blind = without_decoder(model)
    assert explained_by_z(blind, few) is None and explained_by_z(tiny_diffae(), few) is None


# ---- What goes wrong with the cache and the table --------------------------------------------------------------


@pytest.fixture
def few() -> Dataset:
    return open_data("toyfaces:5", 16)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b"PK\x03\x04" + b, lambda b: b"[]"])
def test_a_damaged_file_in_the_cache_is_made_anew(model, few, damage, caplog):
    first = encode_dataset(model, few)
    (path,) = kept_files()
    path.write_bytes(damage(path.read_bytes()))
    assert_allclose(encode_dataset(model, few), first, atol=1e-6)
    assert_allclose(np.load(path), first, atol=1e-6)
    assert caplog.messages == []
    np.save(path, first[:4])
    assert len(encode_dataset(model, few)) == 5


def test_codes_are_served_where_they_cannot_be_kept(model, few, monkeypatch, caplog):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("diti.representation.kept.atomic_path", full)
    assert encode_dataset(model, few).shape == (5, model.dims)
    (line,) = caplog.messages
    assert "not be kept for next time" in line and "No space left" in line


def test_images_of_another_size_are_told_of_once(model, caplog):
    larger = open_data("toyfaces:600", 32)
    codes = encode_dataset(model, larger)
    assert caplog.messages == ["images of 32 px are resized to the model's 16 px"]
    assert_allclose(codes[597:], model.encode(np.asarray(larger.images[597:])).numpy(), atol=1e-5)


def test_the_ending_decides_on_the_table(model, tmp_path):
    for name in ("z.parquet", "z.CSV"):
        assert write_features(model, "toyfaces:5", tmp_path / name).startswith(
            f"wrote {tmp_path / name}: 5 images"
        )
    table = pyarrow.parquet.read_table(tmp_path / "z.parquet")
    text = pyarrow.csv.read_csv(tmp_path / "z.CSV")
    assert text.column_names == table.column_names and text["file"].to_pylist() == table["file"].to_pylist()
    last = table.column_names[-1]
    assert_allclose(text[last].to_numpy(), table[last].to_numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("z.txt", r"--out .*z\.txt must end in \.parquet or \.csv"),
        ("z", r"--out .*z must end in"),
    ],
)
def test_a_table_that_cannot_be_written_is_refused_before_any_work(model, tmp_path, out, words, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr("diti.representation.table.as_dataset", lambda *_: pytest.fail("work has begun"))
    with pytest.raises(InputError, match=words):
        write_features(model, str(tmp_path / "folder"), tmp_path / out)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_same_command_replaces_the_table_that_it_wrote(model, tmp_path, diti_here, ending):
    model.save(tmp_path / "model")
    command = ("encode", tmp_path / "model", "toyfaces:5", "--out", tmp_path / f"z.{ending}")
    for _ in range(2):
        done = diti_here(*command)
        assert done.returncode == 0, done.stderr


def test_many_codes_stay_on_the_disk(model, few, tmp_path, monkeypatch):
    whole = encode_dataset(model, few)
    monkeypatch.setattr("diti.representation.kept.IN_MEMORY", 8)
    monkeypatch.setenv("DITI_CACHE", str(tmp_path / "another"))
    monkeypatch.setattr("diti.representation.features.images_at_once", lambda *_: 2)
    for _ in range(2):  # made, then found
        codes = encode_dataset(model, few)
        assert isinstance(codes, np.memmap) and codes.filename.is_relative_to(tmp_path / "another")
        assert_allclose(codes, whole, atol=1e-6)


def test_a_compiled_encoder_finds_the_same(model, tmp_path, monkeypatch):
    """Traced by torch's compiler, and run as it is: making code for this machine takes tens of seconds."""
    monkeypatch.setattr("diti.core.loop.COMPILER", "eager")
    plain = encode(model, "toyfaces:5", tmp_path / "plain.csv", explained=False)
    monkeypatch.setenv("DITI_CACHE", str(tmp_path / "another"))
    compiled = encode(model, "toyfaces:5", tmp_path / "compiled.csv", explained=False, compile=True)
    assert model.encoder.trunk._compiled_call_impl is not None
    assert_allclose(compiled, plain, atol=1e-6)


def test_parts_are_one_table(model, tmp_path):
    whole, parts = tmp_path / "whole.parquet", tmp_path / "parts"
    codes = encode(model, "toyfaces:5", whole, explained=False)
    found = [encode(model, "toyfaces:5", parts, explained=False, part=f"{n}/3") for n in (2, 1, 3)]
    assert [len(one) for one in found] == [2, 1, 2]
    assert_allclose(found[0], codes[1:3], atol=1e-5)
    assert [path.stem for path in sorted(parts.iterdir())] == [f"part-{n:05d}-of-00003" for n in (1, 2, 3)]
    joined, table = (pyarrow.parquet.read_table(path) for path in (parts, whole))
    assert joined.schema == table.schema and joined["file"].equals(table["file"])
    assert_allclose(joined.columns[-1], table.columns[-1], atol=1e-5)
    for part in ("4/3", "0/3", "1", "a/b"):
        with pytest.raises(InputError, match="is not a part; write 1/16"):
            encode(model, "toyfaces:5", parts, part=part)
    with pytest.raises(InputError, match="--part 1/3 is written into a folder"):
        encode(model, "toyfaces:5", whole, part="1/3")
    with pytest.raises(InputError, match="--part 1/9 of 5 images is empty; use fewer parts"):
        encode(model, "toyfaces:5", parts, part="1/9")
