"""Where things are kept, also where nothing can be kept."""

import pytest

from diti.core import machine
from diti.core.errors import InputError
from diti.core.machine import cache_folder


@pytest.fixture(autouse=True)
def asked_for_the_first_time():
    machine._writable.cache_clear()


def test_the_cache_is_where_the_user_says_or_below_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DITI_CACHE", "~/elsewhere")
    assert cache_folder() == tmp_path / "elsewhere"
    monkeypatch.delenv("DITI_CACHE")
    assert cache_folder() == tmp_path / ".cache" / "diti" and cache_folder().is_dir()


@pytest.mark.parametrize("place", ["/proc/diti", "FILE", "FILE/below"])
def test_where_it_cannot_be_written_a_temporary_one_serves_with_one_note(place, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DITI_CACHE", place.replace("FILE", str(tmp_path / "file")))
    folders = {cache_folder() for _ in range(3)}
    assert len(folders) == 1 and folders.pop().is_dir()
    (line,) = caplog.messages
    assert "cannot be written" in line and "set DITI_CACHE" in line


def test_a_user_without_a_home_has_a_cache_for_the_time_of_the_run(monkeypatch, caplog):
    def unknown(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DITI_CACHE")
    monkeypatch.setattr(machine.Path, "expanduser", unknown)
    assert cache_folder().is_dir() and "Could not determine home" in caplog.text


def test_a_complaint_is_one_line_whatever_it_quotes():
    assert str(InputError("a\nb.png cannot\r\nbe read")) == "a b.png cannot be read"
