"""The decision: pass, fail or inconclusive, from the verdicts on what the policy watches.

What the policy watches is primary: it decides. The gate asks one thing of a metric: is a regression beyond the
tolerance shown, ruled out, or neither? So a metric that got better, or whose bound ends on the good side, passes even
where its exact size is open. A regression may be shown on any rank; it has to be ruled out for the pooled figure, and
for single ranks only where the policy watches nothing else. Everything else is judged too, shown and labelled
secondary.

Fewer than three runs of the candidate, or one process of a duet, never fail. While the answer is neither, the gate may
have more runs made, once: as many as would decide, up to the policy's budget. It then looks at the data twice, so each
look takes half of the error rate. Further runs that cannot be made, or are not like the others, leave the decision as
it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from dflash_bench.compare import slow_hosts
from dflash_bench.environment import STACK, Difference, differences, is_refused
from dflash_bench.errors import BenchError, DataError, ExitCode, UsageError
from dflash_bench.findings import finding
from dflash_bench.gate.attribution import Culprit, attribute
from dflash_bench.gate.policy import OnInconclusive, Policy
from dflash_bench.metrics.reading import Reading
from dflash_bench.model import Design, Finding, Judgement, Judgements, MetricKey, RunMetrics, Sides, Verdict
from dflash_bench.session import commit_of
from dflash_bench.stats.composition import unlike_steps
from dflash_bench.stats.verdict import judge

_LOOKS = 2
_MIN_RUNS, _MIN_PROCESSES = 3, 2
_SAME_MACHINE = ("device", "driver", "cpu", "cores")


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
    """The gate's answer with all that it rests on. ``missing``: watched figures that a side lacks."""

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
        return decide(sides, policy, policy.error_rate, reading)
    rate = policy.error_rate / _LOOKS
    first = decide(sides, policy, rate, reading)
    if first.outcome is not Answer.INCONCLUSIVE or _is_hopeless(first):
        return first
    num = wanted_runs(first, policy)
    try:
        more = again(num)
        _require_alike(sides, more)
        return replace(decide(more, policy, rate, reading), reruns=num)
    except BenchError as error:
        told = finding("further_runs", None, num, reason=error.text)
        return replace(first, findings=(*first.findings, told))


def _is_hopeless(decision: Decision) -> bool:
    """Whether no further run of the candidate could decide: it was made in another session than the base."""
    return decision.sides.is_other_session or bool(decision.missing)


def _require_alike(sides: Sides, more: Sides) -> None:
    """Raises DataError when further runs were made on another device, CPU or code than the ones there are."""
    for (_, before), (_, after) in zip(sides.named, more.named, strict=True):
        apart = [
            d
            for d in differences([r.info for r in before[:1]], [r.info for r in after[len(before) :]])
            if d.condition.name in _SAME_MACHINE
        ]
        if len(after) > len(before) and apart:
            raise DataError("; ".join(d.finding.text for d in apart))
        commits = {commit for run in after if (commit := commit_of(run.info)) is not None}
        if len(after) > len(before) and len(commits) > 1:
            raise DataError(f"the further runs are of another commit: {' and '.join(sorted(commits))}")


def decide(sides: Sides, policy: Policy, rate: float, reading: Reading | None = None) -> Decision:
    """The decision on these runs. ``rate``: the chance of a false verdict. Raises as `run_gate`."""
    found = _comparable(sides)
    rules = policy.rules(sides.history, rate)
    judgements = judge(sides, rules, lambda name, rank: policy.of(name) is None or policy.is_watching(name, rank))
    watched = [j for j in judgements.each if policy.is_watching(j.metric, j.rank)]
    missing = _missing(sides, watched, policy)
    if not watched:
        raise DataError(
            "the runs have none of the metrics that the policy watches",
            hint=f"dflash-bench metrics {sides.candidate[0].info.run}",
        )
    pooled = {j.metric for j in watched if j.rank is None}
    checks = tuple(
        _ruling(j, policy, has_pooled=j.rank is not None and j.metric in pooled)
        for j in watched
        if j.verdict not in (Verdict.REMOVED, Verdict.NEW)
    )
    outcome = _outcome(checks, missing, policy)
    culprits: tuple[Culprit, ...] = ()
    if failed := [c.judgement for c in checks if c.outcome is Answer.FAIL]:
        reading = reading or Reading()
        culprits = attribute(judgements, sides, (reading.step, reading.agreement), failed)
    return Decision(outcome, sides, checks, judgements, missing, culprits, tuple(_findings(sides, found)))


def wanted_runs(decision: Decision, policy: Policy) -> int:
    """How many more runs of each side would decide, up to the budget; the whole budget where that cannot be told."""
    wanted = 1
    for check in decision.of(Answer.INCONCLUSIVE):
        j = check.judgement
        lacking = _required(j, policy) - min(j.base_runs, j.candidate_runs)
        if j.verdict is Verdict.INCONCLUSIVE and j.further is None and lacking <= 0:
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
    """Runs that the policy asks for on each side; of a duet, processes."""
    own = policy.of(judgement.metric)
    asked = policy.repeats if own is None or own.repeats is None else own.repeats
    return min(asked, _MIN_PROCESSES) if judgement.design is Design.DUET else asked


def _ruling(j: Judgement, policy: Policy, *, has_pooled: bool) -> Ruling:
    own = policy.of(j.metric)
    unknown = _MEANINGS[(own and own.inconclusive) or policy.inconclusive]
    runs, least = f"{j.candidate_runs} run{'s' * (j.candidate_runs != 1)} of the candidate", _MIN_RUNS
    if j.design is Design.DUET:
        runs, least = f"{j.candidate_runs} process{'es' * (j.candidate_runs != 1)}", _MIN_PROCESSES
    if j.verdict is Verdict.REGRESSED:
        if j.candidate_runs < least:
            return Ruling(j, Answer.INCONCLUSIVE, f"{j.reason}, but on {runs}: fewer than {least} never fail a gate")
        return Ruling(j, Answer.FAIL, j.reason)
    if has_pooled and j.verdict is Verdict.INCONCLUSIVE:
        return Ruling(j, Answer.PASS, "no regression is shown on this rank; the pooled figure decides")
    if not j.excludes_regression:
        return Ruling(j, unknown, j.reason)
    have, required = min(j.base_runs, j.candidate_runs), _required(j, policy)
    if have < required and not j.is_exact:
        text = f"{j.reason}, but on {have} run{'s' * (have != 1)} a side; the policy asks for {required}"
        return Ruling(j, unknown, text)
    if j.verdict is Verdict.INCONCLUSIVE:
        return Ruling(j, Answer.PASS, "a regression beyond the tolerance is ruled out")
    return Ruling(j, Answer.PASS, j.reason)


_MEANINGS = {
    OnInconclusive.INCONCLUSIVE: Answer.INCONCLUSIVE,
    OnInconclusive.PASS: Answer.PASS,
    OnInconclusive.FAIL: Answer.FAIL,
}


def _missing(sides: Sides, watched: Sequence[Judgement], policy: Policy) -> tuple[MetricKey, ...]:
    """What the policy watches and a side lacks: the gate must see that."""
    one_sided = {(j.metric, j.rank) for j in watched if j.verdict in (Verdict.REMOVED, Verdict.NEW)}
    there = {m.name for run in (*sides.base, *sides.candidate) for m in run.metrics if len(m.values)}
    named = {(name, None) for name in policy.named if name not in there}
    return tuple(sorted(one_sided | named, key=lambda k: (k[0], -1 if k[1] is None else k[1])))


def _outcome(checks: Sequence[Ruling], missing: Sequence[MetricKey], policy: Policy) -> Answer:
    seen = {c.outcome for c in checks} | ({_MEANINGS[policy.inconclusive]} if missing else set())
    return next((o for o in (Answer.FAIL, Answer.INCONCLUSIVE) if o in seen), Answer.PASS)


def _findings(sides: Sides, found: Sequence[Difference]) -> Iterator[Finding]:
    yield from (d.finding for d in found)
    yield from unlike_steps(sides)
    yield from slow_hosts(sides)
    runs: tuple[RunMetrics, ...] = (*sides.base, *sides.candidate)
    counts = [r.find("tokens.committed", None) for r in runs]
    tokens = {float(m.values[0]) for m in counts if m is not None and len(m.values)}
    seeds = {(r.info.settings.get("seed"), r.info.settings.get("steps")) for r in runs}
    if len(tokens) > 1 and len(seeds) == 1:
        text = "runs of one seed and length committed different numbers of tokens: they did not do the same work"
        yield Finding("different_tokens", None, len(tokens), text)
