"""`python -m benchmarks [NAME ...]`: run all benchmarks, or those named."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from benchmarks import (
    bench_cost,
    bench_data,
    bench_device,
    bench_edits,
    bench_methods,
    bench_metric,
    bench_pretrain,
    bench_round_trip,
    bench_search,
    bench_solve,
    bench_studio,
    bench_training,
)

BENCHMARKS = {
    "cost": bench_cost.main,
    "data": bench_data.main,
    "device": bench_device.main,
    "edits": bench_edits.main,
    "training": bench_training.main,
    "pretrain": bench_pretrain.short,
    "methods": bench_methods.main,
    "metric": bench_metric.main,
    "round-trip": bench_round_trip.main,
    "search": bench_search.main,
    "solve": bench_solve.main,
    "studio": bench_studio.main,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"unknown benchmark {unknown[0]}; use {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        print(f"\n== {name} ==")
        BENCHMARKS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
