"""Model folders whose files were damaged: one line that names the file, never a model."""

import json
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import DIMS, tiny_diffae, tiny_model

from diti.core.errors import InputError
from diti.diffusion.backbone import load_backbone
from diti.diffusion.files import locate, read_scheduler
from diti.representation.models.loading import load

HUGE = 10**12
WEIGHTS = ("encoder/model", "decoder/model", "unet/diffusion_pytorch_model")
CONFIG, SCHEDULE = "unet/config.json", "scheduler/scheduler_config.json"
VALUES = [
    ("model.json", "method", None), ("model.json", "method", ["diti"]), ("model.json", "method", "diffae"),
    ("partition.json", "dims", "12"), ("partition.json", "ends", None), ("partition.json", "kind", []),
    ("partition.json", "timesteps", HUGE), ("partition.json", "subsets", -1),
    ("backbone.json", "unshuffle", -2), ("backbone.json", "unshuffle", [2]), ("backbone.json", "heads", "2"),
    (CONFIG, "block_out_channels", [8, -16]), (CONFIG, "block_out_channels", "8"), (CONFIG, "dropout", "x"),
    (CONFIG, "block_out_channels", [8, 10**8]), (CONFIG, "block_out_channels", 8), (CONFIG, "layers_per_block", 0),
    (CONFIG, "block_out_channels", []), (CONFIG, "layers_per_block", 5_000), (CONFIG, "layers_per_block", [1]),
    (CONFIG, "norm_num_groups", 0), (CONFIG, "norm_num_groups", 7), (CONFIG, "sample_size", "16"),
    (CONFIG, "sample_size", [8, "8"]), (CONFIG, "sample_size", -8), (CONFIG, "down_block_types", [1, 2]),
    (CONFIG, "attention_head_dim", 0), (CONFIG, "norm_eps", "small"), (CONFIG, "freq_shift", "a"),
    (CONFIG, "act_fn", "sine"), (CONFIG, "in_channels", 7), (CONFIG, "norm_eps", float("nan")),
    (CONFIG, "downsample_padding", -1), (CONFIG, "time_embedding_dim", "4"), (CONFIG, "_class_name", 3),
    ("encoder/config.json", "size", -16), ("encoder/config.json", "size", "16"),
    ("encoder/config.json", "size", 64),
    ("encoder/config.json", "dims", 0), ("encoder/config.json", "dims", HUGE), ("encoder/config.json", "kind", []),
    ("encoder/config.json", "channels", [8, HUGE]), ("encoder/config.json", "channels", "8"),
    ("encoder/config.json", "channels", [8, -16]), ("encoder/config.json", "channels", None),
    ("decoder/config.json", "dims", -1), ("decoder/config.json", "dims", HUGE),
    ("decoder/config.json", "kind", []),
    (SCHEDULE, "num_train_timesteps", -5), (SCHEDULE, "num_train_timesteps", HUGE),
    (SCHEDULE, "num_train_timesteps", "9"), (SCHEDULE, "beta_start", "x"), (SCHEDULE, "beta_end", 3.0),
    (SCHEDULE, "beta_start", float("nan")), (SCHEDULE, "trained_betas", ["a"]), (SCHEDULE, "trained_betas", []),
    (SCHEDULE, "prediction_type", "noise"), (SCHEDULE, "beta_schedule", 4), (SCHEDULE, "_class_name", "Dataset"),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    tiny_model().save(folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "model")


@pytest.mark.parametrize(("file", "key", "value"), VALUES)
def test_a_wrong_value_is_told_with_the_name_of_its_file(file, key, value, folder):
    settings = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**settings, key: value}))
    of_two_files = (key, value) in [("method", "diffae"), ("timesteps", HUGE), ("size", 64)]
    place = str(folder if of_two_files else (folder / file).parent)
    with pytest.raises(InputError) as told:
        load(folder)
    assert place in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize("content", ["[]", "null", "3", "", "{", '"model"'])
@pytest.mark.parametrize("file", ["model.json", "partition.json", "backbone.json", CONFIG, "encoder/config.json"])
def test_json_of_another_kind_is_told(file, content, folder):
    (folder / file).write_text(content)
    with pytest.raises(InputError, match=file):
        load(folder)


@pytest.mark.parametrize("damage", ["cut", "emptied", "pickled", "nan", "inf", "without a key"])
@pytest.mark.parametrize("name", ["stats", *WEIGHTS])
def test_damaged_weights_are_never_a_model(name, damage, folder):
    path = folder / f"{name}.safetensors"
    content = path.read_bytes()
    if damage in ("nan", "inf"):
        tensors = load_file(path)
        next(iter(tensors.values())).flatten()[0] = float(damage)
        save_file(tensors, path)
    elif damage == "without a key":
        tensors = load_file(path)
        tensors.popitem()
        save_file(tensors, path)
    else:
        new = {"cut": content[: len(content) // 2], "emptied": b"", "pickled": pickle.dumps({"mean": [1, 2]})}
        path.write_bytes(new[damage])
    with pytest.raises(InputError, match=str(path if name == "stats" else path.parent)):
        load(folder)


def test_statistics_of_other_dims_or_without_spread_are_told(folder):
    for std in (torch.ones(DIMS + 1), torch.zeros(DIMS), torch.ones(())):
        save_file({"mean": torch.zeros_like(std), "std": std}, folder / "stats.safetensors")
        with pytest.raises(InputError, match=r"stats\.safetensors"):
            load(folder)


def test_networks_that_are_not_finite_are_not_written(tmp_path):
    model = tiny_model()
    with torch.no_grad():
        model.encoder.head.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match=r"not finite numbers \(head\.weight\)"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model" / "model.json").exists()
    with torch.no_grad():
        model.encoder.head.weight[0, 0] = 0
        next(iter(model.backbone.unet.parameters())).view(-1)[0] = torch.inf
    with pytest.raises(InputError, match="the backbone's weights are not finite"):
        model.save(tmp_path / "other")


def test_a_decoder_with_z_in_it_is_read_as_strictly(tmp_path):
    tiny_diffae().save(tmp_path)
    settings = json.loads((tmp_path / "decoder" / "config.json").read_text())
    for changed in ({"wrapping": {"folds": 2}}, {"unet": {**settings["unet"], "norm_eps": "x"}}, {"dims": "12"}):
        (tmp_path / "decoder" / "config.json").write_text(json.dumps({**settings, **changed}))
        with pytest.raises(InputError, match=r"decoder/config\.json"):
            load(tmp_path)


def test_what_is_whole_is_read_as_before(folder):
    assert load(folder).dims == DIMS
    assert load_backbone("toyfaces32").timesteps == 1000
    home = locate("toyfaces32")
    assert read_scheduler(home, home / "unet").config.prediction_type == "epsilon"
