"""The loop on a method that is not diffusion: it must not know."""

import dataclasses
import math

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from diti.config import TrainingConfig
from diti.core.errors import InputError
from diti.core.loop import (
    Diverged,
    LossReport,
    Objective,
    Weights,
    learning_rate,
    loss_by_time,
    make_accelerator,
    train,
)
from diti.core.rng import stream_seed
from diti.core.runs import RunFolder

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
    weights = train(
        objective,
        batches,
        config,
        RunFolder(path),
        label="test",
        evaluate=evaluate,
        accelerator=Accelerator(cpu=True),
    )
    return objective, weights


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


class Broken(Regression):
    """A loss that is no number from the 20th call on."""

    sampling_steps = 0

    def forward(self, images, draws):
        self.sampling_steps += 1
        report = super().forward(images, draws)
        return dataclasses.replace(report, total=report.total * math.nan) if self.sampling_steps > 20 else report


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_state(tmp_path):
    with pytest.raises(
        Diverged, match=r"at image 320; the last good state is kept .*lower --learning-rate \(now 0.05\)"
    ):
        run_loop(tmp_path / "a", objective=Broken())
    states = sorted(p.name for p in (tmp_path / "a" / "state").iterdir())
    assert states == ["000000000128", "000000000256"]
    continued, _ = run_loop(tmp_path / "a")
    clean, _ = run_loop(tmp_path / "b")
    assert torch.equal(continued.layer.weight, clean.layer.weight)


def test_other_networks_do_not_continue_a_run(tmp_path):
    run_loop(tmp_path)
    other = Regression()
    other.extra = nn.Linear(1, 1)
    with pytest.raises(InputError, match="other weights than this run"):
        run_loop(tmp_path, dataclasses.replace(CONFIG, images=900), objective=other)


def test_batches_that_do_not_split_are_refused(tmp_path):
    with pytest.raises(InputError, match="--train-batch-size 16 does not split into 1 processes × 3"):
        run_loop(tmp_path, dataclasses.replace(CONFIG, gradient_accumulation_steps=3))


class Greedy(Regression):
    def forward(self, images, draws):
        raise torch.OutOfMemoryError("out of memory")


def test_a_batch_that_does_not_fit_names_the_remedy(tmp_path):
    with pytest.raises(InputError, match=r"16 images in 1 .*--gradient-accumulation-steps 2"):
        run_loop(tmp_path, objective=Greedy())


class Comparing(Greedy):
    compares_images = True
    betas = (0.25, 0.5)


def test_a_batch_whose_images_are_compared_is_never_cut(tmp_path):
    with pytest.raises(InputError, match=r"--gradient-accumulation-steps 2 would compare .* part alone"):
        run_loop(tmp_path, dataclasses.replace(CONFIG, gradient_accumulation_steps=2), objective=Comparing())
    with pytest.raises(InputError, match=r"does not fit in memory; use a smaller --train-batch-size$"):
        run_loop(tmp_path, objective=Comparing())


def test_adam_has_the_betas_of_the_objective():
    assert [Weights(o, CONFIG).adam.defaults["betas"] for o in (Regression(), Comparing())] == [
        (0.9, 0.999),
        (0.25, 0.5),
    ]


def test_precision_for_gpus_is_refused_on_a_cpu():
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(InputError, match="--mixed-precision fp16 does not run on this CPU"):
        make_accelerator(TrainingConfig(mixed_precision="fp16"))


def test_learning_rate_warms_up_and_falls():
    config = TrainingConfig(images=1000, train_batch_size=10, learning_rate=1.0, lr_warmup_images=100)
    assert learning_rate(config, 0) == pytest.approx(0.1) and learning_rate(config, 500) == 1.0
    cosine = dataclasses.replace(config, lr_schedule="cosine")
    assert learning_rate(cosine, 500) == pytest.approx(0.5) and learning_rate(cosine, 999) < 0.001


def test_loss_by_time_is_the_mean_of_each_stretch():
    losses, share = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0.05, 0.0, 0.95])
    assert loss_by_time(losses, share) == [2.0, *[None] * 8, 5.0]
