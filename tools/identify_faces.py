"""`python tools/identify_faces.py PICTURE...`: who a face is, as 128 numbers a picture, printed as a table.

For `diti counterfactuals --identity` and `bench_edits --identity`: pictures of one person lie close together,
whatever the light and the mouth. It needs aligned faces of 64 px or more, and an environment of its own:

    python -m venv identity && identity/bin/pip install dlib-bin face_recognition_models pillow
    diti counterfactuals MODEL --data D --identity "identity/bin/python tools/identify_faces.py"

The network, a ResNet of 29 layers, and the landmarks are those of Davis King, who gave them into the public domain
(CC0, in the package face_recognition_models). The network learned from three million faces, half of which are from
collections for research (FaceScrub, VGG Face). dlib has the Boost licence. A face that is not found: an empty row.
"""

from __future__ import annotations

import csv
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import dlib
import numpy as np
from PIL import Image

SIDE = 256  # px to which a picture is made larger: what finds faces looks for 80 px and more
MARGIN = 64  # px of its own border around it: a face that fills the picture is not found without
JITTERS = 0


def weights(name: str) -> str:
    """Path of a file of face_recognition_models, which itself would not be imported without setuptools."""
    found = find_spec("face_recognition_models")
    if found is None or found.origin is None:
        sys.exit("face_recognition_models is not installed; see the top of this file")
    return str(Path(found.origin).parent / "models" / name)


@cache
def finder() -> dlib.fhog_object_detector:
    return dlib.get_frontal_face_detector()


@cache
def landmarks() -> dlib.shape_predictor:
    return dlib.shape_predictor(weights("shape_predictor_5_face_landmarks.dat"))


@cache
def network() -> dlib.face_recognition_model_v1:
    return dlib.face_recognition_model_v1(weights("dlib_face_recognition_resnet_model_v1.dat"))


def embed(image: Image.Image) -> np.ndarray | None:
    """(128,) of the largest face; None where no face is found."""
    larger = np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    pixels = np.pad(larger, ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0)), mode="edge")
    faces = finder()(pixels, 0)
    if not faces:
        return None
    face = max(faces, key=lambda box: box.area())
    return np.asarray(network().compute_face_descriptor(pixels, landmarks()(pixels, face)))


if __name__ == "__main__":
    names = [f"who_{i:03d}" for i in range(128)]
    writer = csv.writer(sys.stdout)
    writer.writerow(["file", *names])
    for path in sys.argv[1:]:
        found = embed(Image.open(path))
        writer.writerow([path, *(["" for _ in names] if found is None else map(float, found))])
