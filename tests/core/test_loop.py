"""The loop on a method that is not diffusion: it must not know."""

import dataclasses
import math

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from diti.core.errors import InputError
from diti.core.loop import how_to_end, learning_rate, loss_by_time, make_accelerator, train
from diti.core.objective import LossReport, Objective
from diti.core.rng import stream_seed
from diti.core.runs import RunFolder
from diti.core.standing import Diverged
from diti.core.training import TrainingConfig
from diti.core.weights import Weights

CONFIG = TrainingConfig(
    images=640, train_batch_size=16, learning_rate=0.05, log_images=64, validate_images=160, checkpoint_images=128
)
TARGET = torch.tensor([[1.0, -2.0, 0.5, 3.0]])


class Regression(Objective):
    """Linear regression from noisy inputs; a frozen layer must stay as it is."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        nn.init.eye_(self.frozen.weight)
        nn.init.zeros_(self.frozen.bias)

    def forward(self, images, draws):
        inputs = self.dropout(images.flatten(1)) + 0.01 * draws.normal("jitter", (4,))
        loss = (self.layer(self.frozen(inputs)) - images.flatten(1) @ TARGET.T).square().flatten()
        return LossReport(
            loss.mean(), loss, time_share=draws.integers("t", 10) / 10, parts={"half": loss.mean() / 2}
        )


def batches(start: int, count: int) -> torch.Tensor:
    """(count, 1, 2, 2) images that depend on their position only."""
    generators = (torch.Generator().manual_seed(stream_seed(9, "data", p)) for p in range(start, start + count))
    return torch.stack([torch.randn(1, 2, 2, generator=g) for g in generators])


def run_loop(
    path, config=CONFIG, objective=None, batches=batches, evaluate=lambda images: {"validation_loss": 1.0}
):
    objective = objective or Regression()
    shared = {"label": "test", "evaluate": evaluate, "accelerator": Accelerator(cpu=True)}
    return objective, train(objective, batches, config, RunFolder(path), **shared)


def files_of(path):
    """Contents of a run folder by name. Of what tells the time the rest is compared, or that it is there."""
    found = {}
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        if file.name == "log.jsonl":
            found["log.jsonl"] = log_of(path)
        elif file.parent.name == "tensorboard":
            found.setdefault("tensorboard", []).append(sorted(scalars_of(file)))
        else:
            found[str(file.relative_to(path))] = file.read_bytes()
    return found


def scalars_of(file):
    """(name, images, value) of TensorBoard's file, but for the speed."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    events = (Event.FromString(raw) for raw in RawEventFileLoader(str(file)).Load())
    found = [(value.tag, event.step, value.simple_value) for event in events for value in event.summary.value]
    return [scalar for scalar in found if scalar[0] != "images_per_s"]


class Killed(Exception):
    pass


def killed_after(count: int):
    """Batches that fail like a kill after `count` of them."""
    given = 0

    def source(start, size):
        nonlocal given
        given += 1
        if given > count:
            raise Killed
        return batches(start, size)

    return source


def test_it_learns_and_leaves_frozen_weights_alone(tmp_path):
    objective, weights = run_loop(tmp_path, dataclasses.replace(CONFIG, images=8000))
    assert torch.allclose(objective.layer.weight, TARGET, atol=0.1)
    assert torch.equal(objective.frozen.weight, torch.eye(4))
    assert set(weights.params) == {"layer.weight", "layer.bias"}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("steps", [3, 8, 21, 39])
def test_a_killed_run_continues_bit_for_bit(tmp_path, steps, dropout):
    whole, whole_weights = run_loop(tmp_path / "whole", objective=Regression(dropout))
    with pytest.raises(Killed):
        run_loop(tmp_path / "killed", objective=Regression(dropout), batches=killed_after(steps))
    again, again_weights = run_loop(tmp_path / "killed", objective=Regression(dropout))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    for name, value in whole_weights.tensors().items():
        assert torch.equal(value, again_weights.tensors()[name]), name
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "killed")


def test_a_run_killed_before_its_first_state_logs_nothing_twice(tmp_path):
    often = dataclasses.replace(CONFIG, log_images=CONFIG.train_batch_size)
    with pytest.raises(Killed):
        run_loop(tmp_path / "killed", often, batches=killed_after(3))
    assert log_of(tmp_path / "killed"), "the test needs a line from before the kill"
    run_loop(tmp_path / "killed", often)
    run_loop(tmp_path / "whole", often)
    assert log_of(tmp_path / "killed") == log_of(tmp_path / "whole")


def log_of(path):
    """The log without its clock."""
    return [{k: v for k, v in r.items() if k != "images_per_s"} for r in RunFolder(path).read_log()]


def test_more_images_continue_a_finished_run(tmp_path):
    run_loop(tmp_path / "a", dataclasses.replace(CONFIG, images=320))
    longer, _ = run_loop(tmp_path / "a")
    once, _ = run_loop(tmp_path / "b")
    assert torch.equal(longer.layer.weight, once.layer.weight)


def test_accumulated_parts_equal_one_batch(tmp_path):
    whole, _ = run_loop(tmp_path / "a")
    parts, _ = run_loop(tmp_path / "b", dataclasses.replace(CONFIG, gradient_accumulation_steps=4))
    assert torch.allclose(whole.layer.weight, parts.layer.weight, atol=1e-5)
    for a, b in zip(log_of(tmp_path / "a"), log_of(tmp_path / "b"), strict=True):
        assert a.get("loss", 0) == pytest.approx(b.get("loss", 0), rel=1e-4)


def test_the_log_holds_what_happened(tmp_path):
    run_loop(tmp_path)
    log = log_of(tmp_path)
    lines = [r for r in log if "loss" in r]
    assert [r["images"] for r in lines] == list(range(64, 641, 64))
    assert lines[-1]["loss"] < lines[0]["loss"] and lines[0]["half"] == pytest.approx(
        lines[0]["loss"] / 2, rel=1e-5
    )
    assert len(lines[0]["loss_by_time"]) == 10
    # due at 160, 320, 480, 640; each waits for the next line of the log
    assert [r["images"] for r in log if "validation_loss" in r] == [192, 320, 512, 640]
    assert list((tmp_path / "tensorboard").iterdir()), "TensorBoard's file is there"


def test_the_evaluation_sees_averaged_weights_and_changes_nothing(tmp_path):
    objective = Regression()
    seen = []
    run_loop(
        tmp_path / "a",
        objective=objective,
        evaluate=lambda i: seen.append(objective.layer.weight.detach().clone()) or {},
    )
    plain, weights = run_loop(tmp_path / "b")
    assert torch.equal(seen[-1], weights.average["layer.weight"])
    assert not torch.equal(seen[-1], plain.layer.weight) and torch.equal(
        objective.layer.weight, plain.layer.weight
    )


def test_the_average_follows_its_definition(tmp_path):
    """EMA against a slow loop over the recorded weights."""
    objective = Regression()
    history = []

    def recording(start, count):
        history.append(objective.layer.weight.detach().clone())
        return batches(start, count)

    _, weights = run_loop(tmp_path, objective=objective, batches=recording)
    history.append(objective.layer.weight.detach().clone())
    slow = history[0].double()
    for step, value in enumerate(history[1:]):
        decay = min(CONFIG.ema_decay, (1 + step) / (10 + step))
        slow = decay * slow + (1 - decay) * value.double()
    assert torch.allclose(weights.average["layer.weight"].double(), slow, atol=1e-6)


class Falling(Regression):
    """A loss that is no number at its 20th call, while the rate is that of the start; `forever`: from then on."""

    def __init__(self, forever: bool = False) -> None:
        super().__init__()
        self.calls, self.forever = 0, forever

    def forward(self, images, draws):
        self.calls += 1
        report = super().forward(images, draws)
        bad = self.calls >= 20 if self.forever else self.calls == 20
        return dataclasses.replace(report, total=report.total * math.nan) if bad else report


def test_a_fall_goes_back_to_the_last_good_line_at_half_the_rate(tmp_path, capsys):
    objective, _ = run_loop(tmp_path, objective=Falling())
    assert torch.isfinite(objective.layer.weight).all()
    (fall,) = [r for r in RunFolder(tmp_path).read_log() if "fall" in r]
    assert (fall["images"], fall["noticed_at"]) == (256, 320)
    assert "the gradient is not a number at image 320: back to image 256, rate 0.025" in capsys.readouterr().out
    rates = {r["images"]: r["learning_rate"] for r in RunFolder(tmp_path).read_log() if "loss" in r}
    assert list(rates) == list(range(64, 641, 64))
    assert rates[256] == 2 * rates[320] == 2 * rates[640] == 0.05


def test_after_three_falls_it_ends_and_says_what_to_do(tmp_path):
    with pytest.raises(Diverged, match=r"after 3 retries.*another --out and --learning-rate 0.0016") as ended:
        run_loop(tmp_path, objective=Falling(forever=True))
    assert (tmp_path / "diverged.txt").read_text() == f"{ended.value}\n"
    assert sorted(p.name for p in (tmp_path / "state").iterdir()) == ["000000000128", "000000000256"]


class Steep(Regression):
    """Learns at a rate of 0.05 and below, and loses all at 0.4."""

    must_gain = 0.5

    def forward(self, images, draws):
        report = super().forward(images, draws)
        return dataclasses.replace(report, nothing=(images.flatten(1) @ TARGET.T).square().flatten())


STEEP = dataclasses.replace(CONFIG, learning_rate=30.0)


@pytest.mark.parametrize("steps", [5, 10, 22, 50])
def test_a_killed_run_continues_bit_for_bit_over_its_falls(tmp_path, steps, monkeypatch):
    monkeypatch.setattr("diti.core.standing.MOST_FALLS", 12)
    whole, _ = run_loop(tmp_path / "whole", STEEP, objective=Steep())
    falls = [r for r in RunFolder(tmp_path / "whole").read_log() if "fall" in r]
    assert falls, "the test needs falls"
    with pytest.raises(Killed):
        run_loop(tmp_path / "killed", STEEP, objective=Steep(), batches=killed_after(steps))
    again, _ = run_loop(tmp_path / "killed", STEEP, objective=Steep())
    assert torch.equal(whole.layer.weight, again.layer.weight)
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "killed")


def test_a_network_that_learns_to_predict_nothing_begins_again(tmp_path, monkeypatch):
    monkeypatch.setattr("diti.core.health.PATIENCE", 192)
    frozen = dataclasses.replace(CONFIG, learning_rate=1e-9)
    with pytest.raises(Diverged, match="learned to predict nothing at image 192, after 3 retries"):
        run_loop(tmp_path, frozen, objective=Steep())
    log = RunFolder(tmp_path).read_log()
    assert [(r["images"], r["noticed_at"]) for r in log if "fall" in r] == [(0, 192)] * 3


@pytest.mark.parametrize("schedule, advised", [("constant", "640"), ("hold", "864"), ("cosine", "864")])
def test_a_run_that_no_longer_improves_says_how_to_end_it(tmp_path, capsys, schedule, advised):
    longer = dataclasses.replace(CONFIG, images=1600, lr_schedule=schedule)
    run_loop(tmp_path, longer)
    first = next(line for line in capsys.readouterr().out.splitlines() if "stopping now is fine" in line)
    assert first.endswith(f"Ctrl-C, then the same command with --images {advised}")
    nearly_there, by_the_clock = dataclasses.replace(longer, images=640), dataclasses.replace(longer, minutes=3.0)
    assert how_to_end(nearly_there, 640) == how_to_end(by_the_clock, 640) == ""


def test_stopped_by_hand_it_leaves_its_last_line_as_a_state(tmp_path):
    def stopped(start, count):
        if start >= 100:
            raise KeyboardInterrupt
        return batches(start, count)

    with pytest.raises(KeyboardInterrupt):
        run_loop(tmp_path / "stopped", batches=stopped)
    assert [p.name for p in (tmp_path / "stopped" / "state").iterdir()] == ["000000000064"]
    again, _ = run_loop(tmp_path / "stopped")
    whole, _ = run_loop(tmp_path / "whole")
    assert torch.equal(again.layer.weight, whole.layer.weight)
    assert files_of(tmp_path / "stopped") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("moment", ["a step", "a validation", "the last validation"])
def test_stopped_at_any_moment_and_continued_a_run_leaves_what_a_whole_one_does(tmp_path, moment):
    def stopped_batches(start, count):
        if moment == "a step" and start >= 600:  # the last state but one would be of 512 images
            raise KeyboardInterrupt
        return batches(start, count)

    def stopped_evaluation(images):
        if images == {"a validation": 512, "the last validation": 640}.get(moment):
            raise KeyboardInterrupt
        return {"validation_loss": 1.0}

    with pytest.raises(KeyboardInterrupt):
        run_loop(tmp_path / "stopped", batches=stopped_batches, evaluate=stopped_evaluation)
    run_loop(tmp_path / "stopped")
    run_loop(tmp_path / "whole")
    assert files_of(tmp_path / "stopped") == files_of(tmp_path / "whole")
    assert sorted(p.name for p in (tmp_path / "whole" / "state").iterdir()) == ["000000000512", "000000000640"]


def test_tensorboard_shows_nothing_from_before_a_fall(tmp_path, monkeypatch):
    monkeypatch.setattr("diti.core.health.PATIENCE", 192)
    with pytest.raises(Diverged):
        run_loop(tmp_path, dataclasses.replace(CONFIG, learning_rate=1e-9), objective=Steep())
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert [images for name, images, _ in scalars_of(file) if name == "loss"] == [64, 128]


def test_other_networks_do_not_continue_a_run(tmp_path):
    run_loop(tmp_path)
    other = Regression()
    other.extra = nn.Linear(1, 1)
    with pytest.raises(InputError, match="other weights than this run"):
        run_loop(tmp_path, dataclasses.replace(CONFIG, images=900), objective=other)


class Greedy(Regression):
    def forward(self, images, draws):
        raise torch.OutOfMemoryError("out of memory")


class Comparing(Greedy):
    compares_images = True
    betas = (0.25, 0.5)


@pytest.mark.parametrize(
    ("objective", "parts", "complaint"),
    [
        (Regression, 3, "--train-batch-size 16 does not split into 1 processes × 3"),
        (Greedy, 1, r"16 images in 16 part.s. does not fit in memory; use smaller images or a narrower network"),
        (Comparing, 2, r"--gradient-accumulation-steps 2 would compare .* part alone"),
        (Comparing, 1, r"does not fit in memory; use a smaller --train-batch-size$"),
    ],
)
def test_a_batch_that_does_not_split_or_fit_names_the_remedy(tmp_path, objective, parts, complaint):
    with pytest.raises(InputError, match=complaint):
        run_loop(tmp_path, dataclasses.replace(CONFIG, gradient_accumulation_steps=parts), objective=objective())


def test_adam_has_the_betas_of_the_objective():
    assert [Weights(o, CONFIG).optimizer.defaults["betas"] for o in (Regression(), Comparing())] == [
        (0.9, 0.999),
        (0.25, 0.5),
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_precision_for_gpus_is_refused_on_a_cpu():
    with pytest.raises(InputError, match="--mixed-precision fp16 does not run on this CPU"):
        make_accelerator(TrainingConfig(mixed_precision="fp16"))


def test_a_second_training_of_a_process_may_have_another_precision(monkeypatch):
    monkeypatch.setattr("diti.core.loop._require_cpu_precision", lambda precision: None)  # nothing is computed
    for precision in ("no", "bf16", "no"):
        assert make_accelerator(TrainingConfig(mixed_precision=precision)).mixed_precision == precision


def test_learning_rate_warms_up_and_falls():
    config = TrainingConfig(images=1000, train_batch_size=10, learning_rate=1.0, lr_warmup_images=100)
    assert learning_rate(config, 0, 0.0) == pytest.approx(0.1) and learning_rate(config, 500, 0.5) == 1.0
    cosine = dataclasses.replace(config, lr_schedule="cosine")
    held = dataclasses.replace(config, lr_schedule="hold")
    assert [learning_rate(held, 500, over) for over in (0.5, 0.75, 0.875, 1.0)] == [1.0, 1.0, 0.5, 0.0]
    assert learning_rate(held, 0, 0.0) == pytest.approx(0.1)
    assert learning_rate(cosine, 500, 0.5) == pytest.approx(0.5) and learning_rate(cosine, 999, 0.999) < 0.001


def test_loss_by_time_is_the_mean_of_each_stretch():
    losses, share = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0.05, 0.0, 0.95])
    assert loss_by_time(losses, share) == [2.0, *[None] * 8, 5.0]


def test_compiled_networks_learn_the_same(tmp_path, monkeypatch):
    """Traced by torch's compiler, and run as they are: making code for this machine takes tens of seconds."""
    monkeypatch.setattr("diti.core.loop.COMPILER", "eager")
    short = dataclasses.replace(CONFIG, images=160)
    plain, _ = run_loop(tmp_path / "plain", short)
    compiled, weights = run_loop(tmp_path / "compiled", dataclasses.replace(short, compile=True))
    assert compiled.layer._compiled_call_impl is not None
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), compiled.parameters(), strict=True))
    assert set(weights.params) == {"layer.weight", "layer.bias"}, "they keep their names"
