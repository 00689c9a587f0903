"""Run folders as a report reads them: what a finished run is, its names, and groups of seeds."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from diti.config import SolutionConfig, TrainConfig, TrainingConfig, ViewsConfig
from diti.core.errors import InputError
from diti.core.runs import RunFolder, write_json
from diti.core.settings import to_yaml
from diti.data.prepare import prepare
from diti.data.source import ReadOptions
from diti.data.sources import find_source, open_data
from diti.presets import train_preset
from diti.reporting.runs import count_numbers, group_runs, label_of, measured_folder, read_run, shared_settings

USUAL = train_preset("toyfaces32")


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    return prepare(find_source("toyfaces:20", ReadOptions(size=16)), tmp_path_factory.mktemp("data") / "faces", 16)


def write_run(path, config=USUAL, images=200, weights=1.0, **facts):
    """A folder as `diti train` leaves it, with small files in place of networks."""
    config = replace(config, training=replace(config.training, images=images))
    facts = {"verb": "train", "data_name": "toyfaces", "data_hash": "ab" * 32} | facts
    write_json(
        path / "run.json", {**facts, "command": f"diti train --out {path.name}", "versions": {"torch": "2"}}
    )
    (path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    run = RunFolder(path)
    for seen, speed in ((images // 2, 100.0), (images - 1, 50.0), (images, 80.0)):
        run.log(images=seen, loss=0.1, images_per_s=speed)
    run.log(images=images, validation_loss=0.1)
    write_json(path / "model.json", {"method": config.method, "format": 1})
    write_json(path / "checks.json", {"loss_removed": 0.5})
    (path / "card.md").write_text("# DiTi\n")
    for part, shape in (("encoder", (3, 4)), ("unet", (2, 5))):
        (path / part).mkdir()
        name = "diffusion_pytorch_model" if part == "unet" else "model"
        tensors = {"a": np.full(shape, weights, np.float32), "b": np.float32([weights])}
        save_file(tensors, path / part / f"{name}.safetensors")
    return path


def with_seed(config, seed):
    return replace(config, training=replace(config.training, seed=seed))


def test_a_finished_run_is_read(tmp_path, faces):
    folder = write_run(tmp_path / "run", with_seed(USUAL, 7))
    run = read_run(folder, faces)
    assert (run.label, run.seed, run.images, run.images_per_s) == ("DiTi", 7, 200, 80.0)
    assert run.seconds == 200 / 80
    assert run.command == "diti train --out run" and run.versions == {"torch": "2"}
    assert run.weights == {"encoder": 13, "unet": 11}
    assert (run.data_name, run.data_hash) == ("toyfaces", "ab" * 32)
    assert len(run.backbone_hash) == 64 and run.encoder_hash is None and run.peak_memory_mb is None
    nothing = dict.fromkeys(("probe", "analysis", "counterfactuals", "explored", "transferred"))
    assert run.records == {"checks": {"loss_removed": 0.5}, **nothing}


def test_records_are_those_of_this_dataset(tmp_path, faces):
    folder = write_run(tmp_path / "run")
    here = measured_folder(folder, faces.name, faces.hash)
    assert here == folder / "measured" / f"toyfaces-{faces.hash[:8]}"
    write_json(here / "probe.json", {"encoder": "e5"})
    write_json(here / "analysis" / "analysis.json", {"tau": 0.1})
    elsewhere = measured_folder(folder, faces.name, "0" * 64)
    write_json(elsewhere / "counterfactuals" / "counterfactuals.json", {})
    run = read_run(folder, faces)
    assert (run.probe, run.analysis, run.counterfactuals) == ({"encoder": "e5"}, {"tau": 0.1}, None)
    assert run.encoder_hash == "e5" and run.measured == here and run.measured_on == "toyfaces"
    assert (run.transferred, run.transferred_to) == (None, "")


def test_the_probe_on_other_images_is_read_too(tmp_path, faces):
    folder, other = write_run(tmp_path / "run"), open_data("toyfaces:50", 16)
    write_json(measured_folder(folder, other.name, other.hash) / "probe.json", {"encoder": "e6"})
    run = read_run(folder, faces, other)
    assert (run.probe, run.transferred, run.transferred_to) == (None, {"encoder": "e6"}, "toyfaces")


@pytest.mark.parametrize("missing", ["config.yaml", "run.json"])
def test_another_folder_is_refused(tmp_path, faces, missing):
    folder = write_run(tmp_path / "run")
    (folder / missing).unlink()
    with pytest.raises(InputError, match=rf"not a run folder \({missing} missing\).*diti train"):
        read_run(folder, faces)


def test_a_pretrained_backbone_is_refused(tmp_path, faces):
    with pytest.raises(InputError, match=r"written by diti pretrain"):
        read_run(write_run(tmp_path / "run", verb="pretrain"), faces)


@pytest.mark.parametrize("missing", ["model.json", "checks.json", "card.md"])
def test_an_unfinished_run_says_how_to_finish_it(tmp_path, faces, missing):
    folder = write_run(tmp_path / "run")
    (folder / missing).unlink()
    with pytest.raises(InputError, match=rf"not a finished run \({missing} missing\); .*: diti train --out run"):
        read_run(folder, faces)


def test_a_run_that_is_being_continued_is_unfinished(tmp_path, faces):
    """A finished run whose command was repeated with more images has its old model and checks in place."""
    folder = write_run(tmp_path / "run")
    longer = replace(USUAL, training=replace(USUAL.training, images=1_700))
    (folder / "config.yaml").write_text(to_yaml(longer), encoding="utf-8")
    with pytest.raises(InputError, match=r"1,500 of its 1,700 images missing"):
        read_run(folder, faces)


def test_numbers_of_a_file_are_counted(tmp_path):
    save_file(
        {"a": np.zeros((2, 3, 4), np.float32), "scalar": np.zeros((), np.float32)}, tmp_path / "f.safetensors"
    )
    assert count_numbers(tmp_path / "f.safetensors") == 25


def test_a_cut_file_is_named(tmp_path, faces):
    folder = write_run(tmp_path / "run")
    for file in folder.glob("*/*.safetensors"):
        file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(InputError, match=r"model\.safetensors is not a whole safetensors file"):
        read_run(folder, faces)


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "DiTi"),
        ({"method": "pdae"}, "PDAE"),
        ({"method": "tcvae"}, "β-TCVAE"),
        ({"detach": True}, "DiTi-Detach"),
        ({"subsets": 8}, "DiTi, k = 8"),
        ({"partition": "balanced"}, "DiTi, balanced"),
        ({"partition": "balanced", "detach": True, "subsets": 64}, "DiTi-Detach, k = 64, balanced"),
        ({"method": "pdae", "subsets": 4, "partition": "balanced"}, "PDAE"),  # without effect on PDAE
        ({"code": replace(USUAL.code, encoder="residual")}, "DiTi, residual encoder"),
        ({"start": "random"}, "DiTi, start = random"),
        ({"method": "simclr", "views": ViewsConfig(augment="none")}, "SimCLR, without augmentation"),
        ({"method": "simclr", "views": ViewsConfig(temperature=0.3)}, "SimCLR, temperature = 0.3"),
        ({"method": "ibgan", "views": ViewsConfig(augment="none")}, "IB-GAN"),  # without effect on IB-GAN
        ({"training": TrainingConfig(images=5, seed=3)}, "DiTi"),
    ],
)
def test_labels_say_what_differs_from_the_preset(changes, label):
    assert label_of(replace(USUAL, **changes)) == label


def test_labels_follow_the_preset():
    """64 subsets are usual at the authors' size; a preset that is no longer known leaves the plain defaults."""
    assert label_of(replace(train_preset("celeba64"), subsets=64)) == "DiTi"
    assert label_of(replace(USUAL, solution=SolutionConfig(stretches=8, tau=0.1))) == "DiTi, τ = 0.1"
    assert label_of(replace(TrainConfig(), preset="gone", subsets=64)) == "DiTi, k = 64"


def groups_of(faces, *folders):
    return [(g.label, [r.path.name for r in g.runs]) for g in group_runs([read_run(f, faces) for f in folders])]


def test_seeds_form_a_group(tmp_path, faces):
    """Paths, intervals of the log and unused settings do not tell runs apart; the order given is kept."""
    other_path = replace(with_seed(USUAL, 1), data="elsewhere", preset="celeba32")
    logged = replace(USUAL, training=replace(USUAL.training, seed=2, log_images=7))
    pdae = replace(USUAL, method="pdae")
    a = write_run(tmp_path / "a")
    b = write_run(tmp_path / "b", pdae)
    c = write_run(tmp_path / "c", other_path)
    d = write_run(tmp_path / "d", logged)
    e = write_run(tmp_path / "e", replace(with_seed(pdae, 1), subsets=3))
    assert groups_of(faces, a, b, c, d, e) == [("DiTi", ["a", "c", "d"]), ("PDAE", ["b", "e"])]


def test_labels_of_groups_name_what_else_differs(tmp_path, faces):
    fast = replace(USUAL, training=replace(USUAL.training, learning_rate=2e-3))
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", fast, images=1_000)
    c = write_run(tmp_path / "c", replace(USUAL, method="pdae"))
    labels = [label for label, _ in groups_of(faces, a, b, c)]
    assert labels == [
        "DiTi, 200 images, learning rate = 0.001", "DiTi, 1,000 images, learning rate = 0.002", "PDAE",
    ]  # fmt: skip


def test_what_all_runs_have_alike_is_said_once(tmp_path, faces):
    mirrored = replace(USUAL.code, encoder_mirror=True, code_dim=512)
    folders = [
        write_run(tmp_path / "a", replace(USUAL, code=mirrored)),
        write_run(tmp_path / "b", replace(USUAL, code=mirrored, method="pdae")),
        write_run(tmp_path / "c", replace(USUAL, code=replace(mirrored, code_dim=64), subsets=4)),
    ]
    assert [label for label, _ in groups_of(faces, *folders)] == [
        "DiTi, d = 512",
        "PDAE, d = 512",
        "DiTi, k = 4, d = 64",
    ]
    runs = [read_run(folder, faces) for folder in folders]
    assert shared_settings(runs) == {"code.encoder_mirror": "mirrored features"}
    assert groups_of(faces, folders[0])[0][0] == "DiTi, d = 512, mirrored features", (
        "alone, nothing goes without saying"
    )


def test_other_data_or_another_backbone_is_another_group(tmp_path, faces):
    a = write_run(tmp_path / "a", replace(USUAL, backbone="first"))
    b = write_run(tmp_path / "b", replace(with_seed(USUAL, 1), backbone="second"), weights=2.0)
    c = write_run(
        tmp_path / "c", with_seed(replace(USUAL, backbone="first"), 2), data_name="x", data_hash="cd" * 32
    )
    labels = [label for label, _ in groups_of(faces, a, b, c)]
    assert len(labels) == 3
    assert "backbone = second" in labels[1] and "data = x" in labels[2] and "backbone = first" in labels[0]


def test_the_same_run_again_is_no_second_seed(tmp_path, faces):
    """An interval over seeds must not shrink because a run was repeated."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    assert groups_of(faces, a, b) == [("DiTi (a)", ["a"]), ("DiTi (b)", ["b"])]
    with pytest.raises(InputError, match=r"given twice"):
        groups_of(faces, a, a)
