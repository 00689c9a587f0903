"""`diti train --start solved`: training goes on from the closed-form solution."""

import dataclasses

import pytest
import torch
from tiny import tiny_backbone

import diti
from diti.cli import main
from diti.config import EncoderConfig, SolutionConfig, TrainConfig, TrainingConfig
from diti.core.errors import InputError
from diti.core.rng import Draws
from diti.data.sources import cache_folder, open_data
from diti.representation.checks import loss_curves
from diti.representation.methods import diti as objective
from diti.representation.networks.shift import ShiftDecoder
from diti.representation.registry import find_method
from diti.representation.settings import resolve
from diti.representation.solve import start as starting
from diti.representation.solve.solved import solve_networks
from diti.representation.solve.start import remember, solve_settings

DATA = "toyfaces:200"
CONFIG = TrainConfig(
    data=DATA,
    backbone="tiny",
    subsets=4,
    start="solved",
    code=EncoderConfig(encoder="backbone", code_dim=12),
    solution=SolutionConfig(stretches=3, tau=0.2),
    training=TrainingConfig(images=64, train_batch_size=16),
)
COMMON = (
    "--data", DATA, "--code-dim", "12", "--subsets", "4", "--stretches", "3", "--tau", "0.2", "--images", "32",
    "--train-batch-size", "16", "--log-images", "32", "--checkpoint-images", "32", "--validate-images", "1024",
    "--lr-warmup-images", "16", "--time-sampling", "uniform",
)  # fmt: skip


@pytest.fixture(scope="module")
def dataset(shared_cache):
    return open_data(DATA, 16)


@pytest.fixture(scope="module")
def backbone():
    return tiny_backbone()


@pytest.fixture(scope="module")
def solved(dataset, backbone):
    """The solution itself, without any training."""
    return solve_networks(starting.solve_settings(CONFIG), backbone, dataset)


def build(backbone, dataset, **changes):
    config = dataclasses.replace(CONFIG, **changes)
    return find_method(config.method).build(config, backbone, dataset)


def never(*given, **options):
    raise AssertionError("it should have been read from the cache")


def test_it_begins_as_the_solution_and_then_reads_it_from_the_cache(solved, backbone, dataset, monkeypatch):
    first = build(backbone, dataset)
    assert first.partition == solved.solution.partition and first.partition.kind == "matched"
    assert first.decoder.linear is not None and first.decoder.path is not None
    for name, tensor in solved.decoder.linear.state_dict().items():
        assert torch.equal(first.decoder.linear.state_dict()[name], tensor), name
    for name, tensor in solved.encoder.state_dict().items():
        assert torch.equal(first.encoder.state_dict()[name], tensor), name
    monkeypatch.setattr(starting, "gather_evidence", never)
    second = build(backbone, dataset)
    assert second.partition == first.partition
    states = first.state_dict(), second.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert len(list((cache_folder() / "solved").iterdir())) == 1


def test_a_large_solved_head_is_not_shaken(backbone, dataset, monkeypatch):
    first = build(backbone, dataset)
    monkeypatch.setattr(objective, "USUAL_WEIGHTS", first.encoder.head.weight.numel() / 4)
    assert build(backbone, dataset).rate_factor("encoder.head.weight") == CONFIG.code.encoder_rate / 4
    unsolved = build(backbone, dataset, start="copy", partition="balanced")
    assert unsolved.rate_factor("encoder.head.weight") == CONFIG.code.encoder_rate


@pytest.mark.parametrize("method", ["diti", "pdae"])
def test_what_diti_solve_found_is_not_solved_again(method, backbone, dataset, monkeypatch, tmp_path):
    monkeypatch.setenv("DITI_CACHE", str(tmp_path))
    settings = dataclasses.replace(CONFIG, method=method, solution=SolutionConfig(stretches=2, tau=0.2))
    found = solve_networks(solve_settings(settings), backbone, dataset)
    remember(solve_settings(settings), found, backbone, dataset)
    monkeypatch.setattr(starting, "gather_evidence", never)
    began = build(backbone, dataset, method=method, solution=settings.solution)
    assert torch.equal(began.encoder.head.weight, found.encoder.head.weight)


def test_a_damaged_cache_is_solved_anew(solved, backbone, dataset, monkeypatch):
    """A cut file, and a decoder of another kind."""
    first = build(backbone, dataset)
    monkeypatch.setattr(starting, "gather_evidence", lambda *given, **more: solved.evidence)
    (folder,) = (cache_folder() / "solved").iterdir()
    for name in ("encoder/model.safetensors", "decoder/config.json", "partition.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])
        again = build(backbone, dataset)
        assert torch.equal(again.encoder.head.weight, first.encoder.head.weight)
        assert (folder / name).read_bytes() == whole
    ShiftDecoder(backbone, 12).save(folder / "decoder")
    assert torch.equal(build(backbone, dataset).decoder.linear.weights, first.decoder.linear.weights)


def test_other_settings_are_solved_anew(solved, backbone, dataset, monkeypatch):
    build(backbone, dataset)
    monkeypatch.setattr(starting, "gather_evidence", never)
    other = dataclasses.replace(CONFIG.solution, tau=0.3)
    for changes in ({"solution": other}, {"training": dataclasses.replace(CONFIG.training, seed=1)}):
        with pytest.raises(AssertionError, match="read from the cache"):
            build(backbone, dataset, **changes)
    build(backbone, dataset, data="another-name", training=dataclasses.replace(CONFIG.training, images=999))


def test_the_path_adds_nothing_yet_so_the_loss_is_the_solved_one(solved, backbone, dataset):
    begun = build(backbone, dataset)
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    t = torch.tensor([5, 300, 900])
    with torch.no_grad():
        said = begun.decoder(x, t, begun.partition.mask(begun.encoder(x.clamp(-1, 1)), t))
    assert said.g.abs().max() == 0 and said.linear.abs().max() > 1e-4
    found = objective.DiTiMethod().evaluate(begun, dataset)
    alone = loss_curves(solved.encoder, solved.decoder, solved.solution.partition, dataset)
    assert found["loss_removed"] == pytest.approx(alone.removed(), abs=1e-6)
    assert found["loss_removed"] > 0 and found["loss_removed"] > found["loss_removed_shuffled"]


def test_path_and_head_are_trained_and_the_linear_part_is_not(backbone, dataset):
    begun = build(backbone, dataset)
    trained = {name for name, p in begun.named_parameters() if p.requires_grad}
    assert any(name.startswith("decoder.path") for name in trained) and "encoder.head.weight" in trained
    assert not any("linear" in name and name.startswith("decoder.linear") for name in trained)
    report = begun(torch.zeros(4, 3, 16, 16), Draws(0, 0, 4))
    report.total.backward()
    assert torch.isfinite(report.total)
    assert begun.encoder.head.weight.grad.abs().max() > 0, "z has a gradient through the linear part"


def test_a_fine_tuned_trunk_starts_from_the_same_code(backbone, dataset):
    code = dataclasses.replace(CONFIG.code, trunk="fine-tuned")
    frozen, free = build(backbone, dataset), build(backbone, dataset, code=code)
    assert not any(p.requires_grad for p in frozen.encoder.trunk.parameters())
    assert all(p.requires_grad for p in free.encoder.trunk.parameters())
    x = torch.zeros(2, 3, 16, 16)
    assert torch.equal(free.encoder.eval()(x), frozen.encoder.eval()(x))


@pytest.mark.parametrize("cut", ["balanced", "staged-even"])
def test_a_named_partition_is_kept_to(backbone, dataset, cut):
    begun = build(backbone, dataset, partition=cut)
    assert begun.partition.kind == cut and begun.decoder.linear is not None
    centres = begun.decoder.linear.times
    for weights, centre in zip(begun.decoder.linear.weights, centres, strict=True):
        of_z = weights[-12:].abs().sum(1) > 0
        assert torch.equal(of_z, begun.partition.visible(int(centre)))


def test_pdae_has_one_subset(backbone, dataset):
    begun = build(backbone, dataset, method="pdae")
    assert begun.partition.subsets == 1 and begun.decoder.linear is not None


def test_matched_times_with_a_plain_decoder(backbone, dataset):
    begun = build(backbone, dataset, partition="matched", start="copy")
    assert begun.decoder.linear is None and begun.partition.kind == "matched"
    x = torch.zeros(2, 3, 16, 16)
    assert torch.equal(begun.encoder.eval()(x), build(backbone, dataset).encoder.eval()(x))


def test_auto_is_solved_where_it_can_be():
    auto = dataclasses.replace(CONFIG, start="auto", partition="auto")
    assert (resolve(auto).start, resolve(auto).partition) == ("solved", "matched")
    residual = dataclasses.replace(auto, code=EncoderConfig(encoder="residual", code_dim=12))
    assert (resolve(residual).start, resolve(residual).partition) == ("copy", "staged-even")
    with pytest.raises(InputError, match="need what is measured on the backbone's features"):
        resolve(dataclasses.replace(residual, start="solved"))


def run(folder, out, *options) -> int:
    return main(["train", *COMMON, "--backbone", str(folder / "backbone"), *options, "--out", str(out)])


def test_the_verb_trains_on_and_leaves_a_model(folder, dataset, tmp_path):
    assert run(folder, tmp_path / "run", "--start", "solved") == 0
    model = diti.load(tmp_path / "run")
    assert (
        model.partition.kind == "matched" and model.decoder.linear is not None and model.decoder.path is not None
    )
    assert "from the closed-form solution" in (tmp_path / "run" / "card.md").read_text()
    assert model.encode(dataset.images[:3]).shape == (3, 12)


def test_a_residual_encoder_cannot_start_solved(folder, tmp_path, capsys):
    encoder = ["--encoder", "residual", "--encoder-channels", "8", "16"]
    for options in (["--start", "solved"], ["--partition", "matched"]):
        assert run(folder, tmp_path / "run", *encoder, *options) == 2
        last = capsys.readouterr().err.strip().splitlines()[-1]
        assert last.startswith("diti: ") and "use --method diti or pdae with --encoder backbone" in last
    assert not (tmp_path / "run").exists()
