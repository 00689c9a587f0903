"""A trained model: encode images and, where it has a decoder, decode codes; one self-contained folder on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from diti.core.errors import InputError
from diti.core.rng import torch_generator
from diti.core.runs import atomic_path, read_json, write_json
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.files import locate
from diti.diffusion.generate import CALLS
from diti.diffusion.sampler import EpsFn, OnStep, dpm_solver_2m, timesteps
from diti.diffusion.schedule import gather, guidance_authors, w_eps
from diti.representation.encoder import Encoder, load_encoder
from diti.representation.inputs import Images, as_batch
from diti.representation.methods import decoding_methods, find_method
from diti.representation.partition import Partition
from diti.representation.shift import ShiftDecoder, load_decoder

if TYPE_CHECKING:
    from diti.edit.directions import Direction

BATCH = 256  # images encoded at once
COMMON_PARTS = ("encoder", "partition.json", "stats.safetensors", "model.json")
DECODER_PARTS = ("unet", "scheduler", "decoder")


class Model:
    """What the models of all methods can do: encode, be measured, be saved. Decoding is left to those that can."""

    encoder: Encoder
    partition: Partition
    mean: Tensor  # (D,) of z over the training set
    std: Tensor  # (D,)
    method: str

    @property
    def size(self) -> int:
        """Side of the images, px."""
        return self.encoder.size

    @property
    def dims(self) -> int:
        """D, length of z."""
        return self.partition.dims

    @property
    def device(self) -> torch.device:
        return self.encoder.head.weight.device

    def to(self, device: str | torch.device) -> Self:
        """Move the networks; codes and images always come back on the CPU."""
        self.encoder.to(device)
        return self

    def feature_names(self) -> list[str]:
        """A name per dim of z with the start of its time segment, such as z012_t0300."""
        return self.partition.feature_names()

    @torch.no_grad()
    def encode(self, images: Images, batch: int = BATCH) -> Tensor:
        """z (N, D) of images in any form; sizes other than the model's are cropped and resized, with a note."""
        pixels = as_batch(images, self.size)
        with inference(self.encoder):
            return torch.cat([self.encoder(part.to(self.device)).cpu() for part in pixels.split(batch)])

    def save(self, folder: Path) -> None:
        """Write everything that `load` needs; each part whole, model.json last."""
        self.encoder.save(folder / "encoder")
        write_json(folder / "partition.json", self.partition.to_json())
        with atomic_path(folder / "stats.safetensors") as temporary:
            save_file({"mean": self.mean.contiguous(), "std": self.std.contiguous()}, temporary)
        write_json(folder / "model.json", {"method": self.method, "format": 1})

    @property
    def backbone(self) -> Backbone:
        """The frozen diffusion model, of a model that decodes with it."""
        self._refuse_to_decode()

    def decode(self, *given: Any, **options: Any) -> Tensor:
        self._refuse_to_decode()

    def infer_noise(self, *given: Any, **options: Any) -> Tensor:
        self._refuse_to_decode()

    def reconstruct(self, *given: Any, **options: Any) -> Tensor:
        self._refuse_to_decode()

    def interpolate(self, *given: Any, **options: Any) -> Tensor:
        self._refuse_to_decode()

    def manipulate(self, *given: Any, **options: Any) -> Tensor:
        self._refuse_to_decode()

    def guided_eps(self, *given: Any, **options: Any) -> EpsFn:
        self._refuse_to_decode()

    def _refuse_to_decode(self) -> NoReturn:
        able = " or ".join(decoding_methods())
        raise InputError(
            f"a {self.method} model has no decoder: it can encode and be probed; "
            f"reconstruct, interpolate, manipulate and sample need {able}"
        )


@dataclass
class EncodeOnly(Model):
    """Encoder f, and the statistics of z."""

    encoder: Encoder
    partition: Partition
    mean: Tensor
    std: Tensor
    method: str

    def feature_names(self) -> list[str]:
        """A name per dim of z, such as z012; no time-step belongs to it."""
        return [name.partition("_")[0] for name in self.partition.feature_names()]


@dataclass
class DiTi(Model):
    """Encoder f, decoder g over the frozen backbone, partition of z, and the statistics of z."""

    encoder: Encoder
    decoder: ShiftDecoder
    partition: Partition
    mean: Tensor
    std: Tensor
    method: str = "diti"

    @property
    def backbone(self) -> Backbone:
        return self.decoder.backbone

    def to(self, device: str | torch.device) -> Self:
        """Move the networks; codes and images always come back on the CPU."""
        self.decoder.to(device)
        return super().to(device)

    @torch.no_grad()
    def decode(
        self,
        z: Tensor,
        x_T: Tensor,
        calls: int = CALLS,
        *,
        clamp: bool = True,
        on_step: OnStep | None = None,
        **field: Any,
    ) -> Tensor:
        """(N, 3, H, W) images from codes (N, D) and noise (N, 3, H, W). `field`: see `guided_eps`.

        clamp keeps each step's x0 in [-1, 1]: right for random noise, while noise that was inferred without it
        comes back exactly only without it.
        """
        with inference(self.decoder):
            return dpm_solver_2m(
                self.guided_eps(z, **field),
                x_T.to(self.device),
                timesteps(self.backbone.schedule, calls),
                self.backbone.schedule,
                clamp=clamp,
                on_step=on_step,
            ).cpu()

    @torch.no_grad()
    def infer_noise(
        self,
        images: Images,
        z: Tensor | None = None,
        calls: int = CALLS,
        *,
        on_step: OnStep | None = None,
        **field: Any,
    ) -> Tensor:
        """x_T (N, 3, H, W) from which z gives these images back; z is encoded from them unless given."""
        pixels = as_batch(images, self.size)
        z = self.encode(pixels) if z is None else z
        steps = timesteps(self.backbone.schedule, calls)[::-1]
        with inference(self.decoder):
            eps = self.guided_eps(z, **field)
            return dpm_solver_2m(eps, pixels.to(self.device), steps, self.backbone.schedule, on_step=on_step).cpu()

    def reconstruct(
        self,
        images: Images,
        noise: Literal["inferred", "random"] = "inferred",
        calls: int = CALLS,
        seed: int = 0,
        **field: Any,
    ) -> Tensor:
        """Images from their own z, with the noise inferred from them or drawn anew."""
        if noise not in ("inferred", "random"):
            raise InputError(f"noise is {noise!r}; allowed: inferred, random")
        pixels = as_batch(images, self.size)
        z = self.encode(pixels)
        if noise == "inferred":
            x_T = self.infer_noise(pixels, z, calls, **field)
        else:
            x_T = torch.randn(pixels.shape, generator=torch_generator(seed, "reconstruct"))
        return self.decode(z, x_T, calls, clamp=noise == "random", **field)

    def interpolate(
        self, first: Images, second: Images, subset: str = "all", scale: float = 0.5, **options: Any
    ) -> Tensor:
        """(1, 3, H, W): the first image with a subset of z moved towards the second's. Algorithm 2.

        For several subsets, scales and both directions at once see `diti.edit.interpolate.interpolate`.
        """
        from diti.edit.interpolate import interpolate

        return interpolate(self, first, second, [subset], [scale], directions=("a_to_b",), **options).images

    def manipulate(self, images: Images, direction: Direction, scale: float = 0.3, **options: Any) -> Tensor:
        """(N, 3, H, W): the images moved by `scale` along an attribute's direction. Algorithm 3.

        Directions come from `diti.edit.directions.learn_direction`.
        """
        from diti.edit.manipulate import manipulate

        return manipulate(self, images, direction, [scale], **options).images[0]

    def guided_eps(
        self, z: Tensor, *, masked: bool = True, guidance: Literal["trained", "authors"] = "trained"
    ) -> EpsFn:
        """ε(x, t) = ε_θ - w_t g(z_t, t, x): the field that sampling and inversion follow.

        masked: z is masked by the subset of the current t, as in training. guidance: w_t as in training, or the
        authors' sampler's √(1 - ᾱ_t); they differ at the lowest t only.
        """
        schedule = self.backbone.schedule
        table = {"trained": w_eps, "authors": guidance_authors}[guidance](schedule)
        z = z.to(self.device)

        def eps(x: Tensor, t: Tensor) -> Tensor:
            eps_theta, g = self.decoder(x, t, self.partition.mask(z, t) if masked else z)
            return eps_theta - gather(table, t, x) * g

        return eps

    def save(self, folder: Path) -> None:
        """Write everything that `load` needs; each part whole, model.json last."""
        self.backbone.save(folder)
        self.decoder.save(folder / "decoder")
        super().save(folder)


class inference:
    """Context: modules in inference mode, put back afterwards as they were, each on its own."""

    def __init__(self, *modules: torch.nn.Module) -> None:
        self.modes = [(m, m.training) for module in modules for m in module.modules()]
        self.roots = modules

    def __enter__(self) -> None:
        for module in self.roots:
            module.eval()

    def __exit__(self, *failure: object) -> None:
        for module, training in self.modes:
            module.training = training


def load(source: str | Path) -> Model:
    """A model from a folder, the name of a shipped one, or a hub id; strictly all of it."""
    folder = locate(source)
    require_parts(folder, ("model.json",))
    name = str(read_json(folder / "model.json").get("method"))
    try:
        method = find_method(name)
    except InputError as error:
        raise InputError(f"{folder / 'model.json'}: {error}") from None
    return method.load(folder)


def load_with_decoder(source: str | Path) -> DiTi:
    """The same for what needs a decoder; InputError at once for a model without."""
    model = load(source)
    if not isinstance(model, DiTi):
        model._refuse_to_decode()
    return model


def load_diti(folder: Path) -> DiTi:
    """What `DiTi.save` wrote."""
    require_parts(folder, (*DECODER_PARTS, *COMMON_PARTS))
    encoder, partition, mean, std, method = read_common(folder)
    backbone = load_backbone(folder)
    decoder = load_decoder(folder / "decoder", backbone)
    require_dims(folder, "decoder", decoder.dims, partition)
    if partition.timesteps != backbone.timesteps:
        raise InputError(
            f"{folder}: the partition is for T = {partition.timesteps}, the backbone has T = {backbone.timesteps}"
        )
    return DiTi(encoder, decoder, partition, mean, std, method)


def load_encode_only(folder: Path) -> EncodeOnly:
    """What `EncodeOnly.save` wrote."""
    return EncodeOnly(*read_common(folder))


def read_common(folder: Path) -> tuple[Encoder, Partition, Tensor, Tensor, str]:
    """Encoder, partition, mean, std and method, which the folders of all methods hold."""
    require_parts(folder, COMMON_PARTS)
    encoder = load_encoder(folder / "encoder")
    partition = Partition.from_json(read_json(folder / "partition.json"))
    stats = load_file(folder / "stats.safetensors")
    require_dims(folder, "encoder", encoder.dims, partition)
    require_dims(folder, "stats", len(stats["mean"]), partition)
    return encoder, partition, stats["mean"], stats["std"], read_json(folder / "model.json")["method"]


def require_parts(folder: Path, parts: Sequence[str]) -> None:
    """InputError that names the parts which a model folder lacks."""
    missing = [name for name in parts if not (folder / name).exists()]
    if missing:
        raise InputError(f"{folder} is not a model folder: {', '.join(missing)} missing; make one with diti train")


def require_dims(folder: Path, name: str, found: int, partition: Partition) -> None:
    """InputError where a part is of another model."""
    if found != partition.dims:
        raise InputError(f"{folder}: {name} has {found} dims, the partition {partition.dims}; they must agree")


def code_statistics(encode: Callable[[Any], Tensor], batches: Iterator[Any]) -> tuple[Tensor, Tensor]:
    """Mean and std (D,) of z over batches of images, summed in float64."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for batch in batches:
        z = encode(batch).double()
        count, total, squares = count + len(z), total + z.sum(0), squares + z.square().sum(0)
    mean = total / count
    return mean.float(), (squares / count - mean.square()).clamp(min=1e-12).sqrt().float()
