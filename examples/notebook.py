"""Two runs in a script: from captures to profiles, figures, samples, a comparison, its page and a gate.

python examples/notebook.py tests/data/h200 work
"""

from __future__ import annotations

import sys
from pathlib import Path

import dflash_bench as db


def main(captures: str, work: str) -> None:
    """Ingest the captures in a folder, compare its first two runs, and write the page into ``work``."""
    nosync, sync = db.ingest_captures(captures, profiles=f"{work}/profiles")
    print(f"{sync.info.run}: {sync.info.device}, ranks {', '.join(map(str, sync.info.ranks))}")

    run = db.measure(sync)
    period = run.find("step.period", None)
    assert period is not None
    print(f"{period.n} steps, {len(run.tables)} tables, {len(run.findings)} warnings")

    samples = sync.samples("step.lead")  # a pandas frame: arm, rank, step, pair, value
    print(samples.groupby("rank").value.median().div(1000).round(1).to_string())

    found = db.compare_runs(sync, nosync)
    for change in found.changes:
        if change.metric in ("step.period", "step.lead") and change.rank is None:
            print(f"{change.metric}: {change.base / 1000:,.1f} → {change.candidate / 1000:,.1f} µs")

    print(f"page: {db.write_report(sync, nosync, Path(work) / 'report.html').name}")
    decision = db.run_gate(nosync, base=sync)
    print(f"gate: {decision.outcome}, exit code {int(decision.exit_code)}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
