"""Words from records: what the real parser makes of them is the record again."""

import dataclasses
from pathlib import Path

import pytest

from diti.config import EncoderConfig
from diti.core.command_words import words_of
from diti.core.errors import InputError
from diti.presets import train_preset
from diti.verbs.editing import TrainLatent
from diti.verbs.making import Prepare, Solve, SolveConfig, Train
from diti.verbs.measuring import Analyze, Counterfactuals, Encode, Probe, Report
from diti.verbs.parsing import parse
from diti.verbs.sweeping import Sweep


def parsed(words):
    return parse(words[0], words[1:])


@pytest.mark.parametrize(
    "record",
    [
        Probe(model="m", data="d"),
        Probe(model="m o", data="-d", baselines=False, disentanglement=True, reconstruct=3, against="x.json"),
        Analyze(model="m", data="d", out=Path("a b"), pairs=Path("p.csv"), tau=1e-05, count=-1),
        Counterfactuals(model="m", data="d", classifier_images=7, along="weight"),
        Encode(model="m", images="toyfaces:5"),
        Report(runs=(Path("a"), Path("b")), paper=True, baselines=False),
        Prepare(src="s", out=Path("o"), ignore=("a", "b")),
        Sweep(file=Path("f.yaml"), out=Path("o"), jobs=2),
        Solve(out=Path("o"), settings=SolveConfig(data="d", flip=False, encoder_time=(5, 70), images=9)),
    ],
    ids=lambda record: type(record).__name__,
)
def test_the_words_of_a_record_are_parsed_into_it(record):
    assert parsed(words_of(record)) == record


def test_only_what_differs_from_the_defaults_is_said():
    assert words_of(Probe(model="m", data="d", seed=0, subsets=False)) == [
        "probe",
        "m",
        "--data",
        "d",
        "--no-subsets",
    ]
    assert words_of(TrainLatent(model=Path("m"), data="d"))[0] == "train-latent"


def test_only_what_differs_from_what_the_parser_starts_from_is_said():
    preset = train_preset("toyfaces32")
    settings = dataclasses.replace(
        preset, data="d", code=EncoderConfig(encoder="residual", encoder_channels=(8, 16)),
        training=dataclasses.replace(preset.training, flip=False, learning_rate=2e-5),
    )  # fmt: skip
    record = Train(out=Path("o"), settings=settings)
    words = words_of(record, known=Train(out=Path("o"), settings=preset))
    assert words == [
        "train", "--out", "o", "--data", "d", "--encoder", "residual", "--encoder-channels", "8", "16",
        "--learning-rate", "2e-05", "--no-flip",
    ]  # fmt: skip
    assert parsed(words) == record


def test_none_in_place_of_a_default_is_said():
    known = Counterfactuals(model="m", data="d", dims=3)
    words = words_of(dataclasses.replace(known, dims=None), known)
    assert words == ["counterfactuals", "m", "--data", "d", "--dims", "None"] and parsed(words).dims is None


def test_a_mistyped_option_is_refused_by_the_parser():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Solve:
        out: str
        subets: int = 16

    assert words_of(Solve(out="o")) == ["solve", "--out", "o"]
    with pytest.raises(InputError, match="--subets"):
        parsed(words_of(Solve(out="o", subets=3)))
