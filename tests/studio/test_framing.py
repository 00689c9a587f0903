"""A face in a photograph is found, cut out and turned as the model's pictures show theirs."""

import io

import numpy as np
import pytest
from PIL import Image

import diti
from diti.core.errors import InputError
from diti.studio.framing import Framing, find_face, framing_of
from diti.studio.uploads import decoded
from diti.studio.world import open_world

pytest.importorskip("skimage", reason="needs scikit-image, of the extra studio")
WALL = Image.fromarray(np.random.default_rng(0).integers(90, 160, (320, 480, 3), np.uint8))


@pytest.fixture(scope="module")
def faces():
    return np.asarray(diti.open_data("faces").images)


@pytest.fixture(scope="module")
def framing(faces):
    return framing_of(list(faces[:16]))


def photograph(face, side, left, top, roll):
    """A wall with a face in it that leans clockwise by so many degrees."""
    picture, face = WALL.copy(), Image.fromarray(face).resize((side, side), Image.Resampling.BICUBIC)
    shape = Image.new("L", face.size, 255).rotate(-roll)
    picture.paste(face.rotate(-roll, Image.Resampling.BICUBIC), (left, top), shape)
    return picture


def as_file(picture):
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("row", "side", "left", "top", "roll"), [(121, 150, 40, 100, 18), (106, 230, 210, 60, -12)]
)
def test_a_face_in_a_photograph_is_found_and_cut_out(faces, framing, row, side, left, top, roll):
    picture = photograph(faces[row], side, left, top, roll)
    face = find_face(picture)
    assert face.roll == pytest.approx(roll, abs=8)
    assert face.width / framing.width == pytest.approx(side, rel=0.12)
    assert np.hypot(face.x - left - side / 2, face.y - top - side / 2) < 0.1 * side
    cut = decoded(as_file(picture), 64, framing)
    inner = (slice(16, 56), slice(12, 52))  # without the wall
    error, before = (
        np.abs(p[inner] - faces[row][inner].astype(float)).mean() for p in (cut, decoded(as_file(picture), 64))
    )
    assert cut.shape == (64, 64, 3) and error < 25 < before


def test_a_picture_without_a_face_is_refused_in_a_friendly_line(framing):
    with pytest.raises(InputError, match="No face was found in this picture"):
        decoded(as_file(WALL), 64, framing)
    assert find_face(WALL.resize((9, 9))) is None


def test_a_picture_that_is_framed_already_stays_nearly_as_it_is(faces, framing):
    cuts = np.stack([framing.cut(Image.fromarray(face), 64) for face in faces[20:26]])
    assert np.abs(cuts - faces[20:26].astype(float)).mean() < 20


def test_beyond_its_edges_a_photograph_is_mirrored(faces):
    corner = Framing(0.5, 0.5, 0.2).cut(Image.fromarray(faces[0]), 64)
    assert corner.min() < 250 and (corner.reshape(-1, 3).std(0) > 10).all()
    assert not (corner == 0).all(-1)[:8].any(), "no black border"


def test_a_model_whose_pictures_show_no_faces_takes_the_centre(solved_folder, solved_faces):
    assert open_world(str(solved_folder), str(solved_faces.path)).framing is None
    assert framing_of([]) is None
