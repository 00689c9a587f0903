"""Every path once on the pretend device, with the numbers of the CPU; and no wait for it in any step.

Not collected by itself: test_on_device.py runs it in a process of its own, which registers the device first.
"""

import pretend  # isort: skip - before any backward pass

import dataclasses
import inspect
import json
import pkgutil
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from own_models import HandUNet
from pipelines import PIPELINES
from safetensors.torch import load_file
from tiny import SHAPE, tiny_backbone, tiny_model

import diti
from diti.cli import main
from diti.config import EncoderConfig, TrainConfig, TrainingConfig
from diti.core.device import decide, fitted, preferred
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.loop import make_accelerator, train, with_precision
from diti.core.objective import LossReport, Objective
from diti.core.rng import Draws
from diti.core.runs import RunFolder
from diti.diffusion.generate import samples
from diti.diffusion.kinds.watched import WatchedBackbone
from diti.edit.interpolate import interpolate
from diti.measure.counterfactuals import CounterfactualOptions, measure_counterfactuals
from diti.measure.sufficiency import sufficiency
from diti.representation.train import train_model
from diti.representation.train_latent import fit_latent

KINDS = ("latent", "Flux")  # betas and a U-Net; a flow and a transformer that is told a prompt
DEVICES, LABELS = ("cpu", "pretend"), ("background", "brightness", "hat")
SIZE, STEPS = 16, 3
CODE = EncoderConfig(encoder="residual", code_dim=8, encoder_channels=(8, 16))
SHORT = TrainingConfig(
    images=24, train_batch_size=8, learning_rate=1e-3, ema_decay=0.9, log_images=16, validate_images=16,
    checkpoint_images=16,
)  # fmt: skip
FEW = {  # images that are looked at beside the work, and steps that draw them
    "diffusion.validation.fixed_batches": (16, "valid", None),
    "diffusion.validation.fixed_rows": (16, "valid"),
    "representation.checks.loss_curves": (16,),
    "diffusion.generate.samples": (STEPS, None),
    "representation.models.decoding.DecodingModel.reconstruct": ("inferred", STEPS, 0),
    "exploring.axes.removed_by": (16,),
    "representation.checks.SHOWN": 2,
    "diffusion.pretrain.SAMPLES": 2,
    "representation.methods.base.CHECKED_IMAGES": 16,
    "representation.train_latent.VALIDATION_DRAWS": 32,
    "representation.train_latent.COMPARED": 20,
}
SOLVED = {"code_dim": 8, "subsets": 2, "images": 160, "pixel_axes": 12, "stretches": 2, "whitened": 16}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with faces, two of them as pictures, a backbone and a solved model."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITI_CACHE", str(folder / "cache"))
        look_at_few(patch)
        faces = diti.prepare("toyfaces:120", folder / "data", SIZE, workers=1)
        pq.write_table(faces.table.select(["file", "split", *LABELS]), folder / "data" / "table.parquet")
        tiny_backbone().save(folder / "backbone")
        diti.solve(folder / "data", str(folder / "backbone"), out=folder / "model", device="cpu", **SOLVED)
    for name, image in zip("ab", faces.images[:2], strict=True):
        diti.grid(image[None], columns=1).save(folder / f"{name}.png")
    return folder


def look_at_few(patch: pytest.MonkeyPatch) -> None:
    """Other constants, and other defaults of functions, also of those that torch wraps."""
    for name, few in FEW.items():
        if name.rpartition(".")[2].isupper():
            patch.setattr(f"diti.{name}", few)
        else:
            patch.setattr(inspect.unwrap(pkgutil.resolve_name(f"diti.{name}")), "__defaults__", few)


class Both:
    """Runs a path on the CPU and on the device, each with a cache and a folder of its own, and compares."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch

    def __call__(self, path, tolerance: float = 1e-3) -> None:
        found = {}
        for device in DEVICES:
            self.patch.setenv("DITI_CACHE", str(self.folder / device / "cache"))
            (self.folder / device / "out").mkdir(parents=True)
            with pretend.counting() as counted:
                found[device] = path(device, self.folder / device / "out")
            assert (counted["kernels"] > 0) == (device == "pretend"), "it computes where it was told to"
        same(found["cpu"], found["pretend"], tolerance)


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Both:
    look_at_few(monkeypatch)
    return Both(tmp_path, monkeypatch)


def same(one: object, other: object, tolerance: float) -> None:
    """Numbers, arrays, and whatever holds them."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            if name not in ("command", "model", "images_per_s", "seconds"):
                same(one[name], other[name], tolerance)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            same(*pair, tolerance)
    elif isinstance(one, torch.Tensor | np.ndarray | float):
        np.testing.assert_allclose(plain(one), plain(other), rtol=tolerance, atol=tolerance)
    else:
        assert one == other


def plain(numbers: object) -> np.ndarray:
    return (numbers.cpu() if isinstance(numbers, torch.Tensor) else np.asarray(numbers)).__array__()


def weights(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """All that a model folder learned, but states."""
    files = [file for file in sorted(folder.rglob("*.safetensors")) if "state" not in file.parts]
    return {str(file.relative_to(folder)): load_file(file) for file in files}


def log_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


# ---- Models are made --------------------------------------------------------------------------------------------


def test_pretrain(both, made):
    def path(device, out):
        shape = dataclasses.asdict(SHAPE) | dataclasses.asdict(SHORT)
        backbone = diti.pretrain(made / "data", out=out, device=device, **shape)
        assert backbone.device == decide(device)
        return weights(out), log_of(out)

    both(path)


def settings(made: Path, **more) -> TrainConfig:
    places = {"data": str(made / "data"), "backbone": str(made / "backbone")}
    return TrainConfig(**places, subsets=2, training=SHORT, **more)


@pytest.mark.parametrize("method", ["diti", "pdae", "diffae", "simclr", "tcvae", "ibgan"])
def test_train(both, made, method):
    def path(device, out):
        config = TrainConfig(
            method=method,
            data=str(made / "data"),
            backbone=str(made / "backbone"),
            subsets=2,
            code=CODE,
            training=SHORT,
        )
        train_model(config, out, device=device)
        return weights(out), log_of(out)

    both(path, 1e-2)  # Adam divides by the size of a gradient: the rounding of small ones grows


def test_train_on_from_the_solution(both, made):
    def path(device, out):
        solution = dataclasses.replace(TrainConfig().solution, pixel_axes=12, stretches=2, whitened=16)
        code = EncoderConfig(encoder="backbone", code_dim=8)
        config = settings(made, code=code, start="solved", partition="matched", solution=solution)
        train_model(config, out, device=device)
        return log_of(out)

    both(path, 1e-2)


class Falling(Objective):
    """A regression by Muon and Adam whose loss is no number at the 20th call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = torch.nn.Conv2d(1, 4, 2), 0
        torch.nn.init.ones_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    def is_inner(self, name, parameter):
        return parameter.ndim == 4

    def forward(self, images, draws):
        self.calls += 1
        loss = (self.layer(images) - 1).square().mean((1, 2, 3))
        return LossReport(loss.mean() * (float("nan") if self.calls == 20 else 1.0), loss)


def test_a_fall_is_rolled_back(both):
    """The optimiser's counts go back to where its parameters are."""

    def path(device, out):
        objective = Falling()
        config = dataclasses.replace(SHORT, images=640, log_images=64, validate_images=160, checkpoint_images=128)
        train(
            objective, lambda start, count: torch.linspace(0, start, 4 * count).view(count, 1, 2, 2) / 640,
            config, RunFolder(out), label="test", evaluate=lambda images: {},
            accelerator=make_accelerator(config, device),
        )  # fmt: skip
        (fall,) = [line for line in log_of(out) if "fall" in line]
        assert fall["images"] == 128
        return objective.layer.weight.detach()

    both(path)


@pytest.mark.parametrize("lost_in", ["pixels", "features"])
def test_solve(both, made, lost_in):
    def path(device, out):
        model = diti.solve(
            made / "data", str(made / "backbone"), out=out / "run", device=device, lost_in=lost_in, **SOLVED
        )
        assert model.device == model.backbone.device == decide(device)
        return weights(out / "run"), log_of(out / "run")

    both(path, 2e-3)


def test_solve_over_features_of_another_network_and_without_a_folder(both, made):
    def path(device, out):
        given = np.random.default_rng(0).normal(size=(120, 20)).astype(np.float32)
        backbone = diti.load_backbone(made / "backbone", device)
        model = diti.solve(made / "data", backbone, features=given, axes="ordered", **SOLVED)
        faces = to_float(diti.open_data(made / "data", SIZE).pixels(np.arange(2)))
        z = model.encode(given[:2])
        assert z.device == model.device == decide(device), "it stays where the backbone was"
        return z, model.reconstruct(faces, sampling_steps=STEPS, z=z)

    both(path, 2e-3)


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_backbones(both, made, tmp_path, name):
    folder = PIPELINES[name](tmp_path / "pipeline")

    def path(device, out):
        model = diti.solve(made / "data", str(folder), device=device, axes="ordered", **SOLVED)
        faces = to_float(diti.open_data(made / "data", SIZE).pixels(np.arange(2)))
        z = model.encode(faces, value_range=(-1, 1))
        again = model.reconstruct(faces, sampling_steps=STEPS, z=z, value_range=(-1, 1))
        assert z.device == again.device == model.device == decide(device)
        return z, model.encode(again.clamp(-1, 1), value_range=(-1, 1)), samples(model.backbone, 2, 0, STEPS)

    both(path, 5e-3)


@pytest.mark.parametrize("as_module", [True, False])
def test_an_autoencoder_of_ones_own_is_asked_where_it_is(as_module):
    way_in, way_out = torch.nn.Conv2d(3, 4, 2, 2), torch.nn.ConvTranspose2d(4, 3, 2, 2)
    ways = (way_in, way_out) if as_module else (lambda x: way_in(x), lambda x: way_out(x))
    network = HandUNet(4)
    mine = diti.backbone(network, schedule="linear", size=SIZE, encode=ways[0], decode=ways[1])
    x = torch.rand(2, 3, SIZE, SIZE)
    expected = mine.decode(mine.encode(x))
    mine.to("pretend")
    drawn = mine.decode(mine.encode(x.to("pretend")))
    assert drawn.device == mine.device and way_in.weight.device.type == ("pretend" if as_module else "cpu")
    np.testing.assert_allclose(plain(drawn), plain(expected), atol=1e-5)


def test_even_the_first_run_of_a_network_is_on_the_device(made, tmp_path, monkeypatch):
    """A large one would take minutes on the host, and twice the memory."""
    real, places = WatchedBackbone.map_shapes, []

    def noted(self, blocks):
        places.append(self.device)
        return real(self, blocks)

    def stopped(*given, **more):
        raise InputError("stopped")

    monkeypatch.setattr(WatchedBackbone, "map_shapes", noted)
    monkeypatch.setattr("diti.representation.solve.run.gather_evidence", stopped)
    folder = PIPELINES["latent"](tmp_path / "pipeline")
    words = ("--backbone", folder, "--code-dim", 8, "--subsets", 2, "--stretches", 2, "--pixel-axes", 12)
    words = (*words, "--images", 160, "--device", "pretend", "--out", tmp_path / "m")
    assert main(["solve", "--data", str(made / "data"), *map(str, words)]) == 2
    assert places and set(places) == {decide("pretend")}


def narrow(device: torch.device) -> torch.dtype:
    return torch.float64 if device.type == "cpu" else torch.float32


def test_without_float64(made, tmp_path):
    """Some devices have none: the numbers are then those of float32."""
    with pretend.limited(float64=False), pytest.MonkeyPatch.context() as patch:
        for file in ("solve.sums", "solve.look", "models.explained"):
            patch.setattr(f"diti.representation.{file}.widest", narrow)
        model = diti.solve(made / "data", str(made / "backbone"), device="pretend", **SOLVED)
        z = diti.encode(model, made / "data", tmp_path / "z.parquet")
        faces = to_float(diti.open_data(made / "data", SIZE).pixels(np.arange(2)))
        again = model.edit(faces, STEPS).draw({0: 1.0})
    expected = diti.solve(made / "data", str(made / "backbone"), device="cpu", **SOLVED)
    assert np.abs(z - diti.encode(expected, made / "data")).max() < 0.05
    assert (again - expected.edit(faces, STEPS).draw({0: 1.0})).abs().max() < 0.05


def test_train_latent_and_sample(both, made):
    def path(device, out):
        shutil.copytree(made / "model", out / "model")
        facts = fit_latent(out / "model", str(made / "data"), codes_seen=2_000, device=device)
        faces = diti.sample(out / "model", 2, sampling_steps=STEPS, device=device)
        assert faces.device.type == "cpu", "pictures come back"
        return facts, faces, weights(out / "model" / "latent")

    both(path, 1e-3)


# ---- Models are used --------------------------------------------------------------------------------------------


def test_encode(both, made):
    def path(device, out):
        model = diti.load(made / "model", device)
        faces = diti.open_data(made / "data", SIZE).images[:5]
        z = model.encode(faces)
        there = model.encode(to_float(faces).to(model.device), value_range=(-1, 1))
        assert z.device == there.device == model.device
        table = diti.encode(model, made / "data", out / "z.parquet", metric=True)
        features = diti.DiTiFeatures(model).fit_transform(faces)
        noise = model.infer_noise(faces, sampling_steps=STEPS)
        assert noise.device == model.decode(z, noise, STEPS).device == model.device
        return z, there, table, diti.encode(model, faces), features, model.in_metric(z), noise

    both(path)


def test_edits(both, made):
    def path(device, out):
        model = diti.load(made / "model", device).with_decoder()
        a, b = (to_float(diti.open_data(made / "data", SIZE).pixels(np.array([row]))) for row in (0, 1))
        direction = diti.learn_direction(model, made / "data", "background", dims=3)
        between = interpolate(model, a, b, ["early", "all"], [0, 0.5], sampling_steps=STEPS)
        editor = model.edit(a, STEPS)
        drawn = [
            between.images, between.reconstructions, model.interpolate(a, b, x_t="random", sampling_steps=STEPS),
            model.manipulate(a, direction, stop_guidance=0.4, sampling_steps=STEPS),
            editor.draw({"a00": 1.0, 2: -1.0, direction: 0.1}),
            diti.vary(model, a, 2, sampling_steps=STEPS, value_range=(-1, 1)),
        ]  # fmt: skip
        assert {image.device.type for image in drawn} == {"cpu"}, "pictures come back"
        return drawn

    both(path, 1e-3)


VERBS = {
    "interpolate": "interpolate {model} {a} {b} --subset all --sampling-steps 3 --out {out}/a.png",
    "mix": "mix {model} {a} {b} --sampling-steps 3 --out {out}/a.png",
    "axes": "manipulate {model} {a} --axis a00,z001 --scale 1 --sampling-steps 3 --out {out}/a.png",
    "examples": "manipulate {model} {a} --like {a} --unlike {b} --scale 0.1 --sampling-steps 3 --out {out}/a.png",
    "vary": "vary {model} {a} -n 2 --sampling-steps 3 --out {out}/a.png",
    "sample": "sample {backbone} -n 2 --sampling-steps 3 --out {out}/a.png",
    "search": "search {model} {a} --data {data} -n 3 --out {out}/a.png",
    "odd": "search {model} --odd 3 --data {data} --out {out}/a.png",
}


@pytest.mark.parametrize("name", VERBS)
def test_verbs(both, made, name):
    def path(device, out):
        names = {"model": made / "model", "backbone": made / "backbone", "a": made / "a.png", "b": made / "b.png"}
        words = VERBS[name].format(**names, out=out, data=made / "data").split()
        assert main([*words, "--device", device]) == 0
        from PIL import Image

        with Image.open(out / "a.png") as drawn:
            return np.asarray(drawn).astype(float)

    both(path, 2.0)


def test_explore(both, made):
    def path(device, out):
        shutil.copytree(made / "model", out / "model")
        found = diti.explore(
            out / "model",
            made / "data",
            out / "explored",
            first=2,
            axes=1,
            faces=1,
            sampling_steps=STEPS,
            device=device,
        )
        return [dataclasses.asdict(axis) for axis in found.axes]

    both(path, 1e-2)


def test_probe(both, made):
    def path(device, out):
        options = {"subsets": False, "reconstruct": 2}
        record = diti.probe(made / "model", made / "data", out / "probe.json", **options, device=device)
        return record["probe"]["mean_ap"], record["reconstruction"], record["baselines"]

    both(path, 2e-2)


def test_counterfactuals(both, made, monkeypatch):
    monkeypatch.setattr("diti.measure.attribute_classifier.LEAST_ACCURACY", 0.0)  # it learns next to nothing
    least = {"compare_selections": False, "random_groupings": 1}
    options = CounterfactualOptions(images=2, pairs=1, classifier_images=64, dims=2, sampling_steps=STEPS, **least)

    def path(device, out):
        shutil.copytree(made / "model", out / "model")
        record = measure_counterfactuals(out / "model", made / "data", out / "edits", options, device=device)
        return record["classifier"], record["directions"]

    both(path, 2e-2)


def test_analyze(both, made):
    (made / "pairs.csv").write_text("attribute,first,second\nhat,a.png,b.png\n")

    def path(device, out):
        record = diti.analyze(made / "model", made / "data", out, pairs=made / "pairs.csv", count=1, device=device)
        backbone = diti.load_backbone(made / "backbone", device)
        lost = {"hat": 100.0, "background": 500.0}
        return record["attributes"], record["loss"], sufficiency(backbone, lost, images=32, seed=0, faces=16)

    both(path, 1e-2)


def test_what_the_studio_does_for_a_visitor(both, made, monkeypatch):
    pytest.importorskip("gradio", reason="gradio is not installed (pip install 'diti-torch[studio]')")
    from diti.studio import parts, world
    from diti.studio.session import Visitor
    from diti.studio.tabs.examples import Examples
    from diti.studio.tabs.search import Search
    from diti.studio.tabs.understand import Understand

    monkeypatch.setattr("diti.studio.session.FULL_STEPS", STEPS)
    monkeypatch.setattr(world.World, "steps", (STEPS,))

    def path(device, out):
        with preferred(device):
            here = world.open_world(str(made / "model"), str(made / "data"))
        examples, search, understand = (kind.__new__(kind) for kind in (Examples, Search, Understand))
        examples.world = search.world = understand.world = here  # without the page around them
        visitor = Visitor({"image": here.pixels(0), "other": here.pixels(1)})
        visitor.examples = {"like": [here.pixels(2)], "unlike": [here.pixels(3)]}
        list(examples.learn(visitor, False))
        mixed = parts.drawn(here, visitor, ("image", "other"), lambda start: (start.z[:1], start.x_T[1:]))
        found, lost = list(search.draw(visitor, "all", 3)), understand._lost(visitor, 300)
        assert len(list(mixed)) == 1 and "figure" in lost and len(found) == 2
        return visitor.own.weight, here.places(here.axes(None)[0]), here.losses.with_z

    both(path, 1e-3)


def test_export_to_onnx(tmp_path):
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed (pip install 'diti-torch[onnx]')")
    from diti.interop.onnx import export_encoder

    model = tiny_model().to("pretend")
    assert "differs from torch by" in export_encoder(model, tmp_path / "encoder.onnx")
    assert model.device == pretend.DEVICE, "it stays where it was put"


# ---- Nothing is waited for --------------------------------------------------------------------------------------


def test_no_step_waits_for_the_device(tmp_path, monkeypatch):
    """Nothing is brought back, beside the lines of the log, and of 512 images in the pass their sums."""
    from benchmarks.bench_device import measure

    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "pretend:0")
    found = {path: cost["downloads"] for path, cost in measure("pretend", tmp_path, steps=1).items()}
    assert found == {"pretrain": 0, "train": 0, "sampler": 0, "encode": 0, "pass": 7}


def test_what_does_not_fit_in_memory_is_halved(made, tmp_path):
    model = diti.load(made / "model", "pretend").with_decoder()
    faces = diti.open_data(made / "data", SIZE).images[:6]
    expected = model.encode(faces), model.reconstruct(faces, sampling_steps=STEPS)
    with pretend.limited(rows=2):
        found = model.encode(faces), model.reconstruct(faces, sampling_steps=STEPS)
        with pytest.raises(InputError, match="use a smaller --train-batch-size"):
            train_model(settings(made, method="simclr", code=CODE), tmp_path, device="pretend")
    same(expected, found, 1e-2)
    with pretend.limited(rows=0), pytest.raises(InputError, match="one image does not fit in the memory"):
        model.encode(faces)


def test_how_much_fits_is_found_once():
    asked = []

    def work(x):
        asked.append(len(x))
        if len(x) > 2:
            raise torch.OutOfMemoryError("too much")
        return x + 1

    for _ in range(2):
        assert fitted(work, torch.zeros(7, 3)).tolist() == [[1.0] * 3] * 7
    assert asked == [7, 4, 2, 2, 2, 1, 2, 2, 2, 1], "the second time it is known"


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
