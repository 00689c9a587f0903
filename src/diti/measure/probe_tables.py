"""What `diti probe` prints: the mean scores beside their baselines, then every attribute."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def print_probe(record: dict[str, Any]) -> None:
    """Tables of a probe's record, and what to know about them."""
    console = Console()
    console.print(_means(record))
    console.print(_attributes(record["probe"]))
    for title, rows in _more(record):
        table = Table("", *rows[0], title=title, title_justify="left")
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)
    console.print(f"protocol: {record['probe']['protocol']}", style="dim", highlight=False)
    for item in record["probe"]["left_out"]:
        console.print(f"left out: {item['name']} ({item['reason']})", highlight=False)
    for note in record["notes"]:
        console.print(f"note: {note}", highlight=False)


def _means(record: dict[str, Any]) -> Table:
    probes = [(f"{record['model']} ({record['method']})", record["probe"])]
    probes += [(other["name"], other["probe"]) for other in [record.get("against")] if other]
    probes += [(baseline["name"], baseline["probe"]) for baseline in record.get("baselines", ())]
    scores = [s for s in ("ap", "r", "mse") if record["probe"][f"mean_{s}"] is not None]
    heads = {"ap": "mean AP", "r": "mean r", "mse": "mean MSE"}
    table = Table(title=f"linear probe on {record['data']['name']}", title_justify="left")
    table.add_column("features")
    for score in scores:
        table.add_column(f"{heads[score]} [95 %]", justify="right")
    for name, probe in probes:
        table.add_row(name, *(_with_interval(probe[f"mean_{s}"], probe[f"mean_{s}_interval"]) for s in scores))
    if "ap" in scores:
        chances = [row["chance"] for row in record["probe"]["rows"] if row["kind"] == "binary"]
        table.add_row("chance", f"{sum(chances) / len(chances):.3f}", *[""] * (len(scores) - 1))
    return table


def _attributes(probe: dict[str, Any]) -> Table:
    table = Table()
    for head in ("attribute", "AP", "95 %", "AUROC", "chance", "r", "MSE"):
        table.add_column(head, justify="left" if head == "attribute" else "right")
    for row in probe["rows"]:
        interval = row["ap_interval"] or row["r_interval"]
        table.add_row(
            row["name"], _number(row["ap"]), f"{interval[0]:.3f}–{interval[1]:.3f}" if interval else "",
            _number(row["auroc"]), _number(row["chance"]), _number(row["r"]), _number(row["mse"]),
        )  # fmt: skip
    return table


def _more(record: dict[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """Titles and cells of the tables that were asked for, the heads first."""
    found = []
    if "few_shot" in record:
        found += _few_labels(record)
    if scores := record.get("disentanglement"):
        reductions = scores["reductions"]
        names = list(next(iter(reductions.values()))["scores"])
        rows = [[name, *(_with_chance(r["scores"][name]) for r in reductions.values())] for name in names]
        found.append(
            (
                "disentanglement (chance)",
                [[f"by {name}, {r['dims']} dims" for name, r in reductions.items()], *rows],
            )
        )
    if again := record.get("reconstruction"):
        rows = [[noise, *(f"{again[noise][s]['mean']:.4g}" for s in ("mse", "psnr", "ssim"))] for noise in again]
        found.append(
            (f"reconstruction of {again['inferred']['images']} test images, x_T", [["MSE", "PSNR", "SSIM"], *rows])
        )
    return found


def _few_labels(record: dict[str, Any]) -> list[tuple[str, list[list[str]]]]:
    """A table for AP and one for r, of what was probed: z and its baselines by the number of labels."""
    probed = {"z": record["few_shot"]}
    probed |= {item["name"]: item["few_shot"] for item in record.get("baselines", ()) if "few_shot" in item}
    heads = [f"{count:,} labels" for count in record["few_shot"]["counts"]]
    found = []
    for title, key in (("mean AP", "mean_ap"), ("mean r", "mean_r")):
        if record["few_shot"][key][0][0] is not None:
            rows = [[name, *(f"{m:.3f} ± {s:.3f}" for m, s in few[key])] for name, few in probed.items()]
            found.append((f"{title} with few labels", [heads, *rows]))
    return found


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _with_interval(value: float | None, interval: list[float] | None) -> str:
    return _number(value) + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def _with_chance(score: dict[str, Any]) -> str:
    return f"{score['value']:.3f} ({score['chance']['mean']:.3f})"
