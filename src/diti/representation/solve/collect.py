"""The pass over images: each goes through every stretch of time-steps once, and only sums remain.

It ends by a rule: when more images would remove hardly more of the loss. Several processes share it, and a stopped
one continues. Notation: S stretches, P pixel axes, E whitened features, D length of z, N images.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from diti.core.device import fitted, frozen, on_host, sent
from diti.core.errors import InputError
from diti.core.lanes import in_lanes, lanes_on
from diti.core.meeting import told_by_main
from diti.core.processes import State, is_main, place, state_from_main
from diti.core.progress import progress_bar
from diti.core.rng import Draws
from diti.core.state import load_state, save_state
from diti.diffusion.backbone import Backbone
from diti.diffusion.schedule import gather, q_sample
from diti.representation.solve.look import Look, Walk
from diti.representation.solve.stretches import Stretches
from diti.representation.solve.sums import Sums

BATCH = 64  # images of one lane at once: what a 32 px U-Net needs for them fits a core's cache
CHUNK = 512  # images of each process after which they add up their sums, and a state may be written
GROWTH = 1.5  # of the images between two looks at the validation loss
PER_REGRESSOR = 4  # images per regressor before the first look
MOST_IMAGES = 60_000
SECONDS_BETWEEN_STATES = 30.0
NORM_BOUND = 1e8  # of a mean squared pixel: a frozen model that is off by more is broken

LossRemoved = Callable[[Sums], float]  # share of the validation loss that a solution from these sums removes


@dataclass(frozen=True, eq=False)
class Pass:
    """What the images are shown to, and who does which part of it."""

    backbone: Backbone
    stretches: Stretches
    look: Look
    seed: int
    trunk: Callable[[Tensor], Tensor] | None = None  # looks at the reconstructions of the first images, too
    shown_images: int = 0  # how many of them

    def new_sums(self, shown: bool = False, device: torch.device | None = None) -> Sums:
        axes, features = self.look.pixel_axes.count, len(self.look.whitening.variance)
        return Sums(self.stretches.count, axes, features, shown, device)

    def extend(self, sums: Sums, walk: Walk, until: int, advance: Callable[[int], None]) -> Iterator[None]:
        """Take in the images of the walk up to position `until`; yields after every chunk."""
        rank, count = place()
        most = min(BATCH if on_host(walk.device) else CHUNK, walk.at_once)
        while sums.images < until:
            first = sums.images
            stop = min(until, first + count * CHUNK)
            alone = count == 1 and on_host(walk.device)
            part = sums if alone else self.new_sums(sums.has_shown, walk.device)
            for batch in batches_of(range(first, stop), most, rank, count):
                self.take_in(part, walk, batch.start, len(batch))
                advance(min(count * len(batch), stop - batch.start))
            if not alone:
                sums.add(part.home().over_processes())
                self.require_finite(sums)
            yield

    def take_in(self, sums: Sums, walk: Walk, start: int, count: int) -> None:
        """The images at these positions, at one draw from each stretch: the lanes share the stretches."""
        x, rows = walk.clean(start, count)
        look = self.look.there
        phi = look.phi_of(walk, start, x, rows)
        sums.add_images(phi)
        trunk = self.trunk if sums.has_shown and start < self.shown_images else None
        if trunk is not None:
            sums.add_shown_images(phi)
        draws = Draws(self.seed, start, count)

        def at(stretch: int) -> None:
            t = sent(self.stretches.draw(stretch, draws.uniform(f"{walk.purpose}-time-{stretch}")), x.device)
            noise = draws.normal(f"{walk.purpose}-noise-{stretch}", tuple(x.shape[1:]), x.device)
            x_t = q_sample(x, noise, gather(self.backbone.schedule.alpha_bar, t, x))
            with frozen(x.device):
                u = fitted(self.backbone.x0, x_t, t).float()  # the sums are those of the whole batch
            if trunk is not None:
                sums.add_shown(stretch, look.whitening(fitted(trunk, self.backbone.within(u))), phi)
            lost = x - u
            squares = lost.to(phi.dtype).square().flatten(1).sum(1)
            if on_host(x):  # elsewhere the sums of a chunk are looked at
                require_finite(squares, x[0].numel(), self.stretches, stretch)
            axes = look.pixel_axes
            sums.add_stretch(stretch, axes.coordinates(u), phi, axes.difference(lost), squares)

        for _ in in_lanes(at, range(self.stretches.count), lanes_on(walk.device)):
            pass

    def require_finite(self, sums: Sums) -> None:
        """As below, of the mean over all images."""
        axes = self.look.pixel_axes
        for stretch, squares in enumerate(sums.tensors["lost"] / sums.images):
            require_finite(squares, axes.channels * axes.size**2, self.stretches, stretch)


def batches_of(images: range, most: int, rank: int, count: int) -> Iterator[range]:
    """The batches of one of `count` processes: of several all are of about one size, so none waits for long."""
    rounds = math.ceil(len(images) / (count * most))
    together = most if count == 1 else math.ceil(len(images) / (count * rounds))
    return (images[start:][:together] for start in range(rank * together, len(images), count * together))


def require_finite(squares: Tensor, pixels: int, stretches: Stretches, stretch: int) -> None:
    """InputError for a diffusion model whose reconstruction is not a number, or absurd, in a stretch.

    squares (B,): squared errors of images, summed over their pixels.
    """
    if not bool((squares < NORM_BOUND * pixels).all()):  # false for nan, too
        first, stop = stretches.bounds[stretch], stretches.bounds[stretch + 1] - 1
        raise InputError(
            f"the diffusion model's reconstruction is not a usable number at some t in {first}..{stop}; "
            "check its weights and its scheduler's betas and prediction_type"
        )


# ---- How many images ---------------------------------------------------------------------------------------


def remaining_gain(before: tuple[int, float], now: tuple[int, float]) -> float:
    """Share of the loss that endlessly more images would still remove, from two scores (images, share removed).

    What is left to gain falls as 1 / N: score = limit - c / N.
    """
    (few, low), (many, high) = before, now
    return (high - low) / (many / few - 1)


def next_mark(regressors: int, scores: list[tuple[int, float]], tolerance: float) -> int:
    """Images at which to look again: a half more, or where the rule expects to end."""
    if not scores:
        return _rounded(PER_REGRESSOR * regressors)
    images = scores[-1][0]
    grown = GROWTH * images
    if len(scores) > 1:
        expected = images * remaining_gain(*scores[-2:]) / tolerance
        grown = min(grown, max(expected, images + BATCH))
    return min(MOST_IMAGES, _rounded(grown))


def enough(scores: list[tuple[int, float]], tolerance: float) -> bool:
    """Whether more images would remove less than `tolerance` of the loss, or too many were seen."""
    if scores and scores[-1][0] >= MOST_IMAGES:
        return True
    return len(scores) > 1 and remaining_gain(*scores[-2:]) <= tolerance


def _rounded(images: float) -> int:
    """Up to whole batches."""
    return -int(-images // BATCH) * BATCH


# ---- The pass ----------------------------------------------------------------------------------------------


def collect(
    job: Pass,
    walk: Walk,
    score: LossRemoved,
    *,
    regressors: int,
    images: int | None,
    tolerance: float,
    state: Path | None,
    log: Callable[..., None],
) -> Sums:
    """Sums over `images` images, or over as many as the rule asks for; continues from the newest `state`.

    log: told each look once, those that the state knows of first.
    """
    sums, scores = job.new_sums(shown=job.trunk is not None), []
    if (found := state_from_main(lambda: loaded(state))) is not None:
        sums.restore(found[0])
        scores = [(int(n), float(share)) for n, share in found[1]["scores"]]
    for look in scores:
        _tell(log, look)
    saved, continued_at = time.monotonic(), sums.images
    main = is_main()
    while (images is None and not enough(scores, tolerance)) or (images is not None and sums.images < images):
        mark = images or max(next_mark(regressors, scores, tolerance), sums.images)
        label = "the pass" if images else "the pass, to the next look"
        with progress_bar(label, mark, start=sums.images, shown=main) as advance:
            for _ in job.extend(sums, walk, mark, advance):
                if main and state is not None and time.monotonic() - saved > SECONDS_BETWEEN_STATES:
                    save_state(state, sums.images, sums.state(), {"scores": scores})
                    saved = time.monotonic()
        if images is None:
            scores.append((sums.images, told_by_main(partial(score, sums))))
            _tell(log, scores[-1])
    if main and state is not None and sums.images > continued_at:
        save_state(state, sums.images, sums.state(), {"scores": scores})  # what follows may be stopped too
    return sums


def loaded(state: Path | None) -> State | None:
    """The newest state in a folder, where there is one."""
    found = None if state is None else load_state(state)
    return None if found is None else found[:2]


def _tell(log: Callable[..., None], look: tuple[int, float]) -> None:
    log(images=look[0], loss_removed_from_sums=look[1])
