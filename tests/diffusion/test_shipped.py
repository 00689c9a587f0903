"""The backbone in the box: it is there, small, documented, and it knows toy faces."""

import torch

import diti
from diti.core.images import to_float
from diti.data import toyfaces
from diti.data.sources import open_data
from diti.diffusion.files import ASSETS, locate
from diti.diffusion.generate import round_trip, samples
from diti.diffusion.pretrain import validation_losses

FOLDER = ASSETS / "toyfaces32-diti"


def test_it_is_with_its_model_and_has_its_card():
    assert locate("toyfaces32") == locate("toyfaces32-diti") == FOLDER
    card = (FOLDER / "backbone.md").read_text()
    assert "diti pretrain" in card and "validation loss" in card and "| 0.9 – 1.0 |" in card
    assert (FOLDER / "samples.png").stat().st_size > 10_000
    assert not [p for p in FOLDER.rglob("*") if p.suffix in (".bin", ".pt", ".pkl")]


def test_its_loss_is_the_one_on_its_card():
    """Measured anew on the validation split of the first toy faces; a network that predicts nothing has loss 1."""
    backbone = diti.load_backbone("toyfaces32")
    losses, _ = validation_losses(backbone, open_data("toyfaces:4000", 32))
    written = float((FOLDER / "backbone.md").read_text().split("averaged weights): ")[1].split()[0])
    assert abs(losses.mean().item() / written - 1) < 0.1


def test_its_samples_look_like_toy_faces():
    """Samples are closer to some toy face than pictures of the same colours with their pixels in disorder."""
    backbone = diti.load_backbone("toyfaces32")
    faces = to_float(toyfaces.render(toyfaces.sample(3000, seed=5), 32)).flatten(1)
    drawn = samples(backbone, 8, seed=1).flatten(1)
    shuffled = drawn.reshape(8, 3, 1024)[:, :, torch.randperm(1024, generator=torch.Generator().manual_seed(0))]
    near = torch.cdist(drawn, faces).min(1).values
    far = torch.cdist(shuffled.flatten(1), faces).min(1).values
    assert near.mean() < 0.7 * far.mean() and (near < far).all()


def test_the_second_order_round_trip_needs_a_quarter_of_the_calls():
    """25+25 calls of the second-order solver are no worse than 100+100 of DDIM, on a trained network."""
    backbone = diti.load_backbone("toyfaces32")
    images = to_float(toyfaces.render(toyfaces.sample(8, seed=1), 32))
    second = (round_trip(backbone, images, 25, "2m") - images).square().mean().item()
    first = (round_trip(backbone, images, 100, "ddim") - images).square().mean().item()
    assert second <= first
