"""Figures of the theory, one function and one PNG each: 1a, 1b, loss of attributes over time, their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from matplotlib.ticker import LogLocator
from torch import Tensor

from diti.core.images import grid, save_figure, save_picture, to_uint8
from diti.core.rng import torch_generator
from diti.diffusion.backbone import Backbone
from diti.diffusion.schedule import Schedule, gather, q_sample
from diti.theory import Reconstruct, attribute_error, closed_form_curve, held_by, lost_at, shown_by

INK, GREY, PAIR_COLOURS = "#2b2b33", "#9a9aa5", {"A": "#c8443c", "B": "#e8913a", "C": "#2f6fb3", "D": "#45a5a0"}
POINTS = {"A": (2.0, 2.7), "B": (3.4, 2.3), "C": (1.8, -2.0), "D": (3.2, -2.5)}  # of a sample space of two dims
SHOWN_ERROR = 0.2  # figure 1a shows the time-steps at which the fine and the coarse attribute reach this Err
RECONSTRUCTION_TIMES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75)  # t / T of figure 1b


def save_overlap_figure(schedule: Schedule, path: Path) -> Path:
    """Figure 1a: noise lets four images overlap, first those that differ in a fine attribute, then all."""
    steps = range(schedule.timesteps)
    fine, coarse = _distance("A", "B"), _distance("A", "C")
    times = [lost_at(closed_form_curve(d[None], schedule), steps, SHOWN_ERROR) for d in (fine, coarse)]
    last = schedule.timesteps - 1
    panels = {
        0: "no noise yet",
        last if times[0] is None else round(times[0]): "the fine attribute (A or B) is lost",
        last if times[1] is None else round(times[1]): "the coarse one (A or C) too",
        last: "only noise is left",
    }
    figure = Figure(figsize=(3.1 * len(panels), 3.9), layout="constrained")
    for axes, (t, caption) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        abar = schedule.alpha_bar[t]
        _draw_clouds(axes, float(abar))
        errors = [f"{attribute_error(d, abar).item():.2f}" for d in (fine, coarse)]
        axes.set_title(f"t = {t}", fontsize=12, color=INK)
        axes.set_xlabel(f"{caption}\nErr(A, B) = {errors[0]}    Err(A, C) = {errors[1]}", fontsize=9.5, color=INK)
    return save_figure(figure, path)


def _distance(first: str, second: str) -> Tensor:
    return torch.dist(torch.tensor(POINTS[first], dtype=torch.float64), torch.tensor(POINTS[second]).double())


def _draw_clouds(axes: Any, abar: float) -> None:
    """q(x_t | x0) of each point: its mean √ᾱ x0, a circle of one standard deviation √(1 - ᾱ), and its path."""
    axes.axhline(0, color=GREY, lw=0.6, zorder=0)
    axes.axvline(0, color=GREY, lw=0.6, zorder=0)
    pure_noise = abar**0.5 < 0.05
    for name, (x, y) in POINTS.items():
        colour = PAIR_COLOURS[name]
        mean = (abar**0.5 * x, abar**0.5 * y)
        axes.plot([x, mean[0]], [y, mean[1]], color=colour, lw=0.8, ls=":", zorder=1)
        axes.add_patch(Circle(mean, (1 - abar) ** 0.5, facecolor=colour, alpha=0.22, lw=0, zorder=2))
        axes.add_patch(Circle(mean, (1 - abar) ** 0.5, fill=False, edgecolor=colour, lw=1.4, zorder=3))
        axes.plot(*mean, "o", color=colour, ms=4.5, zorder=4)
        # Beside the mean, off its path; where the four means are one point, at the other end of the path.
        place, side = ((x, y), 9) if pure_noise else (mean, -10)
        length = (x**2 + y**2) ** 0.5
        axes.annotate(
            name, place, (side * x / length, side * y / length), textcoords="offset points", color=colour,
            weight="bold", fontsize=11, ha="center", va="center", zorder=5,
        )  # fmt: skip
    axes.set(xlim=(-1.7, 4.3), ylim=(-3.6, 3.8), aspect="equal", xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_color(GREY)


def save_reconstructions_by_time(
    u_theta: Reconstruct,
    schedule: Schedule,
    images: Tensor,
    seed: int,
    path: Path,
    backbone: Backbone | None = None,
) -> Path:
    """Figure 1b: what the model reconstructs with one call from x_t, for growing t; a row per image (N,3,H,W).

    backbone: whose x0 they are turned into, where that is not pixels.
    """
    x0 = images if backbone is None else held_by(backbone, images)
    times = [int(share * schedule.timesteps) for share in RECONSTRUCTION_TIMES]
    noise = torch.randn(x0.shape, generator=torch_generator(seed, "reconstructions-by-time"))
    columns = [images]
    for t in times:
        steps = torch.full((len(images),), t)
        u = u_theta(q_sample(x0, noise, gather(schedule.alpha_bar, steps, x0)), steps)
        columns.append(u if backbone is None else shown_by(backbone, u))
    sheet = torch.stack(columns, dim=1).flatten(0, 1)  # row by row
    labels = ["image", *(f"t = {t}" for t in times)]
    return save_picture(grid(to_uint8(sheet), len(columns), column_labels=labels), path)


def save_attribute_loss(
    attributes: Mapping[str, Mapping[str, Any]], timesteps: Sequence[int], tau: float, path: Path
) -> Path:
    """Err over t for each attribute: closed form (eq. 5) dashed, Monte Carlo with the trained model solid."""
    names = sorted(attributes, key=lambda name: _time(attributes[name], "lost_at_monte_carlo", timesteps))
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    axes = figure.subplots()
    handles = []
    for place, name in enumerate(names):
        red, green, blue, _ = colormaps["turbo"](0.04 + 0.9 * place / max(1, len(names) - 1))
        colour = (0.88 * red, 0.88 * green, 0.88 * blue)  # yellow is too faint on white
        axes.plot(timesteps, attributes[name]["closed_form"], color=colour, lw=0.9, ls=(0, (4, 2)), alpha=0.8)
        axes.plot(timesteps, attributes[name]["monte_carlo"], color=colour, lw=1.7)
        handles.append(Line2D([], [], color=colour, lw=2.5, label=f"{name}  {_shown(attributes[name])}"))
    axes.axhline(tau, color=INK, lw=1)
    axes.annotate(f"τ = {tau:g}", (timesteps[-1], tau), (0, 4), textcoords="offset points", ha="right", color=INK)
    axes.set(xlabel="time-step t", ylabel="Err: chance of taking one image for the other")
    highest = max(max(attributes[name]["monte_carlo"]) for name in names)  # above ½ by the chance of few draws
    axes.set_ylim(0, max(0.53, 1.03 * highest))
    axes.set_xlim(timesteps[0], timesteps[-1])
    axes.spines[["top", "right"]].set_visible(False)
    styles = [Line2D([], [], color=INK, lw=0.9, ls=(0, (4, 2))), Line2D([], [], color=INK, lw=1.7)]
    axes.legend(
        styles, ["best decision (eq. 5)", "trained model (Monte Carlo)"], frameon=False, loc="lower right",
        bbox_to_anchor=(1, 0.22),
    )  # fmt: skip
    figure.legend(
        handles=handles, loc="outside right center", frameon=False, fontsize=9,
        title="attribute, lost at t", title_fontsize=9,
    )  # fmt: skip
    return save_figure(figure, path)


def save_ordering(attributes: Mapping[str, Mapping[str, Any]], timesteps: Sequence[int], path: Path) -> Path:
    """The theorem's order: how much an attribute changes the picture against when it is lost."""
    names = list(attributes)
    change = [attributes[name]["pixel_change"] for name in names]
    figure = Figure(figsize=(7.6, 5.2), layout="constrained")
    axes = figure.subplots()
    closed, measured = (
        [_time(attributes[name], key, timesteps) for name in names]
        for key in ("lost_at_closed_form", "lost_at_monte_carlo")
    )
    axes.vlines(change, measured, closed, color=GREY, lw=0.7, zorder=1)
    axes.scatter(change, closed, s=30, facecolor="white", edgecolor=GREY, label="best decision (eq. 5)", zorder=2)
    axes.scatter(change, measured, s=34, color="#2f6fb3", label="trained model (Monte Carlo)", zorder=3)
    axes.set(xscale="log", xlabel="mean pixel change ||x0 - g·x0||", ylabel="lost at time-step t")
    axes.set_ylim(0, 1.08 * max(closed + measured))
    axes.set_xlim(0.7 * min(change), 1.5 * max(change))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    _place_names(figure, axes, names, change, measured, list(zip(change * 2, closed + measured, strict=True)))
    return save_figure(figure, path)


def _place_names(
    figure: Any, axes: Any, names: Sequence[str], x: Sequence[float], y: Sequence[float], points: Sequence[Any]
) -> None:
    """Write each name beside its point, at the first of a few places where it covers no other name or point."""
    figure.canvas.draw()  # the layout must stand before places can be compared
    taken = [(px - 4, py - 4, px + 4, py + 4) for px, py in axes.transData.transform(points)]
    places = [(7 * side, dy, align) for dy in (0, 9, -9, 18, -18) for side, align in ((1, "left"), (-1, "right"))]
    for name, px, py in zip(names, x, y, strict=True):
        for dx, dy, side in places:
            text = axes.annotate(
                name, (px, py), (dx, dy), textcoords="offset points", ha=side, va="center", fontsize=8.5, color=INK
            )
            box = text.get_window_extent()
            if not any(box.x0 < b[2] and b[0] < box.x1 and box.y0 < b[3] and b[1] < box.y1 for b in taken):
                break
            if (dx, dy, side) != places[-1]:
                text.remove()
        taken.append((box.x0, box.y0, box.x1, box.y1))


def _time(attribute: Mapping[str, Any], key: str, timesteps: Sequence[int]) -> float:
    """t(Z_i), T where the attribute is never lost."""
    return timesteps[-1] + 1.0 if attribute[key] is None else float(attribute[key])


def _shown(attribute: Mapping[str, Any]) -> str:
    lost = attribute["lost_at_monte_carlo"]
    return "never" if lost is None else f"{lost:.0f}"
