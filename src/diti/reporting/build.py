"""`diti report`: measure what runs lack, then put everything on one page with machine-readable twins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diti.core.device import AUTO, Device, preferred
from diti.core.errors import InputError
from diti.core.outputs import require_writable
from diti.core.runs import as_path, command_line, versions, write_json
from diti.data.prepared import Dataset, require_training_images
from diti.data.sources import open_data, place_of
from diti.diffusion.files import read_settings
from diti.pages.blocks import Page, Section, Table
from diti.pages.page import save_page
from diti.reporting import tables
from diti.reporting import verdicts as in_words
from diti.reporting.runs import Group, Run, check_finished, group_runs, read_config, read_run, shared_settings
from diti.reporting.sections import sections
from diti.reporting.stages import Effort, measure_runs

PAGE, RECORD, LOGS, FIGURES = "index.html", "report.json", "logs", "figures"
NAMED = 6  # methods in the title
NAME_RUNS = "name run folders of diti train or solve, or a folder of them"


@dataclass(frozen=True)
class Report:
    """What was built, for whoever prints a summary."""

    page: Path
    groups: list[Group]
    tables: list[Table]
    verdicts: list[str]  # every comparison
    headline: list[str]  # three of them at most


def report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path = "report",
    *,
    data: Dataset | str | Path | None = None,
    transfer: Dataset | str | Path | None = None,
    faces: int = 24,
    pairs: int = 16,
    changes: int = 12,
    classifier_images: int = 32_000,
    baselines: bool = True,
    wide_baseline: bool = False,
    disentanglement: bool = True,
    paper: bool = False,
    seed: int = 0,
    overwrite: bool = False,
    device: Device = AUTO,
) -> Report:
    """Compare runs on one page, as `diti report` does; measures what was not measured yet.

    runs: run folders, or folders of run folders. data: images with attributes to measure on; by default what the
    runs were trained on. transfer: others, on which the same codes are probed.
    device: where to compute, such as "cuda:1".

        diti.report(["runs/model", "runs/pdae"], data="data/mine").headline
    """
    effort = Effort(
        faces=faces, pairs=pairs, changes=changes, classifier_images=classifier_images, baselines=baselines,
        wide_baseline=wide_baseline, disentanglement=disentanglement, seed=seed,
    )  # fmt: skip
    named, other = (None if given is None else place_of(given) for given in (data, transfer))
    sources = [runs] if isinstance(runs, str | Path) else runs
    folder = as_path(out, "out")
    with preferred(device):  # for the processes that measure, too
        return build_report(
            sources, folder, data=named, transfer=other, effort=effort, paper=paper, overwrite=overwrite
        )


def build_report(
    sources: Sequence[str | Path],
    out: Path,
    *,
    data: str | None = None,
    transfer: str | None = None,
    effort: Effort | None = None,
    paper: bool = False,
    title: str = "",
    lead: str = "",
    first: Sequence[Section] = (),
    more: Sequence[Section] = (),
    overwrite: bool = False,
) -> Report:
    """One page about runs, on the data they were trained on unless told otherwise.

    sources: run folders, or folders of run folders. transfer: other images with attributes, on which the same
    codes are probed. paper: show the paper's numbers, greyed, on other data too.
    first, more: sections for the beginning and for the end. overwrite: also replace files that diti did not write.
    """
    names = [PAGE, RECORD, *(f"{key}.csv" for key in tables.KEYS), f"{LOGS}/log.txt"]
    drawn = sorted((out / FIGURES).glob("*"))  # earlier ones, which may be drawn again
    require_writable({"--out": [*(out / name for name in names), *drawn]}, [data, transfer], overwrite=overwrite)
    paths = find_runs(sources)
    for path in paths:
        check_finished(path)
    data, size = data or shared_data(paths), size_of(paths)
    dataset = require_training_images(open_at(data, size, "--data"))
    other = open_at(transfer, size, "--transfer") if transfer else None
    if other and not other.attributes:
        raise InputError(f"--transfer {transfer} has no attributes to probe; name images with attributes")
    effort = effort or Effort()
    measure_runs(paths, dataset, data, effort, out / LOGS)
    if other and transfer:
        measure_runs(paths, other, transfer, replace(effort, transfer=True), out / LOGS / other.name)
    groups = group_runs([read_run(path, dataset, other) for path in paths])
    baselines = baselines_of(groups)
    built, verdicts = build_tables(groups, baselines, paper), in_words.verdicts(groups, baselines)
    headline = in_words.headline(groups, baselines)
    comparisons = Section("Every comparison", "\n\n".join(verdicts), folded=True)
    measured = sections(groups, built, " ".join(headline), out / FIGURES)
    page = Page(
        title or f"{listed([group.label for group in groups])} on {dataset.title}",
        lead,
        [*first, *measured, *([comparisons] if verdicts else []), *more],
        facts(dataset, data, groups),
    )
    write_twins(groups, built, verdicts, out)
    return Report(save_page(page, out / PAGE), groups, list(built.values()), verdicts, headline)


# ---- Which runs, which data --------------------------------------------------------------------------------


def find_runs(sources: Sequence[str | Path]) -> list[Path]:
    """Run folders as they are; of other folders the run folders in them, by name."""
    if not sources:
        raise InputError(f"no run was named; {NAME_RUNS}")
    found: list[Path] = []
    for source in map(Path, sources):
        if not source.is_dir():
            raise InputError(f"{source} is not a folder; {NAME_RUNS}")
        inside = [path for path in sorted(source.iterdir()) if (path / "config.yaml").is_file()]
        if not (source / "config.yaml").is_file() and not inside:
            raise InputError(f"{source} holds no run; {NAME_RUNS}")
        found += [source] if (source / "config.yaml").is_file() else inside
    return found


def open_at(data: str, size: int, option: str) -> Dataset:
    """The data of an option, of the size that the runs take."""
    dataset = open_data(data, size)
    if dataset.size != size:
        raise InputError(
            f"{option} {data} has images of {dataset.size} px, the runs take {size} px: prepare it with "
            f"--size {size}"
        )
    return dataset


def shared_data(paths: Sequence[Path]) -> str:
    """What --data the runs were trained on, if it is the same."""
    names = {read_config(path).data for path in paths}
    if len(names) > 1:
        raise InputError(
            f"the runs were trained on different data ({', '.join(sorted(names))}); choose with --data"
        )
    return names.pop()


def size_of(paths: Sequence[Path]) -> int:
    """Side of the images, px, the same for all runs."""
    sizes: set[int] = set()
    for path in paths:
        encoder = read_settings(path / "encoder" / "config.json")
        if encoder.get("kind") == "given":
            raise InputError(
                f"{path} encodes features of another network, and a report encodes images; leave it out"
            )
        size = encoder.get("size")
        if not isinstance(size, int):
            raise InputError(
                f"{path / 'encoder' / 'config.json'} says images of {size!r} px; copy the model again"
            )
        sizes.add(size)
    if len(sizes) > 1:
        raise InputError(f"the runs take images of {sorted(sizes)} px; report runs of one size together")
    return sizes.pop()


# ---- Tables and the page -----------------------------------------------------------------------------------


def listed(labels: Sequence[str]) -> str:
    """Up to six names; if more, the first five and how many others."""
    shown = labels if len(labels) <= NAMED else [*labels[: NAMED - 1], f"{len(labels) - NAMED + 1} others"]
    return ", ".join(shown)


def build_tables(groups: list[Group], baselines: Sequence[dict[str, Any]], paper: bool) -> dict[str, Table]:
    """All tables that these runs allow, by key, in the order of the page."""
    found = [
        tables.summary_table(groups, baselines),
        tables.table1(groups, baselines, paper),
        tables.counterfactual_table(groups),
        tables.disentanglement_table(groups),
        tables.attribute_table(groups),
        tables.cost_table(groups),
        tables.provenance_table([run for group in groups for run in group.runs]),
    ]
    if len({varied_in_table2(group.runs[0]) for group in groups if group.runs[0].config.method == "diti"}) > 1:
        found.append(tables.table2(groups, paper))
    return {table.key: table for table in found if table.rows}


def baselines_of(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """What was probed without a trained encoder, each once, from the runs whose probes carry it."""
    found: dict[str, dict[str, Any]] = {}
    for run in (run for group in groups for run in group.runs):
        for part, record in (("probe", run.probe), ("transferred", run.transferred)):
            for baseline in (record or {}).get("baselines", ()):
                found.setdefault(baseline["name"], {"name": baseline["name"]}).setdefault(part, baseline["probe"])
    return list(found.values())


def varied_in_table2(run: Run) -> tuple[Any, ...]:
    """What table 2 varies."""
    config = run.config
    return config.subsets, config.partition, config.detach, config.code.code_dim, config.solution.tau


def facts(dataset: Dataset, data: str, groups: Sequence[Group]) -> dict[str, str]:
    """What the numbers depend on besides what is said about each run."""
    shared = shared_settings([group.runs[0] for group in groups])
    return {
        "command": command_line(),
        **({"in all runs": ", ".join(shared.values())} if shared else {}),
        "data": f"{data}: {dataset.title}, {len(dataset):,} images of {dataset.size} px",
        "sha256 of the data": dataset.hash,
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }


def write_twins(groups: list[Group], built: dict[str, Table], verdicts: list[str], out: Path) -> None:
    """report.json with every table and record, and a CSV file per table, known by the record beside it."""
    runs = [
        {"group": group.label, "path": str(run.path), "seed": run.seed, **run.records}
        for group in groups
        for run in group.runs
    ]
    record = {
        "command": command_line(),
        "versions": versions(),
        "verdicts": verdicts,
        "tables": {key: tables.table_record(table) for key, table in built.items()},
        "runs": runs,
    }
    write_json(out / RECORD, record)
    for key, table in built.items():
        tables.write_csv(table, out / f"{key}.csv")
