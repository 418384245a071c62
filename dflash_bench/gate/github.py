"""A decision as GitHub shows it: annotations, the step summary, a comment on the pull request."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_bench.gate.decision import Answer, Decision
from dflash_bench.gate.sheets import WORDS, gate_report, sentence, told
from dflash_bench.report.headline import sides_headline
from dflash_bench.report.markdown import escaped, markdown

MARKER = "<!-- dflash-bench gate -->"
"""The first line of a comment, by which a workflow finds and replaces the one before."""
_MAX_LINES = 10

_SIGNS = {Answer.PASS: "✅", Answer.FAIL: "❌", Answer.INCONCLUSIVE: "❔"}


def annotation_lines(decision: Decision) -> Iterator[str]:
    """Workflow commands: an error for each regression, a warning for each open question and difference."""
    open_ = told(decision.checks)
    for check in (c for c in open_ if c.outcome is Answer.FAIL):
        yield _command("error", "performance regression", sentence(check))
    for culprit in decision.culprits[:3]:
        yield _command("error", "cause", culprit.text)
    for check in (c for c in open_ if c.outcome is Answer.INCONCLUSIVE):
        yield _command("warning", "inconclusive", sentence(check))
    for finding in decision.findings:
        yield _command("warning", "environment", finding.text)


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(f'dflash-bench: {title}')}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def comment(decision: Decision) -> str:
    """Markdown: the verdict and its cause first, then what failed or is open, all figures folded away."""
    report = gate_report(decision)
    lines = [MARKER, f"### {_SIGNS[decision.outcome]} {WORDS[decision.outcome]}", ""]
    lines += [f"**Cause: {escaped(culprit.text)}**" for culprit in decision.culprits[:1]]
    lines += [""] if decision.culprits else []
    headline = sides_headline(decision.sides, decision.judgements, decision.findings)
    lines += [f"{escaped(line)}  " for line in headline.lines] + [""]
    order = [Answer.FAIL, Answer.INCONCLUSIVE]
    open_ = sorted((c for c in told(decision.checks) if c.outcome in order), key=lambda c: order.index(c.outcome))
    lines += [f"- {escaped(sentence(check))}" for check in open_[:_MAX_LINES]]
    lines += [f"- … and {len(open_) - _MAX_LINES} more in the table"] if len(open_) > _MAX_LINES else []
    lines += [f"- {escaped(warning)}" for warning in report.warnings]
    passed = len(decision.of(Answer.PASS))
    lines += ["", f"{passed} of {len(decision.checks)} checks pass.", ""]
    lines += ["<details>", "<summary>All figures</summary>", "", markdown(report), "</details>", ""]
    return "\n".join(lines)
