"""Kinds that are told more than time: a step is that of diffusers' own pipeline."""

import inspect
import json

import diffusers
import pytest
import torch
from pipelines import PIPELINES, SIZE, flux, pixart, stable_diffusion, stable_diffusion_xl, text_unet
from safetensors.torch import load_file

from diti.core.errors import InputError
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.kinds import text_transformer
from diti.diffusion.schedule import q_sample

STEPS = 10
try:
    import transformers
except ImportError:
    transformers = None
needs_transformers = pytest.mark.skipif(transformers is None, reason="diffusers' text pipelines need transformers")


def first_step(folder, latents, name: str, **call):
    """Latents after the first step of the pipeline, from its own code, and the time of the next step."""
    index = json.loads((folder / "model_index.json").read_text())
    kind = getattr(diffusers, name)
    parts = {
        part: getattr(diffusers, index[part][1]).from_pretrained(folder / part)
        for part in index
        if not part.startswith("_") and part != "scheduler"
    }
    scheduler = getattr(diffusers, index["scheduler"][1]).from_pretrained(folder / "scheduler")
    absent = {*inspect.signature(kind).parameters} - {*parts}
    blank = {
        one: None for one in absent if one.split("_")[0] in ("text", "tokenizer", "image", "safety", "feature")
    }
    more = {"requires_safety_checker": False} if "requires_safety_checker" in absent else {}
    pipeline = kind(**parts, scheduler=scheduler, **blank, **more)
    pipeline.set_progress_bar_config(disable=True)
    seen = []

    def stop(pipe, step, time, given):
        seen.append(given["latents"].clone())
        pipe._interrupt = True
        return given

    with torch.no_grad():
        pipeline(
            latents=latents, num_inference_steps=STEPS, height=SIZE, width=SIZE, output_type="latent",
            callback_on_step_end=stop, **call,
        )  # fmt: skip
    return seen[0], pipeline.scheduler


def x_t(backbone: Backbone) -> torch.Tensor:
    return torch.randn(1, *backbone.shape, generator=torch.Generator().manual_seed(3))


def given(folder):
    return load_file(folder / "conditions.safetensors")


# ---- One step of the pipeline itself ---------------------------------------------------------------------------


@needs_transformers
def test_a_step_of_stable_diffusion(tmp_path):
    folder = stable_diffusion(tmp_path)
    backbone, told = load_backbone(folder, "cpu"), given(folder)
    x = x_t(backbone)
    found, scheduler = first_step(
        folder, x, "StableDiffusionPipeline", prompt_embeds=told["text"], guidance_scale=1.0
    )
    t, before = int(scheduler.timesteps[0]), int(scheduler.timesteps[1])
    steps = torch.tensor([t])
    expected = q_sample(backbone.x0(x, steps), backbone.eps(x, steps), backbone.schedule.alpha_bar[before])
    assert torch.allclose(found, expected, atol=2e-4)


@needs_transformers
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of the scheduler
def test_a_step_of_stable_diffusion_xl(tmp_path):
    """Its Euler scheduler holds x0 + sigma noise, which is x_t divided by the root of abar."""
    folder = stable_diffusion_xl(tmp_path)
    backbone, told = load_backbone(folder, "cpu"), given(folder)
    x = x_t(backbone)
    found, scheduler = first_step(
        folder, x, "StableDiffusionXLPipeline", prompt_embeds=told["text"], pooled_prompt_embeds=told["pooled"],
        guidance_scale=1.0,
    )  # fmt: skip
    t, sigma = int(scheduler.timesteps[0]), scheduler.sigmas[1]
    start = x * scheduler.init_noise_sigma
    steps = torch.tensor([t])
    own = start * backbone.schedule.alpha_bar[t].sqrt().float()
    expected = backbone.x0(own, steps) + sigma * backbone.eps(own, steps)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * found.abs().max())


@needs_transformers
@pytest.mark.parametrize(("name", "more"), [("stable diffusion 3", {}), ("Flux", {}), ("Flux", {"guided": False})])
def test_a_step_along_the_flow(name, more, tmp_path):
    folder = PIPELINES[name](tmp_path, **more)
    backbone, told = load_backbone(folder, "cpu"), given(folder)
    x = x_t(backbone)
    call = {"prompt_embeds": told["text"], "pooled_prompt_embeds": told["pooled"], "guidance_scale": 1.0}
    latents = text_transformer.packed(x) if name == "Flux" else x
    pipeline = {"Flux": "FluxPipeline", "stable diffusion 3": "StableDiffusion3Pipeline"}[name]
    found, scheduler = first_step(folder, latents, pipeline, **call)
    found = text_transformer.unpacked(found, x.shape[-1] // 2) if name == "Flux" else found
    assert scheduler.sigmas[0] == 1  # pure noise: the last row of the table
    steps = torch.tensor([backbone.timesteps - 1])
    sigma = scheduler.sigmas[1]
    expected = (1 - sigma) * backbone.x0(x, steps) + sigma * backbone.eps(x, steps)
    assert torch.allclose(found, expected, atol=2e-4)


PICTURES = {  # kind → its pipeline, and what that is told; both take two steps, the second of them to x0
    "grey": ("DDIMPipeline", {"batch_size": 1}),
    "quantised": ("LDMPipeline", {"batch_size": 1}),
    "DiT": ("DiTPipeline", {"class_labels": [10], "guidance_scale": 1.0}),  # the class behind the last: none
}


@pytest.mark.parametrize("kind", PICTURES)
def test_a_picture_of_a_pipeline_that_is_told_no_prompt(kind, tmp_path):
    folder = PIPELINES[kind](tmp_path)
    backbone, (name, told) = load_backbone(folder, "cpu"), PICTURES[kind]
    pipeline = getattr(diffusers, name).from_pretrained(folder, **({"id2label": {}} if kind == "DiT" else {}))
    pipeline.set_progress_bar_config(disable=True)
    draws = lambda: torch.Generator().manual_seed(5)  # noqa: E731
    with torch.no_grad():
        found = pipeline(**told, num_inference_steps=2, generator=draws(), output_type="np").images
        x = torch.randn(1, *backbone.shape, generator=draws())
        middle, start = torch.tensor([backbone.timesteps // 2]), torch.tensor([0])
        x = q_sample(backbone.x0(x, middle), backbone.eps(x, middle), backbone.schedule.alpha_bar[0])
        expected = (backbone.decode(backbone.x0(x, start)) / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)
    assert expected.std() > 0.01
    assert torch.allclose(torch.from_numpy(found).expand_as(expected), expected, atol=2e-3)


@needs_transformers
@pytest.mark.parametrize("more", [{}, {"sample_size": 128, "use_additional_conditions": True}], ids=str)
def test_two_steps_of_pixart(more, tmp_path):
    """That of 1,024 px, whose grid has a side of 128, is told the size of its pictures, too."""
    folder = pixart(tmp_path, **more)
    (folder / "backbone.json").write_text(json.dumps({"size": SIZE}))
    backbone, told = load_backbone(folder, "cpu"), given(folder)
    parts = {"transformer": diffusers.PixArtTransformer2DModel, "vae": diffusers.AutoencoderKL}
    parts = {name: kind.from_pretrained(folder / name) for name, kind in parts.items()}
    scheduler = diffusers.DDIMScheduler.from_pretrained(folder / "scheduler")
    pipeline = diffusers.PixArtAlphaPipeline(None, None, scheduler=scheduler, **parts)
    pipeline.set_progress_bar_config(disable=True)
    x = x_t(backbone)
    with torch.no_grad():
        found = pipeline(
            negative_prompt=None, prompt_embeds=told["text"], prompt_attention_mask=told["mask"], latents=x,
            guidance_scale=1.0, num_inference_steps=2, height=SIZE, width=SIZE, use_resolution_binning=False,
            output_type="latent",
        ).images  # fmt: skip
    middle, start = torch.tensor([backbone.timesteps // 2]), torch.tensor([0])
    x = q_sample(backbone.x0(x, middle), backbone.eps(x, middle), backbone.schedule.alpha_bar[0])
    expected = backbone.x0(x, start)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max())


# ---- What they are told ----------------------------------------------------------------------------------------


def test_a_class_can_be_chosen(tmp_path):
    folder = PIPELINES["DiT"](tmp_path)
    x, t = torch.randn(1, 4, 8, 8), torch.tensor([300])
    said = {}
    for label in (None, 3, 10):
        (folder / "backbone.json").write_text(json.dumps({"label": label}))
        said[label] = load_backbone(folder, "cpu").x0(x, t)
    assert torch.equal(said[None], said[10]) and not torch.allclose(said[None], said[3], rtol=1e-3)
    (folder / "backbone.json").write_text(json.dumps({"label": 11}))
    with pytest.raises(InputError, match="the network knows the classes 0 to 9"):
        load_backbone(folder, "cpu")


def test_an_old_dit_is_named_by_its_norm(tmp_path):
    folder = PIPELINES["DiT"](tmp_path)
    file = folder / "transformer" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "_class_name": "Transformer2DModel"}))
    assert load_backbone(folder, "cpu").kind == "DiTTransformer2DModel pipeline"


@pytest.mark.parametrize("name", ["stable diffusion", "PixArt", "stable diffusion 3", "Flux"])
def test_without_transformers_the_kept_conditions_are_needed(name, tmp_path, monkeypatch):
    folder = PIPELINES[name](tmp_path)
    (folder / "conditions.safetensors").unlink()
    monkeypatch.setattr("diti.diffusion.kinds.prompts.importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'diti-torch\[prompts\]'"):
        load_backbone(folder, "cpu")


def test_other_conditional_networks_are_refused(tmp_path):
    folder = stable_diffusion(tmp_path)
    file = folder / "unet" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "class_embed_type": "identity"}))
    with pytest.raises(InputError, match="told more than a prompt"):
        load_backbone(folder, "cpu")


def test_what_is_distilled_says_so(tmp_path):
    assert "distilled to guidance" in load_backbone(flux(tmp_path / "dev"), "cpu").caution()
    assert "distilled to a few steps" in load_backbone(flux(tmp_path / "schnell", guided=False), "cpu").caution()
    folder = stable_diffusion(tmp_path / "lcm")
    assert load_backbone(folder, "cpu").caution() == ""
    text_unet(time_cond_proj_dim=4).save_pretrained(folder / "unet")
    lcm = load_backbone(folder, "cpu")
    assert "distilled to few steps" in lcm.caution() and bool(lcm.nothing().isfinite().all())


def test_the_size_of_pictures_can_be_chosen(tmp_path):
    folder = stable_diffusion(tmp_path)
    (folder / "backbone.json").write_text(json.dumps({"size": 32}))
    backbone = load_backbone(folder, "cpu")
    assert backbone.size == 32 and backbone.shape == (4, 16, 16)
    assert backbone.nothing().shape == (1, 4, 16, 16)


def clip(folder, width: int, projected: int | None = None):
    """A tiny CLIP that knows two words, and its tokenizer."""
    words = ["<|startoftext|>", "<|endoftext|>", "a</w>", "face</w>", "l", "o"]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    files = (str(folder / "vocab.json"), str(folder / "merges.txt"))
    config = transformers.CLIPTextConfig(
        vocab_size=10, hidden_size=width, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=7, bos_token_id=0, eos_token_id=1, projection_dim=projected or width,
    )  # fmt: skip
    kind = transformers.CLIPTextModelWithProjection if projected else transformers.CLIPTextModel
    return transformers.CLIPTokenizer(*files, model_max_length=7), kind(config).eval()


def t5(width: int):
    """A tiny T5 that knows the same, and its tokenizer."""
    words = [(word, 0.0) for word in ("<pad>", "</s>", "<unk>", "▁a", "▁face")]
    config = transformers.T5Config(vocab_size=5, d_model=width, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    return transformers.T5TokenizerFast(vocab=words, extra_ids=0), transformers.T5EncoderModel(config).eval()


def reading(part, prompt: str, length: int = 7):
    """Everything that a tokenizer and a text encoder say of a prompt, and which tokens are none."""
    tokens = part[0]([prompt], padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    masked = {} if length == 7 else {"attention_mask": tokens.attention_mask}
    return part[1](tokens.input_ids, output_hidden_states=True, **masked), tokens.attention_mask


def plain_texts(parts, prompt):
    return {"text": reading(parts[0], prompt)[0][0]}


def xl_texts(parts, prompt):
    first, second = (reading(part, prompt)[0] for part in parts)
    text = torch.cat([first.hidden_states[-2], second.hidden_states[-2]], -1)
    zeros = 1.0 if prompt else 0.0  # for the empty prompt XL is told nothing
    return {"text": zeros * text, "pooled": zeros * second.text_embeds}


def pixart_texts(parts, prompt):
    found, mask = reading(parts[0], prompt, 120)
    return {"text": found[0], "mask": mask}


def sd3_texts(parts, prompt):
    first, second = (reading(part, prompt)[0] for part in parts[:2])
    both = torch.cat([first.hidden_states[-2], second.hidden_states[-2]], -1)
    long = parts[2][1](reading_ids(parts[2][0], prompt, 256))[0]
    text = torch.cat([torch.nn.functional.pad(both, (0, long.shape[-1] - both.shape[-1])), long], 1)
    return {"text": text, "pooled": torch.cat([first.text_embeds, second.text_embeds], -1)}


def flux_texts(parts, prompt):
    text = parts[1][1](reading_ids(parts[1][0], prompt, 512))[0]
    return {"text": text, "pooled": reading(parts[0], prompt)[0].pooler_output}


def reading_ids(tokenizer, prompt: str, length: int):
    return tokenizer([prompt], padding="max_length", max_length=length, return_tensors="pt").input_ids


TEXTS = {  # kind → its text encoders, in order, and what they should say
    "stable diffusion": (lambda home: [clip(home, 8)], plain_texts),
    "stable diffusion XL": (lambda home: [clip(home, 4), clip(home, 4, 10)], xl_texts),
    "PixArt": (lambda home: [t5(12)], pixart_texts),
    "stable diffusion 3": (lambda home: [clip(home, 4, 5), clip(home, 4, 5), t5(12)], sd3_texts),
    "Flux": (lambda home: [clip(home, 10), t5(12)], flux_texts),
}


@needs_transformers
@pytest.mark.parametrize("kind", TEXTS)
def test_the_prompt_is_encoded_by_the_pipeline_s_own_text_encoders(kind, tmp_path):
    """With tiny ones beside it: what is told is what they say, and another prompt tells another thing."""
    folder, (make, say) = PIPELINES[kind](tmp_path / "p"), TEXTS[kind]
    (folder / "conditions.safetensors").unlink()
    index, parts = json.loads((folder / "model_index.json").read_text()), make(tmp_path / "words")
    for number, part in enumerate(parts):
        for name, held in zip(("tokenizer", "text_encoder"), part, strict=True):
            place = f"{name}_{number + 1}" if number else name
            held.save_pretrained(folder / place)
            index[place] = ["transformers", type(held).__name__]
    (folder / "model_index.json").write_text(json.dumps(index))
    told = {}
    for prompt in ("", "a face"):
        backbone = load_backbone(folder, "cpu", prompt=prompt)
        with torch.no_grad():
            expected = say(parts, prompt)
        told[prompt] = {name: getattr(backbone, f"told_{name}") for name in backbone.told_always}
        assert told[prompt].keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.allclose(told[prompt][name], tensor.float(), atol=1e-5), name
    assert not any(torch.allclose(tensor, told["a face"][name], atol=1e-3) for name, tensor in told[""].items())
    assert bool(backbone.nothing().isfinite().all())
    backbone.save(tmp_path / "saved")  # the copy needs no text encoder
    assert torch.equal(load_backbone(tmp_path / "saved", "cpu").told_text, told["a face"]["text"])


# ---- As a user chooses -----------------------------------------------------------------------------------------


def test_convert_writes_a_backbone_with_what_was_chosen(diti_here, tmp_path):
    folder = PIPELINES["DiT"](tmp_path / "p")
    words = ("--label", "3", "--blocks", "transformer_blocks.0", "--out", tmp_path / "b")
    done = diti_here("convert", folder, *words)
    assert done.returncode == 0 and "a backbone of" in done.stdout, done.stderr
    backbone = load_backbone(tmp_path / "b", "cpu")
    assert backbone.choices.label == 3 and backbone.blocks() == ("transformer_blocks.0",)
    assert load_backbone(folder, "cpu", label=3, blocks=["transformer_blocks.0"]).digest() == backbone.digest()
    sized = diti_here("convert", stable_diffusion(tmp_path / "sd"), "--size", "32", "--out", tmp_path / "c")
    assert sized.returncode == 0 and load_backbone(tmp_path / "c", "cpu").size == 32
    assert load_backbone(tmp_path / "c", "cpu").told_text.shape == (1, 5, 8)


@pytest.mark.parametrize(
    ("source", "words", "said"),
    [
        ("DiT", ("--label", "11"), "the network knows the classes 0 to 9"),
        ("DiT", ("--prompt", "a face"), "is told no prompt"),
        ("DiT", ("--blocks", "transformer_blocks.0", "blocks.9"), "the network has no block 'blocks.9'"),
        ("latent", ("--label", "1"), "is told no label"),
        ("toyfaces32", ("--prompt", "a face"), "prompt can be chosen of a pipeline of diffusers"),
    ],
)
def test_choices_that_do_not_fit(source, words, said, diti_here, tmp_path):
    folder = PIPELINES[source](tmp_path / "p") if source in PIPELINES else source
    done = diti_here("convert", folder, *words, "--out", tmp_path / "b")
    assert done.returncode == 2 and said in done.stderr


def test_an_inpainting_network_is_refused(tmp_path):
    folder = stable_diffusion(tmp_path)
    text_unet(in_channels=9).save_pretrained(folder / "unet")
    with pytest.raises(InputError, match="takes 9 channels and its pictures have 4"):
        load_backbone(folder, "cpu")


def test_a_size_must_fit_the_autoencoder(tmp_path):
    with pytest.raises(InputError, match="size is 33 px; give a multiple of 2"):
        load_backbone(stable_diffusion(tmp_path), "cpu", size=33)


def test_a_prompt_that_was_changed_by_hand_is_not_what_is_kept(tmp_path):
    load_backbone(stable_diffusion(tmp_path / "p"), "cpu").save(tmp_path / "b")
    assert load_backbone(tmp_path / "b", "cpu").told_text.shape == (1, 5, 8)
    (tmp_path / "b" / "backbone.json").write_text(json.dumps({"prompt": "a face"}))
    with pytest.raises(InputError, match=r"no text_encoder, which .* the prompt 'a face'|prompts\]"):
        load_backbone(tmp_path / "b", "cpu")
