"""Anybody's own model: what is asked of it, which blocks are looked at, and when its code is run."""

import logging
import os
import sys
from pathlib import Path

import pytest
import torch
from own_models import BESIDE, CODE, HandTransformer, HandUNet

import diti
from diti.core.errors import InputError
from diti.diffusion.backbone import load_backbone
from diti.diffusion.blocks import around_bottleneck, as_map, seen_by, watch
from diti.diffusion.kinds.own import backbone


def own(network=None, **changes):
    settings = {"schedule": "linear", "size": 16, **changes}
    return backbone(network or HandUNet(settings.get("channels", 3)), **settings)


class Gives(torch.nn.Module):
    """A network that gives whatever a function makes of x_t."""

    def __init__(self, what):
        super().__init__()
        self.layer, self.what = torch.nn.Conv2d(3, 3, 1), what

    def forward(self, x, time):
        return self.what(self.layer(x))


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A user's two files; the fields of the first can be changed."""

    def write(**changes):
        fields = {"seed": 0, "channels": 3, "schedule": "linear", "predicts": "epsilon", "size": 16, **changes}
        (tmp_path / "mine.py").write_text(CODE.format(**fields))
        (tmp_path / "beside.py").write_text(BESIDE)
        return f"{tmp_path / 'mine.py'}:make"

    return write


# ---- What is asked of a model ---------------------------------------------------------------------------------


def test_it_is_what_the_module_says(tmp_path):
    network = HandUNet()
    mine = own(network, predicts="v_prediction")
    x, t = torch.randn(2, 3, 16, 16), torch.tensor([1, 700])
    assert torch.equal(mine(x, t), network(x, t)) and mine.prediction_type == "v_prediction"
    assert mine.kind == "model of your own" and mine.shape == (3, 16, 16) and mine.bounded
    assert not any(p.requires_grad for p in network.parameters())


def test_a_grey_model_of_28_px_takes_rgb_pictures():
    mine = own(HandUNet(1), size=28, channels=1)
    x = torch.rand(2, 3, 28, 28) * 2 - 1
    assert mine.encode(x).shape == (2, 1, 28, 28) and mine.decode(mine.encode(x)).shape == x.shape


def test_a_range_of_its_own_is_kept_in_x0():
    mine = own(range=(0, 1))
    x = torch.rand(2, 3, 16, 16) * 2 - 1
    assert torch.allclose(mine.encode(x), (x + 1) / 2) and torch.allclose(
        mine.decode(mine.encode(x)), x, atol=1e-6
    )
    assert not mine.bounded


def test_a_way_in_and_out_makes_it_a_model_of_latents():
    ways = {"encode": lambda x: x[:, :1, ::2, ::2], "decode": lambda x: x.repeat(1, 3, 2, 2)}
    mine = own(HandUNet(1), **ways)
    assert (
        mine.shape == (1, 8, 8)
        and mine.size == 16
        and mine.decode(torch.zeros(2, 1, 8, 8)).shape == (2, 3, 16, 16)
    )
    with pytest.raises(InputError, match="both encode and decode"):
        own(encode=ways["encode"])


def test_sigma_that_is_learned_too_is_left_out():
    class Both(HandUNet):
        def forward(self, x, time):
            return torch.cat([super().forward(x, time)] * 2, 1)

    x, t = torch.randn(1, 3, 16, 16), torch.tensor([5])
    assert own(Both())(x, t).shape == x.shape


@pytest.mark.parametrize(
    ("network", "changes", "said"),
    [
        (lambda x, t: x, {}, "torch.nn.Module"),
        (HandUNet(1), {}, r"failed on x_t \(1, 3, 16, 16\)"),
        (HandUNet().middle, {}, "failed on x_t"),
        (torch.nn.Identity(), {}, "has no weights"),
        (Gives(lambda x: {"x": x}), {}, "gives dict"),
        (Gives(lambda x: x[:, :, 1:]), {}, r"gives \(3, 15, 16\) for x_t of \(3, 16, 16\)"),
        (HandUNet(3), {"channels": 4}, "pictures are RGB"),
        (HandUNet(3), {"predicts": "velocity"}, "predicts is 'velocity'"),
        (HandUNet(3), {"range": (1, 0)}, "value_range"),
        (HandUNet(3), {"size": "16"}, "size is '16'"),
        (HandUNet(3), {"size": 0}, "size is 0"),
        (HandUNet(3), {"features": "middle"}, "give a list of names"),
        (HandUNet(3), {"features": ["middle", "meddle"]}, "no block 'meddle'"),
        (HandUNet(3), {"schedule": [0.1, 2.0]}, "betas range from 0.1 to 2"),
        (HandUNet(3), {"encode": lambda x: 1 / 0, "decode": lambda x: x}, r"encode failed on .*ZeroDivisionError"),
        (HandUNet(3), {"encode": lambda x: x.flatten(1), "decode": lambda x: x}, r"encode gives \(1, 768\)"),
        (HandUNet(3), {"encode": lambda x: 3, "decode": lambda x: x}, "encode gives int"),
        (HandUNet(3), {"encode": lambda x: x, "decode": lambda x: x[:, :1]}, r"decode gives \(1, 1, 16, 16\)"),
    ],
    ids=[
        "function", "channels", "arguments", "no weights", "dictionary", "other size", "four", "predicts", "range",
        "text size", "size zero", "text features", "no such block", "betas", "encode fails", "encode is flat",
        "encode gives a number", "decode is grey",
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_at_once(network, changes, said):
    with pytest.raises(InputError, match=said):
        own(network, **changes)


# ---- Which blocks ---------------------------------------------------------------------------------------------


def test_blocks_around_the_smallest_grid():
    network = HandUNet()
    mine = own(network)
    assert list(mine.blocks()) == ["down.0", "middle.0", "up.0"]
    assert [tuple(h.shape) for h in mine.maps(torch.zeros(2, 3, 16, 16), 50, mine.blocks())] == [
        (2, 8, 8, 8), (2, 16, 4, 4), (2, 8, 8, 8),
    ]  # fmt: skip


def test_blocks_of_a_transformer_a_quarter_a_half_and_three_quarters_of_the_way():
    mine = own(HandTransformer())
    names = list(mine.blocks())
    assert names == ["blocks.1", "blocks.2", "blocks.4"]
    assert [tuple(h.shape) for h in mine.maps(torch.zeros(2, 3, 16, 16), 50, names)] == [(2, 16, 4, 4)] * 3


def test_a_network_without_maps_must_name_its_blocks():
    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(768, 768)

        def forward(self, x, time):
            return self.layer(x.flatten(1)).reshape(x.shape)

    with pytest.raises(InputError, match="name some as features"):
        around_bottleneck(network := Flat(), lambda: network(torch.zeros(1, 3, 16, 16), None))


def test_tokens_of_the_image_lie_behind_those_of_a_text():
    image = torch.randn(2, 6, 5)
    text = torch.randn(2, 7, 5)
    expected = image.transpose(1, 2).reshape(2, 5, 2, 3)
    assert torch.equal(as_map(torch.cat([text, image], 1), (2, 3)), expected)
    assert torch.equal(as_map((text, image), (2, 3)), expected)
    assert as_map(torch.randn(2, 7, 5)) is None and as_map("nothing") is None


def test_lanes_do_not_see_each_other():
    """Two threads in one network at once: each sees its own images."""
    from concurrent.futures import ThreadPoolExecutor

    network = torch.nn.Sequential(torch.nn.Identity())
    watch(network, ["0"])
    work = lambda value: seen_by(["0"], lambda: network(torch.full((1, 1, 64, 64), value)))[0]  # noqa: E731
    with ThreadPoolExecutor(4) as pool:
        for value, seen in enumerate(pool.map(work, map(float, range(200)))):
            assert bool((seen == value).all())


# ---- When code is run -----------------------------------------------------------------------------------------


def test_a_named_function_makes_it_and_a_line_says_so(code, caplog):
    name = code(channels=1, size=28)
    with caplog.at_level(logging.WARNING):
        mine = load_backbone(name, "cpu")
    assert "running your code: make() of" in caplog.text and mine.shape == (1, 28, 28)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nothing", "returned int"),
        ("broken", "failed in line .*: ZeroDivisionError"),
        ("leaves", "failed in line .*: SystemExit"),
        ("missing", "no function"),
    ],
)
def test_what_goes_wrong_in_it_is_one_line(function, said, code):
    with pytest.raises(InputError, match=said):
        load_backbone(code().replace(":make", f":{function}"), "cpu")


def test_a_file_alone_lacks_its_function(code):
    with pytest.raises(InputError, match=r"name its function .*mine\.py:make"):
        load_backbone(code().removesuffix(":make"), "cpu")


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(InputError, match="is not a file"):
        load_backbone(f"{tmp_path}/none.py:make", "cpu")


def test_a_folder_runs_only_what_was_named_here(code, tmp_path, monkeypatch):
    name = code()
    load_backbone(name, "cpu").save(tmp_path / "saved")
    assert load_backbone(tmp_path / "saved", "cpu").code == name
    monkeypatch.setenv("DITI_CACHE", str(tmp_path / "another machine"))
    with pytest.raises(InputError, match="was not named on this machine before"):
        load_backbone(tmp_path / "saved", "cpu")
    monkeypatch.setenv("DITI_BACKBONE", "mine")
    with pytest.raises(InputError, match="DITI_BACKBONE: mine names no function"):
        load_backbone(tmp_path / "saved", "cpu")
    monkeypatch.setenv("DITI_BACKBONE", name)
    assert load_backbone(tmp_path / "saved", "cpu").code == name


def test_code_that_was_changed_within_a_second_is_read_again(code, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    name = code()
    path = Path(name.rpartition(":")[0])
    before, written = load_backbone(name, "cpu").digest(), path.stat()
    assert code(seed=1) == name and path.stat().st_size == written.st_size
    os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert load_backbone(name, "cpu").digest() != before


def test_changed_code_is_asked_for_again_and_changed_weights_are_refused(code, tmp_path, monkeypatch):
    load_backbone(code(), "cpu").save(tmp_path / "saved")
    name = code(seed=1)
    with pytest.raises(InputError, match="which was changed"):
        load_backbone(tmp_path / "saved", "cpu")
    monkeypatch.setenv("DITI_BACKBONE", name)
    with pytest.raises(InputError, match="makes another diffusion model now"):
        load_backbone(tmp_path / "saved", "cpu")


def test_made_in_python_it_is_given_again_in_python(tmp_path):
    mine = own()
    model = diti.solve("toyfaces:120", mine, out=tmp_path / "m", code_dim=6, subsets=2, stretches=2, pixel_axes=8,
                       images=64, device="cpu")  # fmt: skip
    with pytest.raises(InputError, match=r"diti\.load\(folder, backbone="):
        diti.load(tmp_path / "m")
    x = torch.rand(2, 3, 16, 16) * 2 - 1
    again = diti.load(tmp_path / "m", "cpu", backbone=mine)
    assert torch.equal(again.encode(x, value_range=(-1, 1)), model.encode(x, value_range=(-1, 1)))
    with pytest.raises(InputError, match="another diffusion model"):
        diti.load(tmp_path / "m", "cpu", backbone=own(HandUNet()))
