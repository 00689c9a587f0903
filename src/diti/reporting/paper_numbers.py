"""Tables 1 and 2 of the paper as data. They hold for its data, sizes and hardware only, see `comparable`."""

from __future__ import annotations

Scores = dict[str, float]  # ap: share (the paper prints %), r: Pearson's, mse

MEASURED_ON = {"celeba": ("ap",), "lfw": ("r", "mse")}  # words in a data set's name → scores the paper has on it
TRAINED_ON = {"celeba": "CelebA", "ffhq": "FFHQ"}


def _scores(ap: float, r: float, mse: float) -> Scores:
    return {"ap": ap / 100, "r": r, "mse": mse}


# fmt: off
TABLE_1: dict[tuple[str, str], Scores] = {  # method, training set
    ("β-TCVAE", "CelebA"): _scores(45.0, 0.378, 0.573), ("β-TCVAE", "FFHQ"): _scores(43.2, 0.335, 0.608),
    ("IB-GAN",  "CelebA"): _scores(44.2, 0.307, 0.597), ("IB-GAN",  "FFHQ"): _scores(42.8, 0.260, 0.644),
    ("Diff-AE", "CelebA"): _scores(60.3, 0.598, 0.421), ("Diff-AE", "FFHQ"): _scores(60.5, 0.606, 0.410),
    ("PDAE",    "CelebA"): _scores(60.2, 0.596, 0.410), ("PDAE",    "FFHQ"): _scores(59.7, 0.603, 0.416),
    ("SimCLR",  "CelebA"): _scores(59.7, 0.474, 0.603), ("SimCLR",  "FFHQ"): _scores(60.8, 0.481, 0.638),
    ("DiTi",    "CelebA"): _scores(62.3, 0.617, 0.392), ("DiTi",    "FFHQ"): _scores(61.4, 0.622, 0.384),
    ("SimCLR, without augmentation", "CelebA"): _scores(34.7, 0.176, 0.717),  # in the appendix
}

TABLE_2: dict[tuple[bool, bool, int], Scores] = {  # imbalanced partition, detach, k; all trained on CelebA
    (True,  False,  16): _scores(62.1, 0.619, 0.389),
    (True,  False,  32): _scores(62.0, 0.615, 0.392),
    (True,  False,  64): _scores(62.3, 0.617, 0.392),
    (True,  False, 128): _scores(61.9, 0.616, 0.391),
    (False, False,  64): _scores(61.9, 0.604, 0.410),
    (False, True,   64): _scores(62.5, 0.590, 0.422),
    (True,  True,   64): _scores(62.4, 0.604, 0.405),
}
LATER: dict[tuple[str, str], Scores] = {  # of other papers, by the same protocol: method, training set
    ("DBAE (Kim et al. 2025)", "CelebA"): _scores(65.5, 0.643, 0.369),
    ("DBAE (Kim et al. 2025)", "FFHQ"): _scores(66.4, 0.675, 0.332),
}
# fmt: on
PAPER_SUBSETS = 64  # k of the paper where it does not say another


def ablation_label(imbalanced: bool, detach: bool, subsets: int) -> str:
    """The name of a line of table 2: what differs from the paper's own choice."""
    parts = ["DiTi-Detach" if detach else "DiTi"]
    parts += [] if subsets == PAPER_SUBSETS else [f"k = {subsets}"]
    parts += [] if imbalanced else ["balanced"]
    return ", ".join(parts)


def paper_scores(label: str, trained_on: str) -> Scores | None:
    """The paper's scores of a method such as `PDAE` or `DiTi, k = 16`; None where it gives none."""
    ablations = {(ablation_label(*key), "CelebA"): scores for key, scores in TABLE_2.items()}
    return (ablations | TABLE_1).get((label, trained_on))


def later_scores(trained_on: str) -> dict[str, Scores]:
    """What later papers report, by method."""
    return {method: scores for (method, data), scores in LATER.items() if data == trained_on}


def ablation_scores(partition: str, detach: bool, subsets: int) -> Scores | None:
    """The line of table 2 with that partition, as `diti train` names it; None if there is no such line."""
    if partition in ("adaptive", "matched", "auto"):  # not in the paper
        return None
    return TABLE_2.get((partition != "balanced", detach, subsets))


def comparable(dataset_name: str) -> tuple[str, ...]:
    """The scores that the paper reports on the data set of that name; empty for data it does not use."""
    return next((scores for word, scores in MEASURED_ON.items() if word in dataset_name.lower()), ())


def training_set(data_name: str) -> str | None:
    """The training set as the paper's table 1 calls it, from a data set's name."""
    return next((name for word, name in TRAINED_ON.items() if word in data_name.lower()), None)
