"""`diti report`: measure what runs lack, then put everything on one page with machine-readable twins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diti.core.errors import InputError
from diti.core.outputs import require_writable
from diti.core.runs import command_line, versions, write_json
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.diffusion.files import read_settings
from diti.report import tables
from diti.report import verdicts as in_words
from diti.report.blocks import Page, Section, Table
from diti.report.evidence import Effort, measure_runs
from diti.report.page import save_page
from diti.report.runs import Group, Run, check_finished, group_runs, read_config, read_run, shared_settings
from diti.report.sections import sections

PAGE, RECORD, LOGS, FIGURES = "index.html", "report.json", "logs", "figures"
NAMED = 6  # methods in the title
NAME_RUNS = "name run folders of diti train or solve, or a folder of them"


@dataclass(frozen=True)
class Report:
    """What was built, for the one who prints a summary."""

    page: Path
    groups: list[Group]
    tables: list[Table]
    verdicts: list[str]  # every comparison
    headline: list[str]  # three of them at most


def report(
    sources: Sequence[str | Path],
    out: Path,
    *,
    data: str | None = None,
    transfer: str | None = None,
    effort: Effort | None = None,
    paper: bool = False,
    title: str = "",
    lead: str = "",
    more: Sequence[Section] = (),
    overwrite: bool = False,
) -> Report:
    """One page about runs, on the data they were trained on unless told otherwise.

    sources: run folders, or folders of run folders. transfer: other images with attributes, on which the same
    codes are probed. paper: show the paper's numbers, greyed, on other data too.
    more: sections to stand at the end, folded. overwrite: also replace files that diti did not write.
    """
    names = [PAGE, RECORD, *(f"{key}.csv" for key in tables.KEYS), f"{LOGS}/log.txt"]
    drawn = sorted((out / FIGURES).glob("*"))  # earlier ones, which may be drawn again
    require_writable({"--out": [*(out / name for name in names), *drawn]}, [data, transfer], overwrite=overwrite)
    paths = find_runs(sources)
    for path in paths:
        check_finished(path)
    data, size = data or shared_data(paths), size_of(paths)
    dataset = open_at(data, size, "--data")
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
    page = Page(
        title or f"{listed([group.label for group in groups])} on {dataset.name}",
        lead,
        [*sections(groups, built, " ".join(headline), out / FIGURES), *([comparisons] if verdicts else []), *more],
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
        size = read_settings(path / "encoder" / "config.json").get("size")
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
    """Up to six names; of more the first five and how many others."""
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
    """What the numbers depend on besides what is told of each run."""
    shared = shared_settings([group.runs[0] for group in groups])
    return {
        "command": command_line(),
        **({"in all runs": ", ".join(shared.values())} if shared else {}),
        "data": f"{data}: {dataset.name}, {len(dataset):,} images of {dataset.size} px",
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
