"""UNet2DModel pipelines that are not ours to train: in the latents of an autoencoder, in grey, or along a flow."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from diti.diffusion.kinds.pipeline import PipelineBackbone


class UnconditionalBackbone(PipelineBackbone):
    """A UNet2DModel, such as that of an LDMPipeline."""

    network_class: ClassVar[str] = "UNet2DModel"
    kind = "UNet2DModel pipeline"

    def ask(self, x: Tensor, time: Tensor) -> Tensor:
        output = self.network(x.to(self.network.dtype), time, return_dict=False)[0]
        return output[:, : self.shape[0]]  # the mean, where the network also learns sigma
