"""Pushing an image along axes of z, by number and by name."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from diti.cli import main
from diti.core.errors import InputError
from diti.edit.axes import deviation, move_axes, planned_moves
from diti.representation.models.axis_names import AxisName


def test_a_dim_moves_by_its_standard_deviation():
    assert deviation(1, torch.tensor([1.0, 2.0, 3.0])).tolist() == [0, 2, 0]


def test_each_axis_has_a_row_and_several_one_together(model):
    model.axis_names = {2: AxisName("beard", "clean-shaven")}
    moves, names = planned_moves(model, ["clean-shaven", "5"])
    assert moves == [{2: -1.0}, {5: 1.0}, {2: -1.0, 5: 1.0}]
    assert names == ["clean-shaven", "axis 5", "together"]
    assert planned_moves(model, ["5"]) == ([{5: 1.0}], ["axis 5"])
    with pytest.raises(InputError, match="no axis is called 'hat'"):
        planned_moves(model, ["hat"])


def test_scale_0_gives_the_reconstruction(model, faces):
    moved = move_axes(model, faces[0], ["1"], (0.0, 3.0), sampling_steps=3)
    torch.testing.assert_close(moved.images[0, 0], moved.reconstruction, atol=1e-5, rtol=0)
    assert not torch.allclose(moved.images[0, 1], moved.reconstruction, atol=1e-3)
    assert moved.picture().width > 4 * 90


def test_the_verb(model, faces, tmp_path, capsys):
    model = dataclasses.replace(model, mean=torch.full((12,), 0.1))  # 0 and 1 would count as not known
    model.save(tmp_path / "model")
    Image.fromarray(np.asarray(faces[0])).save(tmp_path / "face.png")
    words = ["manipulate", str(tmp_path / "model"), str(tmp_path / "face.png"), "--sampling-steps", "3"]
    out = ["--out", str(tmp_path / "out.png")]
    assert main([*words, "--axis", "1,3", "--scale=-2,2", *out]) == 0
    assert "wrote" in capsys.readouterr().out and (tmp_path / "out.png").is_file()
    for wrong, complaint in (
        (["--axis", "99"], "axis 99 does not exist"),
        (["--axis", "z099"], "axis 99 does not exist"),
        (["--axis", "1", "--attribute", "hat"], "--axis moves along axes alone; leave --attribute out"),
        (["--axis", "1", "--stop-guidance", "1.5", "--dims", "999"], "leave --dims, --stop-guidance out"),
        (["--axis", "1", "--subset", "late", "--save-as", "x"], "leave --subset, --save-as out"),
        (["--axis", "1", "--selection", "weight", "--along", "weight"], "leave --selection, --along out"),
        (["--axis", "1", "--scale", "x"], "--scale 'x' is not a list of numbers"),
        ([], "name what to change, in one way: --attribute NAME, --axis AXIS, or example images with --like"),
    ):
        assert main([*words, *wrong, *out]) == 2
        assert complaint in capsys.readouterr().err
