"""Pieces of the studio's page: names that anybody may have chosen stay text."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from tiny import tiny_model

from diti.studio import markup

HARM = "\"><img src=x onerror=alert(1)>'&"
FACE = np.zeros((16, 16, 3), np.uint8)
SCORES = np.full((1, 1), 0.5)


def header():
    model = dataclasses.replace(tiny_model(), method=HARM)
    return markup.header(SimpleNamespace(model=model, partition=model.partition, dataset=None), "no data")


PIECES = {
    "header": header,
    "heading": lambda: markup.heading(HARM, HARM),
    "note": lambda: markup.note(HARM, busy=True),
    "none chosen": lambda: markup.chosen(None, HARM),
    "chosen": lambda: markup.chosen(FACE, HARM),
    "thumbnails": lambda: markup.thumbnails([FACE], [0], [HARM]),
    "figures": lambda: markup.figures([(HARM, FACE)]),
    "choices": lambda: markup.choices([(HARM, 0)], {0}),
    "strip": lambda: markup.strip(tiny_model().partition, HARM, HARM, single=False),
    "bars": lambda: markup.bars([(HARM, np.ones(4) / 4)], tiny_model().partition),
    "matrix": lambda: markup.matrix_table(
        SimpleNamespace(names=[HARM], scores=["ap"], ends=[4], alone=SCORES, chance=SCORES[0])
    ),
}


@pytest.mark.parametrize("piece", PIECES)
def test_names_are_text_whatever_they_hold(piece):
    html = PIECES[piece]()
    assert "&gt;&lt;img src=x onerror=alert(1)&gt;&#39;&amp;" in html and "<img src=x" not in html
