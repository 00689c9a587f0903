import dataclasses
from pathlib import Path

import pytest
import yaml

import diti
from diti.cli import main
from diti.config import (
    BackboneConfig,
    EncoderConfig,
    PretrainConfig,
    SolutionConfig,
    SolveConfig,
    TrainConfig,
    TrainingConfig,
)
from diti.core.errors import InputError
from diti.core.settings import differences, from_mapping, from_options, load_yaml, to_yaml
from diti.presets import PRESETS, preset
from diti.representation.settings import resolve


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_the_yaml_round_trip(name, tmp_path):
    (tmp_path / "c.yaml").write_text(to_yaml(preset(name)))
    assert load_yaml(PretrainConfig(), tmp_path / "c.yaml") == preset(name)
    assert PRESETS[name].purpose, "a preset says what it is for"


def test_configs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        preset("toyfaces32").data = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"trainin": {}}, "unknown setting 'trainin'.*Did you mean 'training'"),
        ({"training": {"learning_rat": 1}}, "unknown setting 'learning_rat'.*Did you mean 'learning_rate'"),
        ({"training": {"images": "many"}}, "images must be int, got 'many'"),
        ({"training": {"images": True}}, "images must be int, got True"),
        ({"training": {"lr_schedule": "linear"}}, "must be 'constant' or 'cosine' or 'hold', got 'linear'"),
        ({"backbone": {"channels": [1, "x"]}}, "channels must be int, got 'x'"),
        ({"training": 3}, "must be a mapping of settings, got int"),
    ],
)
def test_wrong_settings_are_refused_with_the_nearest_name(values, words):
    with pytest.raises(InputError, match=words):
        from_mapping(PretrainConfig(), values, "file.yaml")


def test_numbers_and_lists_fit_their_fields():
    values = {"training": {"learning_rate": 1}, "backbone": {"channels": [8, 16]}}
    config = from_mapping(PretrainConfig(), values, "x")
    assert config.training.learning_rate == 1.0 and isinstance(config.training.learning_rate, float)
    assert config.backbone.channels == (8, 16)
    assert from_mapping(PretrainConfig(), {"init": None}, "x").init is None


def test_yaml_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_yaml(PretrainConfig(), tmp_path / "no.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(InputError, match="not valid YAML"):
        load_yaml(PretrainConfig(), tmp_path / "bad.yaml")
    (tmp_path / "empty.yaml").write_text("")
    assert load_yaml(PretrainConfig(), tmp_path / "empty.yaml") == PretrainConfig()


def test_differences_name_nested_settings():
    now = PretrainConfig(training=TrainingConfig(seed=5, images=9), backbone=BackboneConfig(size=64))
    assert differences(PretrainConfig(), now) == ["backbone.size", "training.images", "training.seed"]
    assert differences(PretrainConfig(), now, frozenset({"images"})) == ["backbone.size", "training.seed"]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--images", "0", "diti: --images is 0; it must be 1 or more"),
        ("--log-images", "0", "--log-images is 0"),
        ("--train-batch-size", "-4", "--train-batch-size is -4"),
        ("--learning-rate", "nan", "--learning-rate is nan; give a finite number, above 0"),
        ("--learning-rate", "1e30", "is 1e+30; it must be above 0 and at most 100 (presets have 1e-4 to 4e-3)"),
        ("--max-grad-norm", "-1", "--max-grad-norm is -1.0; it must be 0 or more (0 = off)"),
        ("--ema-decay", "1", "--ema-decay is 1.0; it must be 0 or more and below 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_before_anything_is_written(option, value, words, tmp_path, capsys):
    out = tmp_path / "run"
    for verb in (["pretrain"], ["train", "--backbone", "toyfaces32"]):
        assert main([*verb, "--data", "toyfaces:9", "--out", str(out), option, value]) == 2
        shown = capsys.readouterr().err
        assert words in shown and shown.startswith("diti: ") and shown.count("\n") == 1
    assert not out.exists()
    (tmp_path / "c.yaml").write_text("training: {images: 0}")
    assert main(["pretrain", "--data", "toyfaces:9", "--out", str(out), "--config", str(tmp_path / "c.yaml")]) == 2


@pytest.mark.parametrize(
    ("verb", "words", "said"),
    [
        ("pretrain", "--dropout 2", "--dropout is 2.0; it must be 0 or more and below 1"),
        ("pretrain", "--dropout -1", "--dropout is -1"),
        ("pretrain", "--dropout nan", "--dropout is nan"),
        ("pretrain", "--timesteps -1", "--timesteps is -1; it must be from 1 to 100,000"),
        ("pretrain", "--timesteps 20", "--timesteps is 20; it must be from 25 to 100,000"),
        ("pretrain", "--channels 8 100000000", "--channels is 100000000; it must be from 1 to 8,192"),
        ("pretrain", "--layers 100000000", "--layers is 100000000"),
        ("pretrain", "--train-batch-size 99999999999", "--train-batch-size is"),
        ("pretrain", "--out= --size 16", "--out is followed by an empty word"),
        ("train", "--tc-weight nan", "--tc-weight is nan; give a finite number, 0 or more"),
        ("train", "--pixel-std inf", "--pixel-std is inf"),
        ("train", "--projection-dim 100000000000", "--projection-dim is"),
        ("train", "--code-dim 0", "--code-dim is 0; it must be from 1 to 65,536"),
        ("solve", "--tau nan", "--tau is nan; give a finite number, above 0 and below 1"),
        ("solve", "--stretches 100000000", "--stretches is"),
    ],
)
def test_no_setting_is_out_of_its_range(verb, words, said, tmp_path, capsys):
    given = {"pretrain": [], "train": ["--backbone", "toyfaces32"], "solve": ["--backbone", "toyfaces32"]}[verb]
    out = tmp_path / "run"
    assert main([verb, *given, "--data", "toyfaces:9", "--out", str(out), *words.split()]) == 2
    shown = capsys.readouterr().err
    assert said in shown and shown.startswith("diti: --") and shown.count("\n") == 1
    assert not out.exists()


def floats_of(config):
    """(section, name) of every float and list of numbers in the settings, at any depth."""
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            yield from floats_of(value)
        elif isinstance(value, float):
            yield type(config), item.name


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_no_float_of_any_setting_may_be_other_than_finite(number):
    found = {*floats_of(TrainConfig()), *floats_of(PretrainConfig()), *floats_of(SolveConfig())}
    assert len(found) > 10
    for kind, name in found:
        with pytest.raises(InputError, match=f"--{name.replace('_', '-')} is {number}"):
            kind(**{name: number})


def test_a_range_stands_beside_its_field_and_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "(default: 0.02; above 0 and below 1)" in shown, "tau"
    assert "(default: 32 64 128 128; from 1 to 8,192)" in shown, "encoder_channels"
    with pytest.raises(InputError, match="--encoder-channels is 0"):
        EncoderConfig(encoder_channels=(8, 0))
    assert SolveConfig(images=None).images is None


def test_a_solution_and_an_encoder_have_the_same_features():
    """Flat in both: files of solved runs and `diti.solve(code_dim=...)` name them so."""
    solved = from_options(SolveConfig(), {"code_dim": 8, "encoder_time": (5, 70), "encoder_mirror": True}, "here")
    assert solved.code == EncoderConfig(code_dim=8, encoder_time=(5, 70), encoder_mirror=True)
    shipped = load_yaml(SolveConfig(), Path(diti.__file__).parent / "assets" / "toyfaces32-diti" / "config.yaml")
    assert shipped.images == 9562 and shipped.code == EncoderConfig()


def test_a_wrong_number_in_a_file_names_the_file(tmp_path):
    (tmp_path / "c.yaml").write_text("training: {images: 0}")
    with pytest.raises(InputError, match=r"c\.yaml: --images is 0"):
        load_yaml(PretrainConfig(), tmp_path / "c.yaml")


def test_unknown_preset():
    with pytest.raises(InputError, match=r"preset 'toyface' is unknown.*Did you mean 'toyfaces32'"):
        preset("toyface")


def test_an_unknown_preset_of_pretrain_is_told_of_auto(tmp_path, diti):
    told = diti("pretrain", "--preset", "aut", "--data", "toyfaces:8", "--out", str(tmp_path / "out"))
    assert told.returncode == 2 and "bedroom128, auto. Did you mean 'auto'?" in told.stderr


def test_command_line_over_yaml_over_preset(tmp_path, diti):
    (tmp_path / "c.yaml").write_text("training:\n  learning_rate: 0.5\n  seed: 4\n")
    result = diti(
        "pretrain", "--data", "toyfaces:9", "--out", tmp_path / "run", "--config", tmp_path / "c.yaml",
        "--preset", "celeba32", "--seed", 6, "--channels", 16, 32, "--train_batch_size", 8, "--dry-run",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    resolved = yaml.safe_load(result.stdout)
    assert resolved["training"]["learning_rate"] == 0.5 and resolved["training"]["seed"] == 6
    assert resolved["backbone"]["channels"] == [16, 32] and resolved["training"]["train_batch_size"] == 8
    assert resolved["backbone"]["size"] == preset("celeba32").backbone.size
    assert not (tmp_path / "run").exists(), "a dry run writes nothing"


def test_settings_of_earlier_versions_are_read(tmp_path):
    (tmp_path / "config.yaml").write_text("decoder_start: random\ncode: {encoder_time: 70}\n")
    config = load_yaml(TrainConfig(), tmp_path / "config.yaml")
    assert config.start == "random" and config.code.encoder_time == (70,)


def test_options_find_their_section_by_their_plain_name():
    options = {"method": "pdae", "code_dim": 8, "images": 64, "encoder_channels": [8, 16], "tau": 0.1}
    found = from_options(TrainConfig(), options, "here")
    assert (found.method, found.code.code_dim, found.training.images) == ("pdae", 8, 64)
    assert found.code.encoder_channels == (8, 16) and found.solution.tau == 0.1
    assert found.training.seed == TrainConfig().training.seed
    with pytest.raises(InputError, match=r"here: unknown setting 'code_dims'; valid: .*Did you mean 'code_dim'"):
        from_options(TrainConfig(), {"code_dims": 8}, "here")
    with pytest.raises(InputError, match=r"here: unknown setting 'training'"):
        from_options(TrainConfig(), {"training": {"images": 3}}, "here")
    with pytest.raises(InputError, match=r"here: training: images must be int, got '64'"):
        from_options(TrainConfig(), {"images": "64"}, "here")


def test_settings_say_how_many_features_are_looked_at():
    few = SolutionConfig(whitened=5)
    assert SolveConfig(code_dim=12, solution=few).solution.whitened == 12
    assert SolveConfig(code_dim=12).solution == SolutionConfig()
    code = EncoderConfig(code_dim=12)
    assert resolve(TrainConfig(method="diti", code=code, solution=few)).solution.whitened == 12
    assert resolve(TrainConfig(method="simclr", code=code, solution=few)).solution == few, "nothing is solved"
