import dataclasses
from dataclasses import replace

import pytest
import yaml

from diti.cli import main
from diti.config import (
    PRESETS,
    BackboneConfig,
    EncoderConfig,
    PretrainConfig,
    TrainConfig,
    TrainingConfig,
    differences,
    from_mapping,
    from_options,
    load_yaml,
    preset,
    resolve,
    to_yaml,
)
from diti.core.errors import InputError


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
        ({"training": {"lr_schedule": "linear"}}, "lr_schedule must be 'constant' or 'cosine', got 'linear'"),
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
        ("--images", "0", "images is 0; it must be greater than 0"),
        ("--log-images", "0", "log_images is 0"),
        ("--train-batch-size", "-4", "train_batch_size is -4"),
        ("--learning-rate", "nan", "learning_rate is nan"),
        ("--max-grad-norm", "-1", "max_grad_norm is -1.0; it must be 0 (off) or more"),
        ("--ema-decay", "1", "ema_decay is 1.0"),
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


def test_unknown_preset():
    with pytest.raises(InputError, match=r"preset 'toyface' is unknown.*Did you mean 'toyfaces32'"):
        preset("toyface")


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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("solved", "matched")),
        ({"method": "pdae"}, ("solved", "matched")),
        ({"method": "diffae"}, ("copy", "staged-even")),
        ({"start": "copy"}, ("copy", "staged-even")),
        ({"start": "copy", "partition": "matched"}, ("copy", "matched")),
        ({"partition": "balanced"}, ("solved", "balanced")),
        ({"code": EncoderConfig(encoder="residual")}, ("copy", "staged-even")),
    ],
)
def test_what_is_left_to_auto_is_decided_by_method_and_encoder(changes, expected):
    config = resolve(replace(TrainConfig(), **changes))
    assert (config.start, config.partition) == expected
    assert resolve(config) == config


def test_a_solved_start_needs_the_backbones_features():
    with pytest.raises(InputError, match="--encoder backbone"):
        resolve(TrainConfig(start="solved", code=EncoderConfig(encoder="residual")))


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
