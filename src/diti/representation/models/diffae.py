"""The model of a diffusion autoencoder: an encoder, and a diffusion model that knows z.

Preechakul et al., "Diffusion Autoencoders", CVPR 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from diti.core.errors import InputError
from diti.core.runs import as_path
from diti.diffusion.sampler import EpsFn
from diti.diffusion.schedule import Schedule
from diti.representation.models.diffusion import DiffusionModel
from diti.representation.models.guidance import AS_TRAINED, Guidance
from diti.representation.models.model import COMMON_PARTS, read_common, require_dims, require_parts, require_side
from diti.representation.networks.conditioned import ConditionedUNet, load_conditioned

DECODER_PARTS = ("decoder", "scheduler")


@dataclass(eq=False, repr=False, kw_only=True)
class DiffAE(DiffusionModel):
    """Encoder f, the U-Net that knows z, and the statistics of z, all of whose dims belong together."""

    decoder: ConditionedUNet

    @property
    def schedule(self) -> Schedule:
        return self.decoder.schedule

    def guided_eps(self, z: Tensor, how: Guidance = AS_TRAINED) -> EpsFn:
        """ε_θ(x, t, z), never without z. `how.masked` is without effect, z being one subset."""
        how.check_without_frozen_model(self.method)
        z = z.to(self.device)
        return lambda x, t: self.decoder.eps(x, t, z)

    def save(self, folder: str | Path) -> None:
        """Write everything that `load` needs; each part whole, model.json last."""
        folder = as_path(folder, "the folder to save in")
        self.decoder.save(folder)
        super().save(folder)


def load_diffae(folder: Path) -> DiffAE:
    """What `DiffAE.save` wrote."""
    require_parts(folder, (*DECODER_PARTS, *COMMON_PARTS))
    encoder, partition, mean, std, method = read_common(folder)
    decoder = load_conditioned(folder)
    require_dims(folder, "decoder", decoder.dims, partition)
    require_side(folder, decoder.net.size, encoder)
    if partition.timesteps != decoder.timesteps:
        raise InputError(
            f"{folder}: the partition is for T = {partition.timesteps}, the decoder has T = {decoder.timesteps}"
        )
    return DiffAE(encoder, partition, mean, std, method, decoder=decoder)
