"""Bad input of `diti solve`: one line, exit code 2, and nothing half-written."""

import pytest
import torch
from PIL import Image
from tiny import tiny_backbone

from diti.cli import main

FACES = "toyfaces:200"
BASE = {"--data": FACES, "--code-dim": "12", "--subsets": "4", "--stretches": "3"}


def complaint(folder, out, capsys, **options) -> str:
    """The one line that a command with these options ends with."""
    given = {**BASE, "--backbone": str(folder / "backbone"), "--out": str(out)}
    given |= {f"--{name.replace('_', '-')}": str(value) for name, value in options.items()}
    assert main(["solve", *(word for pair in given.items() for word in pair)]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    last = shown.strip().splitlines()[-1]  # progress bars may stand before it
    assert last.startswith("diti: ")
    assert not out.exists(), "a refusal leaves nothing"
    return last


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"data": "toyfaces:40"}, "training images are too few for a code of 12 dims: use --code-dim"),
        ({"images": 20}, "--images 20 is too short"),
        ({"images": 0}, "--images is 0; it must be 1 or more"),
        ({"images": -5}, "--images is -5; it must be 1 or more"),
        ({"code_dim": 9999}, "--code-dim is 9999, but this encoder has"),
        ({"code_dim": 0}, "--code-dim is 0; it must be from 1 to 65,536"),
        ({"subsets": 13}, "13 subsets do not fit in 12 dims"),
        ({"subsets": 0}, "--subsets is 0; it must be from 1"),
        ({"tau": 0}, "--tau is 0.0; it must be above 0 and below 1"),
        ({"tau": 1}, "--tau is 1.0; it must be above 0 and below 1"),
        ({"tau": 1.5}, "--tau is 1.5; it must be above 0 and below 1"),
        ({"tau": "nan"}, "--tau is nan; give a finite number, above 0 and below 1"),
        ({"tau": -0.1}, "--tau is -0.1; it must be above 0 and below 1"),
        ({"features_weight": -1}, "--features-weight is -1.0; it must be 0 or more (0 = eq. 6 alone)"),
        ({"features_weight": "nan"}, "--features-weight is nan"),
        ({"features_weight": "inf"}, "--features-weight is inf"),
        ({"tolerance": 0}, "--tolerance is 0"),
        ({"stretches": 0}, "--stretches is 0; it must be from 1 to 1,000"),
        ({"encoder_time": 1000}, "--encoder-time is 1000; give 0 to 999, in thousandths of T"),
        ({"axes": "pca"}, "--axes"),
        ({"method": "tcvae"}, "--method"),
        ({"data": "no-such-folder"}, "no-such-folder does not exist"),
        ({"backbone": "no-such-backbone"}, "no-such-backbone"),
    ],
    ids=lambda value: " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_one_line(folder, shared_cache, tmp_path, capsys, options, expected):
    assert expected in complaint(folder, tmp_path / "out", capsys, **options)


def test_what_must_be_named(tmp_path, capsys):
    for given, missing in ((["--data", FACES], "--backbone is missing"), ([], "--data is missing")):
        assert main(["solve", *given, "--out", str(tmp_path / "out")]) == 2
        assert missing in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_length_that_is_advised_works_as_far_as_it_is_advised(folder, shared_cache, tmp_path, capsys):
    """The number in the complaint is the longest code that these images bear."""
    words = complaint(folder, tmp_path / "out", capsys, data="toyfaces:40")
    advised = int(words.split("--code-dim ")[1].split()[0])
    again = complaint(folder, tmp_path / "out", capsys, data="toyfaces:40", code_dim=advised + 1, subsets=1)
    assert f"too few for a code of {advised + 1} dims" in again
    options = ["--data", "toyfaces:40", "--code-dim", str(advised), "--subsets", "2", "--stretches", "1"]
    command = ["solve", *options, "--backbone", str(folder / "backbone"), "--out", str(tmp_path / "fine")]
    assert main(command) == 0


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("conv_out.weight", "not a usable number at some t in 0.."),
        ("up_blocks.0.resnets.0.conv1.weight", "not a usable number at some t in 0.."),
        ("time_embedding.linear_1.weight", "the features of some images are not finite"),
        ("conv_in.bias", "the features of some images are not finite"),
    ],
)
def test_a_backbone_that_says_no_numbers(folder, shared_cache, tmp_path, capsys, part, expected):
    """Its weights are numbers, but so large that what it computes is not."""
    backbone = tiny_backbone()
    with torch.no_grad():
        backbone.unet.get_parameter(part).fill_(3e38)
    backbone.save(tmp_path / "broken")
    out = tmp_path / "out"
    assert expected in complaint(folder, out, capsys, backbone=tmp_path / "broken")
    assert not (out / "state").exists()


def test_a_model_is_not_solved_into_what_is_read(folder, shared_cache, image_folder, tmp_path, capsys):
    for place, words in (
        (folder / "solved", "which is an input; choose a place outside"),
        (image_folder / "solved", "which is an input; choose a place outside"),
        (image_folder / "a" / "00.png" / "x", "is a file, not a folder"),
    ):
        words_of = ["--data", str(image_folder), "--backbone", str(folder), "--code-dim", "2", "--subsets", "2"]
        assert main(["solve", *words_of, "--out", str(place)]) == 2
        complaint = capsys.readouterr().err
        assert words in complaint and complaint.count("\n") == 1
        assert not place.exists()


def test_a_folder_of_other_files_is_left_alone(folder, shared_cache, tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("dear diary")
    given = {**BASE, "--backbone": str(folder / "backbone"), "--out": str(tmp_path / "notes")}
    assert main(["solve", *(word for pair in given.items() for word in pair)]) == 2
    assert "holds other files; choose a new or empty folder" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["diary.txt"]


def test_images_that_are_all_the_same(folder, shared_cache, tmp_path, capsys):
    for index in range(80):
        path = tmp_path / "grey" / f"{index:02d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (16, 16), (90, 90, 90)).save(path)
    said = complaint(folder, tmp_path / "out", capsys, data=tmp_path / "grey")
    assert "vary in 0 directions" in said


def test_after_a_refusal_the_same_folder_can_be_used(folder, shared_cache, tmp_path, capsys):
    out = tmp_path / "out"
    assert "--images 20 is too short" in complaint(folder, out, capsys, images=20)
    assert not out.exists()
    assert "--code-dim is 9999" in complaint(folder, out, capsys, code_dim=9999)
