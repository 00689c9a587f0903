"""A trained model as a scikit-learn transformer: images → z, for pipelines, cross-validation and grid search.

The network is pretrained, so `fit` checks the images and counts their numbers. All that it may learn are mean, std
and metric of z, where the model does not know them.
Notation: N images, H×W px, D length of z.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import validate_data

from diti.core.device import fitted
from diti.core.errors import InputError
from diti.core.images import ValueRange
from diti.representation.models.inputs import Images, as_batch
from diti.representation.models.loading import load
from diti.representation.models.metric import metric_root, regressed_metric
from diti.representation.models.model import BATCH, Model, inference

log = logging.getLogger(__name__)


class DiTiFeatures(TransformerMixin, BaseEstimator):
    """Codes of images, float32 (N, D), with a name per column such as z012_t0300.

    X is uint8 images (N, H, W, 3), a list of PIL images or of paths, whatever else `Model.encode` takes for
    several images, or rows (N, H·W·3) of 0..255, an image of the model's size each, channels last.

    model: folder, shipped name or hub id, read when first needed and kept out of pickles; or a model itself.
    batch_size: images encoded at once.
    standardise: (z - mean) / std over the images that the model was trained on, or over those given to `fit` where
        the model does not know them (converted without images); False gives z itself.
    metric: codes in which distances mean something, M½ of the standardised ones (see `Model.in_metric`), so that
        neighbours, clusters and ridge weigh each direction by what it tells; False gives all dims the same weight.
        Without a word it is as `standardise`.
    value_range: of float images, as in `Model.encode`; also of rows, which are 0..255 without it.

        pipeline = make_pipeline(diti.DiTiFeatures("runs/faces"), LogisticRegression())
        pipeline.fit(images, smiling).score(other_images, others_smiling)
    """

    def __init__(
        self,
        model: str | Path | Model = "toyfaces32-diti",
        batch_size: int = BATCH,
        standardise: bool = True,
        value_range: ValueRange | None = None,
        metric: bool | None = None,
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.standardise = standardise
        self.value_range = value_range
        self.metric = metric

    def fit(self, X: Any, y: Any = None) -> DiTiFeatures:
        """Check images and model, learn mean and std where it knows none; y is ignored. A folder is read again."""
        self.__dict__.pop("_loaded", None)
        network = self._network()
        images = self._images(X, network, reset=True)
        as_batch(images[: self.batch_size], network.size, self.value_range)
        for learnt in ("mean_", "std_", "metric_"):
            self.__dict__.pop(learnt, None)
        if self.standardise and network.mean is None:
            self.mean_, self.std_ = network.statistics(self._codes(images, network))
        if self._measured() and network.metric is None:
            log.warning("the model has no metric yet: it is learnt from these images")
            self.metric_ = self._learn_metric(images, network)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """z float32 (N, D); works without `fit` too, unless it has to learn mean and std."""
        network = self._network()
        z = self._codes(self._images(X, network, reset=False), network)
        if self.standardise:
            mean, std = self._statistics(network)
            z = (z - mean) / std
        if self._measured():
            z = z @ metric_root(self._metric(network))
        return z.numpy()

    def _measured(self) -> bool:
        """Whether codes are given in the metric."""
        if self.metric and not self.standardise:
            raise InputError("metric=True is for standardised codes, and standardise is False; change one")
        return self.standardise if self.metric is None else self.metric

    def _metric(self, network: Model) -> torch.Tensor:
        if network.metric is None and not hasattr(self, "metric_"):
            raise InputError(
                "the metric of z is not known, since the model is of an earlier version: call fit first, or give "
                "metric=False"
            )
        return self.metric_ if network.metric is None else network.metric

    @torch.no_grad()
    def _learn_metric(self, images: Any, network: Model) -> torch.Tensor:
        """(D, D) over the images given to `fit`."""
        mean, std = self._statistics(network)

        def pairs() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for part in self._parts(images):
                pixels = as_batch(part, network.size, self.value_range).to(network.device)
                features = fitted(network.encoder.features, pixels)
                yield features.cpu(), (network.encoder.code(features).cpu() - mean) / std

        with inference(network.encoder):
            return regressed_metric(pairs())

    def _statistics(self, network: Model) -> tuple[torch.Tensor, torch.Tensor]:
        if network.mean is not None:
            return network.statistics()
        if not hasattr(self, "mean_"):
            raise InputError(
                "mean and std of z are not known, since the model was converted without images: call fit first, "
                "give standardise=False, or convert it again with --data"
            )
        return self.mean_, self.std_

    def _codes(self, images: Any, network: Model) -> torch.Tensor:
        """z (N, D), some images at a time."""
        return torch.cat(
            [
                network.encode(part, self.batch_size, value_range=self.value_range).cpu()
                for part in self._parts(images)
            ]
        )

    def _parts(self, images: Any) -> Iterator[Any]:
        return (images[start : start + self.batch_size] for start in range(0, len(images), self.batch_size))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """(D,) names of the columns; those of the input play no part."""
        return np.asarray(self._network().feature_names(), dtype=object)

    def _network(self) -> Model:
        """The model; one that is named is read once and kept until another is named."""
        if not isinstance(self.batch_size, int | np.integer) or self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size!r}; give a whole number of 1 or more")
        if isinstance(self.model, Model):
            return self.model
        if getattr(self, "_loaded", (None,))[0] != self.model:
            self._loaded = (self.model, load(self.model))
        return self._loaded[1]

    def _images(self, X: Any, network: Model, *, reset: bool) -> Any:
        """X as images that can be sliced; `reset` when fitting, as in scikit-learn's validate_data."""
        if isinstance(X, np.ndarray | torch.Tensor) and X.ndim == 3:
            raise InputError(f"X has shape {tuple(X.shape)}; give several images (N, H, W, 3), one as X[None]")
        if isinstance(X, np.ndarray) and X.ndim == 1 and X.dtype.kind in "OUT":  # a column of paths or of images
            X = X.tolist()
        if not _are_images(X):
            rows = validate_data(self, X, reset=reset, ensure_non_negative=self.value_range is None)
            return self._pixels(rows, network.size)
        if len(X) == 0:
            raise InputError(f"X has shape {tuple(X.shape)}; give at least one image")
        if reset:
            self.n_features_in_ = 3 * network.size**2
            self.__dict__.pop("feature_names_in_", None)
        return X

    def _pixels(self, rows: np.ndarray, size: int) -> np.ndarray:
        """Rows (N, size·size·3) of whole numbers 0..255 → uint8 (N, size, size, 3); of a value_range → floats."""
        if rows.shape[1] != 3 * size**2:
            raise InputError(
                f"the rows of X have {rows.shape[1]} numbers; this model takes {size}×{size}×3 = {3 * size**2}, "
                "or images (N, H, W, 3) of any size"
            )
        if self.value_range is not None:
            return rows.reshape(-1, size, size, 3).transpose(0, 3, 1, 2).astype(np.float32)
        if rows.max() > 255 or not np.array_equal(pixels := rows.astype(np.uint8), rows):
            raise InputError(
                f"the rows of X range from {rows.min():.3g} to {rows.max():.3g} in {rows.dtype}; give pixels, "
                "whole numbers 0..255"
            )
        return pixels.reshape(-1, size, size, 3)

    def __getstate__(self) -> dict[str, Any]:
        """Without the network that was read from a folder: whoever loads the pickle reads the folder."""
        return {key: value for key, value in super().__getstate__().items() if key != "_loaded"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.positive_only = self.value_range is None
        tags.transformer_tags.preserves_dtype = []  # float32 whatever comes in
        return tags


def _are_images(X: Images) -> bool:
    """Whether X is images and not a table: four axes, or a sequence of PIL images, paths or arrays of three."""
    if isinstance(X, Sequence) and not isinstance(X, str):
        return len(X) > 0 and (isinstance(X[0], Image.Image | str | Path) or getattr(X[0], "ndim", 0) == 3)
    return isinstance(X, np.ndarray | torch.Tensor) and X.ndim == 4
