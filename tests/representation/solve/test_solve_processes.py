"""Two processes share the pass and find the model of one."""

import torch
from safetensors.torch import load_file

from diti.cli import main
from diti.core.runs import RunFolder, read_json

SMALL = ("--data", "toyfaces:200", "--code-dim", "12", "--subsets", "4", "--stretches", "4", "--images", "256")


def weights(run):
    parts = {part: load_file(run / part / "model.safetensors") for part in ("encoder", "decoder")}
    return {f"{part}.{key}": tensor for part, state in parts.items() for key, tensor in state.items()}


def test_two_processes_solve_what_one_does(folder, tmp_path, two_processes):
    words = ["solve", *SMALL, "--backbone", str(folder / "backbone"), "--out"]
    assert main([*words, str(tmp_path / "one")]) == 0
    printed = two_processes(*words, tmp_path / "two", apart=tmp_path / "apart")
    assert printed.count("z removes") == 1, "one process speaks"
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=1e-4 * float(tensor.abs().max()), rtol=0, msg=name)
    assert read_json(tmp_path / "one" / "partition.json") == read_json(tmp_path / "two" / "partition.json")
    last = [RunFolder(tmp_path / name).read_log()[-1] for name in ("one", "two")]
    assert last[0]["images"] == last[1]["images"] == 256 and last[0]["penalties"] == last[1]["penalties"]
    assert abs(last[0]["loss_removed_from_sums"] - last[1]["loss_removed_from_sums"]) < 1e-6
    assert not (tmp_path / "two" / "state").exists()
