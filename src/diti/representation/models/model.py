"""A trained model: encode images and, where it has a decoder, decode codes; one self-contained folder on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from safetensors.torch import save_file
from torch import Tensor

from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE, ValueRange
from diti.core.runs import as_path, atomic_path, read_json, versions, write_json
from diti.diffusion.backbone import Backbone
from diti.diffusion.files import complaints_about, read_safetensors, read_settings, require_finite
from diti.diffusion.generate import SAMPLING_STEPS
from diti.diffusion.sampler import OnStep
from diti.representation.models.axes import AXES, Axes, write_axes
from diti.representation.models.axis_names import AxisName, Key, with_names, write_names
from diti.representation.models.guidance import Guidance, Weight
from diti.representation.models.inputs import Images, as_batch, as_features
from diti.representation.models.metric import metric_root
from diti.representation.models.shown import model_html
from diti.representation.networks.encoder import Encoder, load_encoder
from diti.representation.partition import Partition
from diti.representation.registry import decoding_methods

if TYPE_CHECKING:
    from diti.edit.directions import Direction
    from diti.edit.editor import Editor
    from diti.representation.models.decoding import DecodingModel

BATCH = 256  # images encoded at once when a caller gives them
PIXELS_AT_ONCE = 2**17  # in one batch: 128 images of 32 px, 32 of 64 px; more do not fit a core's cache
COMMON_PARTS = ("encoder", "partition.json", "model.json")
STATS, UNKNOWN = "stats.safetensors", "unknown"
FORMAT = 1  # of a model folder; a higher one is from a later version of diti


class Model:
    """What the models of all methods can do: encode, be measured, be saved. Decoding is left to those that can.

    One of your own is a dataclass with `eq=False, repr=False`: models are equal to themselves alone, so that they
    can be keys, and print as one line.

        model = diti.load("toyfaces32-diti")
        z = model.encode(images)  # (N, D); uint8, PIL, files or floats in
        again = model.reconstruct(images)  # (N, 3, H, W)
    """

    encoder: Encoder
    partition: Partition
    mean: Tensor | None  # (D,) of z over the training set; None where it is not known
    std: Tensor | None  # (D,)
    method: str
    metric: Tensor | None = None  # (D, D) of standardised codes, see `metric.py`; None where it is not known
    axes: Axes | None = None  # that one can name, see `axes.py`; None where they are not known
    axis_names: Mapping[Key, AxisName] = MappingProxyType({})  # that people gave to axes and dims of z

    def __repr__(self) -> str:
        cut = f" in {self.partition.subsets} subsets" if self.partition.subsets > 1 else ""
        return f"<{type(self).__name__} by {self.method}: z of {self.dims} dims{cut}, images of {self.size} px>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return model_html(self)

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

    def require_size(self, size: int) -> None:
        """Refuse images of another side than the model was trained for."""
        if size != self.size:
            raise InputError(
                f"the images are {size} px but the model is for {self.size} px: "
                f"prepare the data with --size {self.size}"
            )

    def statistics(self, codes: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and std (D,) of z over the training set; where they are not known, of the given codes (N, D)."""
        if self.mean is not None and self.std is not None:
            return self.mean, self.std
        if codes is None:
            raise InputError(
                "mean and std of z are not known: the model was converted without images of its training set; "
                "convert it again with --data"
            )
        return codes.mean(0), codes.std(0, correction=0).clamp(min=1e-6)

    def in_metric(self, z: Tensor) -> Tensor:
        """M½u (N, D) of codes z: standardised, and each direction as long as the encoder's features move along it.

        Nearest neighbours, clusters and penalised fits do better with these than with z, whose dims all weigh the
        same. InputError for a folder of an earlier version, which holds no metric.
        """
        if self.metric is None:
            raise InputError(
                "the metric of z is not known: the model is of an earlier version; solve or train it again"
            )
        mean, std = self.statistics()
        return (z - mean) / std @ metric_root(self.metric)

    def feature_names(self) -> list[str]:
        """A name per dim of z with the start of its time segment, such as z012_t0300; z012 where it has none.

        After it comes the name that someone gave to the axis: z012_t0300_beard.
        """
        names = self.partition.feature_names()
        timed = self.partition.timesteps > 1
        return with_names(names if timed else [name.partition("_")[0] for name in names], self.axis_names)

    @torch.no_grad()
    def encode(self, images: Images, batch: int = BATCH, *, value_range: ValueRange | None = None) -> Tensor:
        """z (N, D) of images in any form; sizes other than the model's are cropped and resized, with a note.

        Images are uint8 (N, H, W, 3), PIL images, paths of image files, or floats (N, 3, H, W), one or many.
        value_range: of floats, the lowest and highest value of a pixel: (-1, 1), (0, 1) or (0, 255). Without it
        they are taken as [-1, 1], whatever they are, so that z of an image never depends on the others of its
        batch; one without a negative value is most likely [0, 1], and a warning says so once. Values outside
        the range are an InputError.
        A model that was solved over features from elsewhere takes these features (N, F) instead.
        """
        given = len(self.encoder.taken) == 1
        if given and value_range not in (None, MODEL_RANGE):
            raise InputError("value_range is for images, and this model encodes features of another network")
        pixels = as_features(images) if given else as_batch(images, self.size, value_range)
        with inference(self.encoder):
            return torch.cat([self.encoder(part.to(self.device)).cpu() for part in pixels.split(batch)])

    def save(self, folder: str | Path) -> None:
        """Write everything that `load` needs; each part whole, model.json last."""
        folder = as_path(folder, "the folder to save in")
        self.encoder.save(folder / "encoder")
        if self.axis_names:
            write_names(folder, self.axis_names)
        if self.axes is not None:
            write_axes(self.axes, folder / AXES)
        write_json(folder / "partition.json", self.partition.to_json())
        facts: dict[str, Any] = {"method": self.method, "format": FORMAT}
        if self.mean is None or self.std is None:
            facts["statistics"] = UNKNOWN
            (folder / STATS).unlink(missing_ok=True)
        else:
            known = {"mean": self.mean, "std": self.std}
            known |= {} if self.metric is None else {"metric": self.metric}
            require_finite(known, "mean, std and metric of z")
            with atomic_path(folder / STATS) as temporary:
                save_file({name: tensor.contiguous() for name, tensor in known.items()}, temporary)
        write_json(folder / "model.json", facts)

    @property
    def backbone(self) -> Backbone:
        """The frozen diffusion model, of a model that decodes with it."""
        raise InputError(f"a {self.method} model has no frozen diffusion model; this needs diti or pdae")

    # ---- For a model with a decoder ----

    @torch.no_grad()
    def decode(
        self,
        z: Tensor,
        noise: Tensor,
        sampling_steps: int = SAMPLING_STEPS,
        *,
        clamp: bool = True,
        masked: bool = True,
        guidance: Weight = "trained",
        stop_below: int = 0,
        on_step: OnStep | None = None,
    ) -> Tensor:
        """(N, 3, H, W) images from codes (N, D) and noise (N, *noise_shape), in parts that fit in memory.

        clamp keeps each step's x0 in [-1, 1]: right for random noise, while noise that was inferred without it
        comes back exactly only without it. masked, guidance and stop_below: see `Guidance`.
        """
        how = Guidance(masked=masked, weight=guidance, stop_below=stop_below)
        return self.with_decoder()._decode(z, noise, sampling_steps, how, clamp=clamp, on_step=on_step)

    @torch.no_grad()
    def infer_noise(
        self,
        images: Images,
        z: Tensor | None = None,
        sampling_steps: int = SAMPLING_STEPS,
        *,
        masked: bool = True,
        guidance: Weight = "trained",
        stop_below: int = 0,
        on_step: OnStep | None = None,
        value_range: ValueRange | None = None,
    ) -> Tensor:
        """Noise (N, *noise_shape) from which z gives these images back; z is encoded from them unless given.

        value_range: of float images, as in `encode`.
        """
        how = Guidance(masked=masked, weight=guidance, stop_below=stop_below)
        able = self.with_decoder()
        pixels = as_batch(images, self.size, value_range)
        return able._infer_noise(pixels, z, sampling_steps, how, on_step=on_step)

    @torch.no_grad()
    def reconstruct(
        self,
        images: Images,
        noise: Literal["inferred", "random"] = "inferred",
        sampling_steps: int = SAMPLING_STEPS,
        seed: int = 0,
        *,
        masked: bool = True,
        guidance: Weight = "trained",
        stop_below: int = 0,
        value_range: ValueRange | None = None,
        z: Tensor | None = None,
    ) -> Tensor:
        """Images in [-1, 1] from their own z, with the noise inferred from them or drawn anew.

        value_range: of float images, as in `encode`. z: codes (N, D), encoded from the images unless given.
        """
        if noise not in ("inferred", "random"):
            raise InputError(f"noise is {noise!r}; allowed: inferred, random")
        how, able = Guidance(masked=masked, weight=guidance, stop_below=stop_below), self.with_decoder()
        pixels = as_batch(images, self.size, value_range)
        z = self.encode(pixels, value_range=MODEL_RANGE) if z is None else z
        if noise == "inferred":
            start = able._infer_noise(pixels, z, sampling_steps, how, on_step=None)
        else:
            start = able.new_noise(len(pixels), seed, "reconstruct")
        return able._decode(z, start, sampling_steps, how, clamp=noise == "random", on_step=None)

    def edit(
        self,
        images: Images,
        sampling_steps: int = SAMPLING_STEPS,
        *,
        masked: bool = True,
        value_range: ValueRange | None = None,
    ) -> Editor:
        """The images inverted once, to be drawn again and again with axes or directions moved: see `Editor`.

        value_range: of float images, as in `encode`.

        face = model.edit(image)
        face.draw({"a07": 2.0})  # axis 7 moved by two standard deviations, (N, 3, H, W); 12 would be a dim of z
        """
        from diti.edit.editor import Editor

        return Editor(self.with_decoder(), images, sampling_steps, masked=masked, value_range=value_range)

    def interpolate(
        self,
        first: Images,
        second: Images,
        subset: str = "all",
        scale: float = 0.5,
        *,
        x_t: str = "slerp",
        masked: bool = True,
        partition: Partition | None = None,
        sampling_steps: int = SAMPLING_STEPS,
        seed: int = 0,
        progress: bool = False,
        value_range: ValueRange | None = None,
    ) -> Tensor:
        """(1, 3, H, W): the first image with a subset of z moved towards the second's. Algorithm 2.

        value_range: of float images, as in `encode`.
        For several subsets, scales and both directions at once see `diti.edit.interpolate.interpolate`.
        """
        from diti.edit.interpolate import interpolate

        return interpolate(
            self.with_decoder(),
            first,
            second,
            [subset],
            [scale],
            directions=("a_to_b",),
            x_t=x_t,
            masked=masked,
            partition=partition,
            sampling_steps=sampling_steps,
            seed=seed,
            progress=progress,
            value_range=value_range,
        ).images

    def manipulate(
        self,
        images: Images,
        direction: Direction,
        scale: float = 0.3,
        *,
        masked: bool = True,
        stop_guidance: float = 0.0,
        sampling_steps: int = SAMPLING_STEPS,
        on_step: OnStep | None = None,
        value_range: ValueRange | None = None,
    ) -> Tensor:
        """(N, 3, H, W): the images moved by `scale` along an attribute's direction. Algorithm 3.

        Directions come from `diti.learn_direction`. value_range: of float images, as in `encode`.
        """
        from diti.edit.manipulate import manipulate

        return manipulate(
            self.with_decoder(),
            images,
            direction,
            [scale],
            masked=masked,
            stop_guidance=stop_guidance,
            sampling_steps=sampling_steps,
            on_step=on_step,
            value_range=value_range,
        ).images[0]

    def with_decoder(self) -> DecodingModel:
        """The same model; InputError for one without a decoder, which says which have one."""
        *others, last = decoding_methods()
        able = f"{', '.join(others)} or {last}"
        raise InputError(
            f"a {self.method} model has no decoder: it can encode and be probed; "
            f"reconstruct, interpolate, manipulate and sample need {able}"
        )


@dataclass(eq=False, repr=False)
class EncodeOnly(Model):
    """Encoder f, and the statistics of z."""

    encoder: Encoder
    partition: Partition
    mean: Tensor | None
    std: Tensor | None
    method: str
    metric: Tensor | None = None


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


def load_encode_only(folder: Path) -> EncodeOnly:
    """What `EncodeOnly.save` wrote."""
    return EncodeOnly(*read_common(folder))


def read_common(folder: Path) -> tuple[Encoder, Partition, Tensor | None, Tensor | None, str]:
    """Encoder, partition, mean, std and method, which the folders of all methods hold."""
    require_parts(folder, COMMON_PARTS)
    encoder = load_encoder(folder / "encoder")
    with complaints_about(folder / "partition.json"):
        partition = Partition.from_json(read_json(folder / "partition.json"))
    require_dims(folder, "encoder", encoder.dims, partition)
    facts = read_settings(folder / "model.json")
    known = facts.get("statistics") != UNKNOWN
    return encoder, partition, *(_read_statistics(folder, partition) if known else (None, None)), facts["method"]


def _read_statistics(folder: Path, partition: Partition) -> tuple[Tensor | None, Tensor | None]:
    require_parts(folder, (STATS,))
    stats, dims = read_safetensors(folder / STATS), partition.dims
    expected = {"mean": (dims,), "std": (dims,)} | ({"metric": (dims, dims)} if "metric" in stats else {})
    if {name: tuple(tensor.shape) for name, tensor in stats.items()} != expected:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in stats.items())
        raise InputError(f"{folder / STATS} holds {shapes}; expected mean, std and metric of {dims} dims")
    require_finite(stats, f"mean, std and metric of z in {folder / STATS}")
    if not bool((stats["std"] > 0).all()):
        raise InputError(f"{folder / STATS}: a std of z is not above 0; copy the file again")
    if (stats["mean"] == 0).all() and (stats["std"] == 1).all():  # how earlier versions wrote unknown ones
        return None, None
    return stats["mean"], stats["std"]


def read_metric(folder: Path) -> Tensor | None:
    """The metric (D, D) of a model folder, checked with the statistics; None in folders of earlier versions."""
    return read_safetensors(folder / STATS).get("metric") if (folder / STATS).is_file() else None


def require_parts(folder: Path, parts: Sequence[str]) -> None:
    """InputError that names the parts which a model folder lacks."""
    missing = [name for name in parts if not (folder / name).exists()]
    if missing:
        raise InputError(f"{folder} is not a model folder: {', '.join(missing)} missing; make one with diti train")


def require_known_format(path: Path, facts: Mapping[str, Any]) -> None:
    """InputError for a model.json whose folder may hold what this version does not know."""
    found = facts.get("format", FORMAT)  # missing in folders of the first models
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise InputError(
            f"{path}: format is {found!r}; it must be a whole number of 1 or more: copy the file again"
        )
    if found > FORMAT:
        raise InputError(
            f"{path} has format {found}, written by a later diti than this one (diti {versions()['diti']} knows "
            f"formats up to {FORMAT}); update diti"
        )


def require_dims(folder: Path, name: str, found: int, partition: Partition) -> None:
    """InputError where a part belongs to another model."""
    if found != partition.dims:
        raise InputError(f"{folder}: {name} has {found} dims, the partition {partition.dims}; they must agree")


def require_side(folder: Path, side: int, encoder: Encoder) -> None:
    """InputError where the decoder is for images of another side than the encoder."""
    if side != encoder.size:
        raise InputError(
            f"{folder}: the encoder is for {encoder.size} px, the decoder for {side} px; they must agree"
        )


def images_at_once(size: int) -> int:
    """Images of that side, px, for one batch of a U-Net."""
    return max(1, PIXELS_AT_ONCE // size**2)


def code_statistics(encode: Callable[[Any], Tensor], batches: Iterator[Any]) -> tuple[Tensor, Tensor]:
    """Mean and std (D,) of z over batches of images, summed in float64."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for batch in batches:
        z = encode(batch).double()
        count, total, squares = count + len(z), total + z.sum(0), squares + z.square().sum(0)
    mean = total / count
    return mean.float(), (squares / count - mean.square()).clamp(min=1e-12).sqrt().float()
