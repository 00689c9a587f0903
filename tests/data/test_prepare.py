"""From any source to a dataset folder: whole, resumable, and never at the cost of what is there."""

import fcntl
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from on_disk import contents
from PIL import Image

from diti.core.errors import InputError
from diti.core.locks import locked
from diti.core.machine import available_cores
from diti.core.runs import read_json
from diti.data.parts import _amount
from diti.data.prepare import PLAN, _finish, prepare
from diti.data.prepared import open_dataset
from diti.data.source import ReadOptions
from diti.data.sources import KINDS, find_source, open_data


@pytest.fixture(autouse=True)
def _workers_start_where_they_usually_do(monkeypatch):
    """Elsewhere in the suite many more images are decoded in one process."""
    monkeypatch.setattr("diti.data.prepare.WORTH_WORKERS", 256)


def source(location: object, **options: object):
    return find_source(str(location), ReadOptions(**options))


def test_prepared_folder_holds_pixels_table_and_description(image_folder, tmp_path):
    dataset = prepare(source(image_folder), tmp_path / "out", 16)
    assert set(contents(dataset.path)) == {"images.npy", "table.parquet", "dataset.json", "plan.json"}
    for row, file in enumerate(dataset.table["file"].to_pylist()):
        with Image.open(image_folder / file) as image:
            assert dataset.images[row, 8, 8].tolist() == list(image.getpixel((20, 20)))
    info = dataset.info
    assert info["count"] == 12 and info["size"] == 16 and info["crop"] == "centre" and len(info["hash"]) == 64


def test_unreadable_images_are_skipped_named_and_counted(image_folder, tmp_path):
    (image_folder / "a" / "05x.png").write_bytes(b"nonsense")
    whole = (image_folder / "b" / "07.png").read_bytes()
    (image_folder / "b" / "07.png").write_bytes(whole[: len(whole) // 2])
    dataset = prepare(source(image_folder), tmp_path / "out", 16)
    assert len(dataset) == 11 == dataset.table.num_rows and dataset.info["skipped"] == 2
    lines = (dataset.path / "skipped.csv").read_text().splitlines()
    assert lines[0] == "file,reason" and lines[1].startswith("a/05x.png,not an image")
    assert lines[2].startswith("b/07.png,")
    row = dataset.table["file"].to_pylist().index("b/09.png")
    assert dataset.images[row, 0, 0].tolist() == [9 * 37 % 256, 9 * 91 % 256, 9]


def test_workers_write_the_same_bytes_as_one_process(tmp_path):
    for workers in (1, 3):
        prepare(source("toyfaces:700", size=16), tmp_path / str(workers), 16, workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")


def test_repeating_is_free_and_overwriting_starts_again(image_folder, tmp_path):
    out = tmp_path / "out"
    first = prepare(source(image_folder), out, 16)
    stamp = (out / "images.npy").stat().st_mtime_ns
    prepare(source(image_folder), out, 16)
    assert (out / "images.npy").stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match=r"holds another dataset \(size: 16, now 32\).*--overwrite"):
        prepare(source(image_folder), out, 32)
    assert open_dataset(out).hash == first.hash
    assert prepare(source(image_folder), out, 32, overwrite=True).size == 32


def test_a_changed_source_is_noticed(image_folder, tmp_path):
    prepare(source(image_folder), tmp_path / "out", 16)
    Image.new("RGB", (50, 50), (1, 2, 3)).save(image_folder / "a" / "00.png")
    with pytest.raises(InputError, match="another dataset"):
        prepare(source(image_folder), tmp_path / "out", 16)


def start(*words: object, stderr: int = subprocess.DEVNULL) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "diti", "prepare", *map(str, words)],
        stdout=subprocess.DEVNULL, stderr=stderr, text=True, process_group=0,
    )  # fmt: skip


def in_the_middle(process: subprocess.Popen, out: Path, images: int) -> None:
    """Wait until some of its images are done and most are not."""
    done = out / "done.part"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if done.exists() and done.stat().st_size > 4 * images and np.count_nonzero(np.load(done)) > 200:
            return
        time.sleep(0.005)
    raise AssertionError("it has ended, or never begun")


def workers_of(process: subprocess.Popen) -> list[int]:
    """Its children that decode; the tracker that Python starts beside them ends after it."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def runs(worker: int) -> bool:
    try:
        return Path(f"/proc/{worker}/cmdline").read_bytes() != b""  # empty where nobody has taken note of its end
    except OSError:
        return False


def have_ended(workers: list[int]) -> bool:
    deadline = time.monotonic() + 20
    while any(map(runs, workers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(runs, workers))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_stopped_in_the_middle_then_the_same_command_gives_the_same_bytes(tmp_path, diti, how):
    words = ("toyfaces:3000", "--size", 64, "--workers", 2)
    process = start(*words, "--out", tmp_path / "stopped", stderr=subprocess.PIPE)
    in_the_middle(process, tmp_path / "stopped", 3000)
    workers = workers_of(process)
    assert len(workers) == 2
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as the terminal sends it
    else:
        process.send_signal(how)
    _, said = process.communicate()
    assert have_ended(workers)
    if how == signal.SIGINT:
        assert process.returncode == 130 and "Traceback" not in said
    assert not (tmp_path / "stopped" / "dataset.json").exists()
    with pytest.raises(InputError, match="not a complete dataset folder"):
        open_dataset(tmp_path / "stopped")
    assert diti("prepare", *words, "--out", tmp_path / "stopped").returncode == 0
    prepare(source("toyfaces:3000", size=64), tmp_path / "clean", 64)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "clean")


def test_a_worker_that_dies_is_one_line(tmp_path):
    process = start("toyfaces:3000", "--size", 64, "--workers", 2, "--out", tmp_path, stderr=subprocess.PIPE)
    in_the_middle(process, tmp_path, 3000)
    workers = workers_of(process)
    os.kill(workers[0], signal.SIGKILL)
    _, said = process.communicate()
    assert process.returncode == 2 and have_ended(workers)
    assert said.splitlines()[-1].startswith("diti: a decoding process died") and "Traceback" not in said


SCRIPT = """
import multiprocessing
import threading

import torch

import diti

multiprocessing.set_start_method("forkserver")
torch.ones(300, 300) @ torch.ones(300, 300)


def look():
    data = diti.open_data("toyfaces:600", 16)
    print(len(data), (data.images.reshape(600, -1).max(axis=1) == 0).sum())


thread = threading.Thread(target=look)
thread.start()
thread.join()
"""


def test_whatever_a_script_chose_its_images_are_decoded(tmp_path):
    """Python 3.14 starts processes by a fork server; and few scripts have a guard around what they do."""
    (tmp_path / "script.py").write_text(SCRIPT)
    ran = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=600)
    complaints = [line for line in ran.stderr.splitlines() if not line.startswith("preparing toyfaces")]
    assert (ran.stdout, complaints) == ("600 0\n", [])


def test_systems_that_reserve_no_space_and_tell_no_cores(tmp_path, monkeypatch):
    """macOS has neither call: the same bytes, by as many workers as there are cores."""
    expected = contents(prepare(source("toyfaces:300", size=16), tmp_path / "linux", 16).path)
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert available_cores() == 2
    assert contents(prepare(source("toyfaces:300", size=16), tmp_path / "macos", 16).path) == expected
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1


def test_a_second_writer_waits_for_the_first(tmp_path, diti):
    words = ("toyfaces:20000", "--size", 64, "--out", tmp_path / "out")
    process = start(*words)
    try:
        while not (tmp_path / "out" / "done.part").exists() and process.poll() is None:
            time.sleep(0.005)
        second = diti("prepare", *words)
    finally:
        process.kill()
        process.wait()
    assert second.returncode == 2 and "another diti command is writing" in second.stderr


def test_disk_space_is_checked_before_writing(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    faces = source(f"toyfaces:{min(2_000_000, free // (1024 * 1024 * 3) + 1000)}", size=64)
    with pytest.raises(InputError, match=r"images of 1024 px need .* [GT]B and .* has .* [GT]B free"):
        prepare(faces, tmp_path / "out", 1024)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_cache_is_told_as_such(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=1000))
    with pytest.raises(InputError, match=r"free; free space, or set DITI_CACHE to another folder$"):
        open_data("toyfaces:100", 32)
    with pytest.raises(InputError, match=r"free; free space, or choose another --out, or a smaller --size$"):
        prepare(source("toyfaces:100", size=32), tmp_path / "out", 32)


def test_a_limit_hit_while_writing_is_one_line(tmp_path, diti):
    def no_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    result = diti("prepare", "toyfaces:300", "--size", 32, "--out", tmp_path / "out", preexec_fn=no_large_files)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(f"diti: cannot write to {tmp_path / 'out'}: File too large")
    assert diti("prepare", "toyfaces:300", "--size", 32, "--out", tmp_path / "out").returncode == 0


def test_a_read_only_target_is_one_line(tmp_path, diti):
    """/proc takes no new folders, whoever asks."""
    result = diti("prepare", "toyfaces:10", "--size", 16, "--out", "/proc/diti-out")
    assert result.returncode == 2 and result.stderr.startswith("diti: cannot write to /proc/diti-out")
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        result = diti("prepare", "toyfaces:10", "--size", 16, "--out", tmp_path / "out")
        assert result.returncode == 2 and "Permission denied" in result.stderr


def test_foreign_files_in_the_target_are_left_alone(image_folder, tmp_path):
    with pytest.raises(InputError, match="holds other files"):
        prepare(source(image_folder), image_folder, 16, overwrite=True)
    assert len(list(image_folder.rglob("*.png"))) == 12
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file; name a folder"):
        prepare(source(image_folder), tmp_path / "file", 16)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("nowhere",), "nowhere does not exist"),
        (("toyfaces:0",), "toyfaces:0 is not understood"),
        (("toyfaces:9", "--size", 8), "size"),
        (("toyfaces:9", "--size", 5000), "size"),
        (("toyfaces:9",), "toyfaces:9 can be drawn at any size and none is given; add .*--size 32"),
        (("tall",), r"tall has no size of its own \(an image of 40×30 px, crop centre\); give .*--size 64"),
        (("images", "--crop", "lfw"), r"has no size of its own \(an image of 40×40 px, crop lfw\)"),
        (("toyfaces:9", "--size", 16, "--crop", "middle"), "crop 'middle' is unknown"),
        (("images", "--kind", "celebb"), "--kind celebb is unknown; use .*Did you mean 'celeba'"),
        (("empty",), "holds no images"),
        (("broken",), r"none of the 2 images can be read; the first: 0\.png"),
        (("notes.txt",), r"notes\.txt is not a kind of data that can be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, line, image_folder, tmp_path, diti_here):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "tall").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "tall" / "0.png")
    (tmp_path / "broken").mkdir()
    for name in ("0.png", "1.png"):
        (tmp_path / "broken" / name).write_bytes(b"x")
    result = diti_here("prepare", *words, "--out", "out", cwd=tmp_path)
    assert result.returncode == 2
    assert re.match(f"diti: .*{line}", result.stderr.strip().splitlines()[-1]), result.stderr


def test_open_data_takes_a_dataset_folder_or_prepares_into_the_cache(image_folder, tmp_path):
    out = prepare(source(image_folder), tmp_path / "out", 16).path
    assert open_data(str(out), size=64).size == 16, "a dataset folder is taken as it is"
    cached = open_data(str(image_folder), size=24)
    assert cached.size == 24 and os.environ["DITI_CACHE"] in str(cached.path)
    assert open_data(str(image_folder), size=24).path == cached.path
    assert len(open_data("toyfaces:40", size=16)) == 40


def test_without_a_size_images_keep_the_one_they_all_have(image_folder, tmp_path):
    (image_folder / "a" / "00x.png").write_bytes(b"broken")
    data = open_data(image_folder)
    assert data.size == 40 and len(data) == 12 and open_data(str(image_folder), 40).path == data.path
    assert prepare(source(image_folder), tmp_path / "out").size == 40
    assert open_data(tmp_path / "out").size == 40, "a dataset folder knows its size"
    Image.new("RGB", (48, 48)).save(image_folder / "b" / "other.png")
    with pytest.raises(InputError, match=r"no size of its own \(an image of (40×40|48×48) px.*size=64"):
        open_data(image_folder)
    with pytest.raises(InputError, match=r"toyfaces:5 can be drawn at any size and none is given.*size=32"):
        open_data("toyfaces:5")


def test_real_data_is_detected(shared):
    data = shared / "data"
    found = {
        name: find_source(str(data / name), ReadOptions())
        for name in ("celeba-layout-sample", "lfw-layout-sample", "celeba46k-64px.parquet", "lfw3k-64px.parquet")
    }
    counts = {name: s.table.num_rows for name, s in found.items()}
    assert counts == {
        "celeba-layout-sample": 60, "lfw-layout-sample": 32,
        "celeba46k-64px.parquet": 46_715, "lfw3k-64px.parquet": 2_999,
    }  # fmt: skip
    assert found["celeba-layout-sample"].crop == "celeba" and found["lfw-layout-sample"].crop == "lfw"


@pytest.mark.parametrize("name", ["celeba-layout-sample", "lfw-layout-sample"])
def test_real_layouts_are_prepared(shared, name, tmp_path):
    dataset = prepare(source(shared / "data" / name), tmp_path / "out", 64)
    assert dataset.info["skipped"] == 0
    assert 60 < dataset.images.mean() < 200 and dataset.images.std() > 30


def test_kinds_have_distinct_names():
    assert len({kind.name for kind in KINDS}) == len(KINDS)


# ---- Damage, other writers, and places that are not to be written ---------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeros_at_the_end(path: Path) -> None:
    """As the file system may leave it after a power failure."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


@pytest.fixture
def stopped(image_folder, tmp_path, monkeypatch) -> Path:
    """A folder that was left when all images were decoded."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("diti.data.prepare._finish", stop)
        prepare(source(image_folder), tmp_path / "stopped", 16)
    return tmp_path / "stopped"


@pytest.mark.parametrize("name", ["images.part", "done.part"])
@pytest.mark.parametrize("damage", [cut, zeros_at_the_end, Path.unlink, lambda p: p.write_bytes(b"[]")])
def test_what_is_damaged_of_a_stopped_run_is_decoded_again(stopped, image_folder, tmp_path, name, damage):
    expected = prepare(source(image_folder), tmp_path / "whole", 16)
    damage(stopped / name)
    found = prepare(source(image_folder), stopped, 16)
    assert found.hash == expected.hash and found.info["skipped"] == 0


def test_rows_that_nobody_decoded_are_not_passed_for_images(stopped, image_folder):
    done = np.load(stopped / "done.part", mmap_mode="r+")
    done[[3, 4]] = 0
    with pytest.raises(InputError, match=r"1 of 12 images were not decoded.*same command continues"):
        _finish(source(image_folder), stopped, read_json(stopped / PLAN), {4: "not an image"})
    assert not (stopped / "dataset.json").exists()


def test_only_lost_images_are_decoded_again(stopped, image_folder, caplog):
    zeros_at_the_end(stopped / "images.part")
    prepare(source(image_folder), stopped, 16)
    (line,) = caplog.messages
    assert re.match(r"[67] images in .*images\.part are damaged and are decoded again", line)


LITTER = (".table.parquet.123.part", ".dataset.json.99.part", ".lock")


def test_what_kills_have_left_goes_with_the_next_run(stopped, image_folder, tmp_path):
    """Equal commands leave equal files: also one that was killed at the very end, or is overwritten."""
    whole = contents(prepare(source(image_folder), tmp_path / "whole", 16).path)
    for litter, keywords in ((LITTER, {}), ((*LITTER, "done.part"), {}), (LITTER, {"overwrite": True})):
        for name in litter:
            (stopped / name).write_bytes(b"")
        prepare(source(image_folder), stopped, 16, **keywords)
        assert contents(stopped) == whole
    cached = open_data(image_folder, 16).path
    before = contents(cached)
    (cached / "dataset.json").unlink()
    (cached / LITTER[0]).write_bytes(b"")
    assert contents(open_data(image_folder, 16).path) == before


@pytest.mark.parametrize("text", ["[]", "", "null", "{"])
def test_a_damaged_plan_is_told(stopped, image_folder, text):
    (stopped / "plan.json").write_text(text)
    with pytest.raises(InputError, match=r"plan\.json is damaged; .*--overwrite"):
        prepare(source(image_folder), stopped, 16)
    assert len(prepare(source(image_folder), stopped, 16, overwrite=True)) == 12


@pytest.mark.parametrize("name", ["images.npy", "table.parquet", "dataset.json", "plan.json"])
@pytest.mark.parametrize("text", [b"", b"[]", b"\x80\x04]\x94."])
def test_damaged_data_in_the_cache_is_made_anew(image_folder, name, text):
    """Its user never ran diti prepare."""
    before = open_data(image_folder, 16)
    (before.path / name).write_bytes(text)
    after = open_data(image_folder, 16)
    assert after.hash == before.hash and after.path == before.path


def test_a_copy_of_a_folder_shares_its_place_in_the_cache(image_folder, tmp_path):
    shutil.copytree(image_folder, tmp_path / "copy")
    assert open_data(image_folder, 16).path == open_data(tmp_path / "copy", 16).path


def hold(folder: Path, taken, free) -> None:
    with locked(folder):
        taken.set()
        free.wait(20)
        (folder / "images.npy").write_bytes(b"half written")


def test_who_wants_the_same_from_the_cache_waits(image_folder, caplog):
    folder = open_data(image_folder, 16).path
    (folder / "dataset.json").unlink()
    fork = multiprocessing.get_context("fork")
    taken, free = fork.Event(), fork.Event()
    other = fork.Process(target=hold, args=(folder, taken, free))
    other.start()
    try:
        assert taken.wait(20)
        with pytest.raises(InputError, match="another diti command is writing"), locked(folder):
            pass
        threading.Timer(0.1, free.set).start()
        assert len(open_data(image_folder, 16)) == 12
    finally:
        free.set()
        other.join()
    assert [line for line in caplog.messages if "this one waits for it" in line]
    assert sorted(p.name for p in folder.iterdir()) == ["dataset.json", "images.npy", "plan.json", "table.parquet"]


def test_a_lock_that_its_holder_removed_is_no_lock(tmp_path, monkeypatch):
    """Who waited for it must not write beside one who came later and found none."""
    lockf, calls = fcntl.lockf, []

    def removed_meanwhile(handle, how):
        lockf(handle, how)
        if not calls:
            (tmp_path / ".lock").unlink()
        calls.append(handle)

    monkeypatch.setattr(fcntl, "lockf", removed_meanwhile)
    with locked(tmp_path):
        assert len(calls) == 2 and (tmp_path / ".lock").is_file()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_among_what_is_read(image_folder, tmp_path):
    with pytest.raises(InputError, match=r"--out .*new lies inside .*images, which is an input"):
        prepare(source(image_folder), image_folder / "new", 16)
    assert not (image_folder / "new").exists()


@pytest.mark.parametrize("workers", [-1, 10**6])
def test_workers_out_of_range_are_refused(image_folder, tmp_path, workers):
    with pytest.raises(InputError, match=rf"--workers {workers} is out of range; use 1 to 256, or 0"):
        prepare(source(image_folder), tmp_path / "out", 16, workers=workers)


@pytest.mark.parametrize("count", ["_", "1__0", "0", "-3", "1e9", "", "9" * 20, "9" * 200, "²"])
def test_numbers_of_toy_faces_that_are_none(count):
    with pytest.raises(InputError, match="is not understood; write toyfaces or toyfaces:N with N from 1 to"):
        source(f"toyfaces:{count}", size=16)
    assert source("toyfaces:1_0", size=16).table.num_rows == 10


@pytest.mark.parametrize(("location", "words"), [("", "'' does not exist"), ("a" * 300, "name too long")])
def test_places_that_cannot_be(location, words):
    for opened in (source, open_data):
        with pytest.raises(InputError, match=words):
            opened(location)


def test_a_part_of_a_dataset_folder_is_not_taken_for_images(stopped):
    with pytest.raises(InputError, match=r"not a complete dataset folder \(dataset\.json is missing\)"):
        open_data(stopped, 16)


def test_amounts_have_a_unit_that_suits_them():
    hundreds = [f"100.0 {unit}" for unit in ("kB", "MB", "GB", "TB")]
    assert [_amount(10.0**n) for n in (2, 5, 8, 11, 14)] == ["0.1 kB", *hundreds]
