"""A model in a notebook: what it says, for every kind, and that nothing in it can do harm."""

import dataclasses

import pytest
import torch
from shown_html import Shown
from tiny import CODE, DIMS, tiny_diffae, tiny_model

from diti.representation.methods.tcvae import VAEDecoder
from diti.representation.models.axis_names import AxisName
from diti.representation.models.direct import DirectModel
from diti.representation.models.model import Model
from diti.representation.networks.encoder import build_encoder
from diti.representation.partition import Partition

HARM = '<script>alert("1")</script>'


def parts(method):
    return Partition.single(1, DIMS), torch.zeros(DIMS), torch.ones(DIMS), method


def encoder():
    return build_encoder(CODE, 16, 0)


KINDS = {
    "DiTi": (tiny_model, "12 dims in 4 subsets (balanced)", "yes, from a code and noise"),
    "PDAE": (lambda: dataclasses.replace(tiny_model(subsets=1), method="pdae"), "12 dims", "yes, from a code and"),
    "Diff-AE": (tiny_diffae, "12 dims", "yes, from a code and noise"),
    "β-TCVAE": (
        lambda: DirectModel(encoder(), *parts("tcvae"), decoder=VAEDecoder(16, DIMS, (32, 16))),
        "12 dims", "a code alone",
    ),
    "SimCLR": (lambda: Model(encoder(), *parts("simclr")), "12 dims", "no: it encodes only"),
}  # fmt: skip


@pytest.mark.parametrize("title", KINDS)
def test_each_kind_says_what_it_is(title):
    build, code, decodes = KINDS[title]
    html = build()._repr_html_()
    text = Shown(html).text
    assert f"{title} model" in text and "images 16 px" in text and len(html) < 6_000
    assert f"code {code}" in text and f"decodes {'yes, from ' if 'no:' not in decodes else ''}" in text
    assert decodes in text and ("coarse" in text) == (title == "DiTi"), "only what is cut has a strip"


def test_subsets_stand_from_fine_to_coarse_with_their_times():
    shown = Shown(tiny_model()._repr_html_())
    assert shown.titles == [
        "subset 0 (early): 3 dims, seen from t 0 on", "subset 1 (early): 3 dims, seen from t 250 on",
        "subset 2 (middle): 3 dims, seen from t 500 on", "subset 3 (late): 3 dims, seen from t 750 on",
    ]  # fmt: skip
    assert "t 0t 250t 500t 750finecoarse" in shown.text and "dims       0-2 (3)  t 0-249" in shown.text
    model = dataclasses.replace(tiny_model(), partition=Partition.matched(1000, 3, DIMS, [0, 0, 152]))
    assert "t 0t 0t 152" in Shown(model._repr_html_()).text, "as solved ones have them"


def test_many_subsets_stay_small():
    model = dataclasses.replace(tiny_model(), partition=Partition.balanced(1000, 128, 512))
    html = model._repr_html_()
    shown = Shown(html)
    assert len(shown.titles) == 128 and len(html) < 40_000 and "t 992t" not in shown.text


def test_names_are_text_whatever_they_hold():
    model = dataclasses.replace(tiny_model(), method=HARM, mean=None, std=None)
    model.axis_names = {3: AxisName("beard", "clean-shaven"), 1: AxisName(HARM)}
    html = model._repr_html_()
    text = Shown(html).text
    assert f"{HARM} model" in text and f"named axes 1 {HARM}, 3 beard ↔ clean-shaven" in text
    assert "mean and std not known" in text and "<script" not in html
    model.axis_names = {axis: AxisName("long" * 1000) for axis in range(DIMS)}
    assert len(model._repr_html_()) < 8_000, "a name of any length"
