"""A method of your own, VICReg (Bardes et al. 2022), trained and probed like those of the package.

    python examples/own_method.py --images 20000 --out runs/vicreg

Its loss (eq. 6 of that paper): two views of an image get one code, every dim varies, no two dims say the same.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F

import diti
from diti import EncoderObjective, LossReport, Method, new_encoder, register


class VICReg(EncoderObjective):
    def forward(self, images, draws):
        a, b = (self.encoder(view(images, draws, name)) for name in "ab")  # z of two views, (B, D) each
        apart = (a - b).square().mean(1)  # (B,)
        still = sum(F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean() for z in (a, b))
        shared = sum((z.T.cov() - z.T.cov().diag().diag()).square().sum() / z.shape[1] for z in (a, b))
        per_image = 25 * apart + 25 * still + shared
        return LossReport(per_image.mean(), per_image)


def view(images, draws, name):
    """(B, 3, H, W) mirrored or not, in another light and tint: by the draws alone, so a run continues exactly."""
    mirrored = draws.uniform(f"mirror {name}").lt(0.5)[:, None, None, None].to(images.device)
    shift = 0.1 * (draws.normal(f"light {name}", (1, 1, 1)) + draws.normal(f"tint {name}", (3, 1, 1)))
    return torch.where(mirrored, images.flip(-1), images) + shift.to(images.device)


@register
class VICRegMethod(Method):
    name, title, about = "vicreg", "VICReg", "two views of an image, one code"

    def build(self, config, backbone, dataset):
        return VICReg(new_encoder(config, backbone, dataset))


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("--data", default="toyfaces:6000")
    words.add_argument("--images", type=int, default=20_000, help="length of the training, images seen")
    words.add_argument("--out", type=Path, default=Path("runs/vicreg"))
    given = words.parse_args()
    model = diti.train(given.data, method="vicreg", out=given.out, images=given.images, learning_rate=1e-3,
                       ema_decay=0.99, encoder="residual", code_dim=64, encoder_channels=(16, 32, 64))  # fmt: skip
    data = diti.open_data(given.data, model.size)
    for title, features in (
        ("VICReg", diti.encode(model, data)),
        next(diti.baselines(model.size, data, model.dims, seed=0)),
    ):
        print(f"{title}: mean AP {diti.read_labels(data).probe(features, seed=0).mean_ap:.1%}")
