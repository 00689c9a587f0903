"""Every command that a demo, a sweep or a report starts, parsed by the real parser; nothing is run."""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_run import make_run

from diti.core.jobs import Job
from diti.data.sources import open_data
from diti.demo import LENGTHS, plan_training
from diti.report.evidence import Effort, plan_stages
from diti.sweep.plans import read_plan
from diti.sweep.solutions import Solutions
from diti.sweep.trainings import plan_jobs
from diti.verbs.parsing import parse

SWEEPS = Path(__file__).resolve().parents[1] / "sweeps"


def assert_parsed_as_meant(jobs):
    assert jobs
    for job in jobs:
        verb, *words = job.words
        assert parse(verb, words) == job.command, f"diti {' '.join(job.words)}"


def jobs_of_report(folder, effort):
    """All kinds of runs: several subsets, one, and no decoder; with and without baselines."""
    runs = [
        make_run(folder / "diti"), make_run(folder / "pdae", subsets=1),
        make_run(folder / "simclr", subsets=1, decoder=False),
    ]  # fmt: skip
    stages = plan_stages(runs, open_data("toyfaces:40", 16), "toyfaces:40", effort)
    assert {(s.run.name, s.name) for s in stages} >= {("diti", "analysis"), ("pdae", "counterfactuals")}
    return [Job(stage.name, stage.command, folder / "log.txt") for stage in stages]


@pytest.mark.parametrize("length", LENGTHS)
def test_commands_of_the_demo(tmp_path, length):
    plan = plan_training(tmp_path / "data", replace(LENGTHS[length], trained=64))
    assert_parsed_as_meant(plan_jobs(plan, list(plan.runs), tmp_path / "runs"))
    assert_parsed_as_meant(jobs_of_report(tmp_path, LENGTHS[length].effort))


@pytest.mark.parametrize("file", sorted(SWEEPS.glob("*.yaml")), ids=lambda path: path.stem)
def test_commands_of_the_sweeps(tmp_path, file):
    plan = read_plan(file)
    if isinstance(plan, Solutions):
        pytest.skip("solutions are made by the sweep itself")
    assert_parsed_as_meant(plan_jobs(plan, list(plan.runs), tmp_path))


@pytest.mark.parametrize("effort", [Effort(), Effort(faces=1, pairs=2, changes=3, baselines=False, seed=5)])
def test_commands_of_a_report(tmp_path, effort):
    assert_parsed_as_meant(jobs_of_report(tmp_path, effort))


def test_settings_of_the_plan_reach_the_command_by_its_file(tmp_path):
    plan = read_plan(SWEEPS / "toyfaces.yaml")
    name = next(iter(plan.runs))
    [job] = plan_jobs(plan, [name], tmp_path)
    assert job.words == [
        "train",
        "--out",
        str(tmp_path / name),
        "--config",
        str(tmp_path / "plan" / f"{name}.yaml"),
    ]
    told = parse("train", job.words[1:]).settings
    log_images = told.training.log_images
    meant = plan.runs[name]
    assert told == replace(meant, training=replace(meant.training, log_images=log_images))
