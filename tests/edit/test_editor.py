"""Images kept inverted: what is moved, against the functions that do it once."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny import without_decoder

from diti.core.errors import InputError
from diti.edit.axes import move_axes
from diti.edit.compose import step_for
from diti.edit.directions import Direction, code_space_hash
from diti.edit.editor import Editor
from diti.edit.manipulate import manipulate
from diti.representation.models.axis_names import AxisName

STEPS = 3


@pytest.fixture(scope="module")
def named(model):
    std = torch.linspace(0.5, 1.5, model.dims)
    copy = dataclasses.replace(model, std=std)
    copy.axis_names = {2: AxisName("beard", "clean-shaven")}
    return copy


@pytest.fixture(scope="module")
def editor(named, faces):
    return named.edit(faces, STEPS)


@pytest.fixture(scope="module")
def direction(named):
    weight = np.linspace(-1, 1, named.dims)
    ones = np.ones(named.dims, np.float32)
    return Direction(
        "hat", "l1", tuple(range(named.dims)), weight, weight, 0.0, "AP", 1.0, 1.0, 0.5, "toyfaces", "", 0,
        code_space_hash(named), 0 * ones, ones,
    )  # fmt: skip


def test_axes_move_as_the_verb_moves_them(named, faces, editor):
    once = move_axes(named, faces[0], ["clean-shaven", "5"], (-2.0, 1.0), sampling_steps=STEPS)
    one = named.edit(faces[0], STEPS)
    drawn = one.draw_each([{"beard": 2.0}, {2: -1}, {"Clean-Shaven": -2, 5: -2}, {}])[:, 0]
    wanted = torch.stack([once.images[0, 0], once.images[0, 1], once.images[2, 0], once.reconstruction])
    torch.testing.assert_close(drawn, wanted, atol=1e-5, rtol=0)
    assert drawn.shape == (4, 3, 16, 16) and isinstance(editor, Editor)


def test_directions_move_as_the_verb_moves_them(named, faces, editor, direction):
    once = manipulate(named, faces, direction, (-0.3, 0.3), sampling_steps=STEPS)
    strip = editor.strip(direction, (-0.3, 0.3))
    torch.testing.assert_close(strip, once.images.clamp(-1, 1), atol=1e-5, rtol=0)
    both = editor.moved({direction: 0.3, 1: 2.0}) - editor.z
    expected = step_for(named, [direction, 1], [0.3, 2.0])
    torch.testing.assert_close(both, torch.from_numpy(expected).float().expand(2, -1), atol=1e-5, rtol=0)


def test_the_image_is_inverted_once(named, faces, monkeypatch):
    calls = []
    infer = type(named).infer_noise
    monkeypatch.setattr(type(named), "infer_noise", lambda self, *a, **k: calls.append(1) or infer(self, *a, **k))
    face = named.edit(faces[0], STEPS)
    before = face.z.clone()
    first = face.draw({0: 1.0})
    assert torch.equal(face.draw({0: 1.0}), first) and torch.equal(face.z, before), "nothing adds up"
    assert calls == [1] and "Editor of 1 images, 3 steps" in repr(face)


@pytest.mark.parametrize(
    ("moves", "complaint"),
    [
        ({12: 1.0}, "axis 12 does not exist"),
        ({"hat": 1.0}, "no axis is called 'hat'.*names in use: beard"),
        ({1: float("nan")}, "scale nan is not a number"),
        ({1: "much"}, "scale 'much' is not a number"),
    ],
)
def test_what_cannot_be_moved_is_told(editor, moves, complaint):
    with pytest.raises(InputError, match=complaint):
        editor.draw(moves)


def test_what_cannot_be_edited_is_told(named, faces, direction, editor):
    with pytest.raises(InputError, match="no variant was given"):
        editor.draw_each([])
    with pytest.raises(InputError, match="learned from an encoder other"):
        editor.draw({dataclasses.replace(direction, encoder="other"): 1.0})
    with pytest.raises(InputError, match="sampling"):
        named.edit(faces, 0)
    blind = without_decoder(named)
    with pytest.raises(InputError, match="simclr model has no decoder"):
        blind.edit(faces)
