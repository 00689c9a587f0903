"""A tiny model with all its parts, random but not trivial, for the tests of everything that uses a model."""

from dataclasses import replace
from pathlib import Path

import torch

from diti.config import BackboneConfig, EncoderConfig
from diti.core.rng import torch_generator
from diti.diffusion.backbone import Backbone
from diti.diffusion.unet import build_backbone
from diti.representation.models.diffae import DiffAE
from diti.representation.models.diffusion import DiTi
from diti.representation.models.model import Model
from diti.representation.networks.conditioned import ConditionedUNet
from diti.representation.networks.encoder import build_encoder
from diti.representation.networks.shift import ShiftDecoder
from diti.representation.partition import Partition
from diti.representation.solve.run import solve

SHAPE = BackboneConfig(size=16, unshuffle=2, channels=(8, 16), layers=1, head_channels=8)
DIMS, SUBSETS = 12, 4
SOLVED_DATA = "toyfaces:300"
CODE = EncoderConfig(encoder="residual", code_dim=DIMS, encoder_channels=(8, 16))


def perturb(module: torch.nn.Module, std: float = 0.02) -> None:
    """New networks start at zero output; move every weight a little, so that nothing is equal by accident."""
    rng = torch_generator(3, "perturb")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=rng), alpha=std)


def tiny_backbone() -> Backbone:
    network = build_backbone(SHAPE, seed=0)
    perturb(network)
    return network.eval()


def tiny_model(backbone: Backbone | None = None, subsets: int = SUBSETS) -> DiTi:
    backbone = backbone or tiny_backbone()
    encoder = build_encoder(CODE, backbone, 0)
    perturb(encoder)
    decoder = ShiftDecoder(backbone, DIMS)
    perturb(decoder.path)
    cut = Partition.balanced(1000, subsets, DIMS)
    parts = (encoder, cut, torch.zeros(DIMS), torch.ones(DIMS), "diti")
    return DiTi(*parts, decoder=decoder, metric=torch.eye(DIMS))


def without_decoder(model: Model) -> Model:
    """The same code, as a method that only encodes leaves it."""
    return Model(model.encoder, model.partition, model.mean, model.std, "simclr")


def tiny_solved(out: Path) -> None:
    """A model folder, solved from few toy faces over the tiny backbone: 12 dims in 3 subsets, 16 px.

    The backbone knows nothing, yet the closed form orders what it finds: background and brightness are coarse.
    """
    shape = {"code_dim": 12, "subsets": 3, "images": 400, "pixel_axes": 24, "stretches": 3}
    solve(SOLVED_DATA, tiny_backbone(), out=out, **shape)


def tiny_diffae(prediction: str = "epsilon") -> DiffAE:
    """In inference mode."""
    backbone = build_backbone(replace(SHAPE, prediction=prediction), seed=0)
    encoder, decoder = build_encoder(CODE, backbone, 0), ConditionedUNet(backbone, DIMS)
    for network in (encoder, decoder):
        perturb(network, 0.05)
    single = Partition.single(1000, DIMS)
    return DiffAE(encoder.eval(), single, torch.zeros(DIMS), torch.ones(DIMS), "diffae", decoder=decoder.eval())
