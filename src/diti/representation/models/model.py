"""A trained model: encode images and, where it has a decoder, decode codes; one self-contained folder on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from diti.core.device import Device, decide, fitted, on_host, sent
from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE, ValueRange
from diti.core.runs import as_path, atomic_path, read_json, versions, write_json
from diti.diffusion.backbone import Backbone
from diti.diffusion.files import complaints_about, read_safetensors, read_settings, require_finite
from diti.representation.models.axes import AXES, Axes, write_axes
from diti.representation.models.axis_names import AxisName, Key, with_names, write_names
from diti.representation.models.inputs import Images, as_batch, as_features
from diti.representation.models.metric import metric_root
from diti.representation.models.shown import model_html
from diti.representation.networks.encoder import Encoder, load_encoder
from diti.representation.partition import Partition
from diti.representation.registry import decoding_methods

if TYPE_CHECKING:
    from diti.representation.models.decoding import DecodingModel
    from diti.representation.models.diffusion import DiTi

BATCH = 256  # images encoded at once when a caller gives them
PIXELS_AT_ONCE = 2**17  # in one batch: 128 images of 32 px, 32 of 64 px; more do not fit a core's cache
PIXELS_ON_DEVICE = 2**20  # 1,024 images of 32 px, 256 of 64 px: halved where they do not fit
COMMON_PARTS = ("encoder", "partition.json", "model.json")
STATS, UNKNOWN = "stats.safetensors", "unknown"
FORMAT = 1  # of a model folder; a higher one is from a later version of diti


class Unable(InputError, AttributeError):
    """A model was asked for what only others have: `hasattr` says it is not there, a call says why."""


@dataclass(eq=False, repr=False)
class Model:
    """An encoder f and the statistics of z: what every model can do. `DecodingModel` can also draw images.

    A model of your own is a dataclass with `eq=False, repr=False`, and `kw_only=True` where it has more parts:
    models are equal to themselves alone, so that they can be keys, and print as one line.

        model = diti.load("toyfaces32-diti")
        z = model.encode(images)  # (N, D); uint8, PIL, files or floats in
    """

    encoder: Encoder
    partition: Partition
    mean: Tensor | None  # (D,) of z over the training set; None where it is not known
    std: Tensor | None  # (D,)
    method: str
    _: KW_ONLY
    metric: Tensor | None = None  # (D, D) of standardised codes, see `metric.py`; None where it is not known
    axes: Axes | None = None  # that one can name, see `axes.py`; None where they are not known
    axis_names: Mapping[Key, AxisName] = field(default_factory=dict)  # that people gave to axes and dims of z

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
        """Where the networks are; `encode` and what decodes give their tensors there."""
        return self.encoder.head.weight.device

    def to(self, device: Device) -> Self:
        """Move the networks. Mean, std, metric and axes stay on the CPU, and so do edits and pictures."""
        for network in self._networks():
            network.to(decide(device))
        return self

    def _networks(self) -> list[nn.Module]:
        return [self.encoder]

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
                "the metric of z is not known: the model is of an earlier version; "
                "diti.encode(model, DATA, metric=True) measures it over images"
            )
        mean, std = self.statistics()
        return (z - mean.to(z)) / std.to(z) @ metric_root(self.metric).to(z)

    def feature_names(self) -> list[str]:
        """A name per dim of z with the start of its time segment, such as z012_t0300; z012 where it has none.

        After it comes the name that someone gave to the axis: z012_t0300_beard.
        """
        names = self.partition.feature_names()
        timed = self.partition.timesteps > 1
        return with_names(names if timed else [name.partition("_")[0] for name in names], self.axis_names)

    @torch.no_grad()
    def encode(self, images: Images, batch: int = BATCH, *, value_range: ValueRange | None = None) -> Tensor:
        """z (N, D) of images in any form, on the model's device; other sizes are cropped and resized, with a note.

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
        if "blocks" in self.encoder.description:  # of a network that may be large
            batch = min(batch, images_at_once(self.size, self.device))
        with inference(self.encoder):
            return torch.cat([fitted(self._encoded, part) for part in pixels.split(batch)])

    def _encoded(self, part: Tensor) -> Tensor:
        return self.encoder(sent(part, self.device))

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

    def with_decoder(self) -> DecodingModel:
        """The same model, and type checkers know that it decodes; for one that cannot, InputError: which can."""
        *others, last = decoding_methods()
        raise Unable(
            f"a {self.method} model has no decoder: it can encode and be probed; "
            f"reconstruct, interpolate, manipulate and sample need {', '.join(others)} or {last}"
        )

    def with_backbone(self) -> DiTi:
        """The same model, and type checkers know its frozen diffusion model; InputError for one without."""
        raise Unable(f"a {self.method} model has no frozen diffusion model; this needs diti or pdae")

    if not TYPE_CHECKING:  # which would find every misspelt name here

        def __getattr__(self, name):
            """For what only other models have, the line that says which; `hasattr` is False."""
            from diti.representation.models.decoding import DecodingModel

            if hasattr(DecodingModel, name):
                self.with_decoder()
            if name == "backbone":
                self.with_backbone()
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


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


def read_common(
    folder: Path, backbone: Backbone | None = None
) -> tuple[Encoder, Partition, Tensor | None, Tensor | None, str]:
    """Encoder, partition, mean, std and method, which the folders of all methods hold.

    backbone: the frozen diffusion model of the folder, where it has one.
    """
    require_parts(folder, COMMON_PARTS)
    encoder = load_encoder(folder / "encoder", backbone)
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


def images_at_once(size: int, device: torch.device) -> int:
    """Images of that side, px, for one batch of a U-Net."""
    return max(1, (PIXELS_AT_ONCE if on_host(device) else PIXELS_ON_DEVICE) // size**2)


def code_statistics(encode: Callable[[Any], Tensor], batches: Iterator[Any]) -> tuple[Tensor, Tensor]:
    """Mean and std (D,) of z over batches of images, summed in float64."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for batch in batches:
        z = encode(batch).double()
        count, total, squares = count + len(z), total + z.sum(0), squares + z.square().sum(0)
    mean = total / count
    return mean.float(), (squares / count - mean.square()).clamp(min=1e-12).sqrt().float()
