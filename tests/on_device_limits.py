"""What a device is asked for on the pretend one: no waiting, memory, precision, and who decides.

Run by test_on_device.py, as on_device.py is.
"""

import pretend  # isort: skip - before any backward pass

import dataclasses
import functools
import pkgutil

import on_device_world
import pytest
import torch
from on_device_world import (
    CODE,
    SHORT,
    SIZE,
    SOLVED,
    STEPS,
    Falling,
    look_at_few,
    same,
    settings,
)

import diti
from diti.cli import main
from diti.core.device import decide, fitted
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.loop import make_accelerator, train, with_precision
from diti.core.rng import Draws
from diti.core.runs import RunFolder
from diti.diffusion import pretrain
from diti.diffusion.generate import samples
from diti.edit.reader import fit_reader
from diti.exploring.axes import removed_by
from diti.measure.attribute_classifier import AttributeClassifier, ReaderNetwork
from diti.measure.reference import encode
from diti.representation.checks import loss_curves
from diti.representation.features import metric_over
from diti.representation.finish import training_statistics
from diti.representation.methods import diffae
from diti.representation.methods.diffae import new_decoder
from diti.representation.methods.diti import frozen_loss_by_time
from diti.representation.train import train_model
from diti.theory import reconstructor

made = on_device_world.made  # a fixture

# ---- Nothing is waited for --------------------------------------------------------------------------------------


@pytest.fixture
def fetching(monkeypatch):
    """The device fetches what is pinned by itself, as CUDA does: other uploads are waited for."""
    monkeypatch.setattr("diti.core.device.FETCHING", ("pretend",))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)


def test_no_step_waits_for_the_device(tmp_path, monkeypatch, fetching):
    """Nothing is brought back, beside the lines of the log, and of 512 images in the pass their sums."""
    from benchmarks.bench_device import measure

    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "pretend:0")
    asked = ("downloads", "uploads", "waits")
    found = {path: tuple(cost[name] for name in asked) for path, cost in measure("pretend", tmp_path, 1).items()}
    # Up go pixels, time-steps and weights by time; tables only once.
    assert found == {
        "pretrain": (0, 2, 0), "train": (0, 3, 0), "sampler": (0, 0, 0), "encode": (0, 1, 0), "pass": (7, 3, 0),
    }  # fmt: skip


@pytest.mark.parametrize("method", ["pdae", "diffae", "simclr", "tcvae", "ibgan"])
def test_no_step_of_a_method_waits_for_the_device(made, tmp_path, monkeypatch, fetching, method):
    look_at_few(monkeypatch)

    def asked(images):
        rare = {"log_images": 640, "validate_images": 640, "checkpoint_images": 640}
        config = settings(made, method=method, code=CODE)
        training = dataclasses.replace(SHORT, images=images, **rare)
        with pretend.counting() as counted:
            train_model(dataclasses.replace(config, training=training), tmp_path / f"{images}", device="pretend")
        return counted["downloads"], counted["waits"]

    asked(8)  # what is sent there once
    assert asked(32) == asked(16), "more steps wait no more often"


def test_no_step_with_fresh_noise_waits_for_the_device(made, fetching):
    backbone = diti.load_backbone(made / "backbone", "pretend")

    def asked(steps):
        with pretend.counting() as counted:
            samples(backbone, 2, 0, steps)
        return counted["downloads"], counted["waits"]

    asked(4)  # tables are sent there once
    assert asked(9) == asked(4)


def test_what_does_not_fit_in_memory_is_split(made, tmp_path, monkeypatch):
    """Wherever a network runs beside its training, with the same numbers."""
    look_at_few(monkeypatch)
    model = diti.load(made / "model", "pretend").with_backbone()
    data, backbone, decoder = diti.open_data(made / "data", SIZE), model.backbone, model.decoder
    faces = data.images[:6]
    unet = new_decoder(settings(made, method="diffae", code=CODE), backbone).to("pretend")
    network = ReaderNetwork(SIZE, (8, 16), 2).to("pretend")

    def work():
        yield model.encode(faces), model.reconstruct(faces, sampling_steps=STEPS)
        yield samples(backbone, 6, 0, STEPS), pretrain.validation_losses(backbone, data)
        yield loss_curves(model.encoder, decoder, model.partition, data).record()
        yield vars(diffae.validation_losses(model.encoder, unet, data))
        yield frozen_loss_by_time(backbone, data), removed_by(model, data, [[0], [1, 2]])
        yield encode(model.encoder, to_float(faces)), AttributeClassifier(network.read, SIZE, ())(to_float(faces))
        yield training_statistics(model.encoder, data), metric_over(model, data), fit_reader(model, data).told
        yield reconstructor(backbone)(to_float(faces), torch.arange(6))

    expected = list(work())
    with pretend.limited(rows=5):
        same(expected, list(work()), 1e-3)
        with pytest.raises(InputError, match="use a smaller --train-batch-size"):
            train_model(settings(made, method="simclr", code=CODE), tmp_path, device="pretend")
    with pretend.limited(rows=0), pytest.raises(InputError, match="one image does not fit in the memory"):
        model.encode(faces)


def test_a_solution_that_does_not_fit_in_memory_is_the_same(made):
    options = SOLVED | {"lost_in": "features"}

    def solved():
        model = diti.solve(made / "data", str(made / "backbone"), device="pretend", **options)
        return model.decoder.linear.weights.detach(), model.encoder.head.weight.detach()

    expected = solved()
    with pretend.limited(rows=50):
        same(expected, solved(), 1e-4)


TOO_MUCH = (torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("MPS backend out of memory (MPS ..."),
            RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you"),
            RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), MemoryError())  # fmt: skip


@pytest.mark.parametrize("error", TOO_MUCH, ids=lambda error: str(error)[:4])
def test_how_much_fits_is_found_once(error):
    asked = []

    def work(x, limit):
        asked.append(len(x))
        if len(x) > limit:
            raise error
        return x + 1

    def batches(limit, count):
        asked.clear()
        found = fitted(functools.partial(work, limit=limit), torch.zeros(count, limit))
        assert found.tolist() == [[1.0] * limit] * count
        return list(asked)

    diti.core.device._known.clear()
    assert batches(2, 7) == [7, 3, 1, 2, 2, 2], "upwards again, until the next larger one is known not to fit"
    assert batches(2, 7) == [2, 2, 2, 1], "the second time it is known"
    assert batches(300, 1024) == [1024, 512, 256, 384, 320, 288, 288, 192], "to within an eighth"
    assert batches(300, 600) == [288, 288, 24]
    assert batches(8, 8) == [8] and batches(8, 0) == [0]


def test_other_errors_are_not_taken_for_it():
    def work(x):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        fitted(work, torch.zeros(4, 2))


def test_a_training_that_does_not_fit_in_memory_goes_on_in_parts(tmp_path, capsys):
    def weight_after(rows, out):
        objective = Falling()
        with pretend.limited(rows=rows):
            train(
                objective, lambda start, count: torch.eye(24)[start : start + count, :4].view(-1, 1, 2, 2), SHORT,
                RunFolder(out), label="test", evaluate=lambda images: {},
                accelerator=make_accelerator(SHORT, "pretend"),
            )  # fmt: skip
        return objective.layer.weight.detach()

    same(weight_after(8, tmp_path / "whole"), weight_after(4, tmp_path / "parts"), 1e-5)
    assert "a batch does not fit in memory: computed in 2 parts from now on" in capsys.readouterr().out


def test_noise_is_drawn_there_and_a_run_is_repeated_exactly():
    whole = Draws(3, 8, 24).normal("noise", (3, 4, 4), pretend.DEVICE)
    with pretend.counting() as counted:
        part = Draws(3, 20, 5).normal("noise", (3, 4, 4), pretend.DEVICE)
    assert counted["uploads"] == 0 and part.device == pretend.DEVICE
    assert torch.equal(part.cpu(), whole[12:17].cpu()), "whatever the batch, an image gets its own numbers"


def test_bf16_where_the_device_has_it(made, tmp_path, monkeypatch):
    """Frozen networks and trainings, but neither sums nor solutions nor, where it is unwanted, anything."""
    monkeypatch.setattr(pretend.Module, "is_bf16_supported", lambda self, including_emulation: True, raising=False)
    seen = {}
    trunk, unet = "representation.networks.trunks.BackboneTrunk.forward", "diffusion.unet.UNetBackbone.forward"
    for name in (trunk, unet):
        owner, _, attribute = f"diti.{name}".rpartition(".")
        plain_forward = getattr(pkgutil.resolve_name(owner), attribute)

        def forward(self, *given, name=name, plain_forward=plain_forward):
            seen.setdefault(name, set()).add(torch.is_autocast_enabled("pretend"))
            return plain_forward(self, *given)

        monkeypatch.setattr(f"diti.{name}", forward)

    def solved():
        seen.clear()
        diti.solve(made / "data", str(made / "backbone"), device="pretend", **SOLVED)
        return dict(seen)

    assert solved() == {trunk: {True}, unet: {True}}
    seen.clear()
    samples(diti.load_backbone(made / "backbone", "pretend"), 1, 0, STEPS)
    assert seen == {unet: {False}}, "errors of a sampler's steps would add up"
    monkeypatch.setenv("DITI_PRECISION", "float32")
    assert solved() == {trunk: {False}, unet: {False}}
    monkeypatch.setenv("DITI_PRECISION", "float8")
    with pytest.raises(InputError, match="DITI_PRECISION 'float8' is unknown; use auto or float32"):
        solved()
    assert with_precision(SHORT, "pretend").mixed_precision == "bf16"
    assert with_precision(SHORT, "cpu").mixed_precision == "no"


# ---- One decision -----------------------------------------------------------------------------------------------


def test_who_decides(monkeypatch):
    assert decide() == decide("auto") == torch.device("cpu"), "there is no GPU here"
    monkeypatch.setenv("DITI_DEVICE", "pretend")
    assert decide() == torch.device("pretend:0") and decide("cpu") == torch.device("cpu")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("DITI_DEVICE", "")
    assert decide() == torch.device("cuda:0") and decide("cuda:1") == torch.device("cuda:1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert decide() == torch.device("cuda:1"), "each process has its own"


def test_the_environment_decides_for_whole_commands(made, tmp_path, monkeypatch):
    monkeypatch.setenv("DITI_DEVICE", "pretend")
    with pretend.counting() as counted:
        assert main(["encode", str(made / "model"), str(made / "data"), "--out", str(tmp_path / "z.csv")]) == 0
    assert counted["kernels"] > 0
    monkeypatch.setenv("DITI_CACHE", str(tmp_path / "cache"))
    with pretend.counting() as counted:
        words = ["encode", str(made / "model"), str(made / "data"), "--out", str(tmp_path / "z2.csv")]
        assert main([*words, "--device", "cpu"]) == 0
    assert counted["kernels"] == 0


def test_a_second_training_may_have_another_device_and_precision():
    for device, precision in (("pretend", "no"), ("cpu", "no"), ("pretend", "bf16"), ("pretend", "no")):
        config = dataclasses.replace(SHORT, mixed_precision=precision)
        accelerator = make_accelerator(config, device)
        assert (accelerator.device, accelerator.mixed_precision) == (decide(device), precision)
