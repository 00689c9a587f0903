"""The one training loop. It knows nothing about the method, which arrives as an `Objective`."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from diti.core.ahead import Ahead, Batches
from diti.core.device import AUTO, Device, allow_tf32, decide, has_bf16, on_host, pinned, sent
from diti.core.errors import InputError
from diti.core.fitting import TooLarge, in_more_parts, memory_advice, rehearsed
from diti.core.health import STALLED, Line, stalled
from diti.core.launch import processes
from diti.core.meeting import meet
from diti.core.objective import LossReport, Objective
from diti.core.pace import Watch
from diti.core.progress import progress_bar
from diti.core.rng import Draws, stream_seed
from diti.core.runs import RunFolder
from diti.core.standing import Standing
from diti.core.training import TrainingConfig
from diti.core.weights import Weights

ACCELERATE_DEVICE = "ACCELERATE_TORCH_DEVICE"  # environment variable that it reads
SMALL_TENSOR = 50_000  # numbers; above this average a second thread pays off
TIME_BINS = 10  # the log splits the loss by time-step into this many bins
COMPILER = "inductor"  # of torch.compile


def make_accelerator(config: TrainingConfig, device: Device = AUTO) -> Accelerator:
    """Processes as torchrun set them up, each on its device. On the CPU, accelerate must be told to join them."""
    chosen = decide(device)
    precision = with_precision(config, chosen).mixed_precision
    allow_tf32(chosen)
    if on_host(chosen) and precision != "no":
        _require_cpu_precision(precision)
    alone = processes() == 1  # the group of several is made once
    # It keeps the precision and the device of the process's first training and refuses any other.
    AcceleratorState._reset_state(reset_partial_state=alone)
    told = {ACCELERATE_DEVICE: str(chosen)} if alone else {}
    os.environ.update(told)
    try:
        return Accelerator(cpu=on_host(chosen), mixed_precision=precision)
    except ValueError as error:
        raise InputError(f"--mixed-precision {precision} does not run on {chosen}: {error}; use no") from None
    finally:
        for name in told:
            del os.environ[name]


def with_precision(config: TrainingConfig, device: Device = AUTO) -> TrainingConfig:
    """The settings with the precision that `auto` stands for on the device."""
    if config.mixed_precision != "auto":
        return config
    return replace(config, mixed_precision="bf16" if has_bf16(decide(device)) else "no")


def compile_networks(networks: nn.Module) -> None:
    """Let torch compile each network when it is first called. Their weights keep their names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch's own parts, when it imports its compiler
        for network in networks.children():
            if any(True for _ in network.parameters()):
                network.compile(backend=COMPILER)


def _require_cpu_precision(precision: str) -> None:
    """Try bf16 in a process of its own: some CPUs announce it and then crash with an illegal instruction."""
    product = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    if precision != "bf16" or subprocess.run([sys.executable, "-c", product], capture_output=True).returncode:
        raise InputError(f"--mixed-precision {precision} does not run on this CPU; use --mixed-precision no")


def learning_rate(config: TrainingConfig, images: int, over: float) -> float:
    """Rate for the step after `images` images, a share `over` of the run: warm-up, then the schedule.

    constant; cosine: falls from the start; hold: constant, then falls linearly over the last quarter.
    """
    warm = min(1.0, (images + config.train_batch_size) / max(1, config.lr_warmup_images))
    left = {"constant": 1.0, "cosine": 0.5 * (1 + math.cos(math.pi * over)), "hold": min(1.0, 4 * (1 - over))}
    return config.learning_rate * warm * left[config.lr_schedule]


def train(
    objective: Objective,
    batches: Batches,
    config: TrainingConfig,
    run: RunFolder,
    *,
    label: str,
    evaluate: Callable[[int], dict[str, Any]],
    accelerator: Accelerator,
    usual_rate: float = math.inf,
) -> Weights:
    """Train for `config.images` images, or `config.minutes`, continuing from the newest state of the run.

    `evaluate(images)` is called with the averaged weights in place; what it returns goes to the log. A training
    that diverges goes back to its last good line at half the rate; one that is stopped saves that line as a state.
    usual_rate: the preset's learning rate, the most advised after a training diverged too often.
    """
    check_batch(config, accelerator.num_processes)
    check_parts(objective, config)
    config = with_precision(config, accelerator.device)
    objective.to(accelerator.device)
    if config.compile:
        compile_networks(objective)
    weights = Weights(objective, config)
    standing = Standing(weights, run, accelerator, config)
    pace = standing.pace
    watch = Watch(pace, config, standing.images)
    config = rehearsed(objective, batches, standing.images, config, accelerator)
    model, optimizer = accelerator.prepare(objective, weights.optimizer)
    log = IntervalLog(run, accelerator, standing.images)
    ahead = Ahead(batches, partial(pinned, device=accelerator.device))
    main = accelerator.is_main_process
    with (
        closing(ahead),
        closing(log),  # a writer that is left open writes into the folder of the run that continues
        progress_bar(label, pace.expected(config.images), start=standing.images, shown=main) as advance,
        standing.kept_when_stopped(),
    ):
        images = standing.images
        while images < pace.length:
            rate = learning_rate(config, images, pace.over(images)) * standing.health.rate_factor
            weights.set_rate(rate)
            report, norm, config = fitting_step(model, optimizer, ahead, images, config, accelerator)
            weights.update_average(images // config.train_batch_size)
            log.add(report, norm)
            before, images = images, images + config.train_batch_size
            if watch.look(images):
                run.log(images=images, length=pace.length)
            advance(config.train_batch_size, note=log.note, total=pace.expected(config.images))
            finished = images >= pace.length
            due = finished or _due(before, images, config.log_images)
            broken = config.mixed_precision != "fp16" and log.broken(due)
            if not (due or broken):
                continue
            line = log.line(images)
            if standing.fell(line, objective, broken, usual_rate):
                advance(standing.images - images)
                images = standing.images
                log.restart(images)
                watch.restart(images)
                continue
            since = log.images
            log.write(line, rate)
            settle(standing, log, since, line, evaluate, finished)
    return weights


@torch.no_grad()
def settle(
    standing: Standing,
    log: IntervalLog,
    since: int,
    line: Line,
    evaluate: Callable[[int], dict[str, Any]],
    finished: bool,
) -> None:
    """Validate and save what is due since the last line of the log; say so where a run no longer gets better.

    Both wait for such a line, so that a continued run logs the same ones. A line is good once it is validated: a
    run that is stopped before that would continue after it.
    """
    images, config, main = line.images, standing.config, standing.accelerator.is_main_process
    if finished or _due(since, images, config.validate_images):
        with standing.weights.averaged():
            log.write_validation(images, evaluate(images) if main else {})
        if main and not finished and stalled(log.run.read_log()):
            print(STALLED + how_to_end(config, images))
        meet()
    due = finished or _due(since, images, config.checkpoint_images)
    standing.good(line, between=not due)
    if due:
        standing.save()
        meet()


def how_to_end(config: TrainingConfig, images: int) -> str:
    """How to end a run early. Its rate still falls to 0 from where it is, if the schedule says so."""
    if config.minutes is not None:
        return ""
    batch = config.train_batch_size
    length = images if config.lr_schedule == "constant" else batch * math.ceil(images / 0.75 / batch)
    return f": Ctrl-C, then the same command with --images {length}" if length < config.images else ""


def fitting_step(
    model: nn.Module,
    optimizer: Any,
    batches: Ahead,
    images: int,
    config: TrainingConfig,
    accelerator: Accelerator,
) -> tuple[LossReport, Tensor, TrainingConfig]:
    """`step`, with the batch in as many parts as memory asks for, and the settings with that many."""
    while True:
        try:
            return *step(model, optimizer, batches, images, config, accelerator), config
        except TooLarge as error:
            if accelerator.num_processes > 1:  # the others would not know: they agree before the first step
                raise
            config = in_more_parts(config, accelerator.unwrap_model(model), error)


def step(
    model: nn.Module,
    optimizer: Any,
    batches: Ahead,
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
        with memory_advice(config, whole, accelerator.num_processes), syncing, accelerator.autocast():
            then = first + config.train_batch_size if last else start + count
            # On a CPU the thread would take its time from what is computed.
            pixels = batches(start, count, None if on_host(accelerator.device) else then)
            pixels = sent(pixels, accelerator.device)
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
def dropout_seeded(model: nn.Module, seed: int, position: int) -> Iterator[None]:
    """Dropout draws from torch's global state; inside the block that state depends on the position only."""
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
    if threads == 1 or not small or not on_host(tensors[0]):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _joined(reports: list[LossReport]) -> LossReport:
    """The reports on the parts of one batch as one."""
    if len(reports) == 1:
        return reports[0]
    parts = [report.detached() for report in reports]
    return LossReport(
        total=torch.stack([p.total for p in parts]).mean(),
        per_image=torch.cat([p.per_image for p in parts]),
        time_share=_cat([p.time_share for p in parts]),
        nothing=_cat([p.nothing for p in parts]),
        parts={k: torch.stack([p.parts[k] for p in parts]).mean() for k in parts[0].parts},
    )


def _cat(tensors: list[Tensor | None]) -> Tensor | None:
    given = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(given) if given else None


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


def _due(before: int, now: int, every: int) -> bool:
    return before // every != now // every


class IntervalLog:
    """Sums up what happened since the last line of the log, and writes it as JSON and for TensorBoard."""

    def __init__(self, run: RunFolder, accelerator: Accelerator, images: int) -> None:
        self.run, self.accelerator = run, accelerator
        self.board: Any = None
        self.note = ""
        self.restart(images)

    def restart(self, images: int) -> None:
        """Continue after a line that was written before.

        TensorBoard's file begins with the log so far: one file, however often a run was stopped.
        """
        self.close()
        if self.accelerator.is_main_process:
            from torch.utils.tensorboard import SummaryWriter

            shutil.rmtree(folder := self.run.path / "tensorboard", ignore_errors=True)
            self.board = SummaryWriter(folder)
            for record in self.run.read_log():
                if "fall" not in record:
                    _add_scalars(self.board, record)
        self._forget(images)

    def _forget(self, images: int) -> None:
        """What was noted since the last line."""
        self.images, self.began = images, time.perf_counter()
        self.reports: list[LossReport] = []
        self.norms: list[Tensor] = []

    def add(self, report: LossReport, norm: Tensor) -> None:
        """Note one step; nothing is moved off the device yet."""
        self.reports.append(report.detached())
        self.norms.append(norm.detach())

    def broken(self, due: bool) -> bool:
        """Whether a gradient since the last line is not a number; on the CPU every step is asked, so the last.

        Elsewhere looking at every step would stall the queue of work: only where a line is due.
        """
        here = on_host(self.norms[-1])
        norms = self.norms[-1:] if here else self.norms
        return (due or here) and not bool(torch.isfinite(torch.stack(norms)).all())

    def line(self, images: int) -> Line:
        """The loss since the last line, the same for any number of processes."""
        self.losses = self._gathered([r.per_image for r in self.reports])
        nothing = [r.nothing for r in self.reports if r.nothing is not None]
        return Line(
            images,
            self.losses.mean().item(),
            self.losses.std(correction=0).item() / len(self.losses) ** 0.5,
            self._gathered(nothing).mean().item() if nothing else None,
        )

    def write(self, line: Line, rate: float) -> None:
        """One line over all steps since the last one."""
        images = line.images
        shares = [r.time_share for r in self.reports if r.time_share is not None]
        record: dict[str, Any] = {
            "images": images,
            "loss": line.loss,
            "learning_rate": rate,
            "grad_norm": torch.stack(self.norms).mean().item(),
            "images_per_s": (images - self.images) / (time.perf_counter() - self.began),
        }
        for name in self.reports[0].parts:
            mean = torch.stack([r.parts[name] for r in self.reports]).mean()
            record[name] = self.accelerator.gather(mean[None]).mean().item()
        by_time = {"loss_by_time": loss_by_time(self.losses, self._gathered(shares))} if shares else {}
        if self.board is not None:
            _add_scalars(self.board, record)
            self.run.log(**record, **by_time)
        self.note = f"loss {line.loss:.4f}"
        self._forget(images)

    def _gathered(self, tensors: list[Tensor]) -> Tensor:
        return self.accelerator.gather(torch.cat(tensors)).cpu().double()

    def write_validation(self, images: int, record: dict[str, Any]) -> None:
        """A line with what the evaluation found; its time does not count as training."""
        if self.board is not None and record:
            _add_scalars(self.board, {"images": images, **record})
            self.run.log(images=images, **record)
        self.began = time.perf_counter()

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def _add_scalars(board: Any, record: dict[str, Any]) -> None:
    """Write the numbers of a log line at its image count."""
    for name, value in record.items():
        if isinstance(value, float):
            board.add_scalar(name, value, record["images"])


def loss_by_time(losses: Tensor, time_share: Tensor, bins: int = TIME_BINS) -> list[float | None]:
    """Mean loss of the images in each of `bins` equal stretches of time; None for a stretch without images."""
    place = (time_share * bins).long().clamp(0, bins - 1)
    found: list[float | None] = []
    for index in range(bins):
        inside = losses[place == index]
        found.append(inside.mean().item() if len(inside) else None)
    return found
