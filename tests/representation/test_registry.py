"""The registry of methods, and a method of three lines through everything that does not need a decoder."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, make_dataclass, replace
from functools import partial

import numpy as np
import pyarrow.parquet
import pytest
import torch
import yaml
from safetensors.torch import load_file

import diti
from diti.cli import main
from diti.config import EncoderConfig, TrainConfig, TrainingConfig
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.objective import LossReport
from diti.core.rng import Draws
from diti.core.runs import RunFolder
from diti.data import toyfaces
from diti.data.sources import open_data
from diti.interop.onnx import properties
from diti.measure.baselines import baselines
from diti.reporting.runs import label_of, read_config
from diti.representation.methods import base
from diti.representation.methods.method import Method
from diti.representation.models.diffusion import DiTi
from diti.representation.models.loading import load_with_decoder
from diti.representation.models.model import Model
from diti.representation.networks.encoder import build_encoder
from diti.representation.registry import METHODS, find_method, known_methods, register, title_of
from diti.representation.train import train_model
from diti.sweep.file import SweepFile
from diti.sweep.plans import make_plan

DATA = "toyfaces:200"
CODE = EncoderConfig(encoder="residual", code_dim=12, encoder_channels=(8, 16))
LENGTH = TrainingConfig(images=128, train_batch_size=16, learning_rate=1e-2, ema_decay=0.5, log_images=64)
make_settings = partial(make_dataclass, bases=(diti.Settings,), frozen=True, kw_only=True)
PIXELS = toyfaces.render(toyfaces.sample(5, seed=2), 32)


class Colour(base.EncoderObjective):
    """The first dims of z say the mean colour, whatever the noise."""

    def forward(self, images, draws):
        noisy = images + 0.1 * draws.normal("noise", tuple(images.shape[1:]))
        loss = (self.encoder(noisy)[:, :3] - images.mean((2, 3))).square().mean(1)
        return LossReport(loss.mean(), loss)


class ColourMethod(Method):
    name, title, about = "colour", "Colour", "mean colour"

    def build(self, config, backbone, dataset):
        return Colour(base.new_encoder(config, backbone, dataset))


@pytest.fixture(autouse=True)
def colour(monkeypatch):
    register(ColourMethod)
    yield
    METHODS.pop("colour", None)


@pytest.fixture
def config():
    return TrainConfig(method="colour", data=DATA, code=CODE, training=LENGTH)


@pytest.fixture
def folder(config, tmp_path):
    train_model(config, tmp_path / "run")
    return tmp_path / "run"


def complaint(capsys, *words):
    capsys.readouterr()
    assert main(list(map(str, words))) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("diti: ")
    return last


def test_names_are_found_once_and_hinted_at():
    assert {"diti", "pdae"} < known_methods().keys() and isinstance(find_method("colour"), ColourMethod)
    with pytest.raises(InputError, match=r"method 'ditti' is unknown; use diti, pdae, .*Did you mean 'diti'"):
        find_method("ditti")
    with pytest.raises(InputError, match=r"'colour' is already registered; choose another name"):
        register(ColourMethod)
    assert find_method("colour").title == title_of("colour") == "Colour" and title_of("nobody") == "nobody"


def test_it_learns_and_leaves_a_folder_like_any_other(config, tmp_path, capsys):
    run = tmp_path / "run"
    words = [
        "train",
        "--method",
        "colour",
        "--data",
        DATA,
        "--encoder",
        "residual",
        "--encoder-channels",
        "8",
        "16",
    ]
    words += ["--code-dim", "12", "--train-batch-size", "16", "--images", "512", "--log-images", "64"]
    assert main([*words, "--lr-warmup-images", "0", "--learning-rate", "0.01", "--out", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "standard deviation of the dims of z" in shown and "the model" in shown and f"encode {run}" in shown
    losses = [r["loss"] for r in RunFolder(run).read_log() if "loss" in r]
    assert losses[-1] < 0.3 * losses[0]
    assert {"encoder", "partition.json", "stats.safetensors", "model.json", "checks.json", "card.md"} <= {
        path.name for path in run.iterdir()
    }
    assert not (run / "unet").exists() and (run / "card.md").read_text().startswith("# Colour\n")
    model = diti.load(run)
    images = to_float(open_data(DATA, 32).pixels(np.arange(200)))
    z = model.encode(images)
    assert np.corrcoef(z[:, 0], images.mean((2, 3))[:, 0])[0, 1] > 0.8
    assert json.loads((run / "checks.json").read_text())["largest_std"] == pytest.approx(model.std.max().item())


def test_an_encode_only_model_encodes_wherever_z_is_all_that_is_needed(folder, tmp_path, capsys):
    model = diti.load(folder)
    assert type(model) is Model and (model.method, model.size, model.dims) == ("colour", 32, 12)
    z = model.encode(PIXELS)
    assert torch.equal(model.to("cpu").encode(PIXELS), z) and model.feature_names()[11] == "z011"
    assert np.allclose(diti.DiTiFeatures(folder, standardise=False).fit(PIXELS).transform(PIXELS), z, atol=1e-5)
    assert properties(model)["method"] == "colour" and json.loads(properties(model)["feature_names"])[0] == "z000"
    assert main(["encode", str(folder), DATA, "--out", str(tmp_path / "z.parquet")]) == 0
    table = pyarrow.parquet.read_table(tmp_path / "z.parquet")
    assert table.column_names == ["file", "split", *model.feature_names()] and len(table) == 200


def test_it_is_probed_beside_the_baselines_that_need_no_backbone(folder, tmp_path):
    assert main(["probe", str(folder), "--data", "toyfaces:300", "--out", str(tmp_path / "probe.json")]) == 0
    record = json.loads((tmp_path / "probe.json").read_text())
    assert record["method"] == "colour" and 0 < record["probe"]["mean_ap"] < 1 and "subsets" not in record
    assert [floor["name"] for floor in record["baselines"]] == [
        "PCA of pixels, 12 dims",
        "random encoder, 12 dims",
    ]


def test_the_next_command_after_a_probe_is_one_that_the_model_can(folder, tmp_path, capsys):
    words = ["probe", str(folder), "--data", DATA, "--no-baselines", "--out", str(tmp_path / "probe.json")]
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"encode {folder} {DATA} --out features.parquet")


def test_what_needs_a_decoder_says_so_in_one_line(folder, image_folder, tmp_path, capsys):
    model, picture = diti.load(folder), image_folder / "a" / "00.png"
    z = model.encode(PIXELS)
    abilities = {
        "decode": (z, z),
        "infer_noise": (PIXELS,),
        "reconstruct": (PIXELS,),
        "interpolate": (PIXELS, PIXELS),
    }
    for ability, given in {**abilities, "manipulate": (PIXELS, None)}.items():
        with pytest.raises(InputError, match=r"a colour model has no decoder: .* need diti, .*tcvae or ibgan"):
            getattr(model, ability)(*given)
    with pytest.raises(InputError, match=r"a colour model has no frozen diffusion model"):
        _ = model.backbone
    out = ("--out", tmp_path / "out.png")
    for words in (
        ["interpolate", folder, picture, picture, *out],
        ["manipulate", folder, picture, "--attribute", "smile", "--data", DATA, *out],
        ["vary", folder, picture, *out],
        ["sample", folder, *out],
        ["train-latent", folder, "--data", DATA],
        ["probe", folder, "--data", DATA, "--reconstruct", "2", "--out", tmp_path / "probe.json"],
    ):
        assert "a colour model has no decoder: it can encode and be probed" in complaint(capsys, *words), words[0]
    analyze = complaint(capsys, "analyze", folder, "--data", DATA, "--out", tmp_path / "out")
    assert "a colour model has no frozen diffusion model; this needs diti or pdae" in analyze
    assert not list(tmp_path.glob("out*")) and not (folder / "latent").exists()


def test_a_model_with_a_decoder_passes(model, tmp_path):
    model.save(tmp_path / "m")
    assert isinstance(load_with_decoder(tmp_path / "m"), DiTi)


def test_a_continued_run_equals_one_run(config, tmp_path):
    for images in (64, 128):  # the second continues the first
        train_model(replace(config, training=replace(LENGTH, images=images)), tmp_path / "twice")
    train_model(config, tmp_path / "once")
    once, twice = (load_file(tmp_path / run / "encoder" / "model.safetensors") for run in ("once", "twice"))
    assert once.keys() == twice.keys() and all(torch.equal(once[name], twice[name]) for name in once)
    lines = [[r["loss"] for r in RunFolder(tmp_path / run).read_log() if "loss" in r] for run in ("once", "twice")]
    assert lines[0] == lines[1] and len(lines[0]) == 2


def test_a_folder_of_an_unknown_method_says_what_to_do(folder, capsys):
    METHODS.pop("colour")
    line = complaint(capsys, "encode", folder, DATA)
    assert (
        f"{folder / 'model.json'}: method 'colour' is unknown" in line and "import the file that registers" in line
    )


def test_an_unknown_method_is_refused_before_anything_is_written(tmp_path, capsys):
    words = ["--data", DATA, "--backbone", "toyfaces32", "--out", tmp_path / "run"]
    assert "Did you mean 'pdae'" in complaint(capsys, "train", "--method", "pdea", *words)
    sweep = tmp_path / "s.yaml"
    sweep.write_text(f"data: {DATA}\nbackbone: toyfaces32\nruns: {{a: {{method: pdea}}}}\n")
    assert "run a-s0: method 'pdea' is unknown" in complaint(capsys, "sweep", sweep, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_backbone_is_asked_for_where_one_is_needed(config, backbone, tmp_path, capsys):
    words = ["train", "--method", "colour", "--data", DATA, "--out", tmp_path / "run"]
    assert "--backbone is missing" in complaint(capsys, *words)  # the preset's encoder is a copy of it
    with pytest.raises(InputError, match="encoder 'backbone' needs a backbone"):
        train_model(replace(config, code=EncoderConfig()), tmp_path / "run")
    with pytest.raises(InputError, match="method diti needs a backbone"):
        train_model(replace(config, method="diti"), tmp_path / "run")
    with pytest.raises(InputError, match="use --encoder residual"):
        find_method("colour").validate(replace(config, code=EncoderConfig()), 32)
    with pytest.raises(InputError, match="name one with --backbone"):
        find_method("diti").validate(config, 32)
    assert not (tmp_path / "run").exists()


def test_an_encoder_made_from_a_backbone_is_kept_whole_without_it(config, backbone, tmp_path):
    backbone.save(tmp_path / "backbone")
    code = EncoderConfig(code_dim=4)
    train_model(replace(config, backbone=str(tmp_path / "backbone"), code=code), tmp_path / "run")
    assert not (tmp_path / "run" / "unet").exists()
    assert diti.load(tmp_path / "run").encode(PIXELS).shape == (5, 4)


def test_the_usual_evaluation_is_the_mean_loss_of_fixed_draws():
    data = open_data(DATA, 16)
    objective = Colour(build_encoder(CODE, 16, seed=0)).train()
    rows = data.rows("valid")
    assert 1 < len(rows) < base.CHECKED_BATCH
    with torch.no_grad():
        expected = objective.eval()(to_float(data.pixels(rows)), Draws(0, 0, len(rows))).total
    found = ColourMethod().evaluate(objective.train(), data)
    assert found == {"validation_loss": pytest.approx(expected.item(), rel=1e-5)} and objective.training


def test_baselines_without_a_backbone_have_the_images_size():
    found = dict(baselines(16, open_data(DATA, 16), 5, seed=0))
    assert [f.shape for f in found.values()] == [(200, 5), (200, 5)]


# ---- Settings of its own ------------------------------------------------------------------------------------


class TintedMethod(ColourMethod):
    """The mean colour from noisier images, or less noisy ones."""

    name, title, about = "tinted", "Tinted", "mean colour, tinted"

    @dataclass(frozen=True, kw_only=True)
    class Settings(diti.Settings):
        margin: float = 0.5  # how far apart
        hues: tuple[int, ...] = (1, 2)

        def __post_init__(self):
            super().__post_init__()
            if self.margin > 1:
                raise InputError(f"--margin is {self.margin}; it must be at most 1")

    def build(self, config, backbone, dataset):
        built.append(config.own)
        return super().build(config, backbone, dataset)


built: list[diti.Settings] = []


@pytest.fixture
def tinted():
    built.clear()
    register(TintedMethod)
    yield {"encoder": "residual", "encoder_channels": (8,), "code_dim": 4, "images": 32, "train_batch_size": 16}
    METHODS.pop("tinted", None)


def test_settings_of_its_own_are_given_from_python_recorded_and_compared(tinted, tmp_path):
    run = tmp_path / "run"
    diti.train(DATA, method="tinted", out=run, margin=0.25, **tinted)
    assert built == [TintedMethod.Settings(margin=0.25)]
    assert yaml.safe_load((run / "config.yaml").read_text())["own"] == {"margin": 0.25, "hues": [1, 2]}
    assert read_config(run).own == TintedMethod.Settings(margin=0.25)
    assert label_of(read_config(run), only=["own.margin"]) == "Tinted, margin = 0.25"
    with pytest.raises(InputError, match=r"holds a run with other settings \(own\.margin\)"):
        diti.train(DATA, method="tinted", out=run, margin=0.5, **tinted)
    with pytest.raises(InputError, match=r"holds a run with other settings \(method, own\)"):
        diti.train(DATA, method="colour", out=run, **tinted)


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ({"margin": "far"}, r"own: margin must be float, got 'far'"),
        ({"margin": float("nan")}, r"--margin is nan; give a finite number"),
        ({"margin": 2.0}, r"--margin is 2\.0; it must be at most 1"),
        ({"margins": 0.5}, r"unknown setting 'margins'; .*Did you mean 'margin'"),
    ],
)
def test_settings_of_its_own_are_checked_like_others(own, complaint, tinted, tmp_path):
    with pytest.raises(InputError, match=complaint):
        diti.train(DATA, method="tinted", out=tmp_path / "run", **tinted, **own)
    with pytest.raises(InputError, match=rf"unknown setting '{next(iter(own))}'"):  # of no other method
        diti.train(DATA, method="colour", out=tmp_path / "run", **tinted, **own)
    assert not (tmp_path / "run").exists()


def test_settings_of_its_own_are_options_and_stand_in_files(tinted, tmp_path, capsys):
    file = tmp_path / "settings.yaml"
    words = ["train", "--data", DATA, "--encoder", "residual", "--dry-run", "--out", str(tmp_path / "run")]

    def shown(*more):
        assert main([*words, *more]) == 0
        return yaml.safe_load(capsys.readouterr().out)

    assert shown("--method", "tinted", "--margin", "0.25", "--hues", "7")["own"] == {"margin": 0.25, "hues": [7]}
    file.write_text("method: tinted\nown: {margin: 0.125}\n")
    assert shown("--config", str(file), "--hues", "3")["own"] == {"margin": 0.125, "hues": [3]}
    assert "own" not in shown("--config", str(file), "--method", "colour")  # the typed method has none
    file.write_text("own: {margin: 0.125}\n")
    assert shown("--config", str(file), "--method", "tinted")["own"]["margin"] == 0.125
    line = complaint(capsys, *words, "--config", file)
    assert "own: unknown setting 'margin'; only a registered or installed method has its own" in line
    line = complaint(capsys, *words, "--method", "tinted", "--margin", "3")
    assert "--margin is 3.0; it must be at most 1" in line
    with pytest.raises(SystemExit):
        main(["train", "--method", "tinted", "--help"])
    assert "how far apart (default: 0.5)" in capsys.readouterr().out


def test_settings_of_its_own_stand_in_a_sweep(tinted):
    runs = {name: {"method": "tinted", "own": {"margin": margin}} for name, margin in {"a": 0.1, "b": 0.2}.items()}
    shared = {"data": DATA, "settings": {"encoder": "residual"}}
    plan = make_plan(SweepFile(**shared, runs=runs), "here")
    assert [config.own.margin for config in plan.runs.values()] == [0.1, 0.2]
    with pytest.raises(InputError, match="a-s0 and b-s0 would compute the same"):
        make_plan(SweepFile(**shared, runs={"a": runs["a"], "b": runs["a"]}), "here")


def with_settings(**own):
    return type("Odd", (ColourMethod,), {"name": "odd", **own})


@pytest.mark.parametrize(
    ("method", "complaint"),
    [
        ("colour", r"register takes a subclass of diti\.Method and got 'colour'"),
        (type("Bare", (Method,), {"name": "bare", "title": "Bare", "about": "bare"}), r"Bare has no build"),
        (type("Nameless", (Method,), {"title": "Bare", "build": print}), r"Nameless has no name"),
        (with_settings(Settings=dict), r"Settings of odd must be a frozen dataclass made from diti\.Settings"),
        (with_settings(Settings=type("S", (diti.Settings,), {})), r"Settings of odd must be a frozen dataclass"),
        (
            with_settings(Settings=make_settings("S", [("hue", int)])),
            r"'hue' of odd has no default; give it one",
        ),
        (with_settings(Settings=make_settings("S", [("tau", int, 1)])), r"'tau' of odd is also one of diti train"),
    ],
)
def test_what_cannot_be_registered_is_refused(method, complaint):
    with pytest.raises(InputError, match=complaint):
        register(method)
    assert "odd" not in METHODS


# ---- Installed methods ---------------------------------------------------------------------------------------

PLUGIN = """
from dataclasses import dataclass
import diti

class Plugged(diti.Method):
    name, title, about = "plugged", "Plugged", "a test"
    build = print

    @dataclass(frozen=True, kw_only=True)
    class Settings(diti.Settings):
        margin: float = 0.5
"""


@pytest.fixture
def installed(tmp_path):
    """An environment in which a package with a method is installed."""
    about = tmp_path / "plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[diti.methods]\nplugged = plugin:Plugged\nwrong = plugin:Plugged\n")
    (tmp_path / "plugin.py").write_text(PLUGIN)
    before = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{before}", "COLUMNS": "200"}


def test_help_lists_installed_methods_without_importing_torch(installed):
    code = (
        "import sys\nfrom diti.cli import main\n"
        "try: main(['train', '--help'])\nexcept SystemExit: pass\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=installed, timeout=600
    )
    assert result.returncode == 0, result.stderr
    for name in ("diti ", "pdae ", "plugged "):
        assert f"\n  {name}" in result.stdout


def test_an_installed_method_is_found_by_its_name_with_settings_of_its_own(installed, tmp_path):
    words = ["--encoder", "residual", "--data", DATA, "--dry-run", "--out", str(tmp_path / "run")]
    code = (
        f"from diti.cli import main\nwords = {words!r}\n"
        "assert main(['train', '--method', 'plugged', '--margin', '0.25', *words]) == 0\n"
        "assert main(['train', '--method', 'wrong', *words]) == 2"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, env=installed, timeout=600)
    assert result.returncode == 0, result.stderr
    shown = yaml.safe_load(result.stdout)
    assert (shown["method"], shown["own"]) == ("plugged", {"margin": 0.25})
    assert "must name a Method called 'wrong'" in result.stderr
