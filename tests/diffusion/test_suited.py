"""--preset auto: a shape that can be built for every size that can be prepared."""

import pytest

from diti.cli import main
from diti.core.errors import InputError
from diti.diffusion.suited import suited, suited_fold
from diti.diffusion.unet import build_backbone


@pytest.mark.parametrize("size, fold", [(16, 2), (28, 1), (32, 2), (40, 2), (48, 2), (64, 2), (128, 2), (256, 4)])
def test_images_are_folded_no_more_than_must_be(size, fold):
    assert suited_fold(size) == fold


@pytest.mark.parametrize(
    "size, channels", [(32, (64, 64, 128)), (64, (32, 64, 64, 128)), (128, (32, 32, 64, 64, 128))]
)
def test_larger_images_have_more_levels_and_keep_attention_at_8_px(size, channels):
    shape = suited(size, 46_000, gpu=False)[0].backbone
    assert (shape.channels, shape.attention) == (channels, (8,))
    assert shape.channels[0] > 2 * 3 * shape.unshuffle**2, "all that is folded passes through the finest level"


@pytest.mark.parametrize("size", [8, 12, 16, 28, 32, 48, 64, 100, 256])
def test_what_is_chosen_can_be_built(size):
    config, _ = suited(size, 100, gpu=False)
    assert build_backbone(config.backbone, 0).size == size


@pytest.mark.parametrize("size", [50, 9])
def test_a_size_that_cannot_be_halved_names_one_that_can(size):
    with pytest.raises(InputError, match="use diti prepare with --size") as refused:
        suited(size, 100, gpu=False)
    assert suited_fold(int(str(refused.value).split()[-1]))


def test_number_and_machine_count():
    assert [suited(32, n, gpu=False)[0].preset for n in (300, 46_000)] == ["toyfaces32", "celeba32"]
    assert [suited(s, 46_000, gpu=True)[0].preset for s in (64, 128, 32)] == ["celeba64", "ffhq128", "celeba32"]


def test_large_images_come_with_a_better_idea():
    assert "diti prepare --size 64" in suited(128, 46_000, gpu=False)[1]
    assert "diti prepare" not in suited(64, 46_000, gpu=False)[1] + suited(128, 46_000, gpu=True)[1]


def test_the_verb_says_why(capsys):
    words = ["pretrain", "--preset", "auto", "--out", "x", "--dry-run"]
    assert main([*words, "--data", "toyfaces:60", "--learning-rate", "5e-4"]) == 0
    shown = capsys.readouterr().out
    assert "preset toyfaces32: the narrower network, for" in shown and "folded 2×2" in shown
    assert "preset: toyfaces32\n" in shown and "learning_rate: 0.0005" in shown
    assert main(words) == 2
    assert "--preset auto looks at the images: name them with --data" in capsys.readouterr().err


def test_a_settings_file_may_ask_for_it(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("preset: auto\ndata: toyfaces:60\ntraining:\n  seed: 3\n")
    assert main(["pretrain", "--config", str(tmp_path / "c.yaml"), "--out", "x", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "preset: toyfaces32\n" in shown and "seed: 3" in shown and "unshuffle: 2" in shown


@pytest.mark.parametrize("spelling", [["--preset", "auto"], ["--preset=auto"]])
@pytest.mark.parametrize("named", ["", "preset: celeba64\n"])
def test_both_spellings_name_the_preset_that_was_chosen(tmp_path, capsys, spelling, named):
    (tmp_path / "c.yaml").write_text(f"{named}training:\n  seed: 3\n")
    words = [
        "pretrain",
        *spelling,
        "--data=toyfaces:60",
        f"--config={tmp_path / 'c.yaml'}",
        "--out=x",
        "--dry-run",
    ]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "preset: toyfaces32\n" in shown and "seed: 3" in shown and "channels:\n  - 32\n  - 32\n" in shown
