"""What a strength of 1 is, for directions of labels, of examples and of files of earlier versions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tiny import tiny_model

from diti.core.errors import InputError
from diti.core.rng import numpy_generator
from diti.data.prepared import Dataset
from diti.diffusion.files import locate
from diti.edit.compose import push
from diti.edit.direction_files import kept_direction, kept_names, load_direction, save_direction
from diti.edit.directions import fit_direction, pattern_of
from diti.edit.examples import LEAST, MOST, UNASKED, example_direction, pair_direction
from diti.edit.strength import estimated_difference, usual_difference
from diti.representation.models.loading import load

COUNT, DIMS = 4_000, 12


@pytest.fixture(scope="module")
def model():
    """With codes that vary differently in each dim."""
    found = tiny_model(subsets=6)
    return replace(found, mean=torch.linspace(-1, 1, DIMS), std=torch.linspace(0.5, 2, DIMS))


@pytest.fixture(scope="module")
def codes(model):
    """(N, D) Gaussian codes whose dims vary together."""
    rng = numpy_generator(0, "codes")
    mixed = rng.standard_normal((COUNT, DIMS)) @ (np.eye(DIMS) + 0.3 * rng.standard_normal((DIMS, DIMS)))
    return (mixed / mixed.std(0) * model.std.numpy() + model.mean.numpy()).astype(np.float32)


@pytest.fixture(scope="module")
def labelled(codes):
    """Labels that are linear in the codes, but for noise; no picture is looked at."""
    rng = numpy_generator(1, "labels")
    z = (codes - codes.mean(0)) / codes.std(0)
    columns = {
        "file": pa.array([f"{i}.png" for i in range(COUNT)]),
        "split": pa.array(["train"] * 3_000 + ["valid"] * 1_000),
        "glasses": pa.array((z[:, 1] + z[:, 2] + rng.standard_normal(COUNT) > 1).astype(np.int8)),
        "age": pa.array((40 + 9 * (z[:, 2] + z[:, 5] + rng.standard_normal(COUNT))).astype(np.float32)),
    }
    return Dataset(
        Path("faces"), np.zeros((COUNT, 1, 1, 3), np.uint8), pa.table(columns), {"name": "f", "hash": "x"}
    )


@pytest.mark.parametrize("along", ["conditional", "pattern", "weight"])
@pytest.mark.parametrize("dims", [None, 4])
def test_one_is_the_usual_difference_of_the_reading(model, codes, labelled, along, dims):
    """Whatever is followed: the linear reading, fitted anew here by a slow way, moves by exactly that."""
    train = labelled.rows("train")
    for name in ("glasses", "age"):
        direction = fit_direction(model, labelled, name, dims, codes=codes).following(along)
        reading = direction.reading / direction.std
        y = labelled.labels([name])[train, 0].astype(np.float64)
        moved = push(torch.from_numpy(codes).double(), direction, 1.0).numpy()
        rise = (moved - codes) @ reading
        np.testing.assert_allclose(rise, 1.0, rtol=1e-5)
        scores = codes[train].astype(np.float64) @ reading
        if name == "glasses":
            assert scores[y == 1].mean() - scores[y == 0].mean() == pytest.approx(1, rel=1e-5)
        else:
            slow = np.linalg.lstsq(np.c_[codes[train], np.ones(len(train))].astype(np.float64), y, rcond=None)[0]
            rise = (moved - codes) @ slow[:-1]
            np.testing.assert_allclose(rise, y.std(), rtol=0.01)


def test_a_direction_follows_the_conditional_pattern_where_there_are_others(model, codes, labelled):
    assert fit_direction(model, labelled, "age", codes=codes).along == "conditional"
    assert fit_direction(model, labelled, "age", dims=4, codes=codes).along == "pattern"
    alone = replace(labelled, table=labelled.table.drop_columns(["glasses"]))
    assert fit_direction(model, alone, "age", codes=codes).along == "pattern"


def test_the_usual_difference_by_hand():
    scores, y = np.array([1.0, 2.0, 5.0, 9.0]), np.array([0.0, 0.0, 1.0, 1.0])
    assert usual_difference(scores, y, binary=True) == 7 - 1.5
    assert usual_difference(scores, np.array([3.0, np.nan, 5.0, 7.0]), binary=False) == np.std([3, 5, 7])


@pytest.mark.parametrize("name", ["glasses", "age"])
def test_files_of_earlier_versions_get_their_unit(model, codes, labelled, name, tmp_path):
    """From the weight, its pattern, the validation score and the share with it: within a few per cent."""
    direction = fit_direction(model, labelled, name, codes=codes)
    old = replace(direction, reading=None, response=None)
    path = save_direction(old, tmp_path)
    found = load_direction(path)
    np.testing.assert_allclose(found.told[0], direction.reading, rtol=0.12)
    np.testing.assert_allclose(found.told[1], direction.response, rtol=0.12)
    path.write_bytes(path.read_bytes().replace(b'"format":"3"', b'"format":"2"'))
    assert load_direction(path).along == "conditional"


def test_two_normal_heaps_are_as_far_apart_as_estimated():
    """Exact: codes within a heap have covariance S and the weight is S⁻¹ (m1 - m0)."""
    rng = numpy_generator(2, "heaps")
    root, apart, share = rng.standard_normal((5, 5)), rng.standard_normal(5), 0.3
    within = root @ root.T
    weight = np.linalg.solve(within, apart)
    covariance = within + share * (1 - share) * np.outer(apart, apart)
    found = estimated_difference("l1", "AP", weight, covariance @ weight, 0.9, share)
    assert found == pytest.approx(weight @ apart)


def test_examples_count_what_those_left_out_show(model):
    """Five a side whose means are known: each is left out in turn, and read along the direction of the others."""
    rng = torch.Generator().manual_seed(0)
    mean, std = model.statistics()
    has, lacks = (torch.randn(5, DIMS, generator=rng) * std + mean + s * std for s in (1, -1))
    pairs = pair_direction(model, "it", has, lacks)
    torch.testing.assert_close(push(lacks, pairs, 1.0).mean(0), has.mean(0), atol=1e-5, rtol=1e-5)
    found = example_direction(model, "it", has, lacks)
    step, apart = push(lacks, found, 1.0) - lacks, 0.0
    for out in range(5):
        kept = [i for i in range(5) if i != out]
        part = example_direction(model, "it", has[kept], lacks[kept])
        reads = part.weight / std.numpy()
        apart += float((has[out] - lacks[out]).numpy() @ reads) / float(part.weight @ part.pattern) ** 0.5 / 5
    told = float(step[0].numpy() @ (found.weight / std.numpy())) / float(found.weight @ found.pattern) ** 0.5
    assert told == pytest.approx(min(max(apart, LEAST), MOST), rel=1e-4)


@pytest.mark.parametrize("has, lacks, deviations", [(1, 1, UNASKED), (1, 0, UNASKED), (4, 4, LEAST)])
def test_examples_that_tell_nothing_make_a_small_step(model, has, lacks, deviations):
    rng, (mean, std) = torch.Generator().manual_seed(7), model.statistics()
    codes = torch.randn(8, DIMS, generator=rng) * std + mean
    like, unlike = codes[:has], codes[has : has + lacks]
    if has == 4:  # each side has what the other has
        like, unlike = codes[:4], codes[:4] + 1e-3 * codes[4:]
    found = example_direction(model, "it", like, unlike)
    reads = found.weight / std.numpy() / float(found.weight @ found.pattern) ** 0.5
    step = push(codes[:1], found, 1.0) - codes[:1]
    assert float(step[0].numpy() @ reads) == pytest.approx(deviations, rel=1e-3)


def test_the_directions_in_the_box_know_their_unit():
    """They open, and one step along each moves its own reading by one; what none of the labels tells is small."""
    folder, model = locate("faces64-diti"), load("faces64-diti")
    assert len(kept_names(folder)) == 20
    for name in ("age", "yaw"):
        direction = kept_direction(folder, name)
        z = torch.zeros(1, model.dims)
        step = (push(z, direction, 1.0) / torch.from_numpy(direction.std)).double().numpy()[0]
        assert step @ direction.told[0] == pytest.approx(1, rel=1e-4) and direction.along == "conditional"
        assert np.linalg.norm(step) < 4, "a few standard deviations of the code"


def test_what_tells_nothing_apart_has_no_unit(model, codes, labelled):
    direction = fit_direction(model, labelled, "age", codes=codes)
    blank = replace(direction, reading=None, pattern=0 * direction.pattern)
    with pytest.raises(InputError, match="tells nothing apart"):
        push(torch.zeros(1, DIMS), blank, 1.0)
    turned = replace(direction, conditional=-direction.conditional)
    with pytest.raises(InputError, match="does not change its own reading"):
        push(torch.zeros(1, DIMS), turned, 1.0)
    assert pattern_of(codes[:100], direction.weight).shape == (DIMS,)
