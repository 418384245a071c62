"""The decision: pass, fail or inconclusive, from the verdicts on what the policy watches.

The gate asks one thing of a metric: is a regression beyond the tolerance shown, ruled out, or neither? So a metric that
got better, or whose interval ends on the good side, passes even where its exact size is open.

While the answer is neither, the gate may have more runs made, once: as many as would decide, up to the policy's budget.
It then looks at the data twice, so each look takes half of the false-discovery rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from dflash_bench.environment import STACK, Difference, differences, is_refused
from dflash_bench.errors import DataError, ExitCode, UsageError
from dflash_bench.gate.attribution import Culprit, attribute
from dflash_bench.gate.policy import OnInconclusive, Policy
from dflash_bench.metrics.reading import Reading
from dflash_bench.model import Finding, MetricKey, Sides
from dflash_bench.stats.composition import unlike_steps
from dflash_bench.stats.judgement import Judgement, Judgements, Verdict
from dflash_bench.stats.verdict import judge

_LOOKS = 2


class Answer(StrEnum):
    """What the gate says of a metric, and of the change."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Ruling:
    """One watched metric and rank: its verdict, and what that means under the policy."""

    judgement: Judgement
    outcome: Answer
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The gate's answer with all that it rests on. ``missing``: watched figures that only the base has."""

    outcome: Answer
    sides: Sides
    checks: tuple[Ruling, ...]
    judgements: Judgements
    missing: tuple[MetricKey, ...]
    culprits: tuple[Culprit, ...]
    findings: tuple[Finding, ...]
    reruns: int = 0

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command."""
        codes = {Answer.PASS: ExitCode.PASS, Answer.FAIL: ExitCode.REGRESSION}
        return codes.get(self.outcome, ExitCode.INCONCLUSIVE)

    def of(self, outcome: Answer) -> tuple[Ruling, ...]:
        """The checks that came out so."""
        return tuple(c for c in self.checks if c.outcome is outcome)


def run_gate(
    sides: Sides, policy: Policy, again: Callable[[int], Sides] | None = None, reading: Reading | None = None
) -> Decision:
    """Decide, and where that is impossible, have more runs made and decide again. ``again`` makes that many further
    runs and gives both sides with them; None: no further runs.

    Raises UsageError when the sides cannot be compared, DataError when there is nothing to judge.
    """
    if again is None or policy.budget == 0:
        return decide(sides, policy, policy.false_discovery_rate, reading)
    rate = policy.false_discovery_rate / _LOOKS
    first = decide(sides, policy, rate, reading)
    if first.outcome is not Answer.INCONCLUSIVE:
        return first
    num = wanted_runs(first, policy)
    return replace(decide(again(num), policy, rate, reading), reruns=num)


def decide(sides: Sides, policy: Policy, rate: float, reading: Reading | None = None) -> Decision:
    """The decision on these runs. ``rate``: the false-discovery rate. Raises as `run_gate`."""
    found = _comparable(sides)
    judgements = judge(sides, policy.rules(sides.history, rate), policy.is_watching)
    if not judgements.each:
        raise DataError(
            "the runs have none of the metrics that the policy watches in common",
            hint=f"dflash-bench metrics {sides.candidate[0].info.run}",
        )
    checks = tuple(_check(j, policy) for j in judgements.each)
    missing = _missing(sides, policy)
    outcome = _outcome(checks, missing, policy)
    culprits: tuple[Culprit, ...] = ()
    if failed := [c.judgement for c in checks if c.outcome is Answer.FAIL]:
        reading = reading or Reading()
        rules = policy.rules(sides.history, rate)
        culprits = attribute(sides, rules, (reading.step, reading.agreement), failed)
    return Decision(outcome, sides, checks, judgements, missing, culprits, tuple(_findings(sides, found)))


def wanted_runs(decision: Decision, policy: Policy) -> int:
    """How many more runs of each side would decide, up to the budget; the whole budget where that cannot be told."""
    wanted = 1
    for check in decision.of(Answer.INCONCLUSIVE):
        j = check.judgement
        lacking = _required(j, policy) - min(j.base_runs, j.candidate_runs)
        if j.verdict is Verdict.INCONCLUSIVE and j.further is None:
            return policy.budget
        wanted = max(wanted, j.further or 0, lacking)
    return min(wanted, policy.budget)


def _comparable(sides: Sides) -> tuple[Difference, ...]:
    base, candidate = ([r.info for r in side] for side in (sides.base, sides.candidate))
    found = differences(base, candidate)
    if sides.is_baseline:
        # the key of the baseline is the candidate's: the stack is the same
        found = tuple(d for d in found if d.condition.name not in STACK)
    if is_refused(found):
        refused = "; ".join(d.finding.text for d in found if is_refused([d]))
        raise UsageError(refused, hint=f"dflash-bench baseline save {candidate[0].run}")
    return found


def _required(judgement: Judgement, policy: Policy) -> int:
    own = policy.of(judgement.metric)
    return policy.repeats if own is None or own.repeats is None else own.repeats


def _check(judgement: Judgement, policy: Policy) -> Ruling:
    own = policy.of(judgement.metric)
    meaning = (own and own.inconclusive) or policy.inconclusive
    if judgement.verdict is Verdict.REGRESSED:
        return Ruling(judgement, Answer.FAIL, judgement.reason)
    required, have = _required(judgement, policy), min(judgement.base_runs, judgement.candidate_runs)
    if not judgement.excludes_regression:
        return Ruling(judgement, _MEANINGS[meaning], judgement.reason)
    if have < required and not judgement.is_exact:
        text = f"{judgement.reason}, but on {have} run{'s' * (have != 1)} a side; the policy asks for {required}"
        return Ruling(judgement, _MEANINGS[meaning], text)
    if judgement.verdict is Verdict.INCONCLUSIVE:
        return Ruling(judgement, Answer.PASS, "a regression beyond the tolerance is ruled out")
    return Ruling(judgement, Answer.PASS, judgement.reason)


_MEANINGS = {
    OnInconclusive.INCONCLUSIVE: Answer.INCONCLUSIVE,
    OnInconclusive.PASS: Answer.PASS,
    OnInconclusive.FAIL: Answer.FAIL,
}


def _missing(sides: Sides, policy: Policy) -> tuple[MetricKey, ...]:
    """Watched figures that every run of the base has and no run of the candidate: the gate must see that."""
    every = [{(m.name, m.rank) for m in run.metrics if len(m.values)} for run in sides.base]
    some = {(m.name, m.rank) for run in sides.candidate for m in run.metrics if len(m.values)}
    lacking = set.intersection(*every) - some
    return tuple(
        sorted((k for k in lacking if policy.is_watching(*k)), key=lambda k: (k[0], -1 if k[1] is None else k[1]))
    )


def _outcome(checks: Sequence[Ruling], missing: Sequence[MetricKey], policy: Policy) -> Answer:
    seen = {c.outcome for c in checks} | ({_MEANINGS[policy.inconclusive]} if missing else set())
    return next((o for o in (Answer.FAIL, Answer.INCONCLUSIVE) if o in seen), Answer.PASS)


def _findings(sides: Sides, found: Sequence[Difference]) -> Iterator[Finding]:
    yield from (d.finding for d in found)
    yield from unlike_steps(sides)
    counts = [r.find("tokens.committed", None) for r in (*sides.base, *sides.candidate)]
    tokens = {float(m.values[0]) for m in counts if m is not None and len(m.values)}
    seeds = {(r.info.settings.get("seed"), r.info.settings.get("steps")) for r in (*sides.base, *sides.candidate)}
    if len(tokens) > 1 and len(seeds) == 1:
        text = "runs of one seed and length committed different numbers of tokens: they did not do the same work"
        yield Finding("different_tokens", None, len(tokens), text)
