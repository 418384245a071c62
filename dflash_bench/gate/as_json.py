"""A decision as JSON: stable field names, base units, nothing rounded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from dflash_bench.gate.decision import Decision, Ruling
from dflash_bench.model import RunMetrics
from dflash_bench.report.verdicts import judgement_row


def gate_json(decision: Decision) -> str:
    """``{"outcome", "exit_code", "culprits", "checks", "missing", "warnings", "base", "candidate", …}``."""
    content = {
        "outcome": decision.outcome,
        "exit_code": int(decision.exit_code),
        "reruns": decision.reruns,
        "culprits": [{**dataclasses.asdict(c), "text": c.text} for c in decision.culprits],
        "checks": [_check(c) for c in decision.checks],
        "missing": [{"metric": name, "rank": rank} for name, rank in decision.missing],
        "warnings": [dataclasses.asdict(f) for f in decision.findings],
        "num_tests": decision.judgements.num_tests,
        "error_rate": decision.judgements.rate,
        "method": decision.judgements.method,
        "base": {**_side(decision.sides.base), "is_baseline": decision.sides.is_baseline},
        "candidate": _side(decision.sides.candidate),
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def _check(check: Ruling) -> dict[str, Any]:
    return {"outcome": check.outcome, "reason": check.reason, **judgement_row(check.judgement)}


def _side(runs: Sequence[RunMetrics]) -> dict[str, Any]:
    info = runs[0].info
    return {
        "runs": [r.info.run for r in runs],
        "arm": info.arm,
        "workload": info.workload,
        "device": info.device,
        "world": info.world,
    }
