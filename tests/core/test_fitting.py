"""A batch in as many parts as fit in the memory of every process: they agree before the first step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from pairs import places
from torch import nn

from diti.core.errors import InputError
from diti.core.fitting import rehearsed
from diti.core.loop import train
from diti.core.objective import LossReport, Objective
from diti.core.runs import RunFolder
from diti.core.training import TrainingConfig

SCRIPT = """
import sys
from pathlib import Path
import torch
from accelerate import Accelerator
from diti.core.loop import train
from diti.core.meeting import leading
from diti.core.runs import RunFolder
from test_fitting import CONFIG, Short, images

def shared():
    objective = Short(most=int(sys.argv[2]))
    train(objective, images, CONFIG, RunFolder(Path(sys.argv[1])), label="test", evaluate=lambda images: {},
          accelerator=Accelerator(cpu=True))
    if objective.rank == "0":
        print(objective.layer.weight.flatten().tolist(), objective.seen)

leading(shared)
"""
CONFIG = TrainingConfig(
    images=64, train_batch_size=8, learning_rate=0.05, log_images=32, validate_images=64, checkpoint_images=64
)


class Short(Objective):
    """A regression; in the memory of the second process no more than so many images have room."""

    def __init__(self, most: int = 8) -> None:
        super().__init__()
        self.layer, self.most, self.rank = nn.Linear(4, 1), most, os.environ.get("RANK", "")
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.register_buffer("calls", torch.zeros(()))
        self.seen: list[int] = []

    def forward(self, images, draws):
        self.calls += 1
        self.seen.append(len(images))
        if self.rank == "1" and len(images) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        inputs = images.flatten(1) + 0.1 * draws.normal("jitter", (4,))
        loss = (self.layer(inputs).flatten() - images.sum((1, 2, 3))).square()
        return LossReport(loss.mean(), loss)


def images(start: int, count: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 256).view(64, 1, 2, 2)[start : start + count]


def in_two_processes(folder: Path, most: int) -> list[str]:
    """What each of them said."""
    pair = []
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    for place in places():
        command = [sys.executable, "-c", SCRIPT, str(folder), str(most)]
        environment = place | {"PYTHONPATH": paths}
        pair.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=600)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0], said
    return said


def test_processes_agree_on_parts_that_fit_in_the_memory_of_each(tmp_path):
    said, other = in_two_processes(tmp_path / "two", most=1)
    assert "a batch does not fit in memory: computed in 4 parts" in said and "parts" not in other
    line = said.splitlines()[-1]
    assert "] [4, 2, 1, 1, 1" in line
    alone, quiet = Short(), {"label": "test", "evaluate": lambda images: {}}
    train(alone, images, CONFIG, RunFolder(tmp_path / "one"), accelerator=Accelerator(cpu=True), **quiet)
    found = [float(number) for number in line.partition("]")[0].strip("[").split(",")]
    assert found == pytest.approx(alone.layer.weight.flatten().tolist(), rel=1e-4)


def test_a_rehearsal_leaves_nothing_behind(monkeypatch):
    objective, accelerator = Short(), Accelerator(cpu=True)
    assert rehearsed(objective, images, 0, CONFIG, accelerator) == CONFIG
    assert not objective.seen, "alone none is needed"
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    objective.rank, objective.most = "1", 2
    found = rehearsed(objective, images, 0, CONFIG, accelerator)
    assert found.gradient_accumulation_steps == 2 and objective.seen == [4, 2]
    assert objective.calls == 0 and objective.layer.weight.grad is None


def test_where_not_one_image_fits_all_say_so(monkeypatch):
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    objective, accelerator = Short(most=0), Accelerator(cpu=True)
    objective.rank = "1"
    with pytest.raises(InputError, match=r"8 images in 4 part\(s\) does not fit in memory; use smaller images"):
        rehearsed(objective, images, 0, CONFIG, accelerator)
    objective.rank = "0"
    monkeypatch.setattr("diti.core.fitting.add_up", lambda tensors: [tensor.add_(1) for tensor in tensors])
    with pytest.raises(InputError, match="does not fit in the memory of another process"):
        rehearsed(objective, images, 0, CONFIG, accelerator)
