"""Commands in two processes that share no folder of results: as on two machines."""

import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from pairs import places
from tiny import tiny_backbone, tiny_model

import diti
from diti.cli import main
from diti.core.runs import RunFolder, read_json

SOLVED = ("--code-dim", "8", "--subsets", "2", "--stretches", "2", "--images", "160", "--pixel-axes", "12")
TRAINED = (
    "--train-batch-size", "16", "--log-images", "32", "--checkpoint-images", "32", "--learning-rate", "1e-4",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Data and a backbone, which both processes can read."""
    folder = tmp_path_factory.mktemp("made")
    diti.prepare("toyfaces:200", folder / "data", 16, workers=1)
    tiny_backbone().save(folder / "backbone")
    return folder


@pytest.fixture(scope="module")
def solved(made):
    given = ("--data", made / "data", "--backbone", made / "backbone", "--out", made / "model")
    assert main(["solve", *map(str, given), *SOLVED]) == 0
    return made / "model"


def test_train_from_the_solution_with_nothing_in_common_but_the_data(made, tmp_path, two_processes):
    given = ("--data", made / "data", "--backbone", made / "backbone", "--code-dim", "8", "--subsets", "2")
    few = ("--stretches", "2", "--pixel-axes", "12", "--whitened", "16", "--validate-images", "64")
    two_processes("train", *given, *few, *TRAINED, "--images", "64", "--out", "run", apart=tmp_path)
    assert not (tmp_path / "1" / "run").exists(), "one process writes"
    assert read_json(tmp_path / "0" / "run" / "model.json")["method"] == "diti"


def test_a_run_goes_on_with_another_number_of_processes(made, tmp_path, two_processes):
    run = tmp_path / "0" / "run"
    words = ("train", "--method", "simclr", "--data", made / "data", "--code-dim", "8", "--encoder", "residual")
    words += ("--encoder-channels", "8", "16", *TRAINED, "--out")
    assert main([*map(str, words), str(run), "--images", "64"]) == 0
    printed = two_processes(*words, "run", "--images", "128", apart=tmp_path)
    assert "continuing at image 64" in printed and not (tmp_path / "1" / "run").exists()
    assert main([*map(str, words), str(run), "--images", "192"]) == 0
    assert [line["images"] for line in RunFolder(run).read_log() if "loss" in line] == list(range(32, 193, 32))


def test_encode_gathers_what_both_found(made, tmp_path, two_processes, monkeypatch):
    monkeypatch.setattr("diti.representation.models.model.PIXELS_AT_ONCE", 1)
    tiny_model().save(tmp_path / "0" / "model")  # the second process has none
    printed = two_processes("encode", "model", made / "data", apart=tmp_path)
    assert printed.count("wrote features.parquet") == 1 and not (tmp_path / "1" / "features.parquet").exists()
    assert (
        main(["encode", str(tmp_path / "0" / "model"), str(made / "data"), "--out", f"{tmp_path}/z.parquet"]) == 0
    )
    one, two = pq.read_table(tmp_path / "z.parquet"), pq.read_table(tmp_path / "0" / "features.parquet")
    assert one.schema == two.schema and one["file"] == two["file"]
    for name in one.column_names[2:]:
        np.testing.assert_allclose(one[name], two[name], atol=1e-4, rtol=1e-3)


USED = {
    "probe": ("--no-subsets", "--no-baselines", "--out", "probe.json"),
    "explore": ("--first", "2", "--axes", "1", "--faces", "1", "--sampling-steps", "3", "--out", "explored"),
}


@pytest.mark.parametrize("verb", USED)
def test_what_both_found_is_used_as_what_one_found(made, solved, tmp_path, two_processes, monkeypatch, verb):
    monkeypatch.setenv("DITI_CACHE", str(tmp_path / "cache"))
    record = {"probe": "probe.json", "explore": "explored/explore.json"}[verb]
    for folder in ("0", "alone"):  # the second process has none
        shutil.copytree(solved, tmp_path / folder / "model")
    two_processes(verb, "model", "--data", made / "data", *USED[verb], apart=tmp_path)
    assert not [path for path in (tmp_path / "1").iterdir() if path.name != "cache"], "one process writes"
    monkeypatch.chdir(tmp_path / "alone")
    assert main([verb, "model", "--data", str(made / "data"), *USED[verb]]) == 0
    one, two = (read_json(tmp_path / folder / record) for folder in ("alone", "0"))
    if verb == "probe":
        assert one["probe"]["mean_ap"] == pytest.approx(two["probe"]["mean_ap"], rel=1e-3)
    else:
        found = [
            [(axis["axis"], axis["removed"], axis["changed"]) for axis in each["dims"]] for each in (one, two)
        ]
        assert len(found[0]) == 2 and found[0] == [pytest.approx(axis, rel=1e-2) for axis in found[1]]


def test_a_process_that_is_killed_ends_the_other_and_the_run_goes_on_with_one(made, tmp_path, capsys):
    """Told by srun who they are."""
    words = [
        "train",
        "--data",
        made / "data",
        "--backbone",
        made / "backbone",
        "--code-dim",
        "8",
        "--subsets",
        "2",
    ]
    words = [*map(str, words), "--start", "copy", *TRAINED]
    pair = []
    for rank, place in enumerate(places(slurm=True)):
        out = ("--images", "1000000", "--out", tmp_path / str(rank) / "run")
        with (tmp_path / f"error-{rank}").open("w") as error:
            command = [sys.executable, "-m", "diti", *words, *out]
            pair.append(subprocess.Popen(command, env=place, stdout=subprocess.DEVNULL, stderr=error))
    try:
        until = time.monotonic() + 600
        while not list((tmp_path / "0" / "run").glob("state/0*")):
            assert time.monotonic() < until and pair[0].poll() is None
            time.sleep(0.1)
        pair[1].send_signal(signal.SIGKILL)
        pair[0].wait(timeout=600)
    finally:
        for process in pair:
            process.kill()
            process.wait()
    said = (tmp_path / "error-0").read_text()
    assert pair[0].returncode not in (0, None)
    last = said.strip().splitlines()[-1]
    assert last.startswith("diti: ") and "process" in last and "the same command continues" in last
    assert "bug" not in said and "Traceback" not in said
    run = RunFolder(tmp_path / "0" / "run")
    saved = int(max(state.name for state in (run.path / "state").iterdir() if state.name.isdigit()))
    assert main([*words, "--images", str(run.images_seen() + 32), "--out", str(run.path)]) == 0
    assert f"continuing at image {saved}" in capsys.readouterr().out.replace(",", "")
