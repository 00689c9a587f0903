"""A part of tests/fuzz.py that fits in the suite: nasty options for every verb, every file damaged in turn."""

from __future__ import annotations

import random

import pytest
from fuzz import draw_words, told
from fuzz_world import DAMAGES, READERS, Case, World, words_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from diti.verbs import VERBS

SECONDS = 0.3  # a command that works so long has passed its checks
AT_ONCE = ("pretrain", "train", "solve")  # stopped where they first tell of progress: behind it lies only work
FEW = {"demo": 4, "analyze": 4, "counterfactuals": 4, "export": 2, "presets": 2}  # slow ones, or short of options


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World.build(tmp_path_factory.mktemp("fuzz"))


def check(world: World, case: Case) -> None:
    outcome = world.try_out(case, 0 if case.words[0] in AT_ONCE else SECONDS)
    assert not outcome.faults(case), told(case, outcome)


@pytest.mark.parametrize("verb", VERBS)
def test_options_drawn_from_their_types_and_from_nasty_values(verb, world):
    @settings(
        max_examples=FEW.get(verb, 8), derandomize=True, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate], print_blob=False,
    )  # fmt: skip
    @given(st.randoms(use_true_random=False))
    def run(draw):
        check(world, Case(draw_words(verb, draw)))

    run()


@pytest.mark.parametrize("entry", READERS)
def test_every_file_damaged_in_turn(entry, world):
    """Each file in two ways, drawn, for one of the commands that read it."""
    draw = random.Random(entry)
    found = []
    for file in world.files[entry]:
        for damage in draw.sample(list(DAMAGES), 2):
            case = Case(words_of(draw.choice(READERS[entry][:6])), file, damage)
            outcome = world.try_out(case, SECONDS)
            found += [told(case, outcome)] if outcome.faults(case) else []
    assert not found, "\n".join(found)
