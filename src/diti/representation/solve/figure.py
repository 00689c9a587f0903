"""A picture of the degree of loss: which dim of z is lost when."""

from __future__ import annotations

from pathlib import Path

from diti.core.images import save_figure
from diti.representation.solve.solution import Solution
from diti.representation.solve.stretches import Stretches


def save_lost_figure(solution: Solution, stretches: Stretches, path: Path) -> Path:
    """Lost share of every dim over time, and the line from which on the decoder may see it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    dims = solution.lost.shape[1]
    drawn = axes.pcolormesh(
        stretches.bounds, range(dims + 1), solution.lost.T.numpy(), vmin=0, vmax=1, cmap="magma", rasterized=True
    )
    cut = solution.partition
    starts = [cut.time_range(subset)[0] for subset in range(cut.subsets) for _ in cut.dims_of(subset)]
    axes.step([starts[0], *starts], range(dims + 1), where="post", color="white", linewidth=1.2)
    axes.set(xlabel="time-step t", ylabel="dim of z, fine to coarse", ylim=(dims, 0))
    axes.set_title("share of each dim that x_t does not tell; right of the line g may see it", fontsize=9)
    figure.colorbar(drawn, ax=axes, label="lost share")
    return save_figure(figure, path)
