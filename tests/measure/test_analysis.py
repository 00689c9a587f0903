"""`diti analyze` on a tiny model: what is written, what is left out, and that the numbers are the theory's."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from diti.cli import main
from diti.config import BackboneConfig, EncoderConfig
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.rng import torch_generator
from diti.data import toyfaces
from diti.data.prepare import prepare
from diti.data.source import ReadOptions
from diti.data.sources import find_source, open_data
from diti.diffusion.schedule import Schedule
from diti.diffusion.unet import build_backbone
from diti.measure.analysis import analyze, print_record
from diti.measure.theory_figures import save_attribute_loss, save_ordering, save_reconstructions_by_time
from diti.representation.models.diffusion import DiTi
from diti.representation.networks.encoder import build_encoder
from diti.representation.networks.shift import ShiftDecoder
from diti.representation.partition import Partition
from diti.theory import UNSEEN, closed_form_curve, lost_at, pixel_change

STEPS, DIMS, SUBSETS = 12, 12, 4
SHAPE = BackboneConfig(
    size=16, unshuffle=2, channels=(8, 16), layers=1, head_channels=8, timesteps=STEPS,
    beta_schedule="squaredcos_cap_v2",  # from image to noise in few steps
)  # fmt: skip


def perturb(module):
    rng = torch_generator(3, "perturb")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=rng), alpha=0.02)


def tiny_model() -> DiTi:
    """Few time-steps, so that whole curves are quick."""
    backbone = build_backbone(SHAPE, seed=0).eval()
    perturb(backbone)
    code = EncoderConfig(encoder="residual", code_dim=DIMS, encoder_channels=(8, 16))
    encoder, decoder = build_encoder(code, backbone, 0).eval(), ShiftDecoder(backbone, DIMS)
    perturb(decoder.path)
    partition = Partition.balanced(STEPS, SUBSETS, DIMS)
    return DiTi(encoder, partition, torch.zeros(DIMS), torch.linspace(0.1, 1, DIMS), "diti", decoder=decoder)


def run(model, data, out, pairs=None, count=2, tau=0.1, seed=0, images=0):
    record = analyze(str(model), str(data), out, pairs=pairs, count=count, tau=tau, seed=seed, images=images)
    print_record(record, out)
    return record


def sizes(folder):
    """Width and height of each picture, which must be whole."""
    found = {}
    for path in folder.glob("*.png"):
        with Image.open(path) as picture:
            picture.load()
            found[path.name] = picture.size
    return found


def test_a_model_on_toy_faces(tmp_path, capsys):
    model = tiny_model()
    model.save(tmp_path / "model")
    record = run(tmp_path / "model", "toyfaces:120", tmp_path / "out", images=64)
    assert json.loads((tmp_path / "out" / "analysis.json").read_text()) == record
    figures = {"overlap.png", "reconstructions_by_time.png", "losses.png", "attribute_loss.png", "ordering.png"}
    assert set(sizes(tmp_path / "out")) == set(record["figures"]) == figures
    assert record["seed"] == 0 and record["versions"]["torch"] and record["left_out"] == []
    assert record["dataset_hash"] == open_data("toyfaces:120", 16).hash
    assert list(record["attributes"]) == list(toyfaces.NAMES)
    hat = record["attributes"]["hat"]
    x0, y0 = (to_float(side) for side in toyfaces.pairs("hat", 2, 16, 0, start=UNSEEN))
    distance = pixel_change(x0, y0)
    curve = closed_form_curve(distance, model.backbone.schedule)
    assert hat["pixel_change"] == pytest.approx(distance.mean().item())
    assert hat["lost_at_closed_form"] == pytest.approx(lost_at(curve, range(STEPS), 0.1))
    assert hat["closed_form"] == pytest.approx([curve[t].item() for t in record["grid"]])
    moved = ((model.encode(y0) - model.encode(x0)) / model.std).square().mean(0).reshape(SUBSETS, -1).mean(1)
    assert hat["subset_shares"] == pytest.approx((moved / moved.sum()).tolist(), rel=1e-4)
    assert hat["subset"] == moved.argmax().item()
    columns = {pair["first"] for pair in record["ordering"]} | {pair["second"] for pair in record["ordering"]}
    assert columns == {
        "pixel_change", "lost_at_closed_form", "lost_at_monte_carlo", "subset_position", "probed_position"
    }  # fmt: skip
    assert record["dominance"]["lost_at_closed_form"]["dominant"] > 50
    kept = record["dominance"]["lost_at_closed_form"]
    assert kept["lost_later"] >= 0.9 * kept["dominant"], "equal times aside, eq. 5 keeps every order"
    assert record["loss"]["validation_loss"] > 0 and record["sufficiency"]["images"] == 64
    shown = capsys.readouterr().out
    assert "hat" in shown and "rank correlation" in shown and "true factors remove" in shown


@pytest.fixture
def photos(tmp_path):
    """A folder of images that are not toy faces."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(12):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    return tmp_path / "photos"


def test_predicted_labels_are_marked(tmp_path, photos, capsys):
    (photos / "attributes.csv").write_text("\n".join(["file,smile", *(f"{i}.png,{i % 2}" for i in range(12))]))
    dataset = prepare(find_source(str(photos), ReadOptions(size=16)), tmp_path / "set", 16)
    marked = {**dataset.info, "predicted": {"smile": {"model": "m.onnx", "sha256": "0", "threshold": 0.5}}}
    (dataset.path / "dataset.json").write_text(json.dumps(marked))
    tiny_model().save(tmp_path / "model")
    assert run(tmp_path / "model", dataset.path, tmp_path / "out")["predicted"] == ["smile"]
    assert "labels predicted by a network, not true ones: smile" in capsys.readouterr().out


def test_the_verb_on_a_model_folder(tmp_path, diti_here):
    tiny_model().save(tmp_path / "model")
    words = ["--data", "toyfaces:60", "--count", 2, "--out", tmp_path / "found"]
    result = diti_here("analyze", tmp_path / "model", *words)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "found" / "analysis.json").is_file() and "hat" in result.stdout
    wrong = diti_here("analyze", tmp_path / "model", "--data", "toyfaces:60", "--tau", 2)
    assert wrong.returncode == 2 and "tau" in wrong.stderr and "Traceback" not in wrong.stderr


def test_other_images_without_pairs_get_what_can_be_done(tmp_path, photos, capsys):
    tiny_model().save(tmp_path / "model")
    record = run(tmp_path / "model", photos, tmp_path / "out")
    assert "attributes" not in record and "--pairs" in record["left_out"][0]
    assert set(sizes(tmp_path / "out")) == {"overlap.png", "reconstructions_by_time.png", "losses.png"}


def test_a_backbone_with_pairs_says_what_is_left_out(tmp_path, photos, capsys):
    tiny_model().backbone.save(tmp_path / "backbone")
    table = tmp_path / "pairs.csv"
    table.write_text("attribute,first,second\nage,photos/0.png,photos/1.png\nage,photos/2.png,photos/3.png\n")
    record = run(tmp_path / "backbone", photos, tmp_path / "out", pairs=table)
    assert record["attributes"]["age"]["pairs"] == 2 and "ordering" not in record
    assert record["method"] is None and "loss" not in record and "subset" not in record["attributes"]["age"]
    assert len(record["left_out"]) == 2, "no z, and one attribute has no order"
    shown = capsys.readouterr().out
    assert all(reason in shown for reason in record["left_out"])
    assert "attribute_loss.png" in sizes(tmp_path / "out") and "losses.png" not in sizes(tmp_path / "out")
    assert run(tmp_path / "backbone", photos, tmp_path / "out", pairs=table) == record


def test_pairs_of_attributes_without_labels_are_not_probed(tmp_path, photos, capsys):
    tiny_model().save(tmp_path / "model")
    table = tmp_path / "pairs.csv"
    table.write_text("attribute,first,second\nage,photos/0.png,photos/1.png\n")
    record = run(tmp_path / "model", photos, tmp_path / "out", pairs=table)
    assert "no labels" in record["left_out"][0] and "subset" in record["attributes"]["age"]


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--tau", "0.7", "--tau is 0.7; it must be above 0 and below 0.5"),
        ("--count", "0", "--count is 0"),
        ("--count", str(10**9), "--count is 1000000000; it must be from 1 to 10,000"),
        ("--images", "-1", "--images is -1; it must be 0 or more"),
        ("--images", "10", "--images trains on the true factors"),
    ],
)
def test_bad_numbers_are_refused_before_anything_is_written(tmp_path, photos, option, value, complaint, capsys):
    tiny_model().backbone.save(tmp_path / "backbone")
    places = [str(tmp_path / "backbone"), "--data", str(photos), "--out", str(tmp_path / "out")]
    assert main(["analyze", *places, option, value]) == 2
    assert complaint in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_data_of_another_size_are_refused(tmp_path):
    tiny_model().backbone.save(tmp_path / "backbone")
    from diti.data.prepare import prepare
    from diti.data.source import ReadOptions
    from diti.data.sources import find_source

    prepare(find_source("toyfaces:20", ReadOptions(size=32)), tmp_path / "data", 32)
    with pytest.raises(InputError, match=r"32 px but the backbone is for 16 px"):
        run(tmp_path / "backbone", tmp_path / "data", tmp_path / "out")


# ---- figures


def test_reconstructions_stand_in_rows_by_image_and_columns_by_time(tmp_path):
    """With a model that answers in plain grey by time-step, the picture's places can be read."""
    schedule = Schedule.linear(100)
    grey = lambda x_t, t: (t.float() / 50 - 1)[:, None, None, None].expand_as(x_t)  # noqa: E731
    images = torch.stack([torch.full((3, 16, 16), v) for v in (-1.0, 1.0)])
    save_reconstructions_by_time(grey, schedule, images, 0, tmp_path / "1b.png")
    with Image.open(tmp_path / "1b.png") as picture:
        pixels = np.asarray(picture)[..., 0]
    step = 16 * 6 + 2
    top = pixels.shape[0] - 2 * step + 2
    rows = [pixels[top + row * step + 48, 48::step] for row in range(2)]
    assert rows[0][0] == 0 and rows[1][0] == 255
    assert rows[0][1:].tolist() == rows[1][1:].tolist() == sorted(rows[0][1:].tolist())
    assert rows[0][1] == round(5 / 50 * 127.5) and len(rows[0]) == 9


def test_noise_of_the_reconstructions_follows_the_seed(tmp_path):
    files = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        path = save_reconstructions_by_time(
            lambda x_t, t: x_t, Schedule.linear(100), torch.zeros(1, 3, 16, 16), seed, tmp_path / f"{name}.png"
        )
        files.append(path.read_bytes())
    assert files[0] == files[1] != files[2]


def test_figures_take_attributes_that_are_never_lost(tmp_path):
    grid = [0, 50, 99]
    attributes = {
        "never": {"pixel_change": 9.0, "lost_at_closed_form": None, "lost_at_monte_carlo": None,
                  "closed_form": [0, 0, 0.05], "monte_carlo": [0, 0, 0.02]},
        "soon": {"pixel_change": 0.5, "lost_at_closed_form": 3.0, "lost_at_monte_carlo": 2.0,
                 "closed_form": [0, 0.4, 0.5], "monte_carlo": [0, 0.5, 0.55]},
    }  # fmt: skip
    save_attribute_loss(attributes, grid, 0.1, tmp_path / "curves.png")
    save_ordering(attributes, grid, tmp_path / "order.png")
    assert all(width > 600 for width, _ in sizes(tmp_path).values()) and len(sizes(tmp_path)) == 2
