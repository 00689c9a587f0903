"""Pipelines of diffusers as backbones: û is that of their own scheduler, and their folder is copied whole."""

import copy
import json
import pickle
import shutil

import diffusers
import pytest
import torch
from pipelines import LATENT, PIPELINES, SIZE, flow, latent, unet, write
from safetensors.torch import load_file, save_file

from diti.core.errors import InputError
from diti.core.images import to_float
from diti.data import toyfaces
from diti.diffusion import files, pictures
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.kinds import pipeline
from diti.diffusion.schedule import gather

OTHERS = ("flow", "stable diffusion XL", "stable diffusion 3", "Flux")  # whose schedulers are not DDIM


def x_t(backbone: Backbone, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, *backbone.shape, generator=torch.Generator().manual_seed(seed))


def faces(count: int = 2) -> torch.Tensor:
    return to_float(toyfaces.render(toyfaces.sample(count, 0), SIZE))


@pytest.mark.parametrize("name", [name for name in PIPELINES if name not in OTHERS])
def test_u_is_what_the_scheduler_makes_of_the_network(name, tmp_path):
    backbone = load_backbone(PIPELINES[name](tmp_path), "cpu")
    scheduler = diffusers.DDIMScheduler.from_pretrained(tmp_path / "scheduler")
    scheduler.set_timesteps(1000)
    x = x_t(backbone)
    for t in (3, 400, 998):
        output = backbone(x, torch.tensor([t, t]))
        expected = scheduler.step(output, t, x).pred_original_sample
        found = backbone.x0(x, torch.tensor([t, t]))
        assert torch.allclose(found, expected, rtol=2e-4, atol=2e-4 * expected.abs().max())


def test_along_a_flow_u_is_x_minus_sigma_v(tmp_path):
    folder = flow(tmp_path)
    backbone = load_backbone(folder, "cpu")
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler")
    network = diffusers.UNet2DModel.from_pretrained(folder / "unet")
    scheduler.sigmas = torch.cat([scheduler.sigmas, torch.zeros(1)])
    for index in (2, 500, 998):  # of the scheduler, which counts down
        row = len(scheduler.timesteps) - 1 - index
        t = torch.tensor([row, row])
        sigma, time = scheduler.sigmas[index], scheduler.timesteps[index]
        x = x_t(backbone)
        own = gather(backbone.clock.scale, t, x) * x  # as the pipeline holds it: (1 - sigma) x0 + sigma noise
        with torch.no_grad():
            v = network(own, time).sample
        scheduler._step_index = index
        stepped = scheduler.step(v, time, own).prev_sample
        velocity = (stepped - own) / (scheduler.sigmas[index + 1] - sigma)
        assert torch.allclose(velocity, v, rtol=1e-2, atol=1e-3)  # the scheduler follows v itself
        assert torch.allclose(backbone.clock.told(t), time.expand(2), rtol=1e-5)
        assert torch.allclose(backbone.x0(x, t), own - sigma * v, rtol=1e-3, atol=1e-4)
        assert torch.allclose(backbone.eps(x, t), own + (1 - sigma) * v, rtol=1e-3, atol=1e-4)


def test_latents_are_scaled_as_the_pipeline_scales_them(tmp_path):
    backbone = load_backbone(latent(tmp_path), "cpu")
    vae = diffusers.AutoencoderKL.from_pretrained(tmp_path / "vae")
    x = faces()
    with torch.no_grad():
        expected = vae.encode(x).latent_dist.mode() * vae.config.scaling_factor
        x0 = backbone.encode(x)
        drawn = vae.decode(expected / vae.config.scaling_factor).sample
    assert backbone.shape == (LATENT, SIZE // 2, SIZE // 2) and backbone.size == SIZE and not backbone.bounded
    assert torch.allclose(x0, expected, atol=1e-5)
    assert torch.allclose(backbone.decode(x0), drawn, atol=1e-4)


def test_a_grey_model_takes_luminance_and_gives_grey_back(tmp_path):
    backbone = load_backbone(PIPELINES["grey"](tmp_path), "cpu")
    x = faces()
    x0 = backbone.encode(x)
    assert x0.shape == (2, 1, SIZE, SIZE) and backbone.bounded
    assert torch.allclose(x0[:, 0], 0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2], atol=1e-6)
    assert torch.equal(backbone.decode(x0), x0.repeat(1, 3, 1, 1))


def test_what_is_saved_needs_no_pipeline_any_more(tmp_path):
    backbone = load_backbone(latent(tmp_path / "p"), "cpu")
    backbone.save(tmp_path / "copy")
    x, t = x_t(backbone), torch.tensor([10, 900])
    expected, digest = backbone.x0(x, t), backbone.digest()
    shutil.rmtree(tmp_path / "p")
    again = load_backbone(tmp_path / "copy", "cpu")
    assert torch.equal(again.x0(x, t), expected) and again.digest() == digest
    again.save(tmp_path / "copy")  # onto itself
    assert load_backbone(tmp_path / "copy", "cpu").digest() == digest


def test_blocks_are_chosen_in_backbone_json(tmp_path):
    latent(tmp_path)
    before = load_backbone(tmp_path, "cpu")
    (tmp_path / "backbone.json").write_text(json.dumps({"blocks": ["mid_block"]}))
    backbone = load_backbone(tmp_path, "cpu")
    assert backbone.blocks() == ("mid_block",) and backbone.digest() != before.digest()
    (tmp_path / "backbone.json").write_text(json.dumps({"block": ["mid_block"]}))
    with pytest.raises(InputError, match="unknown keys"):
        load_backbone(tmp_path, "cpu")


def test_features_are_the_blocks_own_outputs(tmp_path):
    backbone = load_backbone(latent(tmp_path), "cpu")
    network = diffusers.UNet2DModel.from_pretrained(tmp_path / "unet")
    found = {}
    network.mid_block.register_forward_hook(lambda module, given, output: found.update(mid=output))
    x0 = x_t(backbone)
    with torch.no_grad():
        network(x0, 50)
    (seen,) = backbone.maps(x0, 50, ["mid_block"])
    assert torch.allclose(seen, found["mid"], atol=1e-6)
    with pytest.raises(InputError, match="no block 'middle'"):
        backbone.maps(x0, 50, ["middle"])


@pytest.mark.parametrize("change", ["missing", "unexpected"])
def test_every_weight_must_fit(change, tmp_path):
    latent(tmp_path)
    file = tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    weights = load_file(file)
    name = next(iter(weights))
    if change == "missing":
        del weights[name]
    else:
        weights["extra"] = torch.zeros(1)
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(InputError, match="missing" if change == "missing" else "unexpected"):
        load_backbone(tmp_path, "cpu")


def test_other_networks_are_refused_by_name(tmp_path):
    write(tmp_path, "DiffusionPipeline", unet=unet())
    config = json.loads((tmp_path / "unet" / "config.json").read_text())
    (tmp_path / "unet" / "config.json").write_text(json.dumps({**config, "_class_name": "UNet3DConditionModel"}))
    with pytest.raises(
        InputError, match="the network is a UNet3DConditionModel; a backbone is one of UNet2DModel"
    ):
        load_backbone(tmp_path, "cpu")


def setting(file, **values):
    """A change of a JSON file; None takes a setting away."""

    def change(folder):
        path = folder / file
        before = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps({k: v for k, v in {**before, **values}.items() if v is not None}))

    return change


def without(name):
    return lambda folder: shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()


SCHEDULER, WEIGHTS = "scheduler/scheduler_config.json", "diffusion_pytorch_model.safetensors"
FAULTS = {  # kind and change of its folder → what is said
    "unknown scheduler": ("latent", setting(SCHEDULER, _class_name="New"), "scheduler names the scheduler 'New'"),
    "other scheduler": ("latent", setting(SCHEDULER, _class_name="EDMEulerScheduler"), "EDMEuler.* has no betas"),
    "no such prediction": ("latent", setting(SCHEDULER, prediction_type="x0"), "prediction_type is 'x0'"),
    "a flow that goes nowhere": ("flow", setting(SCHEDULER, shift=0), "s / a goes from 0 to nan"),
    "no sample_size": ("latent", setting("unet/config.json", sample_size=None), "choose the pictures' size"),
    "not square": ("latent", setting("unet/config.json", sample_size=[8, 4]), "needs square pictures"),
    "a side that its levels do not allow": ("latent", setting("unet/config.json", sample_size=7), "failed on x_t"),
    "no autoencoder": ("latent", without("vae"), "the network takes 4 channels"),
    "no weights of it": ("latent", without(f"vae/{WEIGHTS}"), "vae has no weights"),
    "latents of two means": (
        "latent", setting("vae/config.json", latents_mean=[0, 0], latents_std=[1, 1]), "2 and 2 numbers",
    ),
    "size below 0": ("latent", setting("backbone.json", size=-4), "size is -4 px"),
    "size is no number": ("latent", setting("backbone.json", size=True), "backbone.json: size is True"),
    "size that leaves half a token": ("DiT", setting("backbone.json", size=34), r"gives \(4, 16, 16\) for x_t of"),
    "size beyond what it knows": ("stable diffusion 3", setting("backbone.json", size=128), "failed on x_t"),
    "size that cannot be packed": ("Flux", setting("backbone.json", size=18), "failed on x_t"),
    "conditions of another kind": (
        "stable diffusion XL",
        lambda folder: save_file({"text": torch.zeros(1, 5, 8)}, folder / "conditions.safetensors"),
        "says nothing of 'pooled'",
    ),
    "conditions that are no numbers": (
        "stable diffusion",
        lambda folder: save_file({"text": torch.full((1, 5, 8), torch.nan)}, folder / "conditions.safetensors"),
        "conditions.safetensors are not finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_or_unknown_pipeline_is_one_line(fault, tmp_path, capfd):
    kind, change, said = FAULTS[fault]
    folder = PIPELINES[kind](tmp_path / "p")
    change(folder)
    with pytest.raises(InputError, match=said) as found:
        backbone = load_backbone(folder, "cpu")
        backbone.map_shapes(backbone.blocks())
    assert str(found.value).count(str(tmp_path)) <= 1  # one file is named, where one is to blame
    assert capfd.readouterr() == ("", "")  # and diffusers does not remark on it as well


def test_half_precision_is_kept_in_the_file_and_computed_in_full(tmp_path):
    latent(tmp_path)
    network = diffusers.UNet2DModel.from_pretrained(tmp_path / "unet").half()
    shutil.rmtree(tmp_path / "unet")
    network.save_pretrained(tmp_path / "unet", variant="fp16")
    backbone = load_backbone(tmp_path, "cpu")
    x, t = x_t(backbone), torch.tensor([10, 900])
    with torch.no_grad():
        expected = network.float()(x, t).sample
    assert torch.equal(backbone(x, t), expected) and backbone.network.dtype == torch.float32
    backbone.save(tmp_path / "saved")
    file = tmp_path / "saved" / "unet" / "diffusion_pytorch_model.fp16.safetensors"
    assert file.read_bytes() == (tmp_path / "unet" / file.name).read_bytes()


@pytest.mark.parametrize(("least", "expected"), [(1, torch.bfloat16), (10**9, torch.float32)])
def test_a_large_network_is_bfloat16_on_a_gpu_that_has_it(least, expected, tmp_path, monkeypatch):
    """What happens when it is moved; the move itself is to where it is, for want of a GPU."""
    backbone = load_backbone(latent(tmp_path), "cpu")
    monkeypatch.setattr(pipeline, "on_host", lambda place: False)
    monkeypatch.setattr(pipeline, "has_bf16", lambda device: True)
    monkeypatch.setattr(pipeline, "LARGE", least)
    holder = torch.nn.ModuleList([backbone]).to("cpu")
    assert holder[0].network.dtype == expected
    assert backbone.pictures.autoencoder.dtype == torch.float32
    monkeypatch.setenv("DITI_PRECISION", "float32")
    assert holder.to("cpu")[0].network.dtype == torch.float32


def test_of_a_repository_each_weight_is_wanted_once():
    wanted = ["model_index.json", "unet/config.json", "unet/diffusion_pytorch_model.safetensors"]
    shards = [f"transformer/diffusion_pytorch_model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    old = ["vae/config.json", "vae/diffusion_pytorch_model.bin"]
    others = [
        "unet/diffusion_pytorch_model.bin", "unet/diffusion_pytorch_model.fp16.safetensors", "README.md",
        "text_encoder/model.safetensors", "unet/diffusion_pytorch_model.non_ema.safetensors", "picture.png",
    ]  # fmt: skip
    assert sorted(files.needed([*others, *wanted, *shards, *old])) == sorted([*wanted, *shards, *old])
    model = ["model.json", "encoder/model.safetensors", "stats.safetensors", "decoder/config.json"]
    assert sorted(files.needed([*model, "card.md"])) == sorted(model)


def test_it_can_be_pickled_and_copied(tmp_path):
    backbone = load_backbone(latent(tmp_path), "cpu")
    x0, blocks = x_t(backbone), backbone.blocks()
    expected = backbone.maps(x0, 50, blocks)
    for again in (pickle.loads(pickle.dumps(backbone)), copy.deepcopy(backbone)):
        assert all(torch.equal(*pair) for pair in zip(again.maps(x0, 50, blocks), expected, strict=True))


def test_a_picture_larger_than_an_autoencoder_was_trained_on_goes_through_it_in_tiles(tmp_path):
    backbone = load_backbone(latent(tmp_path), "cpu")
    autoencoder, sides = backbone.pictures.autoencoder, []
    for part in (autoencoder.encoder, autoencoder.decoder):
        part.register_forward_pre_hook(lambda module, given: sides.append(given[0].shape[-1]))
    x = torch.randn(1, 3, 4 * SIZE, 4 * SIZE, generator=torch.Generator().manual_seed(2))
    drawn = backbone.decode(backbone.encode(x))
    assert drawn.shape == x.shape and max(sides) == SIZE and len(sides) > 2
    sides.clear()
    backbone.decode(backbone.encode(x[..., :SIZE, :SIZE]))
    assert sides == [SIZE, SIZE // 2]


def test_large_pictures_go_through_an_autoencoder_one_by_one(tmp_path, monkeypatch):
    backbone = load_backbone(latent(tmp_path), "cpu")
    together, counts = backbone.encode(faces(5)), []
    monkeypatch.setattr(pictures, "PIXELS_AT_ONCE", SIZE**2)
    backbone.pictures.autoencoder.encoder.register_forward_pre_hook(lambda m, given: counts.append(len(given[0])))
    assert torch.allclose(backbone.encode(faces(5)), together, atol=1e-5) and counts == [1] * 5
