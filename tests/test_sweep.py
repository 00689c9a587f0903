"""A sweep: what a file means, and that its runs come out the same however often it is stopped."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny import tiny_backbone

from diti.cli import main
from diti.config import GANConfig, TrainConfig
from diti.core.errors import InputError
from diti.core.jobs import Child, Job
from diti.core.runs import RunFolder, read_json
from diti.core.settings import differences, from_mapping, load_yaml
from diti.data.prepare import prepare
from diti.data.source import ReadOptions
from diti.data.sources import find_source
from diti.presets import train_preset
from diti.representation.settings import resolve
from diti.representation.train import train_model
from diti.sweep import trainings
from diti.sweep.file import SweepFile, varied
from diti.sweep.plans import make_plan, read_plan, run_sweep
from diti.sweep.trainings import Plan, check_plan

SWEEPS = Path(__file__).resolve().parents[1] / "sweeps"
BASE = {"data": "toyfaces:64", "backbone": "toyfaces32"}
SETTINGS = {
    "images": 320, "train_batch_size": 32, "code_dim": 12, "subsets": 4, "lr_warmup_images": 0,
    "checkpoint_images": 64, "log_images": 6_400, "time_sampling": "uniform", "start": "copy",
}  # fmt: skip


def plan_of(**keys):
    return make_plan(from_mapping(SweepFile(), {**BASE, **keys}, "here.yaml"), "here.yaml")


# What a file means


def test_runs_that_are_given_minutes_are_counted_in_seconds(tmp_path):
    plan = plan_of(runs={"long": {"minutes": 5}, "short": {"minutes": 0.5}, "counted": {"images": 1000}})
    assert plan.title == "3 runs, 1,000 images, 5.5 minutes of training"
    twice = plan_of(settings={"minutes": 5}, seeds=[0, 1], runs={"a": None})
    assert twice.title == "2 runs, 10 minutes of training"
    assert [trainings._length(config) for config in plan.runs.values()] == [300, 30, 1000]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child = Child(Job("long-s0", None, tmp_path / "log.txt"), process, began=time.time() - 100)
        shown = [trainings._progress_of(child, tmp_path, config, 7) for config in plan.runs.values()]
        assert shown[0] == shown[1] >= 100 and shown[2] == 7


def test_names_and_settings_of_runs():
    plan = plan_of(
        settings={"images": 1000, "training": {"learning_rate": 1, "log_images": 9}},
        seeds=[3, 5],
        runs={"plain": None, "own": {"detach": True, "code": {"code_dim": 20}}},
    )
    assert list(plan.runs) == ["plain-s3", "plain-s5", "own-s3", "own-s5"] and plan.images == 4000
    preset = train_preset("toyfaces32")
    length = replace(preset.training, images=1000, learning_rate=1.0, log_images=9, seed=5)
    expected = resolve(
        replace(preset, **BASE, training=length, code=replace(preset.code, code_dim=20), detach=True)
    )
    assert plan.runs["own-s5"] == expected
    assert plan.runs["plain-s3"].code == preset.code and plan.runs["plain-s3"].training.seed == 3
    assert varied(plan.runs) == ["training.seed", "detach", "code.code_dim"]


def test_a_grid_multiplies_out():
    grid = {"subsets": [4, 8], "encoder_channels": [[8, 16]], "detach": [True, False]}
    plan = plan_of(grid=grid, runs={"a": {}})
    names = [f"a-subsets-{k}-encoder_channels-8x16-detach-{d}-s0" for k in (4, 8) for d in ("true", "false")]
    assert list(plan.runs) == names
    assert plan.runs[names[3]].subsets == 8 and not plan.runs[names[3]].detach
    assert plan.runs[names[0]].code.encoder_channels == (8, 16)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"rnus": {}}, r"unknown setting 'rnus'.* Did you mean 'runs'\?"),
        ({"runs": {}}, r"has no runs"),
        ({"seeds": [], "runs": {"a": {}}}, r"seeds is empty"),
        ({"seeds": [1, 1], "runs": {"a": {}}}, r"two runs would be called a-s1"),
        ({"seeds": ["x"], "runs": {"a": {}}}, r"seeds must be int, got 'x'"),
        ({"preset": "toyface", "runs": {"a": {}}}, r"Did you mean 'toyfaces32'\?"),
        ({"data": "", "runs": {"a": {}}}, r"run a-s0: data is missing"),
        ({"backbone": "", "runs": {"a": {}}}, r"run a-s0: backbone is missing"),
        ({"runs": {"a": {"method": "dite"}}}, r"method 'dite' is unknown.* Did you mean 'diti'\?"),
        ({"runs": {"a": {"subset": 4}}}, r"runs: a: unknown setting 'subset'.* Did you mean 'subsets'\?"),
        ({"runs": {"a": {"code": {"images": 4}}}}, r"runs: a: code: unknown setting 'images'"),
        ({"settings": {"train-batch-size": 4}, "runs": {"a": {}}}, r"Did you mean 'train_batch_size'\?"),
        ({"settings": {"images": 0}, "runs": {"a": {}}}, r"settings: --images is 0; it must be 1 or more"),
        ({"settings": {"images": "many"}, "runs": {"a": {}}}, r"settings: training: images must be int"),
        ({"settings": {"images": 1, "training": {"images": 2}}, "runs": {"a": {}}}, r"images is given twice"),
        ({"runs": {"a": {"seed": 4}}}, r"runs: a: seed is not allowed here; list them at the top"),
        ({"runs": {"a": {"preset": "celeba32"}}}, r"preset is not allowed here; name it at the top"),
        ({"runs": {"a": 3}}, r"runs: a must be a mapping of settings, got 3"),
        ({"runs": {"a/b": {}}}, r"a run cannot be called 'a/b-s0'"),
        ({"runs": {"a": {}, "b": {"log_images": 10}}}, r"a-s0 and b-s0 would compute the same"),
        ({"runs": {"a": {}, "b": {"gradient_accumulation_steps": 2}}}, r"a-s0 and b-s0 would compute the same"),
        ({"grid": {"subsets": [4, 8]}, "runs": {"a": {"method": "pdae"}}}, r"would compute the same"),
        ({"grid": {"subsets": []}, "runs": {"a": {}}}, r"grid: subsets must be a list of at least one value"),
        ({"grid": {"subsets": 4}, "runs": {"a": {}}}, r"grid: subsets must be a list of at least one value"),
        ({"grid": {"subsets": [4]}, "runs": {"a": {"subsets": 8}}}, r"subsets is set here and in the grid"),
        ({"grid": {"subset": [4]}, "runs": {"a": {}}}, r"grid: unknown setting 'subset'"),
    ],
)
def test_mistakes_are_one_line(keys, complaint):
    with pytest.raises(InputError, match=complaint) as found:
        plan_of(**keys)
    assert str(found.value).startswith("here.yaml: ") and "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ({"method": "pdae", "detach": True}, r"run b-s0: .*pdae has one"),
        ({"subsets": 500}, r"run b-s0: .*subsets"),
        ({"code_dim": 9999}, r"run b-s0: --code-dim is 9999"),
        ({"gradient_accumulation_steps": 3, "subsets": 8}, r"run b-s0: --train-batch-size 32 does not split"),
        ({"backbone": "no/such/folder"}, r"run b-s0: .*no/such/folder"),
    ],
)
def test_a_run_that_cannot_be_built_is_found_before_anything_runs(own, complaint, tmp_path):
    plan = plan_of(runs={"a": {}, "b": own})
    with pytest.raises(InputError, match=complaint):
        run_sweep(plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dry", [["--dry-run"], []])
@pytest.mark.parametrize(
    ("keys", "words", "complaint"),
    [
        ({"data": "no-such-data"}, [], "run a-s0: no-such-data does not exist"),
        ({"backbone": "no-such-backbone"}, [], "run a-s0: nothing is called 'no-such-backbone'"),
        ({"data": "photos"}, [], "run a-s0: photos holds no images"),
        ({"data": "set"}, [], "run a-s0: the images are 16 px but the backbone is for 32 px"),
        ({}, ["--jobs", "0"], "--jobs is 0"),
        ({}, ["--out", "sweep.yaml"], "--out sweep.yaml is a file"),
    ],
)
def test_everything_is_checked_before_anything_is_shown_or_written(
    keys, words, complaint, dry, tmp_path, diti_here
):
    (tmp_path / "photos").mkdir()
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**BASE, "runs": {"a": {"start": "copy"}}, **keys}))
    prepare(find_source("toyfaces:8", ReadOptions(size=16)), tmp_path / "set", 16)
    before = sorted(tmp_path.rglob("*"))
    told = diti_here("sweep", "sweep.yaml", "--out", "out", *words, *dry, cwd=tmp_path)
    assert told.returncode == 2 and told.stderr.startswith("diti: ") and complaint in told.stderr
    assert told.stdout == "" and sorted(tmp_path.rglob("*")) == before


def test_the_shipped_sweeps_can_be_built(capsys):
    toyfaces = read_plan(SWEEPS / "toyfaces.yaml")
    assert len(toyfaces.runs) == 9 and {c.training.seed for c in toyfaces.runs.values()} == {0, 1, 2}
    table = read_plan(SWEEPS / "table2.yaml")
    lines = [(c.partition == "staged-even", c.detach, c.subsets) for c in table.runs.values()]
    assert lines == [
        *((True, False, k) for k in (4, 8, 16, 32)), (False, False, 16), (False, True, 16), (True, True, 16),
    ]  # fmt: skip
    check_plan(toyfaces)
    assert main(["sweep", str(SWEEPS / "table2.yaml"), "--out", "none", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "balanced-k16-detach-s0" in shown and "700,000 images" in shown and not Path("none").exists()


# What is run


def weights(run):
    return {
        f"{part}.{name}": tensor
        for part in ("encoder", "decoder")
        for name, tensor in load_file(run / part / "model.safetensors").items()
    }


def assert_same_weights(run, other):
    a, b = weights(run), weights(other)
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def processes_of(folder):
    """Ids of the living processes that name the folder in their command, this one aside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words, status = path.read_bytes(), (path.parent / "stat").read_text()
        except OSError:  # it ended meanwhile
            continue
        if str(folder).encode() in words and status.rpartition(")")[2].split()[0] != "Z":
            found.append(int(path.parent.name))
    return [number for number in found if number != os.getpid()]


def wait_until(condition, seconds=300.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A sweep file over a tiny backbone: two runs that work."""
    folder = tmp_path_factory.mktemp("sweep")
    tiny_backbone().save(folder / "backbone")
    runs = {"diti": {"method": "diti"}, "pdae": {"method": "pdae"}}
    values = {"data": "toyfaces:64", "backbone": str(folder / "backbone"), "settings": SETTINGS, "runs": runs}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values))
    return folder / "sweep.yaml"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """For what is shared by the tests; each has another cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITI_CACHE", str(folder := tmp_path_factory.mktemp("cache")))
        yield folder


@pytest.fixture(scope="module")
def killed(file, cache, tmp_path_factory):
    """The folder of a sweep that was killed outright in the middle of its first run."""
    out = tmp_path_factory.mktemp("swept")
    command = [sys.executable, "-m", "diti", "sweep", str(file), "--out", str(out), "--jobs", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as sweep:
        wait_until(lambda: any(p.name.isdigit() for p in (out / "diti-s0" / "state").glob("*")))
        assert len(processes_of(out)) == 2, "the sweep and its run"
        sweep.kill()
    return out


@pytest.fixture(scope="module")
def swept(killed, file, cache):
    """The killed sweep, continued with a third run that diverges; its folder and the complaint."""
    wait_until(lambda: processes_of(killed) == [], seconds=10)
    assert not (killed / "diti-s0" / "card.md").exists(), "it ended before it was killed"
    plan = read_plan(file)
    wild = replace(plan.runs["diti-s0"].training, learning_rate=100.0, max_grad_norm=0.0)
    runs = {"wild-s0": replace(plan.runs["diti-s0"], training=wild), **plan.runs}
    with pytest.raises(InputError) as complaint:
        run_sweep(Plan(runs), killed, jobs=2)
    return killed, str(complaint.value)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc, which says what is alive")
def test_a_sweep_killed_outright_leaves_no_process_behind(killed):
    wait_until(lambda: processes_of(killed) == [], seconds=10)
    assert processes_of(killed) == []


def test_a_run_that_fails_does_not_stop_the_others(swept, cache):
    out, complaint = swept
    assert re.search(r"^1 of 3 runs failed \(wild-s0\), see .*logs; the same command tries them again$", complaint)
    assert "learning-rate" in (out / "logs" / "wild-s0.txt").read_text().splitlines()[-1]
    assert (out / "wild-s0" / "diverged.txt").exists() and not (out / "wild-s0" / "model.json").exists()
    for name in ("diti-s0", "pdae-s0"):
        assert read_json(out / name / "checks.json")["loss_removed"] > 0
        assert [r["images"] for r in RunFolder(out / name).read_log() if "loss" in r] == list(range(32, 321, 32))
    assert len(list(cache.glob("toyfaces-*"))) == 1, "the data was prepared once"


@pytest.mark.parametrize(("name", "was_killed"), [("diti-s0", True), ("pdae-s0", False)])
def test_a_run_computes_what_train_model_does(swept, file, tmp_path, name, was_killed):
    out, _ = swept
    assert ("continuing at image" in (out / "logs" / f"{name}.txt").read_text()) == was_killed
    config = read_plan(file).runs[name]
    followed = load_yaml(TrainConfig(), out / name / "config.yaml")
    assert followed.training.log_images == 32, "the bar follows the log: a line per batch in so short a run"
    assert followed.training.mixed_precision == "no", "what auto stands for on a CPU is settled when it begins"
    assert set(differences(followed, config)) == {"training.log_images", "training.mixed_precision"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train_model(config, tmp_path / "alone")
    finally:
        torch.set_num_threads(threads)
    assert_same_weights(tmp_path / "alone", out / name)


def test_what_is_done_is_skipped(swept, file, monkeypatch, capsys):
    out, _ = swept
    monkeypatch.setattr(subprocess, "Popen", None)  # starting a process would raise
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert main(["sweep", str(file), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("done before") == 2 and f"report {out} --data toyfaces:64 --out report" in shown
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert {p: t for p, t in after.items() if p != out} == {p: t for p, t in before.items() if p != out}


def test_a_folder_of_another_run_is_refused(swept, file):
    out, _ = swept
    plan = read_plan(file)
    other = {**plan.runs, "diti-s0": replace(plan.runs["diti-s0"], subsets=3)}
    with pytest.raises(InputError, match=r"diti-s0 holds a run with other settings \(subsets\)"):
        run_sweep(Plan(other), out)
    idle = replace(plan.runs["pdae-s0"], subsets=3, gan=GANConfig(info_weight=7.0))
    assert run_sweep(Plan({"pdae-s0": idle}), out) == [out / "pdae-s0"]  # settings of other methods: it is done
    with pytest.raises(InputError, match=r"a run cannot be called 'logs'"):
        run_sweep(Plan({"logs": plan.runs["diti-s0"]}), out)
    with pytest.raises(InputError, match=r"--jobs is 0"):
        run_sweep(plan, out, jobs=0)


def test_a_file_in_place_of_a_run_is_refused(file, tmp_path):
    (tmp_path / "diti-s0").write_text("mine")
    with pytest.raises(InputError, match=r"diti-s0 is not a run; remove it"):
        run_sweep(read_plan(file), tmp_path)


def test_two_sweeps_into_one_folder_are_refused(file, tmp_path):
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(InputError, match=r"another diti command is writing to"):
            run_sweep(read_plan(file), tmp_path)
        other.communicate(b"\n")


def test_sigterm_stops_the_children(file, tmp_path):
    before = signal.getsignal(signal.SIGTERM)

    def terminate_when_two_run():
        wait_until(lambda: len(processes_of(tmp_path)) == 2)
        os.kill(os.getpid(), signal.SIGTERM)

    helper = threading.Thread(target=terminate_when_two_run)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        run_sweep(read_plan(file), tmp_path, jobs=2)
    helper.join()
    assert processes_of(tmp_path) == [] and signal.getsignal(signal.SIGTERM) == before
