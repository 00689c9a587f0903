"""`diti manipulate`: an image file and a wish in, a captioned picture out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diti.core.errors import InputError
from diti.core.images import picture_kind, save_picture
from diti.core.outputs import require_writable
from diti.core.progress import progress_bar
from diti.diffusion.files import locate
from diti.diffusion.generate import SAMPLING_STEPS
from diti.edit.compose import What, strength_at
from diti.edit.directions import Direction, checked_dims
from diti.edit.interpolate import check_scales
from diti.edit.manipulate import manipulate_each, manipulation_picture, stop_step
from diti.edit.reach import even_strengths
from diti.edit.wishes import Means, Wish
from diti.representation.models.inputs import read_images
from diti.representation.models.loading import load_with_decoder


def manipulate_files(
    model: str,
    image: Path,
    wish: Wish,
    dims: int | None,
    scales: Sequence[float] | None,
    out: Path,
    *,
    paper: bool = False,
    selection: str | None = None,
    along: str | None = None,
    local: bool = True,
    masked: bool = True,
    stop_guidance: float = 0.0,
    sampling_steps: int = SAMPLING_STEPS,
    seed: int = 0,
    overwrite: bool = False,
) -> list[str]:
    """`diti manipulate`: an image file → a captioned row; the model folder keeps the direction; what to print.

    scales: strengths of one thing, drawn one by one, or one for each of several things; None: as far as the safe
    range goes, in even steps. paper: they are the paper's s.
    """
    wish.check()
    picture_kind(out)
    require_writable({"--out": [out]}, [image, wish.data, *wish.files], overwrite=overwrite)
    folder, loaded = locate(model), load_with_decoder(model)
    scales = None if scales is None else check_scales(scales)
    _check_count(wish, scales)
    checked_dims(loaded, dims)
    loaded.validate_sampling_steps(sampling_steps)
    stop_step(loaded, stop_guidance, sampling_steps)
    (pixels,), resized = read_images([image], loaded.size)
    means = Means.of(loaded, folder, wish.data)
    means.check(wish)
    directions, lines = means.directions(wish, dims, selection, seed)
    directions, kept = [d.following(along) for d in directions], means.kept(wish)
    variants, labels = _variants(directions, scales, paper)
    steps = loaded.steps_of(1, sampling_steps) + loaded.steps_of(1 + len(variants), sampling_steps)
    with progress_bar("manipulating", steps, unit="steps") as advance:
        result = manipulate_each(
            loaded,
            pixels,
            variants,
            keep=kept,
            local=local,
            masked=masked,
            stop_guidance=stop_guidance,
            sampling_steps=sampling_steps,
            on_step=lambda index, total, x: advance(),
        )
    lines = [*resized, *lines, f"reconstruction error (MSE, pixels in [-1, 1]): {result.errors.mean():.2g}"]
    picture = manipulation_picture(result, _title(directions, wish, paper), labels)
    return [*lines, f"wrote {save_picture(picture, out)}"]


def _check_count(wish: Wish, scales: Sequence[float] | None) -> None:
    """InputError for several things whose strengths are neither one for all nor one for each."""
    wanted = len(wish.attributes)
    if wanted > 1 and scales is not None and len(scales) not in (1, wanted):
        raise InputError(
            f"--attribute names {wanted} things and there are {len(scales)} strengths; give one for each, or one "
            "for all"
        )


def _variants(
    directions: Sequence[Direction], scales: Sequence[float] | None, paper: bool
) -> tuple[list[dict[What, float]], list[str]]:
    """One direction at each strength, rising; or several, each alone and then together. And captions."""
    if len(directions) == 1:
        (only,) = directions
        given = sorted(even_strengths(only.reach) if scales is None else scales)
        strengths = [strength_at(only, scale) for scale in given] if paper else given
        return [{only: strength} for strength in strengths], [f"{scale:+.3g}" for scale in given]
    given = list(scales or [1.0])
    given = given * len(directions) if len(given) == 1 else given
    found = [strength_at(d, s) if paper else s for d, s in zip(directions, given, strict=True)]
    together: dict[What, float] = dict(zip(directions, found, strict=True))
    names = [f"{d.attribute} {scale:+.3g}" for d, scale in zip(directions, given, strict=True)]
    return [*({d: s} for d, s in together.items()), together], [*names, "together"]


def _title(directions: Sequence[Direction], wish: Wish, paper: bool) -> str:
    """What is moved, in which unit, and what stays."""
    unit = "the paper's s" if paper else "1: the usual difference"
    kept = f"; kept: {', '.join(wish.keep)}" if wish.keep else ""
    return f"{', '.join(d.attribute for d in directions)} ({unit}){kept}"
