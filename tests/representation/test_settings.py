"""Which settings change what a method computes: one answer for sweeps, reports and run folders. What auto is."""

from dataclasses import replace

import pytest

from diti.config import (
    WITHOUT_EFFECT,
    EncoderConfig,
    GANConfig,
    SolutionConfig,
    TrainConfig,
    VAEConfig,
    ViewsConfig,
)
from diti.core.errors import InputError
from diti.diffusion import start_run
from diti.representation import train_latent
from diti.representation.settings import effective, resolve

OTHER = {
    "subsets": 3, "partition": "balanced", "detach": True, "solution": SolutionConfig(tau=0.1),
    "views": ViewsConfig(temperature=0.5), "vae": VAEConfig(tc_weight=2.0), "gan": GANConfig(info_weight=7.0),
}  # fmt: skip
CUTS = {"subsets", "partition", "detach"}


@pytest.mark.parametrize(
    ("method", "used"),
    [
        ("diti", CUTS | {"solution"}),
        ("pdae", {"solution"}),
        ("diffae", set()),
        ("simclr", {"views"}),
        ("tcvae", {"vae"}),
        ("ibgan", {"gan"}),
        ("from elsewhere", {"solution", "views", "vae", "gan"}),
    ],
)
def test_settings_of_other_methods_do_not_count(method, used):
    plain = TrainConfig(method=method)
    for name, value in OTHER.items():
        changed = effective(replace(plain, **{name: value})) != effective(plain)
        assert changed == (name in used), name


def test_what_a_training_tells_does_not_count_and_its_length_does():
    plain = TrainConfig()
    for name in WITHOUT_EFFECT:
        assert effective(replace(plain, training=replace(plain.training, **{name: 7}))) == effective(plain), name
    for name in ("images", "seed", "train_batch_size"):
        assert effective(replace(plain, training=replace(plain.training, **{name: 7}))) != effective(plain), name


def test_a_continued_run_may_change_what_has_no_effect():
    """Such as --gradient-accumulation-steps, which is advised where memory ran out in the middle."""
    assert WITHOUT_EFFECT < start_run.FREE and WITHOUT_EFFECT < train_latent.FREE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("solved", "matched")),
        ({"method": "pdae"}, ("solved", "matched")),
        ({"method": "diffae"}, ("copy", "staged-even")),
        ({"start": "copy"}, ("copy", "staged-even")),
        ({"start": "copy", "partition": "matched"}, ("copy", "matched")),
        ({"partition": "balanced"}, ("solved", "balanced")),
        ({"code": EncoderConfig(encoder="residual")}, ("copy", "staged-even")),
    ],
)
def test_what_is_left_to_auto_is_decided_by_method_and_encoder(changes, expected):
    config = resolve(replace(TrainConfig(), **changes))
    assert (config.start, config.partition) == expected
    assert resolve(config) == config


def test_a_solved_start_needs_the_backbones_features():
    with pytest.raises(InputError, match="--encoder backbone"):
        resolve(TrainConfig(start="solved", code=EncoderConfig(encoder="residual")))
