"""The sections of a report: pictures, one table, and folded below what one looks up. Only what the runs hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diti.core.card import pictures_of
from diti.measure.probe_figures import gains_over, save_differences
from diti.pages.blocks import Figure, Section, Table
from diti.reporting.runs import MEASURED, Group, Run, unequal_budgets
from diti.reporting.training_figures import LossPanel, save_loss_by_time, save_training_losses
from diti.representation.registry import loss_of, title_of
from diti.representation.settings import effective

Tables = dict[str, Table]


def sections(groups: Sequence[Group], tables: Tables, headline: str, figures: Path) -> list[Section]:
    """The whole page; sections without a table or figure are left out. Figures of several runs go to `figures`.

    headline: the verdict in a few sentences.
    """
    looked_up = [
        knowledge(groups, tables, figures),
        counterfactuals(groups, tables),
        theory(groups),
        subsets(groups),
        Section("Disentanglement", DISENTANGLEMENT, those_of(tables, "disentanglement")),
        Section("Ablations", "Table 2 of the paper, with these runs.", those_of(tables, "table2")),
        training(groups, tables, figures),
        Section("Attribute by attribute", "", those_of(tables, "attributes")),
        Section("How it was made", PROVENANCE, those_of(tables, "provenance")),
    ]
    comparison = Section("The comparison", headline, those_of(tables, "summary"))
    found = [look(groups), comparison, *(replace(section, folded=True) for section in looked_up)]
    return [section for section in found if section.blocks]


def look(groups: Sequence[Group]) -> Section:
    """What the first method does, before any number: a face edited, subsets swapped, its axes."""
    run = groups[0].runs[0]
    blocks: list[Table | Figure] = []
    for stage, file, words in FIRST_PICTURES:
        blocks += picture(run, stage, file, words)
    return Section(f"What {title_of(run.config.method)} found without labels", "", blocks)


def knowledge(groups: Sequence[Group], tables: Tables, figures: Path) -> Section:
    """Table 1 and figure 4."""
    blocks: list[Table | Figure] = those_of(tables, "table1")
    pair = [(group.label, probe) for group in groups[:2] if (probe := group.runs[0].probe)]
    if len(pair) == 2:
        (first, probe), (second, other) = pair
        gains = gains_over(probe["probe"]["rows"], other["probe"]["rows"])
        if gains:
            path = save_differences(gains, second, figures / "figure4.png")
            caption = f"Figure 4: score of {first} minus that of {second}, attribute by attribute. "
            caption += unequal_budgets(*groups[:2])
            blocks.append(Figure(path, caption, "bars of gains and losses of each attribute"))
    return Section("What the code knows", KNOWLEDGE, blocks, commands(groups, "probe"))


def counterfactuals(groups: Sequence[Group], tables: Tables) -> Section:
    """Figures 5, 2a and 7 of each method, and what was measured about such edits."""
    blocks: list[Table | Figure] = those_of(tables, "counterfactuals")
    for file, words in EDITS.items():
        for group in groups:
            blocks += picture(group.runs[0], "counterfactuals", file, f"{group.label}. {words}")
    return Section("Change a part of the code", COUNTERFACTUALS, blocks, commands(groups, "counterfactuals"))


def theory(groups: Sequence[Group]) -> Section:
    """Figures 1a and 1b, attribute loss over time, and its order, of the first run that was analysed."""
    run = next((group.runs[0] for group in groups if group.runs[0].analysis), None)
    blocks: list[Table | Figure] = []
    text = THEORY
    if run is not None:
        for file, words in LOSSES.items():
            blocks += picture(run, "analysis", file, words)
        text = "\n\n".join([THEORY, *order_found(run.analysis or {})])
    return Section("What is lost when", text, blocks, commands(groups, "analysis"))


def order_found(analysis: dict[str, Any]) -> list[str]:
    """The rank correlations as sentences."""
    return [
        f"Rank correlation of {ORDERS[pair['first']]} with {ORDERS[pair['second']]}: {pair['rho']:.2f} "
        f"({pair['low']:.2f} to {pair['high']:.2f})."
        for pair in analysis.get("ordering", ())
        if pair["first"] == "pixel_change" and pair["rho"] is not None
    ]


def subsets(groups: Sequence[Group]) -> Section:
    """The matrix, the score with growing numbers of subsets, and figure 2b."""
    blocks: list[Table | Figure] = []
    for file, words in READINGS.items():
        for group in groups:
            blocks += picture(group.runs[0], "probe", file, f"{group.label}. {words}")
    return Section("Which subset carries what", SUBSETS, blocks)


def training(groups: Sequence[Group], tables: Tables, figures: Path) -> Section:
    """What it cost, figures A9 and A10, and reconstructions."""
    blocks: list[Table | Figure] = those_of(tables, "cost")
    panels = loss_panels(groups)
    curves = save_training_losses(panels, figures / "figureA10.png")
    if curves:
        apart = " Losses that cannot be compared stand apart." if len(panels) > 1 else ""
        blocks.append(Figure(curves, f"Figure A10: training loss over images seen.{apart}", "falling curves"))
    for place, group in enumerate(groups):
        run, loss = group.runs[0].path, loss_of(group.runs[0].config.method)
        early_late = save_loss_by_time(run, loss, figures / f"figureA9-{place}.png")
        if early_late:
            words = f"{group.label}. Figure A9: {loss} by time-step, early and late in the training."
            blocks.append(Figure(early_late, words, "two falling steps"))
        for file, shown in pictures_of(run).items():
            blocks.append(Figure(run / file, f"{group.label}. {shown[0].upper()}{shown[1:]}.", shown))
    return Section("Training", TRAINING, blocks, typed(group.runs[0].command for group in groups))


def loss_panels(groups: Sequence[Group]) -> list[LossPanel]:
    """Runs whose losses can be compared, together: the same loss, with the same weights of its parts and batch."""
    found: dict[Any, LossPanel] = {}
    for group in groups:
        run = group.runs[0]
        config, loss = effective(run.config), loss_of(run.config.method)
        alike = (loss, config.views, config.vae, config.gan, config.training.train_batch_size)
        found.setdefault(alike, LossPanel(loss)).runs[group.label] = run.path
    return list(found.values())


# ---- Pieces ------------------------------------------------------------------------------------------------


def those_of(tables: Tables, *keys: str) -> list[Table | Figure]:
    return [tables[key] for key in keys if key in tables]


def picture(run: Run, stage: str, file: str, words: str) -> list[Table | Figure]:
    """A figure that a stage left beside its record; nothing where it left none."""
    record = run.records[stage]
    path = (run.measured / MEASURED[stage]).with_name(file)
    return [Figure(path, words, words)] if record is not None and path.is_file() else []


def commands(groups: Sequence[Group], stage: str) -> list[str]:
    """How the first run of each group was measured."""
    records = [group.runs[0].records[stage] or {} for group in groups]
    return typed(record.get("command", "") for record in records)


def typed(found: Iterable[str]) -> list[str]:
    """Commands that can be typed, each once: what was called from Python has none."""
    return [command for command in dict.fromkeys(found) if command.startswith("diti ")]


FIRST_PICTURES = (
    (
        "counterfactuals",
        "figure2a.png",
        "One picture it has not seen, pushed along six attributes: each row should change one thing only.",
    ),
    (
        "counterfactuals",
        "figure5.png",
        "Early, middle or late subsets swapped between two images: small things, then features, light and colour.",
    ),
    (
        "explored",
        "axes.png",
        "The strongest axes of subsets, pushed both ways: small things at the top, light and layout below.",
    ),
)
EDITS = {
    "figure5.png": "Figure 5: early, middle or late subsets move; the rest of the code and the noise x_T stay.",
    "figure2a.png": "Figure 2a: one attribute each, along the direction of a sparse classifier.",
    "figure7.png": "Figure 7: the whole code goes from A to B.",
}
LOSSES = {
    "reconstructions_by_time.png": "Figure 1b: what the frozen model makes of x_t alone, by time-step.",
    "attribute_loss.png": "Error of telling each attribute from x_t, by time-step.",
    "ordering.png": "Attributes that change more pixels are lost later.",
    "overlap.png": "Figure 1a: two images as clouds of x_t that come to overlap.",
}
READINGS = {
    "probe-subsets.png": "What a probe of each subset alone reads.",
    "probe-cumulative.png": "What a probe of the first subsets reads, as more are added.",
    "probe-weights.png": "Figure 2b: how the weights of the probes are spread over the dims.",
}
ORDERS = {
    "pixel_change": "pixel change",
    "lost_at_closed_form": "the time-step of loss by equation 5",
    "lost_at_monte_carlo": "the time-step of loss measured with the trained model",
    "subset_position": "the position of the subsets that move",
    "probed_position": "the position of the subset that a probe reads best",
}
KNOWLEDGE = """A linear probe is fitted to the codes of training images; its penalty is chosen on validation images
and it is scored once on test images. The baselines need no training: no method can claim what they reach."""
COUNTERFACTUALS = """A network that reads attributes from pixels, trained apart from all methods, says what an
edited image shows. Leakage is the change of the other attributes. A model that moves nothing leaks nothing:
read it beside the wanted change."""
THEORY = """The frozen diffusion model loses fine attributes at early time-steps and coarse ones later. For each
attribute: how much it changes the pixels, and from which time-step on it can no longer be told."""
SUBSETS = (
    """A cell of the matrix says how well a probe that sees one subset alone reads an attribute, above chance."""
)
DISENTANGLEMENT = (
    """The usual scores, with the attributes as factors; below each method the same scores for permuted images."""
)
TRAINING = """What the training cost on this machine, the loss by time-step, and reconstructed images."""
PROVENANCE = """Every number above can be made again with these commands."""
