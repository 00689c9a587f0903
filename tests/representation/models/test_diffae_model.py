"""The model of Diff-AE: its field, and its folder on disk."""

from dataclasses import replace

import pytest
import torch
from tiny import DIMS, tiny_diffae

import diti
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.data import toyfaces
from diti.representation.models.diffae import DiffAE
from diti.representation.models.guidance import Guidance
from diti.representation.partition import Partition

FACES = to_float(toyfaces.render(toyfaces.sample(4, seed=2), 16))  # (4, 3, 16, 16)


@pytest.fixture
def small() -> DiffAE:
    return tiny_diffae()


def test_the_field_is_the_networks_noise_with_z(small):
    z, t = small.encode(FACES), torch.full((4,), 300)
    with torch.no_grad():
        expected = small.decoder.eps(FACES, t, z)
        assert torch.equal(small.guided_eps(z)(FACES, t), expected)
        assert torch.equal(small.guided_eps(z, Guidance(masked=False))(FACES, t), expected)
    with pytest.raises(InputError, match=r"stop_below is 100.* a diffae model has none; use 0"):
        small.guided_eps(z, Guidance(stop_below=100))


def test_saved_and_loaded_it_decodes_the_same(small, tmp_path):
    small.save(tmp_path / "model")
    assert not (tmp_path / "model" / "unet").exists() and not (tmp_path / "model" / "backbone.json").exists()
    again = diti.load(tmp_path / "model")
    assert isinstance(again, DiffAE) and again.partition.subsets == 1 and again.method == "diffae"
    z = small.encode(FACES)
    assert torch.equal(again.encode(FACES), z)
    noise = small.new_noise(4, seed=1)
    assert torch.equal(again.decode(z, noise, 5), small.decode(z, noise, 5))
    with pytest.raises(InputError, match="holds no diffusers network"):
        diti.load_backbone(tmp_path / "model")
    replace(small, partition=Partition.single(500, DIMS)).save(tmp_path / "mixed")
    with pytest.raises(InputError, match=r"the partition is for T = 500, the decoder has T = 1000"):
        diti.load(tmp_path / "mixed")
    (tmp_path / "model" / "decoder" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors is missing"):
        diti.load(tmp_path / "model")
