"""When noise removes an attribute: section 4.1 and appendix C of the paper, in closed form and measured.

Time-steps are code time-steps 0..T-1 (the paper's minus 1). Notation: N pairs of images, G time-steps of a grid,
T all time-steps, K subsets, D dims of z. A pair (x0, y0 = g_i · x0) differs in one attribute Z_i and nothing else.

Two slips in appendix C: the covariance in its derivation must read Σ = (1 - ᾱ_t) I, and part 2 of its proof must
say that the *smaller* mean error belongs to the coarser attribute. Eq. 5 itself is right.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.core.device import fitted
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.rng import numpy_generator
from diti.data import toyfaces
from diti.data.attributes import read_table
from diti.data.decode import decode_file
from diti.data.readers.toyfaces_source import MOST
from diti.diffusion.backbone import Backbone
from diti.diffusion.schedule import Schedule, gather, q_sample
from diti.representation.partition import Partition

Reconstruct = Callable[[Tensor, Tensor], Tensor]  # u_θ: (x_t (B, ...), t (B,)) → x̂0 (B, ...)
Advance = Callable[[int], None]  # gets the number of images just computed

UNSEEN = MOST  # index of the first toy face that no dataset called toyfaces:N can hold
GRID_POINTS, BATCH = 20, 64  # time-steps of a measured curve; pairs at once
PAIR_COLUMNS = ("attribute", "first", "second")


# ---- The error of telling two images apart ----------------------------------------------------------------


def attribute_error(distance: Tensor, abar: Tensor) -> Tensor:
    """Err(x0, y0, t) = ½ [1 - erf(√ᾱ_t ||y0 - x0|| / (2 √(2 (1 - ᾱ_t))))]. Eq. 5.

    The best that any decision between the two images can do, so a lower bound for a trained model.
    """
    return 0.5 * torch.erfc(abar.sqrt() * distance / (2 * (2 * (1 - abar)).sqrt()))


def ovl(distance: Tensor, abar: Tensor) -> Tensor:
    """Overlap of the densities q(x_t | x0) and q(y_t | y0), twice Err. Eq. 5."""
    return 2 * attribute_error(distance, abar)


def pixel_change(x0: Tensor, y0: Tensor) -> Tensor:
    """(N,) ||x0 - g_i · x0||, the granularity of an attribute, in float64."""
    return (x0.double() - y0.double()).flatten(1).norm(dim=1)


def closed_form_curve(distances: Tensor, schedule: Schedule) -> Tensor:
    """(T,) the mean over pairs of eq. 5 at every time-step."""
    return attribute_error(distances.double(), schedule.alpha_bar[:, None]).mean(1)


def monte_carlo_error(
    u_theta: Reconstruct, schedule: Schedule, x0: Tensor, y0: Tensor, t: int, noise: Tensor
) -> Tensor:
    """(N,) Err by its definition (section 4.1) for one draw of noise (N, ...): 0, ½ or 1.

    Both images of a pair are noised, reconstructed in one batch, and counted when the reconstruction lies closer
    to the other image. They share the noise: the two expectations are separate, and one noise rarely fools both,
    so fewer draws are needed. A tie, which is certain for equal images, counts half, as in eq. 5.
    """
    both = torch.cat([x0, y0])
    steps = torch.full((len(both),), t)
    x_t = q_sample(both, torch.cat([noise, noise]), gather(schedule.alpha_bar, steps, both))
    x_hat, y_hat = u_theta(x_t, steps).chunk(2)
    return (_side_of(y0, x0, x_hat) + _side_of(x0, y0, y_hat)) / 2


def _side_of(near: Tensor, far: Tensor, x: Tensor) -> Tensor:
    """(N,) 1 where x is closer to `near` than to `far`, 0 where not, ½ where equally close.

    The difference of the two squared distances, halved and multiplied out: no large numbers cancel.
    """
    across = ((x - (near + far) / 2) * (near - far)).flatten(1).sum(1)
    return (across.sign() + 1) / 2


def monte_carlo_curve(
    u_theta: Reconstruct,
    schedule: Schedule,
    x0: Tensor,
    y0: Tensor,
    timesteps: Sequence[int],
    rng: torch.Generator,
    draws: int = 1,
    advance: Advance = lambda images: None,
) -> Tensor:
    """(G, N) Err of each pair at each time-step, over `draws` draws of noise; the same noise at all time-steps."""
    errors = torch.zeros(len(timesteps), len(x0), dtype=torch.float64)
    for start in range(0, len(x0), BATCH):
        part = slice(start, start + BATCH)
        for _ in range(draws):
            noise = torch.randn(x0[part].shape, generator=rng, dtype=x0.dtype)
            for row, t in enumerate(timesteps):
                errors[row, part] += monte_carlo_error(u_theta, schedule, x0[part], y0[part], t, noise) / draws
                advance(2 * len(noise))
    return errors


def reconstructor(backbone: Backbone) -> Reconstruct:
    """u_θ of a backbone: one network call, on its device, without gradients and without clamping."""
    device = backbone.device

    @torch.no_grad()
    def u_theta(x_t: Tensor, t: Tensor) -> Tensor:
        return fitted(backbone.x0, x_t.to(device), t.to(device)).cpu()

    return u_theta


@torch.no_grad()
def held_by(backbone: Backbone, pixels: Tensor) -> Tensor:
    """Pictures (N, 3, H, W) as a backbone has them, (N, C, h, h): what noise is added to."""
    return torch.cat([fitted(backbone.encode, part.to(backbone.device)).cpu() for part in pixels.split(BATCH)])


@torch.no_grad()
def shown_by(backbone: Backbone, x0: Tensor) -> Tensor:
    """The pictures (N, 3, H, W) that a backbone has as x0 (N, C, h, h)."""
    return torch.cat([fitted(backbone.decode, part.to(backbone.device)).cpu() for part in x0.split(BATCH)])


def time_grid(timesteps: int, points: int = GRID_POINTS) -> list[int]:
    """Time-steps from 0 to T-1, closer together at first, where the fine attributes are lost."""
    share = np.linspace(0, 1, points) ** 1.5
    return sorted({round(float(s) * (timesteps - 1)) for s in share})


def lost_at(curve: Sequence[float] | Tensor, timesteps: Sequence[int], tau: float) -> float | None:
    """t(Z_i): the smallest t from which on the mean Err is at least tau. Definition and theorem of section 4.1.

    Between the time-steps of the curve it is interpolated linearly. None: not lost at the last one, T.
    """
    if not 0 < tau < 0.5:
        raise InputError(f"tau is {tau}; Err runs from 0 to 0.5, so give a number in between, such as 0.1")
    errors = [float(e) for e in curve]
    below = [place for place, error in enumerate(errors) if error < tau]
    if not below:
        return float(timesteps[0])
    last = below[-1]
    if last == len(errors) - 1:
        return None
    share = (tau - errors[last]) / (errors[last + 1] - errors[last])
    return timesteps[last] + share * (timesteps[last + 1] - timesteps[last])


# ---- Pairs that differ in one attribute -------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """Images x0 and g_i · x0 of each attribute, (N, 3, H, W) both, drawn or read on demand."""

    counts: dict[str, int]  # attribute → N
    load: Callable[[str], tuple[Tensor, Tensor]]


def exact_pairs(count: int, size: int, seed: int) -> Pairs:
    """Toy faces with exactly one factor changed; none of the faces is in a dataset of toy faces."""

    def load(attribute: str) -> tuple[Tensor, Tensor]:
        x0, y0 = toyfaces.pairs(attribute, count, size, seed, start=UNSEEN)
        return to_float(x0), to_float(y0)

    return Pairs(dict.fromkeys(toyfaces.NAMES, count), load)


def given_pairs(path: Path, count: int, size: int) -> Pairs:
    """The first `count` pairs of each attribute from a table: attribute, first, second (paths relative to it)."""
    table = read_table(path)
    if missing := [name for name in PAIR_COLUMNS if name not in table.column_names]:
        raise InputError(f"{path} has no column {', '.join(missing)}; a pair needs {', '.join(PAIR_COLUMNS)}")
    files: dict[str, list[tuple[Path, Path]]] = {}
    for row in table.select(PAIR_COLUMNS).to_pylist():
        if None in row.values() or "" in row.values():
            raise InputError(f"{path} has a row with an empty cell ({row}); fill it or remove the row")
        of_attribute = files.setdefault(str(row["attribute"]), [])
        if len(of_attribute) < count:
            of_attribute.append((path.parent / str(row["first"]), path.parent / str(row["second"])))
    if not files:
        raise InputError(f"{path} holds no pairs; give at least one row")

    def load(attribute: str) -> tuple[Tensor, Tensor]:
        first, second = zip(*files[attribute], strict=True)
        x0, y0 = (np.stack([decode_file(file, size) for file in side]) for side in (first, second))
        return to_float(x0), to_float(y0)

    return Pairs({attribute: len(found) for attribute, found in files.items()}, load)


# ---- Which subset of z carries an attribute, and in which order attributes are lost ------------------------


def movement_shares(z_x: Tensor, z_y: Tensor, std: Tensor, partition: Partition) -> Tensor:
    """(K,) how far each subset of z moves from x0 to g_i · x0, as shares of 1; all 0 where nothing moves.

    Distance is the mean square over the subset's dims, each in units of its own std (D,) over the data, so that
    a wide subset counts no more than a narrow one.
    """
    moved = ((z_y - z_x).double() / std.double()).square().mean(0)  # (D,)
    owned = [list(partition.dims_of(subset)) for subset in range(partition.subsets)]
    distance = torch.stack([moved[dims].mean() if dims else moved.new_zeros(()) for dims in owned])
    return distance / distance.sum() if distance.sum() > 0 else distance


def subset_position(subset: int, partition: Partition) -> float:
    """Mean time-step of a subset's segment.

    In `matched` the subset's place among the K, scaled to time: subsets may share a start, and ranks must tell
    them apart.
    """
    if partition.kind == "matched":
        return (subset + 0.5) * partition.timesteps / partition.subsets
    start, stop = partition.time_range(subset)
    return (start + stop - 1) / 2


def mean_position(shares: Tensor, partition: Partition) -> float:
    """Mean time-step of a movement over the subsets."""
    return sum(float(s) * subset_position(k, partition) for k, s in enumerate(shares))


def spearman(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    """Rank correlation, ties with their mean rank; entries with a nan do not count, a constant gives nan."""
    return float(_spearman_of_rows(np.asarray(a, float)[None], np.asarray(b, float)[None])[0])


def _spearman_of_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`spearman` of each row of a (R, N) with that row of b."""
    from scipy.stats import rankdata

    known = np.isfinite(a) & np.isfinite(b)
    ranks = (rankdata(np.where(known, x, np.inf), axis=1) for x in (a, b))  # what is not known comes last
    first, second = (np.where(known, r - (known.sum(1, keepdims=True) + 1) / 2, 0) for r in ranks)
    scale = np.sqrt((first**2).sum(1) * (second**2).sum(1))
    return np.where(scale > 0, (first * second).sum(1) / np.where(scale > 0, scale, 1), math.nan)


def rank_agreement(columns: Mapping[str, Sequence[float]], seed: int, draws: int = 1_000) -> list[dict[str, Any]]:
    """Spearman correlation of every two columns (a number per attribute) with a 95 % interval.

    The interval comes from a bootstrap over attributes, the same attributes drawn for all columns.
    """
    count = len(next(iter(columns.values())))
    chosen = numpy_generator(seed, "bootstrap-attributes").integers(count, size=(draws, count))
    found = []
    for first, second in itertools.combinations(columns, 2):
        a, b = np.asarray(columns[first], float), np.asarray(columns[second], float)
        resampled = _spearman_of_rows(a[chosen], b[chosen])
        resampled = resampled[np.isfinite(resampled)]
        low, high = np.quantile(resampled, [0.025, 0.975]).tolist() if len(resampled) else (math.nan, math.nan)
        numbers = {"rho": spearman(a, b), "low": low, "high": high}
        known = {name: value if math.isfinite(value) else None for name, value in numbers.items()}  # JSON: no nan
        found.append({"first": first, "second": second, **known})
    return found


def dominates(a: Tensor, b: Tensor) -> bool:
    """Whether distances a are first-order stochastic dominant over b: P(a > x) >= P(b > x) at every x, once >."""
    x = torch.cat([a, b])
    above_a, above_b = ((values[None] > x[:, None]).double().mean(1) for values in (a, b))
    return bool((above_a >= above_b).all() and (above_a > above_b).any())


def dominance_kept(distances: Mapping[str, Tensor], lost: Mapping[str, float]) -> dict[str, int]:
    """Part 2 of the theorem: of all attributes (i, j) with i dominant over j, how many have t(Z_i) > t(Z_j)."""
    ordered = [(i, j) for i, j in itertools.permutations(distances, 2) if dominates(distances[i], distances[j])]
    return {"dominant": len(ordered), "lost_later": sum(lost[i] > lost[j] for i, j in ordered)}
