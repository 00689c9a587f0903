import hashlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import yaml
from safetensors.torch import save_file

from diti.core.errors import InputError, as_one_line
from diti.core.runs import (
    FINISHED,
    RunFolder,
    atomic_path,
    read_json,
    sha256_file,
    sha256_folder,
    sha256_parts,
    versions,
    write_json,
)
from diti.core.training import TrainingConfig


def test_a_failed_write_keeps_the_old_file_and_leaves_no_litter(tmp_path):
    target = tmp_path / "a.json"
    write_json(target, {"old": 1})
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(target) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_replaces_a_folder(tmp_path):
    for content in ("one", "two"):
        with atomic_path(tmp_path / "model") as temporary:
            temporary.mkdir()
            (temporary / content).write_text(content)
    assert [p.name for p in tmp_path.rglob("*")] == ["model", "two"]


def test_a_file_never_replaces_a_folder(tmp_path):
    (tmp_path / "runs" / "precious").mkdir(parents=True)
    with pytest.raises(InputError, match="runs is a folder; name a file"):
        write_json(tmp_path / "runs", {})
    assert [p.name for p in tmp_path.rglob("*")] == ["runs", "precious"]


@contextmanager
def small_files() -> Iterator[None]:
    """A limit that a write meets as it meets a full disk: with an error that names no file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_tensors(path: Path) -> None:
    with atomic_path(path) as temporary:
        save_file({"x": torch.zeros(10_000)}, temporary)


def write_table(path: Path) -> None:
    with atomic_path(path) as temporary:
        pyarrow.parquet.write_table(pa.table({"x": np.random.default_rng(0).random(10_000)}), temporary)


def write_array(path: Path) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        np.save(handle, np.zeros(10_000))


WRITERS = {
    "text": lambda path: write_json(path, "x" * 20_000),
    "log": lambda path: RunFolder(path.parent).log(x="x" * 20_000),
    "tensors": write_tensors,
    "table": write_table,
    "array": write_array,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_what_cannot_be_written_is_named(tmp_path, kind):
    path = tmp_path / "log.jsonl"
    with pytest.raises(Exception) as raised, small_files():  # each library has its own
        WRITERS[kind](path)
    line, code = as_one_line(raised.value, [])
    assert code == 2 and line.startswith(f"{path}: ")
    assert line.endswith("; free space or choose another place")


def test_an_error_about_another_file_keeps_its_name(tmp_path):
    with pytest.raises(OSError) as raised, atomic_path(tmp_path / "out"):
        (tmp_path / "missing").read_text()
    assert as_one_line(raised.value, [])[0].startswith(f"{tmp_path / 'missing'}: No such file")


def test_read_json_names_the_file(tmp_path):
    with pytest.raises(InputError, match=r"x\.json is missing"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(InputError, match=r"x\.json is not valid JSON"):
        read_json(tmp_path / "x.json")


def test_hashes(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_file(tmp_path / "f") == hashlib.sha256(b"abc").hexdigest()
    before = sha256_folder(tmp_path)
    (tmp_path / "f").rename(tmp_path / "g")
    assert sha256_folder(tmp_path) != before, "names count too"


def test_hashes_of_parts_are_those_of_what_is_there(tmp_path):
    write_json(tmp_path / "folder" / "x.json", 1)
    write_json(tmp_path / "y.json", 2)
    parts = {"folder": sha256_folder(tmp_path / "folder"), "y.json": sha256_file(tmp_path / "y.json")}
    assert sha256_parts(tmp_path, ("folder", "y.json", "missing")) == parts


def test_versions_are_those_imported():
    import torch

    assert versions()["torch"].split("+")[0] == torch.__version__.split("+")[0]  # wheels may differ in the build


def test_log_survives_a_torn_line_and_rewinds(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.begin(TrainingConfig(seed=1), {"data": "x"})
    assert yaml.safe_load((run.path / "config.yaml").read_text())["seed"] == 1
    assert json.loads((run.path / "run.json").read_text())["data"] == "x"
    for images in (10, 20, 30):
        run.log(images=images, loss=1 / images)
    with run.log_path.open("a") as handle:
        handle.write('{"images": 40, "lo')
    assert [r["images"] for r in run.read_log()] == [10, 20, 30]
    run.rewind_log(20)
    run.log(images=30, loss=0.5)
    assert [r["images"] for r in run.read_log()] == [10, 20, 30]
    assert run.read_log()[-1]["loss"] == 0.5


def test_a_run_killed_while_it_began_begins_again(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".config.yaml.123.part").write_text("seed:")
    RunFolder(folder).begin(TrainingConfig(), {"data": "x"})
    assert (folder / "config.yaml").is_file()


def test_a_run_is_continued_only_with_its_own_settings(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.begin(TrainingConfig(seed=1, images=5), {"data_hash": "x"})
    run.begin(TrainingConfig(seed=2), {"data_hash": "y"})  # nothing was trained yet: start again as you like
    (run.path / "state").mkdir()
    run.begin(TrainingConfig(seed=2, images=9), {"data_hash": "y"}, frozenset({"images"}))
    with pytest.raises(InputError, match=r"other settings \(seed, data_hash\)"):
        run.begin(TrainingConfig(seed=3, images=9), {"data_hash": "z"})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("x")
    with pytest.raises(InputError, match="holds other files"):
        RunFolder(tmp_path / "other").begin(TrainingConfig(), {})


@pytest.mark.parametrize("made", ["model.json", "unet"])
def test_what_a_run_has_made_is_never_replaced(tmp_path, made):
    run = RunFolder(tmp_path)
    run.begin(TrainingConfig(), {"verb": "train"})
    (tmp_path / made).mkdir()
    before = (tmp_path / "config.yaml").read_text()
    with pytest.raises(InputError, match="holds a run of diti train; choose a new"):
        run.begin(TrainingConfig(), {"verb": "solve"})
    with pytest.raises(InputError, match=r"other settings \(seed\)"):
        run.begin(TrainingConfig(seed=7), {"verb": "train"})
    with pytest.raises(InputError, match="a finished model and no state to continue it from"):
        run.begin(TrainingConfig(), {"verb": "train"})
    assert (tmp_path / "config.yaml").read_text() == before


HOLD = """
import sys, time
from pathlib import Path
from diti.core.runs import RunFolder
with RunFolder(Path(sys.argv[1])).held():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_writer_and_a_dead_one_holds_nothing(tmp_path):
    run = RunFolder(tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", HOLD, run.path], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=r"another diti command is writing to .*run; wait for it"), run.held():
            pass
        with run.held(main=False):
            pass
        other.kill()
    assert (run.path / ".lock").exists(), "it was killed before it could tidy up"
    with run.held():
        run.begin(TrainingConfig(), {})
    assert sorted(p.name for p in run.path.iterdir()) == ["config.yaml", "run.json"]


def test_one_that_is_refused_leaves_the_folder_to_its_writer(tmp_path, monkeypatch):
    """Both found no folder; the other was faster."""
    run = RunFolder(tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", HOLD, run.path], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        exists = Path.exists
        monkeypatch.setattr(Path, "exists", lambda path, **how: path != run.path and exists(path, **how))
        with pytest.raises(InputError, match="another diti command is writing"), run.held():
            pass
        monkeypatch.undo()
        assert (run.path / ".lock").exists()
        other.kill()


def test_what_a_kill_has_left_of_files_goes_when_the_run_goes_on(tmp_path):
    run = RunFolder(tmp_path)
    run.begin(TrainingConfig(), {})
    for name in (".card.md.123.part", ".unet.123.old/x", "state/.000000000064.9.part/x", "state/000000000032/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("half")
    (tmp_path / ".mine").write_text("x")
    run.begin(TrainingConfig(), {})
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {"config.yaml", "run.json", "state/000000000032/x", ".mine"}


def test_a_folder_made_for_nothing_goes_again(tmp_path):
    with pytest.raises(InputError, match="refused"), RunFolder(tmp_path / "run").held():
        raise InputError("refused")
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file; name a folder"), RunFolder(tmp_path / "file").held():
        pass


@pytest.mark.parametrize("content", ["[]", "null", "{", "\ud800"])
def test_a_damaged_run_json_is_named(tmp_path, content):
    run = RunFolder(tmp_path)
    run.begin(TrainingConfig(), {"verb": "train"})
    (tmp_path / "state").mkdir()
    (tmp_path / "run.json").write_text(content, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(InputError, match=r"run\.json"):
        run.begin(TrainingConfig(), {"verb": "train"})


def test_a_log_with_other_things_in_it_is_read_as_far_as_it_is_a_log(tmp_path):
    run = RunFolder(tmp_path)
    run.log_path.write_bytes(b'{"images": 5}\n[1]\n7\n\xff\xfe\n{"images": "x"}\n{"images": 9}\n')
    assert run.images_seen() == 9
    assert len(run.read_log()) == 3
    run.rewind_log(5)
    assert run.images_seen() == 5


def test_a_finished_run_lacks_nothing(tmp_path):
    run = RunFolder(tmp_path)
    assert run.missing() == list(FINISHED) and run.images_seen() == 0
    for name in FINISHED:
        (tmp_path / name).write_text("")
    run.log(images=1_500, loss=1.0)
    run.log(validation_loss=1.0)
    assert run.missing() == [] and run.missing(1_500) == [] and run.images_seen() == 1_500
    assert run.missing(3_000) == ["1,500 of its 3,000 images"]
    (tmp_path / "card.md").unlink()
    assert run.missing(1_500) == ["card.md"], "it is written last"
