"""What `diti report` refuses, and what it measures again. The whole of it is shown by tests/test_demo.py."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_run import make_run

from diti.cli import main
from diti.core.errors import InputError
from diti.core.runs import versions, write_json
from diti.data.prepare import prepare
from diti.data.source import ReadOptions
from diti.data.sources import find_source, open_data
from diti.measure.probing import ProbeOptions
from diti.pages.blocks import Cell, Table
from diti.reporting import build
from diti.reporting import stages as measuring
from diti.reporting.build import find_runs, listed, shared_data
from diti.reporting.stages import Effort, plan_stages
from diti.reporting.terminal import print_table


def test_runs_are_found_alone_and_in_folders(tmp_path):
    a, b = make_run(tmp_path / "sweep" / "a"), make_run(tmp_path / "sweep" / "b")
    (tmp_path / "sweep" / "logs").mkdir()
    assert find_runs([tmp_path / "sweep"]) == [a, b] and find_runs([b, a]) == [b, a]


@pytest.mark.parametrize(("name", "complaint"), [("nothing", "is not a folder"), ("empty", "holds no run")])
def test_what_is_no_run_is_one_line(tmp_path, capsys, name, complaint):
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / name), "--out", str(tmp_path / "report")]) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("content", ["[]", "null", "3"])
def test_a_run_json_of_another_kind_is_one_line(tmp_path, capsys, content):
    run = make_run(tmp_path / "a")
    (run / "run.json").write_text(content)
    assert main(["report", str(run), "--out", str(tmp_path / "report")]) == 2
    complaint = capsys.readouterr().err
    assert "run.json" in complaint and complaint.count("\n") == 1


def test_a_page_of_others_is_not_replaced(tmp_path, capsys):
    run, out = make_run(tmp_path / "a"), tmp_path / "site"
    out.mkdir()
    (out / "index.html").write_text("<html>my site</html>")
    assert main(["report", str(run), "--out", str(out)]) == 2
    assert "index.html exists, and diti did not write it" in capsys.readouterr().err
    assert main(["report", str(run), "--out", str(out), "--overwrite"]) == 2
    assert "not a finished run" in capsys.readouterr().err
    assert main(["report", str(run), "--out", str(out / "index.html")]) == 2
    assert "is a file, not a folder" in capsys.readouterr().err


def test_data_of_another_size_are_refused_before_anything_is_measured(tmp_path, monkeypatch, image_folder):
    run = make_run(tmp_path / "a")
    (run / "encoder" / "config.json").write_text(json.dumps({"size": 16}))
    prepare(find_source(str(image_folder), ReadOptions(size=8)), tmp_path / "data", 8)
    monkeypatch.setattr(build, "check_finished", lambda path: None)
    monkeypatch.setattr(build, "measure_runs", None)
    with pytest.raises(InputError, match="has images of 8 px, the runs take 16 px: prepare it with --size 16"):
        build.report([run], tmp_path / "out", data=str(tmp_path / "data"))
    (run / "encoder" / "config.json").write_text(json.dumps({"size": "16"}))
    with pytest.raises(InputError, match=r"encoder/config\.json says images of '16' px"):
        build.report([run], tmp_path / "out", data=str(tmp_path / "data"))
    assert not (tmp_path / "out").exists()


def test_no_run_at_all_is_one_line(tmp_path, capsys):
    assert main(["report", "--out", str(tmp_path / "report")]) == 2
    assert capsys.readouterr().err.startswith("diti: no run was named")


def test_runs_of_different_data_need_a_choice(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", data="toyfaces:50")]
    assert shared_data(runs[:1]) == "toyfaces:40"
    with pytest.raises(InputError, match=r"toyfaces:40, toyfaces:50.*--data"):
        shared_data(runs)


def test_an_unfinished_run_is_refused_before_anything_is_measured(tmp_path, capsys):
    run = make_run(tmp_path / "a")
    (run / "run.json").write_text(json.dumps({"verb": "train", "command": "diti train --data d"}))
    assert main(["report", str(run), "--out", str(tmp_path / "report")]) == 2
    complaint = capsys.readouterr().err
    assert "checks.json" in complaint and "finish it with: diti train --data d" in complaint
    assert not (run / "measured").exists()


@pytest.fixture
def faces():
    return open_data("toyfaces:40", 16)


def test_baselines_are_probed_once_and_the_first_edits_come_first(tmp_path, faces):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", subsets=1)]
    stages = plan_stages(runs, faces, "toyfaces:40", Effort())
    assert [(s.run.name, s.name) for s in stages] == [
        ("a", "counterfactuals"), ("a", "probe"), ("a", "analysis"), ("b", "counterfactuals"), ("a", "explored"),
        ("b", "probe"),
    ]  # fmt: skip
    assert [s.options["baselines"] for s in stages if s.name == "probe"] == [True, False]


def test_runs_of_two_folders_that_are_named_alike_are_all_measured(tmp_path, faces, monkeypatch):
    runs = [make_run(tmp_path / folder / "diti-s0") for folder in ("solved", "trained")] + [
        make_run(tmp_path / "b")
    ]
    names = measuring.distinct_names(runs)
    assert list(names.values()) == ["solved-diti-s0", "trained-diti-s0", "b"]
    started = []
    monkeypatch.setattr(measuring, "run_jobs", lambda jobs, side_by_side, follow: started.extend(jobs))
    measuring.measure_runs(runs, faces, "toyfaces:40", Effort(), tmp_path / "logs")
    assert len(started) == len(plan_stages(runs, faces, "toyfaces:40", Effort()))
    assert len({job.log for job in started}) == len(started), "each has a log of its own"


def test_baselines_come_with_a_run_that_holds_the_backbone(tmp_path, faces):
    runs = [make_run(tmp_path / name, subsets=1, decoder=False) for name in "ab"]
    shutil.rmtree(runs[0] / "unet")  # of a method that keeps no diffusion model: its baselines would be two only

    def with_baselines(runs):
        stages = plan_stages(runs, faces, "toyfaces:40", Effort())
        return [s.run.name for s in stages if s.name == "probe" and s.options["baselines"]]

    assert with_baselines(runs) == ["b"] and with_baselines(runs[:1]) == ["a"]


def test_each_length_of_the_code_has_its_baselines(tmp_path, faces):
    runs = [make_run(tmp_path / name, subsets=1) for name in "abc"]
    for run, dims in zip(runs, (8, 4, 8), strict=True):
        (run / "encoder" / "config.json").write_text(json.dumps({"size": 16, "dims": dims}))
    stages = plan_stages(runs, faces, "toyfaces:40", Effort(wide_baseline=True))
    assert [s.run.name for s in stages if s.name == "probe" and s.options["baselines"]] == ["a", "b"]
    assert [s.run.name for s in stages if s.name == "probe" and s.options["wide_baseline"]] == ["a"]


def test_on_other_images_the_code_is_only_read(tmp_path, faces):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b")]
    stages = plan_stages(runs, faces, "toyfaces:40", Effort(transfer=True))
    assert [(s.run.name, s.name) for s in stages] == [("a", "probe"), ("b", "probe")]
    for options in (stage.options for stage in stages):
        assert (options["reconstruct"], options["subsets"], options["disentanglement"]) == (0, False, False)
        assert options["folds"]


@pytest.mark.parametrize("size", [8, 16])
def test_transfer_to_what_cannot_be_probed_is_refused(tmp_path, monkeypatch, image_folder, size):
    run = make_run(tmp_path / "a")
    (run / "encoder" / "config.json").write_text(json.dumps({"size": 16}))
    prepare(find_source(str(image_folder), ReadOptions(size=size)), tmp_path / "data", size)
    monkeypatch.setattr(build, "check_finished", lambda path: None)
    complaint = "--transfer .* has (images of 8 px|no attributes to probe)"
    with pytest.raises(InputError, match=complaint):
        build.report([run], tmp_path / "out", data="toyfaces:40", transfer=str(tmp_path / "data"))
    assert not (tmp_path / "out").exists()


def test_the_title_names_six_methods_and_counts_the_others():
    assert listed(list("abcdef")) == "a, b, c, d, e, f"
    assert listed(list("abcdefgh")) == "a, b, c, d, e, 3 others"


def test_a_model_without_decoder_is_probed_only(tmp_path, faces):
    run = make_run(tmp_path / "a", subsets=1, decoder=False)
    assert [s.name for s in plan_stages([run], faces, "toyfaces:40", Effort())] == ["probe"]


def test_without_faces_the_codes_are_only_read(tmp_path, faces):
    run = make_run(tmp_path / "a")
    stages = plan_stages([run], faces, "toyfaces:40", Effort(faces=0))
    assert [s.name for s in stages] == ["probe", "analysis", "explored"]
    assert stages[0].options["reconstruct"] == 0
    with pytest.raises(InputError, match="--faces is -1"):
        Effort(faces=-1)


@pytest.mark.parametrize("options", [Effort, ProbeOptions])
def test_the_wide_baseline_without_baselines_is_refused(options):
    with pytest.raises(InputError, match=r"--wide-baseline .* --no-baselines .* give one of the two"):
        options(baselines=False, wide_baseline=True)


def test_a_stage_is_done_for_its_own_settings_only(tmp_path, faces):
    run = make_run(tmp_path / "a", subsets=1)

    def probe(**effort):
        stages = plan_stages([run], faces, "toyfaces:40", Effort(**effort))
        return next(s for s in stages if s.name == "probe")

    stage = probe()
    assert not stage.is_done
    (stage.folder).mkdir(parents=True)
    (stage.folder / "probe.json").write_text("{}")
    assert not stage.is_done, "a record without a note may belong to other settings"
    stage.note()
    assert stage.is_done and not probe(seed=1).is_done
    assert probe(baselines=False).is_done, "what was measured beyond the request does no harm"
    probe(baselines=False).note()
    assert not probe().is_done, "the baselines are missing"
    probe(wide_baseline=True).note()
    assert probe().is_done and probe(baselines=False).is_done
    probe().note()
    assert not probe(wide_baseline=True).is_done, "one baseline is missing"


@pytest.fixture
def measured(monkeypatch):
    """What `measure_runs` starts, in place of the processes: each call leaves the record it would write."""
    started = []

    def run_jobs(jobs, side_by_side, on_poll):
        for job in jobs:
            run, _, out = job.call.args[:3]
            stage = job.name.rpartition("-")[2]
            names = {"analysis": "analysis.json", "explored": "explore.json"}
            record = out if stage == "probe" else out / names.get(stage, "counterfactuals.json")
            write_json(record, {})
            started.append(f"{stage} {Path(run).name}")
            on_poll(SimpleNamespace(job=job, ended=True, fault="", began=0.0))

    monkeypatch.setattr(measuring, "run_jobs", run_jobs)

    def measure(*runs, **effort):
        started.clear()
        measuring.measure_runs(
            runs, open_data("toyfaces:40", 16), "toyfaces:40", Effort(**effort), runs[0] / "logs"
        )
        return sorted(started)

    return measure


ALL = ["analysis a", "counterfactuals a", "explored a", "probe a"]


def test_what_did_not_change_is_not_measured_again(tmp_path, measured):
    run = make_run(tmp_path / "a")
    assert measured(run) == ALL
    assert measured(run) == []
    assert measured(run, seed=1) == ALL
    assert measured(run, seed=1, faces=3) == ["counterfactuals a"]


@pytest.mark.parametrize("name", ["probe.json", "measured.json"])
@pytest.mark.parametrize("content", ["[]", '{"probe', ""])
def test_what_is_damaged_is_measured_again(tmp_path, measured, name, content):
    run = make_run(tmp_path / "a")
    measured(run)
    (file,) = run.glob(f"measured/*/{name}")
    file.write_text(content)
    assert measured(run) == (["probe a"] if name == "probe.json" else ALL)


@pytest.mark.parametrize("part", ["encoder", "decoder", "unet"])
def test_other_weights_are_measured_anew(tmp_path, measured, part):
    """Such as those of a decoder that was trained longer while --encoder-rate 0 kept the encoder."""
    run = make_run(tmp_path / "a")
    measured(run)
    (run / part / "model.safetensors").write_bytes(b"trained on")
    assert measured(run) == ALL, "the probe too: it reconstructs"
    assert measured(run) == []


def test_a_model_that_only_encodes_depends_on_its_encoder_alone(tmp_path, measured):
    run = make_run(tmp_path / "a", subsets=1, decoder=False)
    assert measured(run) == ["probe a"]
    (run / "unet" / "model.safetensors").write_bytes(b"another")
    assert measured(run) == []
    (run / "encoder" / "model.safetensors").write_bytes(b"trained on")
    assert measured(run) == ["probe a"]


def test_another_version_of_the_package_measures_anew(tmp_path, measured, monkeypatch):
    run = make_run(tmp_path / "a")
    measured(run)
    monkeypatch.setattr(measuring, "versions", lambda: versions() | {"diti": "99.0"})
    assert measured(run) == ALL
    assert measured(run) == []


def test_a_record_of_other_weights_is_not_shown_even_where_another_run_is_analysed(tmp_path, measured):
    """The theory is about the backbone, so only the first run that holds it is analysed."""
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    assert "analysis b" in measured(second)
    record = next((second / "measured").glob("*/analysis/analysis.json"))
    measured(first, second)
    assert record.is_file()
    (second / "decoder" / "model.safetensors").write_bytes(b"trained on")
    assert "analysis b" not in measured(first, second) and not record.exists()


def test_efforts_are_checked():
    with pytest.raises(InputError, match="pairs is 0"):
        Effort(pairs=0)


def test_a_table_on_the_terminal_has_its_numbers_and_note(capsys):
    print_table(
        Table("t", "Title", ["method", "AP"], [[Cell("DiTi"), Cell("61.0", 61.0, tone="best")]], "A note.")
    )
    shown = capsys.readouterr().out
    assert all(words in shown for words in ("Title", "method", "DiTi", "61.0", "A note."))
