"""The encoder as an ONNX file: images → z in onnxruntime, without torch or this package.

Notation: N images, H×W px, D length of z.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti import __version__
from diti.core.errors import InputError
from diti.core.outputs import require_writable
from diti.core.rng import torch_generator
from diti.core.runs import atomic_path
from diti.representation.models.model import Model
from diti.representation.networks.encoder import Encoder
from diti.representation.networks.trunks import BlocksTrunk

INPUT, OUTPUT, BATCH_AXIS = "images", "z", "N"
CHECKED_BATCHES = (1, 3)  # one image, and a different number than was traced
TOLERANCE = 1e-4  # of z, between torch and onnxruntime; relative where |z| > 1
NOISY = ("torch.onnx", "onnxscript")  # loggers that report missing torchvision and the like


def export_encoder(model: Model, out: Path) -> str:
    """Write the encoder, images float32 (N, 3, H, W) in [-1, 1] → z (N, D), any N; says how to use the file.

    The file names the version, size, dims and features, and holds the mean and std (D,) of z over the training
    images. It is run in onnxruntime before it gets its name.
    """
    if isinstance(model.encoder.trunk, BlocksTrunk):
        raise InputError(
            f"the encoder is a whole {model.with_backbone().backbone.kind}, of which no ONNX file is made; encode "
            "with diti encode or model.encode"
        )
    require_extra()
    import onnx

    encoder = copy.deepcopy(model.encoder).cpu().float().eval().requires_grad_(False)
    network = to_onnx(encoder)
    onnx.helper.set_model_props(network, properties(model))
    onnx.checker.check_model(network)
    with atomic_path(out) as temporary:
        onnx.save(network, temporary)
        largest = largest_difference(temporary, encoder)
    return (
        f"wrote {out}: {INPUT} (N, 3, {model.size}, {model.size}) → {OUTPUT} (N, {model.dims}), "
        f"{out.stat().st_size / 1e6:.1f} MB; differs from torch by {largest:.0e} at most. In Python:\n\n"
        f"{example(out, model.size)}\n"
    )


def check_file(out: Path, *, overwrite: bool) -> None:
    """InputError for a file that cannot or must not be written."""
    if out.suffix.lower() != ".onnx":
        raise InputError(f"--out {out} does not end in .onnx; name a file, such as encoder.onnx")
    require_writable({"--out": [out]}, overwrite=overwrite)


def require_extra() -> None:
    """InputError unless everything that export needs can be imported."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"export to ONNX needs the extra: pip install 'diti-torch[onnx]' ({error.name} is missing)"
        ) from None


def to_onnx(encoder: Encoder) -> Any:
    """The encoder as an onnx.ModelProto with a free batch axis."""
    traced = torch.zeros(2, 3, encoder.size, encoder.size)
    with quiet(), torch.no_grad():
        # strict: otherwise len(x), the number of images, would become a constant.
        program = torch.export.export(
            encoder, (traced,), dynamic_shapes=({0: torch.export.Dim(BATCH_AXIS)},), strict=True
        )
        exported: Any = torch.onnx.export(
            program,
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: BATCH_AXIS},),
            verbose=False,
        )
    network = exported.model_proto
    for node in network.graph.node:  # the exporter records files and lines of this machine in each
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    return network


def properties(model: Model) -> dict[str, str]:
    """What a user of the file has to know besides the network; lists are JSON."""
    return {
        "diti_version": __version__,
        "method": model.method,
        "size": str(model.size),
        "dims": str(model.dims),
        "input": "RGB, float32 (N, 3, H, W) in [-1, 1]: pixel / 127.5 - 1",
        "feature_names": json.dumps(model.feature_names()),
        "mean": json.dumps(None if model.mean is None else model.mean.tolist()),  # null where it is not known
        "std": json.dumps(None if model.std is None else model.std.tolist()),
    }


def largest_difference(file: Path, encoder: Encoder) -> float:
    """Largest |z in onnxruntime - z in torch| over random images; RuntimeError where the two disagree."""
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    rng, largest = torch_generator(0, "onnx-check"), 0.0
    for count in CHECKED_BATCHES:
        x = torch.rand(count, 3, encoder.size, encoder.size, generator=rng) * 2 - 1
        with torch.no_grad():
            expected: Tensor = encoder(x)
        found = session.run([OUTPUT], {INPUT: x.numpy()})[0]
        if not np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
            raise RuntimeError("the exported encoder gives different numbers than the model; please report this")
        largest = max(largest, float(np.abs(found - expected.numpy()).max()))
    return largest


def example(file: Path, size: int) -> str:
    """Three lines of Python that use the file."""
    return (
        "    import numpy as np, onnxruntime\n"
        f"    session = onnxruntime.InferenceSession({str(file)!r})\n"
        f'    z, = session.run(None, {{"{INPUT}": np.float32(pixels.transpose(0, 3, 1, 2) / 127.5 - 1)}})'
        f"  # pixels: uint8 (N, {size}, {size}, 3)"
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the exporter's known warnings about its own internals; errors still show."""
    loggers = [logging.getLogger(name) for name in NOISY]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
