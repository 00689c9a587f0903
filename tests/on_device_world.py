"""What the tests on the pretend device have in common: a small world, and each path on the CPU and there."""

import pretend  # isort: skip - before any backward pass

import inspect
import json
import pkgutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_backbone

import diti
from diti.config import EncoderConfig, TrainConfig, TrainingConfig
from diti.core.objective import LossReport, Objective

DEVICES, LABELS = ("cpu", "pretend"), ("background", "brightness", "hat")
SIZE, STEPS = 16, 3
CODE = EncoderConfig(encoder="residual", code_dim=8, encoder_channels=(8, 16))
SHORT = TrainingConfig(
    images=24, train_batch_size=8, learning_rate=1e-3, ema_decay=0.9, log_images=16, validate_images=16,
    checkpoint_images=16,
)  # fmt: skip
FEW = {  # images that are looked at beside the work, and steps that draw them
    "diffusion.validation.fixed_batches": (16, "valid", None),
    "diffusion.validation.fixed_rows": (16, "valid"),
    "representation.checks.loss_curves": (16,),
    "diffusion.generate.samples": (STEPS, None),
    "representation.models.decoding.DecodingModel.reconstruct": ("inferred", STEPS, 0),
    "exploring.axes.removed_by": (16,),
    "representation.checks.SHOWN": 2,
    "representation.methods.diti.CURVE_IMAGES": 16,
    "diffusion.pretrain.SAMPLES": 2,
    "edit.reach.IMAGES": 2,
    "edit.reach.STEPS": STEPS,
    "edit.gain.ROUNDS": 1,
    "edit.reach.GRID": (1.0, 2.0),
    "representation.methods.base.CHECKED_IMAGES": 16,
    "representation.train_latent.VALIDATION_DRAWS": 32,
    "representation.train_latent.COMPARED": 20,
}
SOLVED = {"code_dim": 8, "subsets": 2, "images": 160, "pixel_axes": 12, "stretches": 2, "whitened": 16}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with faces, two of them as pictures, a backbone and a solved model."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITI_CACHE", str(folder / "cache"))
        look_at_few(patch)
        faces = diti.prepare("toyfaces:120", folder / "data", SIZE, workers=1)
        pq.write_table(faces.table.select(["file", "split", *LABELS]), folder / "data" / "table.parquet")
        tiny_backbone().save(folder / "backbone")
        diti.solve(folder / "data", str(folder / "backbone"), out=folder / "model", device="cpu", **SOLVED)
    for name, image in zip("ab", faces.images[:2], strict=True):
        diti.grid(image[None], columns=1).save(folder / f"{name}.png")
    return folder


def look_at_few(patch: pytest.MonkeyPatch) -> None:
    """Other constants, and other defaults of functions, also of those that torch wraps."""
    for name, few in FEW.items():
        if name.rpartition(".")[2].isupper():
            patch.setattr(f"diti.{name}", few)
        else:
            patch.setattr(inspect.unwrap(pkgutil.resolve_name(f"diti.{name}")), "__defaults__", few)


class Both:
    """Runs a path on the CPU and on the device, each with a cache and a folder of its own, and compares."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch

    def __call__(self, path, tolerance: float = 1e-3) -> None:
        found = {}
        for device in DEVICES:
            self.patch.setenv("DITI_CACHE", str(self.folder / device / "cache"))
            (self.folder / device / "out").mkdir(parents=True)
            with pretend.counting() as counted:
                found[device] = path(device, self.folder / device / "out")
            assert (counted["kernels"] > 0) == (device == "pretend"), "it computes where it was told to"
        same(found["cpu"], found["pretend"], tolerance)


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Both:
    look_at_few(monkeypatch)
    return Both(tmp_path, monkeypatch)


def same(one: object, other: object, tolerance: float) -> None:
    """Numbers, arrays, and whatever holds them."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            if name not in ("command", "model", "images_per_s", "seconds"):
                same(one[name], other[name], tolerance)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            same(*pair, tolerance)
    elif isinstance(one, torch.Tensor | np.ndarray | float):
        np.testing.assert_allclose(plain(one), plain(other), rtol=tolerance, atol=tolerance)
    else:
        assert one == other


def plain(numbers: object) -> np.ndarray:
    return (numbers.cpu() if isinstance(numbers, torch.Tensor) else np.asarray(numbers)).__array__()


def weights(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """All that a model folder learned, but states."""
    files = [file for file in sorted(folder.rglob("*.safetensors")) if "state" not in file.parts]
    return {str(file.relative_to(folder)): load_file(file) for file in files}


def log_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def settings(made: Path, **more) -> TrainConfig:
    places = {"data": str(made / "data"), "backbone": str(made / "backbone")}
    return TrainConfig(**places, subsets=2, training=SHORT, **more)


class Falling(Objective):
    """A regression by Muon and Adam whose loss is no number at the 20th call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = torch.nn.Conv2d(1, 4, 2), 0
        torch.nn.init.ones_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    def is_inner(self, name, parameter):
        return parameter.ndim == 4

    def forward(self, images, draws):
        self.calls += 1
        loss = (self.layer(images) - 1).square().mean((1, 2, 3))
        return LossReport(loss.mean() * (float("nan") if self.calls == 20 else 1.0), loss)
