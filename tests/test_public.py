"""What `import diti` promises: a list of names, with types and words, that costs nothing until it is used."""

import ast
import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import tiny_backbone, tiny_diffae, tiny_model

import diti
from diti.config import PretrainConfig, SolveConfig, TrainConfig
from diti.core.errors import InputError
from diti.core.settings import sections
from diti.verbs import VERBS

SOURCE = Path(diti.__file__)
WANTED = {
    "load", "load_backbone", "open_data", "train", "solve", "Model", "Dataset", "Partition", "learn_direction",
    "sample", "vary", "find_axes", "grid", "Editor", "Method", "register", "DiTi", "DiTiFeatures", "InputError",
    "Backbone", "prepare", "pretrain", "encode", "probe", "explore", "search", "report", "analyze",
    "counterfactuals", "quiet",
}  # fmt: skip


def static_names() -> dict[str, str]:
    """Name → module of what type checkers see."""
    checked = next(node for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(checked.body)
    assert all(alias.asname == alias.name for node in imports for alias in node.names), "`as` makes a name public"
    return {alias.name: node.module for node in imports for alias in node.names}


def test_type_checkers_and_people_see_the_same_names():
    assert static_names() == diti._PUBLIC and set(diti.__all__) == {*diti._PUBLIC, "__version__"} == set(dir(diti))
    assert set(diti._PUBLIC) >= WANTED


@pytest.mark.parametrize("name", sorted(diti._PUBLIC))
def test_each_name_is_there_and_says_what_it_is(name):
    found = getattr(diti, name)
    assert found.__module__ == diti._PUBLIC[name], "it stands where it is defined"
    assert inspect.getdoc(found) and not (inspect.getdoc(found) or "").startswith(f"{name}("), "words of its own"


# Of a verb: what its function has otherwise. Settings in sections are checked below.
OTHERWISE = {
    "encode": {"out"},  # without one nothing is written
    "probe": {"few_shot"},  # a list of numbers instead of a word
    "counterfactuals": {"edits", "fixed"},  # lists of names
}
SAME = ("prepare", "encode", "probe", "explore", "search", "analyze", "counterfactuals", "report")


@pytest.mark.parametrize("verb", SAME)
def test_a_function_has_the_names_and_defaults_of_its_verb(verb):
    given = inspect.signature(getattr(diti, verb)).parameters
    options = {item.name: item.default for item in dataclasses.fields(VERBS[verb])}
    assert set(given) == set(options)
    for name, default in options.items():
        expected = inspect.Parameter.empty if default is dataclasses.MISSING else default
        expected = str(expected) if isinstance(expected, Path) else expected
        assert name in OTHERWISE.get(verb, ()) or given[name].default == expected, name
    listed = list(given)
    assert listed[:2] == list(options)[:2], "what stands without a name in a command does so here"


@pytest.mark.parametrize(
    ("verb", "settings"), [("pretrain", PretrainConfig()), ("solve", SolveConfig()), ("train", TrainConfig())]
)
def test_a_function_with_settings_has_their_defaults(verb, settings):
    """Whatever is not named takes any setting of the verb."""
    given = inspect.signature(getattr(diti, verb)).parameters
    places = sections(settings)
    for name, parameter in given.items():
        if name in ("data", "backbone", "out", "features", "settings", "device"):  # no settings of a run
            continue
        section = getattr(settings, places[name]) if places[name] else settings
        default = getattr(section, name)
        by_preset = name == "images" and verb != "solve"
        assert parameter.default == (None if by_preset else default), name
    assert given["settings"].kind is inspect.Parameter.VAR_KEYWORD


def test_names_of_functions_stay_functions():
    """No room of the package is called like one: importing it would take the name."""
    rooms = {path.stem for path in SOURCE.parent.iterdir()}
    assert not rooms & set(diti._PUBLIC)


def test_nothing_in_the_package_starts_the_command_line():
    inside = [path for path in SOURCE.parent.rglob("*.py") if path.name not in ("cli.py", "__main__.py")]
    assert not [path for path in inside if "diti.cli" in path.read_text(encoding="utf-8")]


def test_bars_can_be_silenced(monkeypatch, capsys):
    monkeypatch.setattr("diti.core.progress.LINE_SECONDS", 0.0)
    with diti.quiet():
        diti.encode(tiny_model(), "toyfaces:5")
    assert capsys.readouterr() == ("", "")
    diti.encode(tiny_model(), "toyfaces:6")
    assert "encoding: 6/6" in capsys.readouterr().err


def test_a_name_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(AttributeError, match=r"no attribute 'loed'; public names: .*load"):
        _ = diti.loed


def test_importing_costs_nothing_and_types_are_shipped():
    code = (
        "import sys, diti\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'sklearn', 'diffusers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (SOURCE.parent / "py.typed").is_file(), "without it type checkers look at nothing"


# ---- What people give -------------------------------------------------------------------------------------------

FEW = {"code_dim": 4, "subsets": 2, "images": 64, "pixel_axes": 8, "stretches": 1}  # of a solution in a moment
STEPS = 2
TINY = {"train_batch_size": 32, "channels": [8, 8], "attention": [], "size": 16, "layers": 1, "head_channels": 8}
ALONE = {"baselines": False, "subsets": False}


@pytest.fixture
def places(tmp_path, solved_once, solved_faces) -> dict[str, Path]:
    """Where a model, data, a picture and room for outputs are."""
    Image.fromarray(solved_faces.images[0]).save(tmp_path / "a.png")
    (tmp_path / "photos").mkdir()
    Image.fromarray(solved_faces.images[1]).save(tmp_path / "photos" / "b.png")
    return {
        "model": solved_once,
        "data": solved_faces.path,
        "picture": tmp_path / "a.png",
        "out": tmp_path / "out",
        "photos": tmp_path / "photos",
        "table": tmp_path / "z.csv",
        "record": tmp_path / "probe.json",
        "sheet": tmp_path / "found.png",
    }


TAKERS = {  # what of the public names takes a path: path or text → whatever shows that it was taken
    "load": lambda at: diti.load(at("model")).dims,
    "load_backbone": lambda at: diti.load_backbone(at("model")).size,
    "open_data": lambda at: len(diti.open_data(at("data"))),
    "solve": lambda at: diti.solve(at("data"), at("model"), out=at("out"), **FEW).dims,
    "train": lambda at: diti.train(
        at("data"), out=at("out"), method="simclr", encoder="residual", images=64, train_batch_size=32, code_dim=4,
        encoder_channels=[8],
    ).dims,
    "prepare": lambda at: len(diti.prepare(at("photos"), at("out"), 16)),
    "pretrain": lambda at: diti.pretrain(at("data"), out=at("out"), images=32, **TINY).size,
    "encode": lambda at: diti.encode(at("model"), at("data"), at("table")).shape,
    "probe": lambda at: diti.probe(at("model"), at("data"), at("record"), **ALONE)["method"],
    "explore": lambda at: diti.explore(at("model"), at("data"), at("out"), axes=1, faces=1, sampling_steps=2).axes,
    "search": lambda at: diti.search(at("model"), at("picture"), data=at("data"), out=at("sheet")).files,
    "sample": lambda at: diti.sample(at("model"), 1, codes=Codes(), sampling_steps=STEPS).shape,
    "vary": lambda at: diti.vary(at("model"), at("picture"), 1, sampling_steps=STEPS).shape,
    "find_axes": lambda at: diti.find_axes(at("model"), at("data"), images=2)[0].axis + 1,
    "learn_direction": lambda at: diti.learn_direction(at("model"), at("data"), "smile", 2).dims,
    "read_labels": lambda at: diti.read_labels(at("data")).names,
    "baselines": lambda at: next(diti.baselines(at("model"), at("data"), 4, 0))[0],
    "DiTiFeatures": lambda at: diti.DiTiFeatures(at("model")).transform([at("picture")]).shape,
    "Backbone.save": lambda at: saved(tiny_backbone(), at("out"), diti.load_backbone),
    "DiTi.save": lambda at: saved(tiny_model(), at("out"), diti.load),
    "DiffAE.save": lambda at: saved(tiny_diffae(), at("out"), diti.load),
    "Model.encode": lambda at: diti.load(at("model")).encode([at("picture")]).shape,
    "Model.reconstruct": lambda at: diti.load(at("model")).reconstruct(at("picture"), sampling_steps=STEPS).shape,
    "Model.edit": lambda at: diti.load(at("model")).edit(at("picture"), STEPS).z.shape,
    "Model.interpolate": lambda at: diti.load(at("model")).interpolate(
        at("picture"), at("picture"), sampling_steps=STEPS
    ).shape,
}  # fmt: skip


class Codes:
    """New codes for a model whose folder has no latent."""

    dims = 12

    def sample(self, count: int, seed: int) -> torch.Tensor:
        return torch.zeros(count, self.dims)


def saved(network, folder, load) -> bool:
    network.save(folder)
    return load(folder).size == network.size


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("name", TAKERS)
def test_paths_and_strings_are_both_taken(name, kind, places):
    assert TAKERS[name](lambda place: kind(places[place]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: diti.load(None), r"a model or backbone is missing \(None\); give a folder, a hub id"),
        (lambda model: diti.load(model), "name of a model or backbone is of type DiTi; give a folder"),
        (lambda model: diti.load_backbone(3), "is of type int; give a folder"),
        (lambda model: diti.open_data("toyfaces:9", size="32"), "size is '32'; give the side of the images in px"),
        (lambda model: diti.open_data("toyfaces:9", size=32.0), r"size is 32\.0; give"),
        (lambda model: diti.open_data(None, 32), r"the data is missing \(None\); give a Dataset, the path of"),
        (lambda model: diti.solve("toyfaces:9", None), "name of a model or backbone is missing"),
        (lambda model: diti.solve("toyfaces:9", np.zeros(3)), "is of type ndarray; give a folder"),
        (lambda model: diti.solve(np.zeros((4, 16, 16, 3)), model), "the data is of type ndarray; give a Dataset"),
        (lambda model: diti.solve("toyfaces:9", tiny_diffae()), "a diffae model has no frozen diffusion model"),
        (lambda model: diti.solve("toyfaces:9", model, out=3), "out is of type int; give a path"),
        (lambda model: diti.solve("toyfaces:9", model, out=__file__), r"test_public\.py is a file, not a folder"),
        (lambda model: diti.train(np.zeros(3), out="x"), "the data is of type ndarray; give a Dataset"),
        (lambda model: diti.train("toyfaces:9", 3, out="x"), "name of a model or backbone is of type int"),
        (lambda model: diti.train("toyfaces:9", out=None), r"out is missing \(None\); give a path"),
        (lambda model: model.save(None), r"the folder to save in is missing \(None\)"),
        (lambda model: model.encode(None), r"an image is missing \(None\); give"),
        (lambda model: diti.vary(None, None), "name of a model or backbone is missing"),
        (lambda model: diti.encode(model, 3), "an image is of type int"),
        (lambda model: diti.encode(model, np.zeros((9, 9, 3), np.uint8), "z.csv"), "out is a table with names"),
        (lambda model: diti.encode(model, "toyfaces:9", "z.txt"), r"z\.txt must end in \.parquet or \.csv"),
        (lambda model: diti.prepare(3, "x"), "src is of type int; give a path"),
        (lambda model: diti.prepare("toyfaces:9", None, 16), r"out is missing \(None\)"),
        (lambda model: diti.pretrain(3, out="x"), "the data is of type int"),
        (lambda model: diti.pretrain("toyfaces:9", out="x", preset="auto1"), "auto1"),
        (lambda model: diti.probe(model, None), r"the data is missing \(None\)"),
        (lambda model: diti.probe(model, "toyfaces:9", "p.txt"), r"p\.txt must end in \.json"),
        (lambda model: diti.explore(model, "toyfaces:9", axes=0), "--axes is 0; it must be"),
        (lambda model: diti.search(model, data="toyfaces:9", odd=0), "--odd is 0; it must be"),
        (lambda model: diti.search(model, data="toyfaces:9"), "give one image to search for, or --odd"),
        (lambda model: diti.report([]), "no run was named"),
        (lambda model: diti.report("nothing"), "nothing is not a folder"),
        (lambda model: diti.analyze(model, "toyfaces:9", count=0), "--count is 0; it must be"),
        (lambda model: diti.counterfactuals(model, "toyfaces:9"), "name of a model or backbone is of type DiTi"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_told_in_one_line(call, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words) as told:
        call(tiny_model())
    assert "\n" not in str(told.value) and not list(tmp_path.iterdir()), "nothing was written"


def test_objects_are_taken_wherever_names_are(solved_once, solved_faces, tmp_path, capsys):
    """In silence but for the bars: what a verb prints is the verb's."""
    model, image = diti.load(solved_once), solved_faces.images[3]
    z = diti.encode(model, solved_faces, tmp_path / "z.parquet")
    assert np.array_equal(z, diti.encode(model, solved_faces)) and (tmp_path / "z.parquet").is_file()
    np.testing.assert_allclose(diti.encode(model, image), z[3:4], atol=1e-4)
    by_name = diti.probe(solved_once, solved_faces.path, tmp_path / "a.json", **ALONE)
    record = diti.probe(model, solved_faces, tmp_path / "b.json", against=model, **ALONE)
    assert record["probe"] == by_name["probe"] == record["against"]["probe"]
    assert (
        json.loads((tmp_path / "b.json").read_text()) == json.loads(json.dumps(record))
        and "DiTi" in record["model"]
    )
    found = diti.search(model, image, data=solved_faces, count=2, out=tmp_path / "found.png")
    assert found.rows[0] == 3 and found.files[0] == solved_faces.table["file"][3].as_py()
    assert diti.explore(model, solved_faces, tmp_path / "e", axes=1, faces=1, sampling_steps=2).page.is_file()
    assert diti.analyze(model.backbone, solved_faces, tmp_path / "t", count=1)["method"] is None
    assert capsys.readouterr().out == ""


def test_a_training_takes_objects_and_quotes_no_script(solved_once, solved_faces, tmp_path, monkeypatch):
    """It is continued by objects and by names alike, as long as they hold the same."""
    monkeypatch.setattr("sys.argv", ["mine.py", "--password", "secret"])
    short = {"method": "pdae", "start": "random", "encoder": "residual", "train_batch_size": 32, "code_dim": 4}
    short |= {"encoder_channels": [8], "out": tmp_path / "run"}
    backbone = diti.load_backbone(solved_once)
    assert diti.train(solved_faces, backbone, images=32, **short).dims == 4
    told = "".join(path.read_text() for path in (tmp_path / "run").glob("*.*") if path.suffix in (".json", ".md"))
    assert "called from Python" in told and "secret" not in told
    assert diti.train(solved_faces.path, solved_once, images=64, **short).dims == 4
    torch.nn.init.ones_(backbone.unet.conv_out.bias)
    with pytest.raises(InputError, match=r"other settings \(backbone_hash\)"):
        diti.train(solved_faces, backbone, images=96, **short)


def test_a_model_lends_its_backbone(solved_once, solved_faces):
    assert diti.solve(solved_faces, diti.load(solved_once), **FEW).dims == 4


RANGED = {  # public methods that take pictures, with floats of a range that is said
    "encode": lambda m, x, r: m.encode(x, value_range=r),
    "infer_noise": lambda m, x, r: m.infer_noise(x, sampling_steps=STEPS, value_range=r),
    "reconstruct": lambda m, x, r: m.reconstruct(x, sampling_steps=STEPS, value_range=r),
    "edit": lambda m, x, r: m.edit(x, STEPS, value_range=r).draw({}),
    "interpolate": lambda m, x, r: m.interpolate(x[:1], x[1:], sampling_steps=STEPS, value_range=r),
    "manipulate": lambda m, x, r: m.manipulate(x, smile(m), sampling_steps=STEPS, value_range=r),
    "vary": lambda m, x, r: diti.vary(m, x[:1], 1, sampling_steps=STEPS, value_range=r),
    "DiTiFeatures": lambda m, x, r: torch.from_numpy(diti.DiTiFeatures(m, value_range=r).transform(x)),
}


def smile(model: diti.Model):
    return diti.learn_direction(model, "toyfaces:300", "smile", 2)


@pytest.mark.parametrize("name", RANGED)
def test_every_method_that_takes_pictures_takes_their_range(name):
    """In silence, even of bright images in [-1, 1], which have no negative value."""
    model = tiny_model()
    draws = torch.randint(129, (2, 3, 16, 16), generator=torch.Generator().manual_seed(0))
    bright = draws / 128  # exact in either range: an untrained decoder would make much of the last digit
    expected = RANGED[name](model, bright, (-1, 1))
    assert torch.equal(RANGED[name](model, (bright + 1) / 2, (0, 1)), expected)
    assert not torch.allclose(RANGED[name](model, bright, (0, 1)), expected)
