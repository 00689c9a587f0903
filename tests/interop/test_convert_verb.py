"""`diti convert` as a user runs it, on the authors' files and on a diffusers folder."""

import argparse
import os
import pickle
import re
import shutil

import numpy as np
import pytest
import torch
import yaml

import diti
from diti.cli import main
from diti.config import BackboneConfig
from diti.diffusion.backbone import load_backbone
from diti.diffusion.unet import build_backbone


@pytest.fixture
def tiny(parity, tmp_path):
    """The fixture's frozen U-Net alone, as the authors publish it: a config and a checkpoint."""
    for name in ("ddpm_config.yml", "ddpm_checkpoint.pt"):
        shutil.copy(parity / "pdae_tiny" / name, tmp_path)
    return tmp_path


def test_the_authors_files_become_a_backbone_with_the_same_numbers(tiny, parity, tmp_path, capsys):
    assert main(["convert", str(tiny), "--out", str(tmp_path / "b"), "--size", "64"]) == 0
    assert "64 px, T = 1000" in capsys.readouterr().out
    expected = torch.load(parity / "pdae_tiny" / "expected.pt", weights_only=True)
    with torch.no_grad():
        eps = load_backbone(tmp_path / "b").eps(expected["x_t"], expected["t"])
    assert torch.allclose(eps, expected["eps_frozen"], atol=1e-4)


def test_a_diffusers_folder_is_taken_over(tmp_path):
    shape = BackboneConfig(size=16, channels=(8, 16), layers=1, head_channels=8)
    build_backbone(shape, seed=1).save(tmp_path / "a")
    assert main(["convert", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 0
    a, b = load_backbone(tmp_path / "a").state_dict(), load_backbone(tmp_path / "b").state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_a_trained_checkpoint_becomes_a_model(parity, tmp_path, capsys):
    source = parity / "pdae_tiny"
    expected = torch.load(source / "expected.pt", weights_only=True)
    k = int(expected["k"])
    words = ["convert", str(source), "--out", str(tmp_path / "m"), "--partition", "balanced", "--subsets", str(k)]
    assert main([*words, "--data", "toyfaces:60"]) == 0
    assert f"64 px, z of 64 dims in {k} subsets" in capsys.readouterr().out
    model = diti.load(tmp_path / "m")
    z = model.encode(expected["x0"])
    assert torch.allclose(z, expected["z"], atol=1e-4)
    assert torch.allclose(model.partition.mask(z, expected["t"]), expected["z_masked"], atol=1e-4)
    faces = diti.open_data("toyfaces:60", 64)
    codes = model.encode(np.asarray(faces.images[faces.rows("train")]))
    assert torch.allclose(model.mean, codes.mean(0), atol=1e-4) and not torch.equal(model.std, torch.ones(64))
    assert main(["convert", str(source / "diti_checkpoint.pt"), "--out", str(tmp_path / "p")]) == 0
    shown = capsys.readouterr().out
    assert "a pdae model" in shown and "taken as PDAE" in shown and "no --data" in shown
    assert diti.load(tmp_path / "p").mean is None and diti.load(tmp_path / "p").std is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("base_channel", "x"), ("base_channel", -32), ("base_channel", 32 * 10**9), ("channel_multiplier", ["2"]),
        ("num_residual_blocks_of_a_block", 10**9), ("num_residual_blocks_of_a_block", []), ("num_heads", 0),
        ("attention_resolutions", ["a"]), ("dropout", "much"), ("input_channel", None), ("head_channel", "x"),
    ],
)  # fmt: skip
def test_wrong_values_in_the_authors_files_are_one_line(key, value, tiny, tmp_path, capsys):
    path = tiny / "ddpm_config.yml"
    config = yaml.safe_load(path.read_text())
    config["denoise_fn_config"][key] = value
    path.write_text(yaml.safe_dump(config))
    assert main(["convert", str(tiny), "--out", str(tmp_path / "b"), "--size", "64"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"diti: {tiny}") and shown.count("\n") == 1
    assert not (tmp_path / "b").exists()


def test_weights_that_are_not_finite_are_not_converted(tiny, tmp_path, capsys):
    checkpoint = torch.load(tiny / "ddpm_checkpoint.pt", weights_only=True)
    next(iter(checkpoint["ema_denoise_fn"].values())).view(-1)[0] = torch.nan
    torch.save(checkpoint, tiny / "ddpm_checkpoint.pt")
    assert main(["convert", str(tiny), "--out", str(tmp_path / "b"), "--size", "64"]) == 2
    assert "are not finite numbers" in capsys.readouterr().err


def test_bad_sources_are_one_line(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for source in ("nowhere", tmp_path / "empty"):
        assert main(["convert", str(source), "--out", str(tmp_path / "b")]) == 2
        shown = capsys.readouterr().err
        assert shown.startswith("diti: ") and shown.count("\n") == 1
    assert main(["convert", "nowhere", "--out", str(tmp_path / "b"), "--subsets", "4"]) == 2
    assert "are for trained models" in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    for words, said in (
        (["--out", "file/b"], "is a file, not a folder"),
        (["--out", "b", "--size", "-4"], "--size is -4"),
    ):
        words[1] = str(tmp_path / words[1])
        assert main(["convert", "nowhere", *words]) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "b").mkdir()
    assert main(["convert", "x", "--out", str(tmp_path / "b")]) == 2
    assert "exists; choose a new folder" in capsys.readouterr().err


class Payload:
    """A pickle that leaves a trace where it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("a-pickle-was-run",)


RUNS_MKDIR = r"contains code or objects \(\w+\.mkdir\)"


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (lambda path: torch.save({"model": Payload()}, path), RUNS_MKDIR),
        (lambda path: path.write_bytes(pickle.dumps(Payload(), protocol=2)), RUNS_MKDIR),
        (lambda path: path.write_bytes(pickle.dumps(Payload())), "is a pickle that may contain code"),
        (
            lambda path: torch.save({"a": argparse.Namespace()}, path),
            r"contains code or objects \(argparse\.Namespace\)",
        ),
    ],
    ids=["torch file", "pickle", "later pickle", "object"],
)
def test_a_file_with_code_in_it_is_refused_in_our_own_words(tmp_path, monkeypatch, capsys, write, what):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "evil.pt")
    assert main(["convert", "evil.pt", "--out", "b"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    refused = rf"evil\.pt is not a torch file of plain tensors: it {what}.* is refused; get the weights"
    assert re.search(refused, line)
    assert not re.search("weights_only|torch.load|safe_globals|trust", line)
    assert [path.name for path in tmp_path.iterdir()] == ["evil.pt"], "nothing was run or written"
