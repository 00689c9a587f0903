"""What work costs on GPUs: operations as counted by hand, and the guide's table as counted today."""

from pathlib import Path

import pytest
import torch

from benchmarks import bench_cost

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "machines.md"


def test_a_convolution_and_its_backward_pass_by_hand():
    layer, x = torch.nn.Conv2d(3, 5, 3, padding=1), torch.randn(1, 3, 8, 8, requires_grad=True)
    forward = 2 * 8 * 8 * 3 * 5 * 3 * 3  # a multiplication and an addition for each pixel, channel and weight
    assert bench_cost.operations(lambda: layer(x)) == forward
    assert bench_cost.operations(lambda: layer(x).sum().backward()) == 3 * forward, "to the input and the weights"


def test_time_is_work_over_speed_and_what_is_sent_around_the_ring():
    counted = bench_cost.Counted(64, 0, 0, 0, 0, 0, 0, gradients=1_000_000)
    assert bench_cost.hours(bench_cost.SPEED * 3600, counted, 1, 10) == pytest.approx(1)
    sent = 10 * 2 * 7 / 8 * 1_000_000 / bench_cost.LINK / 3600
    assert bench_cost.hours(bench_cost.SPEED * 3600, counted, 8, 10) == pytest.approx(1 / 8 + sent)


def test_the_guide_shows_what_is_counted(monkeypatch):
    monkeypatch.setenv(bench_cost.PRECISION, bench_cost.FULL)
    counted = bench_cost.count(bench_cost.SHAPES[64])
    rows = [line.split(" | ") for line in GUIDE.read_text(encoding="utf-8").splitlines()]
    shown = {row[0].removeprefix("| "): row[1] for row in rows if len(row) == 4}
    for name, (work, steps) in bench_cost.costs(counted).items():
        times = [bench_cost.told(bench_cost.hours(work, counted, gpus, steps)) for gpus in (1, bench_cost.GPUS)]
        assert shown[name] == f"{work / 1e12:,.0f}, {times[0]}, {times[1]}", name
