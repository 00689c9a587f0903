import json

import pytest
import torch
from safetensors import SafetensorError

from diti.core.errors import InputError
from diti.core.state import load_state, save_state


def save_three(folder):
    for images in (100, 200, 300):
        save_state(folder, images, {"w": torch.full((3,), float(images))}, {"note": "x"})


def test_the_newest_two_states_are_kept(tmp_path):
    save_three(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000000200", "000000000300"]
    tensors, facts, notes = load_state(tmp_path)
    assert facts["images"] == 300 and facts["note"] == "x" and notes == []
    assert torch.equal(tensors["w"], torch.full((3,), 300.0))


def test_no_state_is_none(tmp_path):
    assert load_state(tmp_path / "none") is None


@pytest.mark.parametrize(
    "damage", ["flip a byte", "cut", "no facts", "bad facts", "no tensors", "[]", "{}", '{"images": 300}']
)
def test_a_damaged_state_is_passed_over_for_the_one_before(tmp_path, damage):
    save_three(tmp_path)
    newest = tmp_path / "000000000300"
    tensors = newest / "tensors.safetensors"
    content = tensors.read_bytes()
    if damage == "flip a byte":
        tensors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "cut":
        tensors.write_bytes(content[:20])
    elif damage == "no facts":
        (newest / "state.json").unlink()
    elif damage == "no tensors":
        tensors.unlink()
    else:
        (newest / "state.json").write_text("{" if damage == "bad facts" else damage)
    _, facts, notes = load_state(tmp_path)
    assert facts["images"] == 200 and len(notes) == 1 and "000000000300 is damaged" in notes[0]


def test_a_state_in_the_making_does_not_count(tmp_path):
    save_three(tmp_path)
    (tmp_path / ".000000000400.77.part").mkdir()
    assert load_state(tmp_path)[1]["images"] == 300


def test_only_damaged_states_stop_the_run(tmp_path):
    save_three(tmp_path)
    for path in tmp_path.iterdir():
        facts = json.loads((path / "state.json").read_text())
        (path / "state.json").write_text(json.dumps({**facts, "sha256": "0"}))
    with pytest.raises(InputError, match="no undamaged state is left"):
        load_state(tmp_path)


def test_a_full_disk_keeps_the_state_before(tmp_path, monkeypatch):
    save_three(tmp_path)

    def full(tensors, path):
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr("diti.core.state.save_file", full)  # a disk cannot be filled here
    with pytest.raises(InputError, match=r"cannot write the state after 400 images .*MB are free there"):
        save_state(tmp_path, 400, {"w": torch.zeros(3)}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000000000200", "000000000300"]
