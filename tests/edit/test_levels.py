import numpy as np
import torch
from PIL import Image

from diti.cli import main
from diti.core.images import to_float
from diti.edit.levels import mix, mixed_code
from diti.representation.partition import Partition


def test_each_third_comes_from_its_image():
    cut = Partition.balanced(30, 3, 6)
    z = torch.stack([torch.zeros(6), torch.ones(6)])
    assert mixed_code(z, cut, {"early": "A", "middle": "A", "late": "B"}).tolist() == [0, 0, 0, 0, 1, 1]
    assert mixed_code(z, cut, {"early": "B", "middle": "A", "late": "B"}).tolist() == [1, 1, 0, 0, 1, 1]


def test_all_of_one_image_is_its_reconstruction(model, faces):
    pixels = to_float(np.stack(faces[:2]))
    only_b = mix(model, pixels, dict.fromkeys(("early", "middle", "late"), "B"), 5)
    torch.testing.assert_close(
        only_b, model.reconstruct(pixels, sampling_steps=5)[1].clamp(-1, 1), atol=1e-4, rtol=0
    )


def test_the_verb_draws_both_and_the_mix(model, faces, tmp_path, capsys):
    model.save(tmp_path / "model")
    for name, face in zip("ab", faces[:2], strict=True):
        Image.fromarray(np.asarray(face)).save(tmp_path / f"{name}.png")
    words = ["mix", str(tmp_path / "model"), str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    assert (
        main([*words, "--fine", "B", "--coarse", "A", "--sampling-steps", "3", "--out", str(tmp_path / "m.png")])
        == 0
    )
    shown = capsys.readouterr().out
    assert "m.png" in shown and "next:" in shown
    assert main([*words, "--fine", "C"]) == 2
    assert "invalid choice 'C' for argument '--fine'. Expected one of ('A', 'B')" in capsys.readouterr().err
