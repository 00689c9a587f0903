"""The attribute classifier: it learns, says what it cannot read, is kept, and continues where it stopped."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import balanced_accuracy_score

from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.rng import numpy_generator
from diti.data import toyfaces
from diti.data.prepared import Dataset
from diti.measure.attribute_classifier import (
    AttributeClassifier,
    ReaderNetwork,
    Trait,
    alone,
    balanced_accuracy,
    load_classifier,
    measure_traits,
    reading_loss,
    train_classifier,
)

SMALL = (8, 16)


def dataset(count: int, test: int, names: tuple[str, ...]) -> Dataset:
    """Toy faces with the named attributes; the last `test` of them are the test images."""
    factors = toyfaces.sample(count, seed=1)
    splits = ["train"] * (count - test) + ["test"] * test
    columns = {"file": pa.array([f"{i}.png" for i in range(count)]), "split": pa.array(splits)}
    columns |= {name: pa.array(factors[name]) for name in names}
    info = {"name": "faces", "hash": f"faces-{count}-{test}"}
    return Dataset(Path("faces"), toyfaces.render(factors, 16), pa.table(columns), info)


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> tuple[Dataset, Path, AttributeClassifier]:
    data = dataset(2_000, 400, ("hat", "background", "freckles"))
    folder = tmp_path_factory.mktemp("classifiers")
    return data, folder, train_classifier(data, images=4_800, channels=SMALL, folder=folder)


def test_it_learns_what_can_be_seen_and_names_what_cannot(learned):
    hat, background, freckles = learned[2].traits
    assert hat.binary and hat.readable and hat.quality["accuracy"] > 0.9 and hat.quality["AP"] > 0.95
    assert not background.binary and background.readable and background.quality["r"] > 0.8
    assert not freckles.readable  # less than a pixel at 16 px
    assert learned[2].readable.tolist() == [True, True, False]


def test_reads_are_probabilities_and_values_in_the_units_of_the_labels(learned):
    data, _, classifier = learned
    rows = data.rows("test")
    pixels, labels = data.pixels(rows), data.labels()[rows]
    reads = classifier(pixels)
    assert reads.shape == (400, 3) and (reads[:, 0] >= 0).all() and (reads[:, 0] <= 1).all()
    assert np.mean((reads[:, 0] > 0.5) == labels[:, 0]) > 0.9
    assert np.sqrt(np.mean((reads[:, 1] - labels[:, 1]) ** 2)) < 0.6 * labels[:, 1].std()
    np.testing.assert_allclose(classifier(to_float(pixels)), reads)
    np.testing.assert_allclose([t.centre for t in classifier.traits], reads.mean(0))
    np.testing.assert_allclose(classifier.spread, reads.std(0))


def test_a_second_call_loads_the_same_classifier_without_training(learned):
    data, folder, classifier = learned
    again = train_classifier(
        replace(data, images=Refusing(data.images)), images=4_800, channels=SMALL, folder=folder
    )
    assert again.traits == classifier.traits
    np.testing.assert_array_equal(again(data.images[:8]), classifier(data.images[:8]))
    assert len(classifiers(folder)) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_classifier_is_trained_again(name, tmp_path):
    data = dataset(64, 20, ("hat",))
    given = {"images": 64, "channels": SMALL, "folder": tmp_path}
    first = train_classifier(data, **given)
    (place,) = classifiers(tmp_path)
    (place / name).write_bytes((place / name).read_bytes()[:40])
    again = train_classifier(data, **given)
    assert again.traits == first.traits
    np.testing.assert_array_equal(again(data.images[:8]), first(data.images[:8]))


def classifiers(folder: Path) -> list[Path]:
    """The folders of readers; beside each lies its lock."""
    return [path for path in folder.iterdir() if path.is_dir()]


class Refusing:
    """Images that cannot be read after `allowed` batches."""

    def __init__(self, images: np.ndarray, allowed: int = 0) -> None:
        self.images, self.allowed, self.shape = images, allowed, images.shape

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        if self.allowed == 0:
            raise RuntimeError("stopped here")
        self.allowed -= 1
        return self.images[rows]


def test_a_stopped_training_continues_to_the_same_reader(tmp_path):
    data = dataset(80, 16, ("hat", "smile"))
    settings = {"images": 640, "channels": SMALL, "seed": 3}
    whole = train_classifier(data, folder=tmp_path / "whole", **settings)
    with pytest.raises(RuntimeError, match="stopped here"):
        train_classifier(replace(data, images=Refusing(data.images, 10)), folder=tmp_path / "parts", **settings)
    (place,) = classifiers(tmp_path / "parts")
    assert sorted(p.name for p in (place / "state").iterdir())[-1] == f"{320:012d}"
    continued = train_classifier(
        replace(data, images=Refusing(data.images, 11)), folder=tmp_path / "parts", **settings
    )
    assert continued.traits == whole.traits
    np.testing.assert_array_equal(continued(data.images), whole(data.images))
    lines = [json.loads(line) for line in (place / "log.jsonl").read_text().splitlines()]
    assert [line["images"] for line in lines if "loss" in line] == list(range(32, 641, 32))


def test_two_processes_do_not_make_the_same_classifier_at_once(tmp_path):
    hold = (
        "import fcntl, sys, time\nhandle = open(sys.argv[1], 'w')\nfcntl.lockf(handle, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\ntime.sleep(0.5)"
    )
    command = [sys.executable, "-c", hold, str(tmp_path / ".abc.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        before = time.monotonic()
        with alone(tmp_path / "abc"):
            assert time.monotonic() - before > 0.3


def test_the_trunk_is_what_the_classifier_sees_before_its_last_layer(learned):
    _, folder, classifier = learned
    state = load_file(classifiers(folder)[0] / "model.safetensors")
    pixels = to_float(learned[0].images[:4])
    with torch.no_grad():
        logit = classifier.trunk(pixels) @ state["head.weight"][0] + state["head.bias"][0]
    np.testing.assert_allclose(classifier(pixels)[:, 0], torch.sigmoid(logit), rtol=1e-4)


def test_other_data_seed_or_length_is_another_reader(tmp_path):
    data = dataset(80, 16, ("hat",))
    for changed, seed, images in (
        (data, 0, 64),
        (data, 1, 64),
        (data, 0, 128),
        (dataset(80, 20, ("hat",)), 0, 64),
    ):
        train_classifier(changed, images=images, seed=seed, channels=(8,), folder=tmp_path)
    assert len(classifiers(tmp_path)) == 4


def test_the_network_overfits_a_handful_of_images():
    data = dataset(8, 0, ("beard", "smile"))
    labels = torch.from_numpy(data.labels())
    torch.manual_seed(0)
    network = ReaderNetwork(16, SMALL, 2)
    network.binary.copy_(torch.tensor([True, False]))
    network.mean.copy_(labels.mean(0))
    network.std.copy_(labels.std(0))
    adam = torch.optim.Adam(network.parameters(), lr=1e-2)
    pixels = to_float(data.images)
    for _ in range(40):
        adam.zero_grad()
        reading_loss(network, pixels, labels).mean().backward()
        adam.step()
    reads = network.read(pixels).detach()
    assert ((reads[:, 0] > 0.5) == labels[:, 0]).all()
    torch.testing.assert_close(reads[:, 1], labels[:, 1], atol=0.1, rtol=0)


def test_loss_of_each_kind_and_of_missing_labels():
    network = ReaderNetwork(16, (8,), 3)
    network.binary.copy_(torch.tensor([True, False, True]))
    network.mean.copy_(torch.tensor([0.5, 10.0, 0.5]))
    network.std.copy_(torch.tensor([0.5, 2.0, 0.5]))
    torch.nn.init.zeros_(network.head.weight)
    with torch.no_grad():
        network.head.bias.copy_(torch.tensor([1.0, 0.5, 3.0]))
    labels = torch.tensor([[1.0, 14.0, 0.0], [0.0, 11.0, torch.nan]])
    expected = [np.log1p(np.exp(-1.0)) + 1.5**2 + np.log1p(np.exp(3.0)), np.log1p(np.exp(1.0)) + 0]
    loss = reading_loss(network, torch.zeros(2, 3, 16, 16), labels)
    np.testing.assert_allclose(loss.detach().numpy(), np.array(expected) / 3, rtol=1e-5)
    sigmoid = 1 / (1 + np.exp(-np.array([1.0, 3.0])))
    read = network.read(torch.zeros(1, 3, 16, 16)).detach().numpy()
    np.testing.assert_allclose(read[0], [sigmoid[0], 11.0, sigmoid[1]], rtol=1e-5)


def test_balanced_accuracy_equals_scikit_learn():
    rng = numpy_generator(0, "accuracy")
    truth = (rng.random((200, 3)) < [0.1, 0.5, 0.9]).astype(np.float64)
    reads = np.clip(truth * 0.3 + 0.7 * rng.random((200, 3)), 0, 1)
    expected = [balanced_accuracy_score(t, r > 0.5) for t, r in zip(truth.T, reads.T, strict=True)]
    np.testing.assert_allclose(balanced_accuracy(reads, truth), expected)
    assert np.isnan(balanced_accuracy(reads[:, :1], np.ones((200, 1)))).all()


def test_traits_of_an_attribute_that_never_varies():
    reads = np.column_stack([np.linspace(0, 1, 10), np.linspace(0, 1, 10)])
    (one, other) = measure_traits(["always", "level"], [True, False], reads, np.ones((10, 2)))
    assert not one.readable and one.quality["accuracy"] is None
    assert not other.readable and other.quality == {"r": None}


def test_any_function_can_be_a_reader():
    classifier = AttributeClassifier(lambda x: x.mean((1, 2, 3))[:, None], 16, (Trait("level", False, 0.0, 0.5),))
    levels = torch.tensor([-0.5, 0.25])
    np.testing.assert_allclose(classifier(levels.reshape(2, 1, 1, 1).expand(2, 3, 16, 16))[:, 0], levels)
    assert classifier.index("level") == 0
    with pytest.raises(InputError, match=r"does not know the attribute 'levle'.*Did you mean 'level'"):
        classifier.index("levle")


def test_data_without_labels_or_test_images_is_refused(tmp_path):
    with pytest.raises(InputError, match="no attributes"):
        train_classifier(dataset(20, 5, ()), folder=tmp_path)
    with pytest.raises(InputError, match="lacks train rows, or test rows"):
        train_classifier(dataset(20, 0, ("hat",)), folder=tmp_path)
    with pytest.raises(InputError, match="has no attribute 'hut'"):
        train_classifier(dataset(20, 5, ("hat",)), attributes=["hut"], folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_classifier_of_another_version_is_refused(learned, tmp_path):
    (place,) = classifiers(learned[1])
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((place / name).read_bytes())
    assert load_classifier(tmp_path).traits == learned[2].traits
    description = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(description | {"format": 0}))
    with pytest.raises(InputError, match="another version"):
        load_classifier(tmp_path)
