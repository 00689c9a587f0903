"""`tools/halve.py`: what is shipped is half as large, holds its U-Net once, and is the same model."""

import sys
from pathlib import Path

import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import diti

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from halve import halve

SOFTWARE = 305  # the entry of EXIF data


def names(file):
    with safe_open(file, "pt") as weights:
        return set(weights.keys())


def test_a_copy_to_ship_is_the_same_model_with_its_unet_stored_once(solved_folder, solved_faces, tmp_path):
    halve(solved_folder, tmp_path / "m")
    pixels = solved_faces.images[:8]
    whole, half = (diti.load(folder).encode(pixels) for folder in (solved_folder, tmp_path / "m"))
    assert (half - whole).abs().max() < 0.02 * whole.std() and not torch.equal(half, whole)
    assert names(tmp_path / "m" / "encoder" / "model.safetensors") == {
        "feature_mean", "feature_std", "head.weight", "head.bias"
    }  # fmt: skip
    for file in (tmp_path / "m" / name for name in ("losses.png", "reconstructions.png")):
        with Image.open(file) as picture:
            assert picture.mode == "P" and picture.getexif().get(SOFTWARE) == "diti", "still known as our own"


def test_a_trunk_that_was_trained_on_is_kept(solved_folder, tmp_path):
    encoder = diti.load(solved_folder).encoder
    with torch.no_grad():
        encoder.trunk.conv_in.weight.add_(0.5)
    model = tmp_path / "trained"
    halve(solved_folder, model)
    save_file(encoder.state_dict(), model / "encoder" / "model.safetensors")
    halve(model, tmp_path / "m")
    kept = load_file(tmp_path / "m" / "encoder" / "model.safetensors")["trunk.conv_in.weight"]
    assert torch.equal(kept, encoder.trunk.conv_in.weight.half())
