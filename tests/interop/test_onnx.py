"""`diti export`: the file gives torch's numbers in onnxruntime, and describes itself."""

import json
import logging
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import diti
from diti.cli import main
from diti.config import BackboneConfig, EncoderConfig
from diti.core.rng import torch_generator
from diti.diffusion.unet import build_backbone
from diti.interop.onnx import largest_difference, properties
from diti.representation.models.diffusion import DiTi
from diti.representation.networks.encoder import build_encoder
from diti.representation.networks.shift import ShiftDecoder
from diti.representation.partition import Partition

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")

DIMS = 8
SMALL = BackboneConfig(size=16, unshuffle=2, channels=(8, 16), layers=1, head_channels=8)
SHAPES = {  # encoder → the backbone whose images it takes
    "residual": replace(SMALL, size=24),  # ends in 6×6, which its pool of 4×4 does not divide
    "backbone": SMALL,
    "authors": BackboneConfig(size=64, unshuffle=4, channels=(8, 16), layers=1, head_channels=8),
}


def tiny_model(kind: str) -> DiTi:
    """No layer zero, as some are before training, and statistics that are not neutral."""
    backbone = build_backbone(SHAPES[kind], seed=0)
    config = EncoderConfig(encoder=kind, code_dim=DIMS, encoder_channels=(8, 16))
    encoder = build_encoder(config, backbone, seed=1)
    rng = torch_generator(2, "perturb")
    with torch.no_grad():
        for tensor in encoder.state_dict().values():
            tensor.add_(torch.rand(tensor.shape, generator=rng), alpha=0.05)
    mean, std = torch.randn(DIMS, generator=rng), torch.rand(DIMS, generator=rng) + 0.5
    return DiTi(
        encoder, Partition.balanced(1000, 4, DIMS), mean, std, "diti", decoder=ShiftDecoder(backbone, DIMS)
    )


def z_of(file, images):
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return session.run(["z"], {"images": images.numpy()})[0]


@pytest.mark.parametrize("kind", SHAPES)
def test_the_verb_writes_a_file_with_the_numbers_of_the_model(kind, tmp_path, capfd, caplog):
    model, out = tiny_model(kind), tmp_path / "new" / "encoder.onnx"
    model.save(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), "--out", str(out)]) == 0
    shown = capfd.readouterr()
    assert shown.err == "" and not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert shown.out.startswith(f"wrote {out}: images (N, 3, {model.size}, {model.size}) → z (N, {DIMS}), ")
    assert [path.name for path in out.parent.iterdir()] == ["encoder.onnx"]

    for count in (1, 2, 5):
        images = torch.rand(count, 3, model.size, model.size, generator=torch_generator(count, "x")) * 2 - 1
        z = z_of(out, images)
        assert z.dtype == np.float32 and z.shape == (count, DIMS) and np.ptp(z) > 0.1
        np.testing.assert_allclose(z, model.encode(images), rtol=0, atol=1e-4)
    require_working_example(shown.out, model)
    require_description(out, model)
    require_check_that_can_fail(out, model)


def require_working_example(printed: str, model: DiTi) -> None:
    """The three lines that are printed do what they say."""
    lines = [line for line in printed.splitlines() if line.startswith("    ")]
    assert len(lines) == 3
    shape = (4, model.size, model.size, 3)
    names = {"pixels": np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)}
    exec(textwrap.dedent("\n".join(lines)), names)
    np.testing.assert_allclose(names["z"], model.encode(names["pixels"]), rtol=0, atol=1e-4)


def require_description(out: Path, model: DiTi) -> None:
    """The file tells what its reader needs, and no folder of the machine that made it."""
    about = onnxruntime.InferenceSession(out).get_modelmeta().custom_metadata_map
    assert about["diti_version"] == diti.__version__ and about["method"] == "diti"
    assert (about["size"], about["dims"]) == (str(model.size), str(DIMS)) and "[-1, 1]" in about["input"]
    assert json.loads(about["feature_names"]) == model.feature_names()
    for name in ("mean", "std"):
        assert torch.equal(torch.tensor(json.loads(about[name])), getattr(model, name))
        assert properties(replace(model, mean=None, std=None))[name] == "null", "unknown ones are not made up"
    axes = onnx.load(out).graph.input[0].type.tensor_type.shape.dim
    assert [axis.dim_param or axis.dim_value for axis in axes] == ["N", 3, model.size, model.size]
    content = out.read_bytes()
    assert b".py" not in content and str(out.parent).encode() not in content


def require_check_that_can_fail(out: Path, model: DiTi) -> None:
    assert largest_difference(out, model.encoder.eval()) < 1e-4
    with torch.no_grad():
        model.encoder.head.bias[0] += 1e-2
    with pytest.raises(RuntimeError, match="different numbers"):
        largest_difference(out, model.encoder)


def test_bad_input_is_one_line_and_leaves_no_file(tmp_path, capsys, monkeypatch):
    folder, place = tmp_path / "model", tmp_path / "place"
    tiny_model("residual").save(folder)
    place.mkdir()

    def complaint(*words):
        assert main(["export", *map(str, words)]) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.startswith("diti: ") and shown.err.count("\n") == 1
        return shown.err

    assert "is not a model folder" in complaint(place, "--out", place / "a.onnx")
    assert "does not end in .onnx" in complaint(folder, "--out", place)
    (tmp_path / "mine.onnx").write_bytes(b"another network")
    assert "diti did not write it" in complaint(folder, "--out", tmp_path / "mine.onnx")
    for package in ("onnx", "onnxruntime", "onnxscript"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            told = complaint(folder, "--out", place / "a.onnx")
        assert f"needs the extra: pip install 'diti-torch[onnx]' ({package} is missing)" in told
    assert list(place.iterdir()) == []
