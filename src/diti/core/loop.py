"""The one training loop. It knows nothing about the method, which arrives as an `Objective`."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from diti.config import TrainingConfig
from diti.core.errors import InputError
from diti.core.progress import progress_bar
from diti.core.rng import Draws, stream_seed
from diti.core.runs import RunFolder
from diti.core.state import load_state, save_state

Batches = Callable[[int, int], Tensor]  # (start, count) → images (count, C, H, W) in [-1, 1] at these positions
SMALL_TENSOR = 50_000  # numbers; with more of them on average a second thread pays
TIME_BINS = 10  # the log splits the loss by time-step in this many bins


def make_accelerator(config: TrainingConfig) -> Accelerator:
    """Devices and processes as torchrun set them up. Without a GPU, accelerate must be told to join processes."""
    cpu = not torch.cuda.is_available()
    if cpu and config.mixed_precision != "no":
        _require_cpu_precision(config.mixed_precision)
    return Accelerator(cpu=cpu, mixed_precision=config.mixed_precision)


def _require_cpu_precision(precision: str) -> None:
    """Try bf16 in a process of its own: some CPUs announce it and then die of an illegal instruction."""
    product = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    if precision != "bf16" or subprocess.run([sys.executable, "-c", product], capture_output=True).returncode:
        raise InputError(f"--mixed-precision {precision} does not run on this CPU; use --mixed-precision no")


@dataclass
class LossReport:
    """What an objective says about a batch."""

    total: Tensor  # scalar that is minimised: a mean over images
    per_image: Tensor  # (B,)
    time_share: Tensor | None = None  # (B,) t / T of each image, in [0, 1)
    parts: dict[str, Tensor] = field(default_factory=dict)  # named scalars for the log


class Objective(nn.Module):
    """Networks and loss of a method. What requires a gradient is trained."""

    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    compares_images = False  # whether the loss of an image depends on the others of its batch

    def forward(self, images: Tensor, draws: Draws) -> LossReport:
        raise TypeError(f"{type(self).__name__} does not define its loss")

    def rate_factor(self, name: str) -> float:
        """What the learning rate is multiplied by for the parameter of that name."""
        return 1.0


class Diverged(InputError):
    """The loss or its gradient is no longer a number."""


class Weights:
    """Trained parameters by name, their moving average, buffers, and Adam."""

    def __init__(self, objective: Objective, config: TrainingConfig) -> None:
        self.params = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        self.buffers = dict(objective.named_buffers())
        self.average = {name: p.detach().clone() for name, p in self.params.items()}
        factors = {name: objective.rate_factor(name) for name in self.params}
        groups = [
            {"params": [p for name, p in self.params.items() if factors[name] == factor], "factor": factor}
            for factor in sorted(set(factors.values()))
        ]
        self.adam = torch.optim.Adam(groups, lr=config.learning_rate, betas=objective.betas, fused=True)
        self.decay = config.ema_decay

    @torch.no_grad()
    def update_average(self, step: int) -> None:
        """Exponential moving average whose memory grows with the run, so that short runs are averaged well too."""
        decay = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(list(self.average.values()), list(self.params.values()), step)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the networks hold the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, param in self.params.items():
            param.data, self.average[name] = self.average[name], param.data

    def tensors(self) -> dict[str, Tensor]:
        """Everything a continued run needs, by name."""
        found: dict[str, Tensor] = {}
        for name, param in self.params.items():
            found[f"weights/{name}"] = param
            found[f"average/{name}"] = self.average[name]
            for key, value in self.adam.state.get(param, {}).items():
                found[f"adam.{key}/{name}"] = value
        return found | {f"buffer/{name}": value for name, value in self.buffers.items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Put saved tensors back in place; names must match exactly."""
        expected = {f"{kind}/{name}" for kind in ("weights", "average") for name in self.params}
        expected |= {f"buffer/{name}" for name in self.buffers}
        saved = {name for name in tensors if not name.startswith("adam.")}
        if expected != saved:
            raise InputError(
                f"the saved state has other weights than this run (for instance {sorted(expected ^ saved)[0]}); "
                "use the settings it was started with, or another --out"
            )
        for name, param in self.params.items():
            param.copy_(tensors[f"weights/{name}"])
            self.average[name].copy_(tensors[f"average/{name}"])
        for name, buffer in self.buffers.items():
            buffer.copy_(tensors[f"buffer/{name}"])
        for full, value in tensors.items():
            if full.startswith("adam."):
                key, name = full.removeprefix("adam.").split("/", 1)
                where = "cpu" if key == "step" else self.params[name].device
                self.adam.state[self.params[name]][key] = value.to(where)


def learning_rate(config: TrainingConfig, images: int) -> float:
    """Rate for the step that begins after `images` images: warm-up, then constant or a falling cosine."""
    warm = min(1.0, (images + config.train_batch_size) / max(1, config.lr_warmup_images))
    if config.lr_schedule == "constant":
        return config.learning_rate * warm
    return config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, images / config.images)))


def train(
    objective: Objective,
    batches: Batches,
    config: TrainingConfig,
    run: RunFolder,
    *,
    label: str,
    evaluate: Callable[[int], dict[str, Any]],
    accelerator: Accelerator,
) -> Weights:
    """Train until `config.images` images were seen, continuing from the newest state of the run.

    `evaluate(images)` is called with the averaged weights in place; what it returns goes to the log.
    """
    check_batch(config, accelerator.num_processes)
    check_parts(objective, config)
    objective.to(accelerator.device)
    weights = Weights(objective, config)
    images = resume(weights, run, accelerator)
    model, optimizer = accelerator.prepare(objective, weights.adam)
    log = IntervalLog(run, accelerator, images)
    main = accelerator.is_main_process
    with progress_bar(label, config.images, start=images, shown=main) as advance:
        while images < config.images:
            rate = learning_rate(config, images)
            for group in weights.adam.param_groups:
                group["lr"] = rate * group["factor"]
            report, norm = step(model, optimizer, batches, images, config, accelerator)
            _require_finite(report, norm, images, config, run)
            weights.update_average(images // config.train_batch_size)
            log.add(report, norm)
            before, images = images, images + config.train_batch_size
            advance(config.train_batch_size, note=log.note)
            finished = images >= config.images
            if not (finished or _due(before, images, config.log_images)):
                continue
            # Validation and states wait for a line of the log, so that a continued run logs the same lines.
            since = log.images
            log.write(images, rate)
            if finished or _due(since, images, config.validate_images):
                with weights.averaged(), torch.no_grad():
                    log.write_validation(images, evaluate(images) if main else {})
                accelerator.wait_for_everyone()
            if main and (finished or _due(since, images, config.checkpoint_images)):
                save_state(run.path / "state", images, weights.tensors(), {"scaler": _scaler(accelerator)})
    log.close()
    return weights


def step(
    model: nn.Module,
    optimizer: Any,
    batches: Batches,
    images: int,
    config: TrainingConfig,
    accelerator: Accelerator,
) -> tuple[LossReport, Tensor]:
    """One optimiser step over the batch that begins at position `images`; this process computes its share."""
    parts = config.gradient_accumulation_steps
    share = config.train_batch_size // accelerator.num_processes
    count = share // parts
    first = images + accelerator.process_index * share
    whole = accelerator.unwrap_model(model).compares_images
    reports = []
    optimizer.zero_grad(set_to_none=True)
    for part in range(parts):
        start = first + part * count
        last = part == parts - 1
        syncing = nullcontext() if last else accelerator.no_sync(model)
        with memory_advice(config, whole), syncing, accelerator.autocast():
            pixels = batches(start, count).to(accelerator.device, non_blocking=True)
            with dropout_seeded(model, config.seed, start):
                report = model(pixels, Draws(config.seed, start, count))
            accelerator.backward(report.total / parts)
        reports.append(report)
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    with one_thread_for_small(trained):
        norm = accelerator.clip_grad_norm_(trained, config.max_grad_norm or math.inf)
        optimizer.step()
    return _joined(reports), torch.as_tensor(norm)


@contextmanager
def memory_advice(config: TrainingConfig, whole: bool = False) -> Iterator[None]:
    """A batch that does not fit becomes a line that names the remedy. whole: it cannot be cut into parts."""
    try:
        yield
    except torch.OutOfMemoryError:
        parts = config.gradient_accumulation_steps
        remedy = f"use --gradient-accumulation-steps {2 * parts}, which computes the same"
        raise InputError(
            f"a batch of {config.train_batch_size} images in {parts} part(s) does not fit in memory; "
            + ("use a smaller --train-batch-size" if whole else remedy)
        ) from None


@contextmanager
def dropout_seeded(model: nn.Module, seed: int, position: int) -> Iterator[None]:
    """Dropout draws from torch's global state; inside the block that state follows from the position only."""
    if not any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()):
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(seed, "dropout", position))
        yield


@contextmanager
def one_thread_for_small(tensors: list[nn.Parameter]) -> Iterator[None]:
    """On a CPU, waking a second thread for each of many small tensors takes longer than updating them."""
    threads = torch.get_num_threads()
    small = sum(t.numel() for t in tensors) < SMALL_TENSOR * len(tensors)
    if threads == 1 or not small or tensors[0].device.type != "cpu":
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _joined(reports: list[LossReport]) -> LossReport:
    """The reports of the parts of one batch as one."""
    if len(reports) == 1:
        return reports[0]
    shares = [r.time_share for r in reports if r.time_share is not None]
    return LossReport(
        total=torch.stack([r.total.detach() for r in reports]).mean(),
        per_image=torch.cat([r.per_image.detach() for r in reports]),
        time_share=torch.cat(shares) if shares else None,
        parts={k: torch.stack([r.parts[k].detach() for r in reports]).mean() for k in reports[0].parts},
    )


def check_batch(config: TrainingConfig, processes: int) -> None:
    """The batch must split evenly over processes and accumulation steps, or images would weigh unequally."""
    pieces = processes * config.gradient_accumulation_steps
    if config.train_batch_size < 1 or config.train_batch_size % pieces:
        raise InputError(
            f"--train-batch-size {config.train_batch_size} does not split into {processes} processes × "
            f"{config.gradient_accumulation_steps} accumulation steps; use a multiple of {pieces}"
        )


def check_parts(objective: Objective, config: TrainingConfig) -> None:
    """Parts of a batch cannot be computed one after the other where its images are compared with each other."""
    if objective.compares_images and config.gradient_accumulation_steps > 1:
        raise InputError(
            f"--gradient-accumulation-steps {config.gradient_accumulation_steps} would compare the images of each "
            "part alone; use 1 with this method, and a smaller --train-batch-size where memory is short"
        )


def resume(weights: Weights, run: RunFolder, accelerator: Accelerator) -> int:
    """Continue from the newest undamaged state; returns the images seen so far."""
    found = load_state(run.path / "state")
    if found is None:
        if accelerator.is_main_process:
            run.rewind_log(0)  # of a run that was killed before its first state
        return 0
    tensors, facts, notes = found
    weights.restore(tensors)
    if accelerator.scaler is not None and facts.get("scaler"):
        accelerator.scaler.load_state_dict(facts["scaler"])
    images = int(facts["images"])
    if accelerator.is_main_process:
        run.rewind_log(images)
        for note in [*notes, f"continuing at image {images:,}"]:
            print(note)
    return images


def _scaler(accelerator: Accelerator) -> dict[str, Any] | None:
    return accelerator.scaler.state_dict() if accelerator.scaler is not None else None


def _due(before: int, now: int, every: int) -> bool:
    return before // every != now // every


def _require_finite(report: LossReport, norm: Tensor, images: int, config: TrainingConfig, run: RunFolder) -> None:
    """Stop at the first loss or gradient that is not a number; the weights on disk are still good."""
    fine = torch.isfinite(report.total) and (torch.isfinite(norm) or config.mixed_precision == "fp16")
    if not fine:
        raise Diverged(
            f"the loss is {report.total.item():.3g} and its gradient norm {norm.item():.3g} at image {images:,}; "
            f"the last good state is kept in {run.path / 'state'}: lower --learning-rate "
            f"(now {config.learning_rate:g}) or --max-grad-norm (now {config.max_grad_norm:g}) and run again"
        )


class IntervalLog:
    """Sums up what happened since the last line of the log, and writes it as JSON and for TensorBoard."""

    def __init__(self, run: RunFolder, accelerator: Accelerator, images: int) -> None:
        self.run, self.accelerator = run, accelerator
        self.board = None
        if accelerator.is_main_process:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(run.path / "tensorboard", purge_step=images or None)
        self.note = ""
        self._reset(images)

    def _reset(self, images: int) -> None:
        self.images, self.began = images, time.perf_counter()
        self.losses: list[Tensor] = []
        self.shares: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.parts: list[dict[str, Tensor]] = []

    def add(self, report: LossReport, norm: Tensor) -> None:
        """Note one step; nothing is moved off the device yet."""
        self.losses.append(report.per_image.detach())
        if report.time_share is not None:
            self.shares.append(report.time_share.detach())
        self.norms.append(norm.detach())
        self.parts.append({k: v.detach() for k, v in report.parts.items()})

    def write(self, images: int, rate: float) -> None:
        """One line over all steps since the last one, the same whatever the number of processes."""
        losses = self.accelerator.gather(torch.cat(self.losses)).double().cpu()
        shares = self.accelerator.gather(torch.cat(self.shares)).cpu() if self.shares else None
        record: dict[str, Any] = {
            "images": images,
            "loss": losses.mean().item(),
            "learning_rate": rate,
            "grad_norm": torch.stack(self.norms).mean().item(),
            "images_per_s": (images - self.images) / (time.perf_counter() - self.began),
        }
        for name in self.parts[0]:
            mean = torch.stack([p[name] for p in self.parts]).mean()
            record[name] = self.accelerator.gather(mean[None]).mean().item()
        if self.board is not None:
            self._scalars(images, record)
            self.run.log(**record, **({} if shares is None else {"loss_by_time": loss_by_time(losses, shares)}))
        self.note = f"loss {record['loss']:.4f}"
        self._reset(images)

    def write_validation(self, images: int, record: dict[str, Any]) -> None:
        """A line with what the evaluation found; its time does not count as training."""
        if self.board is not None and record:
            self._scalars(images, {k: v for k, v in record.items() if isinstance(v, float)})
            self.run.log(images=images, **record)
        self.began = time.perf_counter()

    def _scalars(self, images: int, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if name != "images" and self.board is not None:
                self.board.add_scalar(name, value, images)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def loss_by_time(losses: Tensor, time_share: Tensor, bins: int = TIME_BINS) -> list[float | None]:
    """Mean loss of the images in each of `bins` equal stretches of time; None for a stretch without images."""
    place = (time_share * bins).long().clamp(0, bins - 1)
    found: list[float | None] = []
    for index in range(bins):
        inside = losses[place == index]
        found.append(inside.mean().item() if len(inside) else None)
    return found
