"""A sweep of solutions: shared passes give what single ones give, and what is done is skipped."""

import re

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tiny import tiny_backbone

from diti.cli import main
from diti.config import SolutionConfig, SolveConfig
from diti.core.errors import InputError
from diti.core.settings import from_mapping
from diti.reporting.runs import label_of, read_config
from diti.representation.models.loading import load
from diti.representation.solve import collect as collecting
from diti.representation.solve import run as solving
from diti.representation.solve.run import shared_pass, solve_model
from diti.sweep.file import SweepFile
from diti.sweep.plans import make_plan, read_plan

SMALL = {"images": 300, "code_dim": 12, "subsets": 3, "pixel_axes": 24, "stretches": 3}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("solutions")
    tiny_backbone().save(folder / "backbone")
    sweep = {
        "verb": "solve", "data": "toyfaces:300", "backbone": str(folder / "backbone"), "settings": SMALL,
        "runs": {
            "usual": {}, "tau": {"tau": 0.3}, "wide": {"code_dim": 20, "features_weight": 2.0},
            "balanced": {"partition": "balanced"}, "pdae": {"method": "pdae"}, "longer": {"images": 320},
        },
    }  # fmt: skip
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    return folder / "sweep.yaml"


@pytest.fixture(scope="module")
def swept(file, tmp_path_factory):
    """The folder of the sweep, and how often images were passed over."""
    out, passes = tmp_path_factory.mktemp("swept"), []
    gather = solving.gather_evidence
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITI_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(
            solving, "gather_evidence", lambda *given, **more: passes.append(1) or gather(*given, **more)
        )
        assert main(["sweep", str(file), "--out", str(out)]) == 0
        made = len(passes)
        times = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
        assert main(["sweep", str(file), "--out", str(out)]) == 0
        assert len(passes) == made and all(path.stat().st_mtime_ns == t for path, t in times.items())
    return out, made


def test_runs_that_ask_the_same_of_the_images_share_a_pass(swept, file):
    assert swept[1] == 2, "all but the longer one"
    assert read_plan(file).title == "6 solutions, 2 passes over the images"


@pytest.mark.parametrize("name", ["wide", "balanced", "pdae"])
def test_a_shared_pass_gives_what_a_pass_of_its_own_gives(swept, file, name, tmp_path):
    solve_model(read_plan(file).runs[f"{name}-s0"], tmp_path / "alone")
    for part in ("encoder", "decoder"):
        alone, shared = (
            load_file(next((folder / part).glob("*.safetensors")))
            for folder in (tmp_path / "alone", swept[0] / f"{name}-s0")
        )
        assert alone.keys() == shared.keys() and all(torch.equal(alone[key], shared[key]) for key in alone)


def files_of(folder):
    """Contents by name, without times, paths and the command that was typed."""
    found = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = file.read_bytes().replace(str(folder).encode(), b"OUT")
        if file.name in ("log.jsonl", "card.md"):
            content = re.sub(rb'(?<="seconds": )[\d.]+|\d+(?= s, seed)', b"", content)
        if file.name == "run.json":
            content = re.sub(rb'"command": .*', b"", content)
        found[str(file.relative_to(folder))] = content
    return found


def test_a_sweep_that_is_stopped_while_models_are_written_goes_on(swept, file, tmp_path, monkeypatch, capsys):
    sweep = yaml.safe_load(file.read_text())
    sweep["runs"] = {name: sweep["runs"][name] for name in ("balanced", "pdae", "tau")}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    finish, take_in, done, taken = solving.finish, collecting.Pass.take_in, [], []

    def stopped_in_the_second(model, assess, dataset, run, *more):
        if done:
            model.save(run.path)
            raise KeyboardInterrupt
        done.append(run.path.name)
        return finish(model, assess, dataset, run, *more)

    def stopped_behind_the_second(model, assess, dataset, run, *more):
        finish(model, assess, dataset, run, *more)
        done.append(run.path.name)
        raise KeyboardInterrupt

    words = ["sweep", str(tmp_path / "sweep.yaml"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(solving, "finish", stopped_in_the_second)
    assert main(words) == 130
    monkeypatch.setattr(
        collecting.Pass, "take_in", lambda job, *given: taken.append(job.seed) or take_in(job, *given)
    )
    monkeypatch.setattr(solving, "finish", stopped_behind_the_second)
    assert main(words) == 130, capsys.readouterr().err
    assert taken == [], "the pass was over"
    capsys.readouterr()
    monkeypatch.setattr(solving, "finish", finish)
    assert main(words) == 0
    assert done == ["balanced-s0", "pdae-s0"] and capsys.readouterr().out.count("done before") == 2
    for name in (*done, "tau-s0"):
        assert files_of(tmp_path / "out" / name) == files_of(swept[0] / name)


def test_a_cut_by_hand_is_kept_to_and_named(swept):
    partition = load(swept[0] / "balanced-s0").partition
    assert partition.kind == "balanced" and partition.subsets == 3
    assert load(swept[0] / "usual-s0").partition.kind == "matched"
    label = label_of(read_config(swept[0] / "balanced-s0"), ["partition"])
    assert label == "DiTi, balanced"


def test_what_the_pass_depends_on():
    usual = SolveConfig(images=300)
    for free in (
        {"method": "pdae"}, {"subsets": 4}, {"partition": "balanced"}, {"code_dim": 64},
        {"solution": SolutionConfig(tau=0.3, axes="ordered", features_weight=3)},
    ):  # fmt: skip
        assert shared_pass(SolveConfig(images=300, **free)) == shared_pass(usual)
    for bound in (
        {"images": 301}, {"seed": 1}, {"flip": False}, {"encoder_time": (0,)}, {"code_dim": 1000},
        {"solution": SolutionConfig(stretches=8)}, {"images": None},
    ):  # fmt: skip
        assert shared_pass(SolveConfig(**{"images": 300, **bound})) != shared_pass(usual)
    assert shared_pass(SolveConfig(code_dim=64)) != shared_pass(SolveConfig()), "the rule looks at the code"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"preset": "toyfaces32"}, "preset is for training runs"),
        ({"settings": {"detach": True}}, "unknown setting 'detach'"),
        ({"runs": {"a": {}, "b": {}}}, "the runs a-s0 and b-s0 would compute the same"),
        ({"backbone": ""}, "backbone is missing"),
        ({"verb": "guess"}, "verb"),
        ({"runs": {}}, "no runs"),
    ],
)
def test_mistakes_are_one_line(change, complaint):
    keys = {"verb": "solve", "data": "toyfaces:300", "backbone": "toyfaces32", "runs": {"a": {}}, **change}
    with pytest.raises(InputError, match=complaint):
        make_plan(from_mapping(SweepFile(), keys, "sweep.yaml"), "sweep.yaml")


def test_what_cannot_be_solved_is_found_before_anything_is_written(file, tmp_path, capsys):
    assert main(["sweep", str(file), "--out", str(tmp_path / "out"), "--jobs", "2"]) == 2
    assert "--jobs is 2; it is for training runs" in capsys.readouterr().err
    keys = yaml.safe_load(file.read_text())
    keys["runs"] = {"good": {}, "bad": {"subsets": 100}}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(keys))
    assert main(["sweep", str(tmp_path / "bad.yaml"), "--out", str(tmp_path / "out")]) == 2
    assert "run bad-s0: 100 subsets do not fit in 12 dims" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
