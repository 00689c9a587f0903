"""`diti solve` as a user runs it, and `diti.solve`, on a tiny backbone."""

import dataclasses
import json

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tiny import SHAPE, tiny_backbone, tiny_model

import diti
from diti.cli import main
from diti.config import BackboneConfig, SolutionConfig, SolveConfig
from diti.core.card import Findings
from diti.core.images import to_float
from diti.core.runs import RunFolder
from diti.core.settings import load_yaml
from diti.data.sources import open_data
from diti.diffusion.unet import build_backbone
from diti.reporting.runs import check_finished
from diti.representation.solve import collect as collecting
from diti.representation.solve import evidence as gathering
from diti.representation.solve import run as run_module
from diti.representation.solve.collect import Pass
from diti.representation.solve.run import solve_model, solve_models

DATA, METHODS = "toyfaces:300", ("diti", "pdae")
SMALL = ("--code-dim", "12", "--subsets", "4", "--stretches", "4", "--tau", "0.2")
SETTINGS = {"code_dim": 12, "subsets": 4, "stretches": 4, "tau": 0.2}


def words(folder, out, *options):
    backbone = str(folder / "backbone")
    return ["solve", "--data", DATA, "--backbone", backbone, *SMALL, *options, "--out", str(out)]


def weights(run):
    parts = {part: load_file(run / part / "model.safetensors") for part in ("encoder", "decoder")}
    return {f"{part}.{key}": tensor for part, state in parts.items() for key, tensor in state.items()}


@pytest.fixture(scope="module")
def run(folder, shared_cache):
    """Solved once by the verb."""
    assert main(words(folder, folder / "run")) == 0
    return folder / "run"


@pytest.fixture
def images(run):
    dataset = open_data(DATA, 16)
    return to_float(dataset.pixels(dataset.rows("test")[:4]))


def test_it_leaves_a_model_with_its_facts(run):
    for name in ("model.json", "card.md", "lost.png", "losses.png", "reconstructions.png", "checks.json"):
        assert (run / name).is_file(), name
    assert not (run / "state").exists()
    facts = json.loads((run / "checks.json").read_text())
    *looks, last = RunFolder(run).read_log()
    assert len(looks) >= 2 and looks[-1]["images"] == last["images"]
    assert facts["loss_removed"] == pytest.approx(last["loss_removed_from_sums"], abs=0.02)
    assert last["loss_removed_from_sums"] > last["loss_removed_without_z"] > 0
    assert len(last["penalties"]) == 4 and last["seconds"] > 0
    card = (run / "card.md").read_text()
    assert "12 dims in 4 subsets (matched)" in card and "solved in closed form from" in card


def test_a_compiled_backbone_is_solved_to_the_same(run, folder, tmp_path, monkeypatch):
    """Traced by torch's compiler, and run as it is: making code for this machine takes tens of seconds."""
    traced = []
    compiled = run_module.compile_networks
    monkeypatch.setattr("diti.core.loop.COMPILER", "eager")
    monkeypatch.setattr(
        run_module, "compile_networks", lambda network: traced.append(network) or compiled(network)
    )
    assert main(words(folder, tmp_path / "compiled", "--compile")) == 0
    (backbone,) = traced
    assert backbone.unet._compiled_call_impl is not None
    plain = weights(run)
    for name, tensor in weights(tmp_path / "compiled").items():
        torch.testing.assert_close(tensor, plain[name], atol=1e-4 * float(tensor.abs().max()), rtol=0, msg=name)


def test_two_methods_share_one_pass(run, folder, monkeypatch):
    """Each is what it would be alone; stopped between the two, the pass is not done again, and it is not kept."""
    config = SolveConfig(
        data=DATA, backbone=str(folder / "backbone"), code_dim=12, subsets=4, images=160,
        solution=SolutionConfig(stretches=2, tau=0.2, pixel_axes=32),
    )  # fmt: skip
    alone, both = folder / "alone", {folder / name: dataclasses.replace(config, method=name) for name in METHODS}
    solve_model(dataclasses.replace(config, method="pdae"), alone)
    written, write = [], run_module.write

    def stopped(*given):
        written.append(write(*given))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_module, "write", stopped)
        solve_models(both)
    assert (folder / "diti" / "state").is_dir() and not (folder / "pdae" / "model.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(Pass, "take_in", None)  # the pass is over
        found = solve_models(both)
    assert found[folder / "diti"] is None and found[folder / "pdae"].facts
    assert diti.load(folder / "diti").partition.subsets == 4
    expected, got = weights(alone), weights(folder / "pdae")
    assert expected.keys() == got.keys() and all(torch.equal(expected[key], got[key]) for key in expected)
    assert not (folder / "diti" / "state").exists()
    assert solve_models(both) == dict.fromkeys(both)


def test_the_model_loads_encodes_and_reconstructs(run, images):
    model = diti.load(run)
    assert model.partition.kind == "matched" and model.partition.subsets == 4 and model.method == "diti"
    z = model.encode(images)
    assert z.shape == (4, 12) and torch.isfinite(z).all()
    assert (model.reconstruct(images, sampling_steps=25) - images).square().mean() < 0.05
    dataset = open_data(DATA, 16)
    codes = model.encode(dataset.images[dataset.rows("train")])
    torch.testing.assert_close(codes.mean(0), model.mean, atol=1e-4, rtol=0)
    torch.testing.assert_close(codes.std(0, correction=0), model.std, atol=1e-3, rtol=0)
    correlation = torch.corrcoef(codes.T).fill_diagonal_(0)  # white over the pass, where images were mirrored too
    assert correlation.abs().max() < 0.3 and (model.std - 1).abs().max() < 0.3


def test_lost_in_features_turns_the_code_and_keeps_what_it_knows(run, folder, images, tmp_path):
    assert main(words(folder, tmp_path / "turned", "--lost-in", "features")) == 0
    turned, plain = diti.load(tmp_path / "turned"), diti.load(run)
    z, other = turned.encode(images), plain.encode(images)
    assert not torch.allclose(z, other, atol=0.05)
    both = torch.cat([turned.encoder.head.weight, plain.encoder.head.weight]).detach()
    values = torch.linalg.svdvals(both)
    assert values[12:].max() < 1e-4 * values[0], "both codes span the same directions of the features"


def test_another_code_gives_another_image(run, images):
    """What manipulation does: the same noise, a moved code."""
    model = diti.load(run)
    z = model.encode(images)
    noise = model.infer_noise(images, z, sampling_steps=10)
    same = model.decode(z, noise, sampling_steps=10, clamp=False)
    moved = model.decode(z + 3 * model.std, noise, sampling_steps=10, clamp=False)
    assert torch.isfinite(moved).all() and (moved - same).abs().max() > 1e-3


def test_encode_and_interpolate(run, images, tmp_path):
    out = tmp_path / "features.parquet"
    assert main(["encode", str(run), DATA, "--out", str(out)]) == 0
    table = pyarrow.parquet.read_table(out)
    model, dataset = diti.load(run), open_data(DATA, 16)
    z = np.stack([table[name].to_numpy() for name in model.feature_names()], 1)
    np.testing.assert_allclose(z, model.encode(np.asarray(dataset.images)), atol=1e-5)
    for name, pixels in zip("ab", dataset.images[:2], strict=True):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    pair = [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    picture = tmp_path / "between.png"
    assert main(["interpolate", str(run), *pair, "--sampling-steps", "4", "--out", str(picture)]) == 0
    assert picture.stat().st_size > 1000


def test_the_same_again_is_solved_already(run, folder, capsys):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert main(words(folder, run)) == 0
    assert f"{run} is solved already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_other_settings_and_other_models_keep_their_folder(run, folder, tmp_path, capsys):
    for options, name in (
        (["--code-dim", "8"], "code_dim"),
        (["--tau", "0.3"], "solution.tau"),
        (["--seed", "1"], "seed"),
        (["--images", "256"], "images"),
    ):
        assert main(words(folder, run, *options)) == 2
        assert f"holds a solution with other settings ({name})" in capsys.readouterr().err
    other = [word if word != DATA else "toyfaces:299" for word in words(folder, run)]
    assert main(other) == 2
    assert "other settings (data_hash)" in capsys.readouterr().err
    tiny_model().save(tmp_path / "trained")
    before = weights(tmp_path / "trained")
    assert main(words(folder, tmp_path / "trained")) == 2
    assert "holds a model that diti solve did not write" in capsys.readouterr().err
    assert all(torch.equal(tensor, before[key]) for key, tensor in weights(tmp_path / "trained").items())


def test_from_python_it_is_the_same(run, folder, images, tmp_path):
    model = diti.solve(DATA, str(folder / "backbone"), out=tmp_path / "model", **SETTINGS)
    verb = diti.load(run)
    torch.testing.assert_close(model.encode(images), verb.encode(images), atol=1e-5, rtol=0)
    assert model.partition == verb.partition
    torch.testing.assert_close(model.mean, verb.mean, atol=1e-5, rtol=0)
    torch.testing.assert_close(diti.load(tmp_path / "model").encode(images), model.encode(images))


def test_from_python_the_folder_is_that_of_the_verb(run, folder, tmp_path, monkeypatch):
    """Also of objects: a run that reports take, that is continued, and that quotes no word of a user's script."""
    monkeypatch.setattr("sys.argv", ["mine.py", "--password", "secret"])
    out, held = tmp_path / "model", (open_data(DATA, 16), diti.load_backbone(folder / "backbone"))
    model = diti.solve(*held, out=out, **SETTINGS)
    assert {path.name for path in out.iterdir()} == {path.name for path in run.iterdir()}
    check_finished(out)
    ours, theirs = (json.loads((place / "run.json").read_text()) for place in (out, run))
    assert ours.pop("command") == "called from Python" != theirs.pop("command") and ours == theirs
    config = load_yaml(SolveConfig(), out / "config.yaml")
    assert config.data == str(held[0].path) and config.backbone == "given in Python"
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "gather_evidence", looked_again)
        assert torch.equal(diti.solve(*held, out=out, **SETTINGS).encoder.head.weight, model.encoder.head.weight)
        assert main(words(folder, out)) == 0, "by names it is the same run"
    with pytest.raises(diti.InputError, match=r"other settings \(code_dim\)"):
        diti.solve(*held, out=out, **{**SETTINGS, "code_dim": 11})


def test_pdae_is_never_masked(run, images):
    quick = {**SETTINGS, "images": 192, "stretches": 1}
    model = diti.solve(open_data(DATA, 16), tiny_backbone(), method="pdae", **quick)
    assert model.method == "pdae" and model.partition.subsets == 1 and model.partition.visible(0).all()
    assert model.reconstruct(images, sampling_steps=4).shape == images.shape


def test_dry_run_writes_nothing(folder, tmp_path, capsys):
    assert main(words(folder, tmp_path / "dry", "--dry-run")) == 0
    assert "code_dim: 12" in capsys.readouterr().out and not (tmp_path / "dry").exists()


def looked_again(*given):
    raise AssertionError("sums of a stopped run belong to the axes that it found")


@pytest.mark.parametrize(
    ("stop", "wait", "again"),
    [(128, -1.0, 128), (192, -1.0, 192), (256, -1.0, 256), (256, 1e9, 0)],
    ids=["before a look", "right after a look", "between looks", "without a state"],
)
def test_a_stopped_run_continues_to_the_same_model(run, folder, tmp_path, monkeypatch, capsys, stop, wait, again):
    """As after a kill: what is on disk is all that the second call knows."""
    out, looks = tmp_path / "stopped", RunFolder(run).read_log()[:-1]
    assert looks[0]["images"] == 192 and looks[1]["images"] > 256
    monkeypatch.setattr(collecting, "SECONDS_BETWEEN_STATES", wait)
    monkeypatch.setattr(collecting, "CHUNK", 64)
    monkeypatch.setattr(run_module, "finish", lambda model, *rest: model.save(out) or Findings())
    real, seen = collecting.Pass.take_in, []

    def stopping(job, sums, walk, start, count):
        if walk.purpose == "solve-train" and start == stop:
            raise KeyboardInterrupt
        real(job, sums, walk, start, count)

    def watched(job, sums, walk, start, count):
        seen.append((walk.purpose, start))
        real(job, sums, walk, start, count)

    monkeypatch.setattr(collecting.Pass, "take_in", stopping)
    assert main(words(folder, out)) == 130
    assert (out / "state").is_dir() and not (out / "model.json").exists()
    assert RunFolder(out).read_log() == (looks[:1] if stop >= 192 else [])
    assert main(words(folder, out, "--code-dim", "8")) == 2
    assert "holds a run with other settings (code_dim)" in capsys.readouterr().err
    monkeypatch.setattr(collecting.Pass, "take_in", watched)
    monkeypatch.setattr(gathering, "first_look", looked_again)
    assert main(words(folder, out)) == 0
    assert seen[0] == ("solve-train", again), "neither validation nor what is in a state is done again"
    whole, continued = weights(run), weights(out)
    assert whole.keys() == continued.keys() and all(torch.equal(whole[key], continued[key]) for key in whole)
    assert RunFolder(out).read_log()[:-1] == looks, "a line per look"
    assert not (out / "state").exists()


def test_small_images_have_fewer_axes_than_the_settings_allow(run, monkeypatch):
    monkeypatch.setattr(gathering, "PER_AXIS", 1)
    faces = open_data(DATA, 16)
    halved = dataclasses.replace(faces, images=np.ascontiguousarray(faces.images[:, ::2, ::2]))
    backbone = build_backbone(BackboneConfig(**{**vars(SHAPE), "size": 8, "unshuffle": 1}), seed=0)
    model = diti.solve(halved, backbone, code_dim=4, subsets=2, stretches=1, images=400)
    assert model.decoder.linear.axes.count == 3 * 8 * 8


def test_a_code_longer_than_the_features_looked_at_is_recorded_as_it_was_made(run, folder, tmp_path, monkeypatch):
    looked: list[int] = []
    first_look = gathering.first_look

    def watched(*arguments):
        look = first_look(*arguments)
        looked.append(look.phi.shape[1])
        return look

    monkeypatch.setattr(gathering, "first_look", watched)
    assert main(words(folder, tmp_path / "out", "--whitened", "5", "--images", "192")) == 0
    assert looked == [12] == [load_yaml(SolveConfig(), tmp_path / "out" / "config.yaml").solution.whitened]


def test_few_pixel_axes_and_a_short_pass_still_have_a_solution(run, folder, images):
    """Fewer images than features: the decompositions must stand it."""
    settings = {**SETTINGS, "pixel_axes": 2, "code_dim": 4, "images": 16, "stretches": 2}
    assert torch.isfinite(diti.solve(DATA, str(folder / "backbone"), **settings).encode(images)).all()
