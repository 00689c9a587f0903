"""Unsupervised, disentangled image representations from the time-steps of a diffusion model (DiTi, ICLR 2024).

Public names are loaded on first use, so that `import diti` costs nothing. Each stands twice below, once for people
who run the code and once for those who check or complete its types; a test compares the two lists.
"""

__version__ = "0.1.0"
TYPE_CHECKING = False  # as type checkers expect; while typing is imported, Ctrl-C would print a traceback

if TYPE_CHECKING:  # `as` says that a name is public
    from diti.core.errors import InputError as InputError
    from diti.core.images import grid as grid
    from diti.core.objective import LossReport as LossReport
    from diti.core.progress import quiet as quiet
    from diti.core.settings import Settings as Settings
    from diti.data.prepare import prepare as prepare
    from diti.data.prepared import Dataset as Dataset
    from diti.data.sources import open_data as open_data
    from diti.diffusion.backbone import Backbone as Backbone
    from diti.diffusion.backbone import load_backbone as load_backbone
    from diti.diffusion.clock import Clock as Clock
    from diti.diffusion.kinds.own import backbone as backbone
    from diti.diffusion.pretrain import pretrain as pretrain
    from diti.edit.direction_files import kept_direction as kept_direction
    from diti.edit.editor import Editor as Editor
    from diti.edit.trials import learn_direction as learn_direction
    from diti.edit.variations import sample as sample
    from diti.edit.variations import vary as vary
    from diti.exploring.axes import Axis as Axis
    from diti.exploring.axes import find_axes as find_axes
    from diti.exploring.page import explore as explore
    from diti.exploring.search import search as search
    from diti.measure.analysis import analyze as analyze
    from diti.measure.baselines import baselines as baselines
    from diti.measure.counterfactuals import counterfactuals as counterfactuals
    from diti.measure.probing import probe as probe
    from diti.measure.probing import read_labels as read_labels
    from diti.reporting.build import report as report
    from diti.representation.methods.base import EncoderObjective as EncoderObjective
    from diti.representation.methods.base import new_encoder as new_encoder
    from diti.representation.methods.method import Method as Method
    from diti.representation.models.decoding import DecodingModel as DecodingModel
    from diti.representation.models.diffusion import DiTi as DiTi
    from diti.representation.models.loading import load as load
    from diti.representation.models.model import Model as Model
    from diti.representation.models.transformer import DiTiFeatures as DiTiFeatures
    from diti.representation.partition import Partition as Partition
    from diti.representation.registry import register as register
    from diti.representation.solve.run import solve as solve
    from diti.representation.table import encode as encode
    from diti.representation.train import train as train
else:  # hidden from type checkers, which would take any name for one that __getattr__ gives
    _PUBLIC = {
        "Axis": "diti.exploring.axes",
        "Backbone": "diti.diffusion.backbone",
        "Clock": "diti.diffusion.clock",
        "Dataset": "diti.data.prepared",
        "DecodingModel": "diti.representation.models.decoding",
        "DiTi": "diti.representation.models.diffusion",
        "DiTiFeatures": "diti.representation.models.transformer",
        "Editor": "diti.edit.editor",
        "EncoderObjective": "diti.representation.methods.base",
        "InputError": "diti.core.errors",
        "LossReport": "diti.core.objective",
        "Method": "diti.representation.methods.method",
        "Model": "diti.representation.models.model",
        "Partition": "diti.representation.partition",
        "Settings": "diti.core.settings",
        "analyze": "diti.measure.analysis",
        "backbone": "diti.diffusion.kinds.own",
        "baselines": "diti.measure.baselines",
        "counterfactuals": "diti.measure.counterfactuals",
        "encode": "diti.representation.table",
        "explore": "diti.exploring.page",
        "find_axes": "diti.exploring.axes",
        "grid": "diti.core.images",
        "kept_direction": "diti.edit.direction_files",
        "learn_direction": "diti.edit.trials",
        "load": "diti.representation.models.loading",
        "load_backbone": "diti.diffusion.backbone",
        "new_encoder": "diti.representation.methods.base",
        "open_data": "diti.data.sources",
        "prepare": "diti.data.prepare",
        "pretrain": "diti.diffusion.pretrain",
        "probe": "diti.measure.probing",
        "quiet": "diti.core.progress",
        "read_labels": "diti.measure.probing",
        "register": "diti.representation.registry",
        "report": "diti.reporting.build",
        "sample": "diti.edit.variations",
        "search": "diti.exploring.search",
        "solve": "diti.representation.solve.run",
        "train": "diti.representation.train",
        "vary": "diti.edit.variations",
    }
    _RENAMED = {"Transformer": "DiTiFeatures", "encode_dataset": "encode"}  # until the next version
    __all__ = [*_PUBLIC, "__version__"]

    def __getattr__(name):
        from importlib import import_module

        if name in _RENAMED:
            import warnings

            now = _RENAMED[name]
            warnings.warn(f"diti.{name} is called diti.{now} now", DeprecationWarning, stacklevel=2)
            name = now
        if name in _PUBLIC:
            return getattr(import_module(_PUBLIC[name]), name)
        raise AttributeError(f"module 'diti' has no attribute {name!r}; public names: {', '.join(__all__)}")

    def __dir__():
        return __all__
