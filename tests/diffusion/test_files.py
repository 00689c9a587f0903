"""Networks from elsewhere: diffusers folders old and new, hub ids, and the kinds that are refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import huggingface_hub
import huggingface_hub.constants
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    EDMEulerScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    UNet2DModel,
)
from torch import Tensor

from diti.core.errors import InputError
from diti.diffusion import files
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.unet import Wrapping, assemble_unet


def noisy(backbone: Backbone) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(2, 3, backbone.size, backbone.size, generator=rng)
    return x, torch.randint(0, backbone.timesteps, (2,), generator=rng)


def foreign(**changes: object) -> UNet2DModel:
    config = {
        "sample_size": 8,
        "block_out_channels": (8, 16),
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 1,
        "norm_num_groups": 4,
    }
    torch.manual_seed(0)
    return UNet2DModel(**{**config, **changes}).eval()


def test_a_diffusers_pipeline_is_a_backbone(tmp_path):
    unet = foreign()
    DDPMPipeline(unet, DDPMScheduler(beta_end=0.03, num_train_timesteps=50)).save_pretrained(tmp_path / "p")
    backbone = load_backbone(tmp_path / "p")
    x, t = noisy(backbone)
    assert torch.equal(backbone(x, t), unet(x, t).sample)
    assert backbone.timesteps == 50
    assert abs(float(backbone.schedule.betas[-1]) - 0.03) < 1e-8
    for inside in (tmp_path / "p" / "unet", str(tmp_path / "p" / "unet")):  # the network alone, in its pipeline
        assert load_backbone(inside).timesteps == 50


def test_a_bare_network_gets_ddpm_s_schedule_and_says_so(tmp_path, caplog):
    unet = foreign()
    unet.save_pretrained(tmp_path / "net")
    backbone = load_backbone(tmp_path / "net")
    x, t = noisy(backbone)
    assert torch.equal(backbone(x, t), unet(x, t).sample)
    assert backbone.timesteps == 1000 and backbone.prediction_type == "epsilon"
    assert "using DDPM's linear betas" in caplog.text


def test_old_hub_layout_and_names_load(tmp_path):
    """Weights as a .bin with the attention's old names, the scheduler's file beside them."""
    unet = foreign()
    unet.save_config(tmp_path)
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    state = unet.state_dict()
    for now, then in old.items():
        state = {key.replace(f".{now}.", f".{then}."): value for key, value in state.items()}
    assert any(".proj_attn." in key for key in state)
    torch.save(state, tmp_path / "diffusion_pytorch_model.bin")
    DDIMScheduler(prediction_type="v_prediction").save_config(tmp_path)
    backbone = load_backbone(tmp_path)
    x, t = noisy(backbone)
    assert torch.equal(backbone(x, t), unet(x, t).sample)
    assert isinstance(backbone.scheduler, DDIMScheduler) and backbone.prediction_type == "v_prediction"


REFUSED = {
    "class-conditional": {"num_class_embeds": 3},
    "class-conditional, timestep": {"class_embed_type": "timestep"},
    "fourier": {"time_embedding_type": "fourier"},
    "SkipDownBlock2D": {
        "down_block_types": ("SkipDownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "SkipUpBlock2D"),
        "block_out_channels": (16, 16),
    },
    "square": {"sample_size": (8, 16)},
    "does not say its image size": {"sample_size": None},
    "sample_size is 9": {"sample_size": 9},
    "takes 4 channels": {"in_channels": 4},
    "gives 5 channels": {"out_channels": 5},
    "center_input_sample": {"center_input_sample": True},
    "middle block": {"mid_block_type": None},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_wrong_kinds_of_network_are_refused(reason, tmp_path):
    foreign(**REFUSED[reason]).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=reason.partition(",")[0]):
        load_backbone(tmp_path)


def test_another_class_is_refused(tmp_path):
    foreign().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"_class_name": "UNet3DConditionModel"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="is a UNet3DConditionModel; a backbone is one of UNet2DModel, "):
        load_backbone(tmp_path)


def test_a_learned_time_embedding_serves(tmp_path):
    unet = foreign(time_embedding_type="learned", num_train_timesteps=1000)
    unet.save_pretrained(tmp_path)
    backbone = load_backbone(tmp_path)
    x, t = noisy(backbone)
    assert torch.equal(backbone(x, t), unet(x, t).sample)
    with pytest.raises(InputError, match="time_width"):
        assemble_unet(unet.config, Wrapping(time_width=8))


def test_square_sizes_may_be_pairs(tmp_path):
    foreign(sample_size=(8, 8)).save_pretrained(tmp_path)
    assert load_backbone(tmp_path).size == 8


@pytest.mark.parametrize(
    ("scheduler", "predicts"),
    [
        (EulerDiscreteScheduler(prediction_type="epsilon"), "epsilon"),
        (DDPMScheduler(prediction_type="v_prediction"), "v_prediction"),
        (FlowMatchEulerDiscreteScheduler(), "flow"),
    ],
    ids=["euler", "v", "flow"],
)
def test_a_scheduler_with_betas_serves_or_one_along_a_flow(scheduler, predicts, tmp_path):
    foreign().save_pretrained(tmp_path / "unet")
    scheduler.save_pretrained(tmp_path / "scheduler")
    assert load_backbone(tmp_path).prediction_type == predicts


def test_a_scheduler_without_either_is_refused(tmp_path):
    foreign().save_pretrained(tmp_path / "unet")
    EDMEulerScheduler().save_pretrained(tmp_path / "scheduler")
    with pytest.raises(InputError, match="has no betas"):
        load_backbone(tmp_path)


def test_unknown_prediction_types_and_schedulers_are_refused(tmp_path):
    foreign().save_pretrained(tmp_path / "unet")
    DDPMScheduler(prediction_type="noise").save_pretrained(tmp_path / "scheduler")
    with pytest.raises(InputError, match="prediction_type is 'noise'; allowed: epsilon, sample, v_prediction"):
        load_backbone(tmp_path)
    (tmp_path / "scheduler" / "scheduler_config.json").write_text('{"_class_name": "UNet2DModel"}')
    with pytest.raises(InputError, match="names the scheduler 'UNet2DModel'"):
        load_backbone(tmp_path)


def test_names_are_looked_up_among_the_shipped(tmp_path, monkeypatch):
    foreign().save_pretrained(tmp_path / "b-diti")
    monkeypatch.setattr(files, "ASSETS", tmp_path)
    assert load_backbone("b").size == load_backbone("b-diti").size == 8, "a model holds its backbone"
    with pytest.raises(InputError, match=r"nothing is called 'bb'.*shipped name \(b, b-diti\)"):
        load_backbone("bb")


class NoConnection(Exception):
    """Of a library that only huggingface_hub knows."""


@pytest.fixture(params=["told to be offline", "no connection"])
def offline(request, monkeypatch, tmp_path):
    """A folder for what was downloaded before."""

    def fail(*given, **more):
        raise NoConnection("Name or service not known\nand more")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    if request.param == "no connection":
        monkeypatch.setattr(huggingface_hub, "model_info", fail)
    return tmp_path


def test_a_hub_id_without_network_is_one_clear_line(offline):
    with pytest.raises(InputError, match="'nobody/no-such-diffusion-model' is not a folder") as caught:
        load_backbone("nobody/no-such-diffusion-model")
    assert "\n" not in str(caught.value)


def test_what_was_downloaded_before_needs_no_network(offline):
    home = offline / "models--somebody--ddpm"
    DDPMPipeline(foreign(), DDPMScheduler()).save_pretrained(home / "snapshots" / "abc")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc")
    assert load_backbone("somebody/ddpm", "cpu").size == 8


def test_of_a_repository_only_what_is_needed_is_fetched(monkeypatch, tmp_path):
    names = ["model_index.json", "unet/config.json", f"unet/{files.WEIGHTS}.safetensors", "flax_model.msgpack"]
    listed = SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in names])
    asked = {}
    monkeypatch.setattr(huggingface_hub, "model_info", lambda hub_id: listed)
    fetch = lambda hub_id, **more: asked.update(more) or str(tmp_path)  # noqa: E731
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert files.locate("somebody/ddpm") == tmp_path
    assert sorted(asked["allow_patterns"]) == names[:3]
