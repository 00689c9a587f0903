"""Figures drawn from logs: what is averaged, and that nothing is drawn from nothing."""

import math

import pytest
from PIL import Image

from diti.core.runs import RunFolder
from diti.reporting.training_figures import (
    LossPanel,
    draw_loss_by_time,
    draw_training_losses,
    mean_by_stretch,
    save_loss_by_time,
    save_training_losses,
    smoothed,
)


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    for step in range(1, 31):
        folder.log(images=64 * step, loss=1 / step, loss_by_time=[1 / step, None if step % 2 else 0.5])
    folder.log(images=64 * 30, validation_loss=0.1)  # no training step
    return folder.path


def test_a_stretch_without_images_does_not_count_in_its_mean():
    assert mean_by_stretch([[1.0, None], [3.0, 4.0]]) == [2.0, 4.0]
    assert math.isnan(mean_by_stretch([[None], [None]])[0])


def test_neighbours_are_averaged_once_and_few_points_stay():
    x, y = smoothed(list(range(20)), [float(v) for v in range(20)], width=5)
    assert (x, y) == ([2.0, 7.0, 12.0, 17.0], [2.0, 7.0, 12.0, 17.0])
    assert smoothed([1, 2, 3], [4, 5, 6]) == ([1, 2, 3], [4, 5, 6])


def test_both_figures_are_pictures(run, tmp_path):
    for path in (
        save_loss_by_time(run, "eq. 6", tmp_path / "a9.png"),
        save_training_losses(
            [LossPanel("eq. 6", {"DiTi": run, "no log": tmp_path / "elsewhere"})], tmp_path / "a10.png"
        ),
    ):
        with Image.open(path) as picture:
            assert picture.format == "PNG" and picture.width > 500


def test_nothing_is_drawn_without_a_log(tmp_path):
    assert save_loss_by_time(tmp_path, "eq. 6", tmp_path / "a9.png") is None
    assert save_training_losses([LossPanel("eq. 6", {"DiTi": tmp_path})], tmp_path / "a10.png") is None
    assert not list(tmp_path.glob("*.png"))


def test_every_loss_has_a_panel_of_its_own_with_its_name(run, tmp_path):
    nothing = tmp_path / "elsewhere"
    panels = [
        LossPanel("eq. 6", {"DiTi": run, "PDAE": run, "no log": nothing}),
        LossPanel("no log at all", {"SimCLR": nothing}),
        LossPanel("nats", {"VAE": run}),
        LossPanel("hinge", {"GAN": run}),
    ]
    drawn = draw_training_losses(panels).axes
    assert [(axes.get_ylabel(), [line.get_label() for line in axes.lines]) for axes in drawn] == [
        ("eq. 6", ["DiTi", "PDAE"]), ("nats", ["VAE"]), ("hinge", ["GAN"]),
    ]  # fmt: skip
    assert draw_loss_by_time(run, "eq. 6").axes[0].get_ylabel() == "eq. 6"
