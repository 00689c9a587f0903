"""What a visitor keeps, what all share, and what is refused before the studio opens; without a browser."""

import builtins
import contextlib
import importlib.util
import shutil
import signal
import socket

import numpy as np
import pytest
import torch
from tiny import DIMS, tiny_model

from diti.cli import main
from diti.core.errors import InputError
from diti.core.progress import followed
from diti.studio import server, session
from diti.studio.server import check_place, is_loopback
from diti.studio.session import Stopped, Visitor
from diti.studio.world import World, open_world


@pytest.fixture(scope="module")
def model():
    made = tiny_model()
    made.mean, made.std = torch.full((DIMS,), 0.1), torch.full((DIMS,), 2.0)
    return made


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "model"
    model.save(path)
    return path


def face(seed):
    return np.random.default_rng(seed).integers(0, 255, (16, 16, 3), dtype=np.uint8)


def test_an_image_is_inverted_once_and_the_oldest_makes_room(model, monkeypatch):
    calls = []
    of = session.Inverted.of
    monkeypatch.setattr(session, "FULL_STEPS", 2)
    monkeypatch.setattr(session, "KEPT", 2)
    monkeypatch.setattr(
        session.Inverted,
        "of",
        lambda model, pixels, *rest, **more: calls.append(1) or of(model, pixels, *rest, **more),
    )
    visitor = Visitor()
    visitor.images = {"a": face(1), "b": face(2)}
    both = visitor.inverted(model, ("a", "b"))
    assert both.z.shape == (2, DIMS) and both.x_T.shape == (2, 3, 16, 16)
    visitor.inverted(model, ("b", "a"))
    assert len(calls) == 2
    visitor.images["c"] = face(3)
    visitor.inverted(model, ("c",))
    assert len(visitor.kept) == 2 and len(calls) == 3
    image = visitor.decoded(both, both.z[:1], both.x_T[:1], 2)
    assert image.shape == (1, 3, 16, 16)


def test_a_visitor_can_stop_and_is_told_what_is_missing(model, monkeypatch):
    visitor = Visitor()
    with pytest.raises(InputError, match="choose a picture first"):
        visitor.inverted(model, ("a",))
    visitor.images["a"] = face(1)

    def stop(label, share):
        raise Stopped

    with followed(stop), pytest.raises(Stopped):
        visitor.inverted(model, ("a",))
    assert not visitor.kept
    with pytest.raises(InputError, match="like it or unlike"):
        visitor.add_example("sideways", face(1))


def test_visitors_share_nothing():
    first, second = Visitor(), Visitor()
    first.images["a"] = face(1)
    first.add_example("like", face(1))
    first.names[0] = session.AxisName("mine")
    assert not second.images and not second.examples["like"] and not second.names


def test_only_rows_of_the_data_are_shown(folder):
    world = open_world(str(folder), "toyfaces:20")
    assert world.pixels(3).shape == (16, 16, 3)
    for row in (-1, 20, True, "0", None, "../../etc/passwd", 1.0):
        with pytest.raises(InputError, match="no such picture"):
            world.pixels(row)


def test_without_data_it_opens_all_the_same(folder):
    world = open_world(str(folder), None)
    assert world.dataset is None and len(world.offered) == 0 and world.attributes == []
    with pytest.raises(InputError, match="Upload your own"):
        world.data()


def test_the_data_of_the_config_is_found(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "config.yaml").write_text("data: toyfaces:60000\n")
    assert len(open_world(str(copy), None).dataset) == 800  # a few of them, not all
    (copy / "config.yaml").write_text("data: /nowhere/photos\n")
    assert open_world(str(copy), None).dataset is None
    (copy / "config.yaml").write_text("[")
    assert open_world(str(copy), None).dataset is None


def test_names_are_kept_in_a_folder_that_may_be_changed(model, folder, tmp_path, monkeypatch):
    own: dict = {}
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert World(model, copy, None).name(own, 2, "smile", "") and not own
    assert "smile" in (copy / "names.json").read_text()
    monkeypatch.setattr("diti.studio.world.may_keep", lambda folder: False)
    world = World(model, copy, None)
    assert not world.name(own, 3, "beard", "") and own[3].name == "beard"
    assert [world.label(key, own) for key in (2, 3, 4, "a4")] == ["smile", "beard", "axis 4", "a04"]
    assert world.label(3, {}) == "axis 3"
    with pytest.raises(InputError, match="cannot be used"):
        world.name(own, 3, "<script>", "")
    model.axis_names = {}


def test_axes_are_offered_by_sight_and_by_the_part_they_live_in(solved_folder, solved_faces):
    world = open_world(str(solved_folder), str(solved_faces.path))
    count, cut = len(world.model.axes), world.partition
    assert world.axes(None) == [f"a{axis}" for axis in range(min(count, 12))]
    parts = [world.axes(part) for part in range(cut.subsets)]
    listed = [key for part in parts for key in part]
    assert sorted(map(str, listed)) == sorted([*map(str, range(12)), *(f"a{axis}" for axis in range(count))])
    for part, keys in enumerate(parts):
        assert {key for key in keys if isinstance(key, int)} == set(cut.dims_of(part))
        for key in (key for key in keys if isinstance(key, str)):
            assert world.model.axes.subsets[int(key[1:])].argmax() == part
    expected = (world.codes - world.model.mean.numpy()) @ world.model.axes.readings[3].numpy()
    np.testing.assert_allclose(world.places("a3"), expected, atol=1e-4)
    (solved_folder / "axes.safetensors").unlink()
    assert world.name({}, "a3", "wall", "") and (solved_folder / "axes.safetensors").is_file()
    bare = open_world(str(solved_folder), str(solved_faces.path))
    assert bare.label("a3", {}) == "wall"


def test_a_model_without_axes_offers_its_dims(model, folder):
    world = World(model, folder, None)
    assert world.found is None and world.axes(None) == world.dims(0)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 can be reached by others; add --auth user:password"),
        (["--host", "::"], "add --auth"),
        (["--host", " "], "--host is empty"),
        (
            ["--host", "127.0.0.1:80"],
            "--host 127.0.0.1:80 holds a port; give it by itself: --host 127.0.0.1 --port 80",
        ),
        (["--host", "localhost:80", "--auth", "a:b"], "--host localhost --port 80"),
        (["--host", "[::1]:80"], "--host ::1 --port 80"),
        (
            ["--host", "http://localhost"],
            "--host http://localhost is not an address; give a name or an IP address",
        ),
        (["--host", "[::1]"], "is not an address"),
        (["--host", "ünicode-😀", "--auth", "a:b"], "cannot be opened"),
        (["--host", "x" * 300, "--auth", "a:b"], "cannot be opened"),
        (["--auth", "me"], "--auth is not of the form user:password"),
        (["--auth", ":secret"], "--auth is not of the form"),
        (["--port", "0"], "--port is 0; it must be"),
        (["--port", "70000"], "--port is 70000"),
        (["--host", "no.such.host.invalid", "--auth", "a:b"], "cannot be opened"),
    ],
)
def test_what_must_not_be_served_is_refused_at_once(words, line, capsys):
    assert main(["serve", *words]) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1


def test_a_port_in_use_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="cannot be opened"):
        check_place("127.0.0.1", taken.getsockname()[1], None)
    assert [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "0.0.0.0", "studio.example")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_without_gradio_it_says_what_to_install(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "gradio" else found(name))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert main(["serve", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert "pip install 'diti-torch[studio]'" in said and said.count("\n") == 1


def test_help_does_not_import_gradio(monkeypatch, capsys):
    real = builtins.__import__

    def checked(name, *rest, **more):
        assert name.split(".")[0] != "gradio"
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", checked)
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0 and "--auth" in capsys.readouterr().out


def test_asked_to_end_while_it_opens_it_still_cleans_up(monkeypatch, folder, capsys):
    """As by a supervisor that gave up waiting."""
    left = []

    @contextlib.contextmanager
    def launched(*given):
        try:
            signal.raise_signal(signal.SIGTERM)
            yield "http://127.0.0.1"
        finally:
            left.append("cleaned")

    monkeypatch.setattr(server, "launched", launched)
    monkeypatch.setattr(server, "require_extra", lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert main(["serve", str(folder), "--data", "toyfaces:20", "--port", str(port)]) == 0
    assert left == ["cleaned"] and "the studio is closed" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is before
