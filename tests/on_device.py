"""Every path once on the pretend device, with the numbers of the CPU; and no wait for it in any step.

Not collected by itself: test_on_device.py runs it in a process of its own, which registers the device first.
"""

import pretend  # isort: skip - before any backward pass

import dataclasses
import shutil

import numpy as np
import on_device_world
import pytest
import torch
from on_device_world import (
    CODE,
    LABELS,
    SHORT,
    SIZE,
    SOLVED,
    STEPS,
    Falling,
    log_of,
    look_at_few,
    same,
    settings,
    weights,
)
from own_models import HandUNet
from pipelines import PIPELINES
from tiny import SHAPE, tiny_model

import diti
from diti.cli import main
from diti.config import EncoderConfig, TrainConfig
from diti.core.device import decide, preferred
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.loop import make_accelerator, train
from diti.core.runs import RunFolder
from diti.diffusion.generate import samples
from diti.diffusion.kinds.watched import WatchedBackbone
from diti.edit.interpolate import interpolate
from diti.exploring.axes import removed_by
from diti.measure.counterfactuals import CounterfactualOptions, measure_counterfactuals
from diti.measure.sufficiency import sufficiency
from diti.representation.train import train_model
from diti.representation.train_latent import fit_latent

made, both = on_device_world.made, on_device_world.both  # fixtures
KINDS = ("latent", "Flux")  # betas and a U-Net; a flow and a transformer that is told a prompt

# ---- Models are made --------------------------------------------------------------------------------------------


def test_pretrain(both, made):
    def path(device, out):
        shape = dataclasses.asdict(SHAPE) | dataclasses.asdict(SHORT)
        backbone = diti.pretrain(made / "data", out=out, device=device, **shape)
        assert backbone.device == decide(device)
        return weights(out), log_of(out)

    both(path)


@pytest.mark.parametrize("method", ["diti", "pdae", "diffae", "simclr", "tcvae", "ibgan"])
def test_train(both, made, monkeypatch, method):
    """With validation, and once it goes back to what was good."""

    def path(device, out):
        lines = iter([False, True])
        broken = lambda log, due: due and next(lines, False)  # noqa: E731 - as a method
        monkeypatch.setattr("diti.core.loop.IntervalLog.broken", broken)
        config = settings(made, method=method, code=CODE)
        train_model(config, out, device=device)
        assert sum("fall" in line for line in log_of(out)) == 1
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
    same(drawn, expected, 1e-5)


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


def test_without_float64(made, tmp_path, monkeypatch):
    """Some devices have none: the numbers are then those of float32."""
    look_at_few(monkeypatch)

    def work(device, out):
        model = diti.solve(made / "data", str(made / "backbone"), device=device, **SOLVED)
        yield diti.encode(model, made / "data", out / "z.parquet")
        yield model.edit(faces, STEPS).draw({0: 1.0})
        yield removed_by(model, data, [[0], [1, 2]])
        yield diti.vary(model, faces[:1], 2, sampling_steps=STEPS, value_range=(-1, 1))
        config = settings(made, method="diti", code=CODE)
        train_model(dataclasses.replace(config, training=SHORT), out / "run", device=device)
        yield fit_latent(out / "run", str(made / "data"), codes_seen=600, device=device) and 0.0

    data = diti.open_data(made / "data", SIZE)
    faces = to_float(data.pixels(np.arange(2)))
    expected = list(work("cpu", tmp_path / "cpu"))
    with pretend.limited(float64=False):
        for file in ("solve.sums", "solve.look", "models.explained"):
            monkeypatch.setattr(f"diti.representation.{file}.widest", narrow)
        same(expected, list(work("pretend", tmp_path / "pretend")), 0.05)


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
    "pairs": "manipulate {model} {a} --pairs {a},{b} --scale 0.1 --sampling-steps 3 --out {out}/a.png",
    "labels": "manipulate {model} {a} --attribute background,hat --keep brightness --data {data} "
    "--sampling-steps 3 --out {out}/a.png",
    "keep": "manipulate {model} {a} --axis a00 --keep hat --data {data} --sampling-steps 3 --out {out}/a.png",
    "probmask": "manipulate {model} {a} --attribute hat --data {data} --selection probmask --dims 3 "
    "--paper-scale 0.3 --sampling-steps 3 --out {out}/a.png",
    "vary": "vary {model} {a} -n 2 --sampling-steps 3 --out {out}/a.png",
    "sample": "sample {backbone} -n 2 --sampling-steps 3 --out {out}/a.png",
    "search": "search {model} {a} --data {data} -n 3 --out {out}/a.png",
    "odd": "search {model} --odd 3 --data {data} --out {out}/a.png",
}


@pytest.mark.parametrize("name", VERBS)
def test_verbs(both, made, name):
    def path(device, out):
        shutil.copytree(made / "model", out / "model")  # what is learned of labels is kept in it
        names = {"model": out / "model", "backbone": made / "backbone", "a": made / "a.png", "b": made / "b.png"}
        words = VERBS[name].format(**names, out=out, data=made / "data").split()
        assert main([*words, "--device", device]) == 0
        from PIL import Image

        with Image.open(out / "a.png") as drawn:
            return np.asarray(drawn).astype(float)

    both(path, 2.0)


def test_edits_of_many_things_are_one_batch(made):
    """Twelve variants of an image ask for as many kernels as one, in each step."""
    model = diti.load(made / "model", "pretend").with_decoder()
    editor = model.edit(diti.open_data(made / "data", SIZE).images[:1], STEPS)
    asked = []
    for variants in ([{0: 1.0}], [{dim: place} for dim in range(6) for place in (-1.0, 1.0)]):
        with pretend.counting() as counted:
            drawn = editor.draw_each(variants)
        asked.append(counted["kernels"])
    assert drawn.shape[:2] == (12, 1) and asked[1] <= 1.05 * asked[0]


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
    from diti.studio.tabs.axes import Axes
    from diti.studio.tabs.examples import Examples
    from diti.studio.tabs.interpolate import Interpolate
    from diti.studio.tabs.manipulate import Manipulate
    from diti.studio.tabs.search import Search
    from diti.studio.tabs.understand import Understand

    monkeypatch.setattr("diti.studio.session.FULL_STEPS", STEPS)
    monkeypatch.setattr("diti.studio.tabs.interpolate.FULL_STEPS", STEPS)
    monkeypatch.setattr("diti.studio.tabs.interpolate.FRAMES", 3)
    monkeypatch.setattr(world.World, "steps", (STEPS,))

    def path(device, out):
        shutil.copytree(made / "model", out / "model")
        with preferred(device):
            here = world.open_world(str(out / "model"), str(made / "data"))

        def tab(kind):
            found = kind.__new__(kind)  # without the page around it
            found.world, found.names = here, LABELS
            return found

        visitor = Visitor({slot: here.pixels(row) for row, slot in enumerate(("image", "other", "a", "b"))})
        visitor.examples = {"like": [here.pixels(2)], "unlike": [here.pixels(3)]}
        shown = [
            *tab(Examples).learn(visitor, False), *tab(Axes).look(visitor, 1.0, 0.5),
            *tab(Interpolate).draw(visitor, "all", 0.5), *tab(Interpolate).animate(visitor, "all"),
            *tab(Manipulate).relabel(visitor, ["hat"], 3), *tab(Manipulate).draw(visitor, ["hat"], [], 3, 0.5),
            *tab(Search).draw(visitor, "all", 3), tab(Understand)._lost(visitor, 300),
        ]  # fmt: skip
        mixed = parts.drawn(here, visitor, ("image", "other"), lambda start: (start.z[:1], start.x_T[1:]))
        assert len(list(mixed)) == 1 and "figure" in shown[-1]
        return len(shown), visitor.own.weight, here.places(here.axes(None)[0]), here.losses.with_z

    both(path, 1e-3)


def test_export_to_onnx(tmp_path):
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed (pip install 'diti-torch[onnx]')")
    from diti.interop.onnx import export_encoder

    model = tiny_model().to("pretend")
    assert "differs from torch by" in export_encoder(model, tmp_path / "encoder.onnx")
    assert model.device == pretend.DEVICE, "it stays where it was put"
