"""A decision as JUnit XML: one test case per watched metric and rank."""

from __future__ import annotations

from xml.etree import ElementTree

from dflash_bench.gate.decision import Answer, Decision, Ruling
from dflash_bench.gate.sheets import missing_text, sentence
from dflash_bench.model import Judgement, Unit, Verdict
from dflash_bench.report.units import rank_text, symbol, text
from dflash_bench.report.verdicts import interval_text, power_text


def junit(decision: Decision) -> str:
    """The XML document. What is inconclusive is an ``error``; where the policy lets it pass, ``skipped``."""
    checks, missing = decision.checks, decision.missing
    suite = ElementTree.Element(
        "testsuite",
        name="dflash-bench gate",
        tests=str(len(checks) + len(missing)),
        failures=str(len(decision.of(Answer.FAIL))),
        errors=str(len(decision.of(Answer.INCONCLUSIVE)) + len(missing)),
        skipped=str(sum(_is_waved_through(c) for c in checks)),
        timestamp=decision.sides.candidate[0].info.created_utc[:19],
    )
    for check in checks:
        _case(suite, check)
    for name, rank in missing:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=f"rank {rank_text(rank)}")
        ElementTree.SubElement(case, "error", type="missing", message=missing_text(decision.sides, name, rank))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, check: Ruling) -> None:
    j = check.judgement
    case = ElementTree.SubElement(suite, "testcase", classname=j.metric, name=f"rank {rank_text(j.rank)}")
    if j.unit is Unit.NS and j.candidate is not None:
        # dashboards draw a case's time: that of the candidate, in seconds
        case.set("time", f"{j.candidate / 1e9:.9f}")
    if check.outcome is Answer.FAIL:
        found = ElementTree.SubElement(case, "failure", type=j.verdict, message=sentence(check))
        found.text = _details(j)
    elif check.outcome is Answer.INCONCLUSIVE:
        found = ElementTree.SubElement(case, "error", type=j.verdict, message=sentence(check))
        found.text = _details(j)
    elif _is_waved_through(check):
        ElementTree.SubElement(case, "skipped", message=sentence(check))
    ElementTree.SubElement(case, "system-out").text = _details(j)


def _is_waved_through(check: Ruling) -> bool:
    """Whether it passes only because the policy says that what is open passes."""
    j = check.judgement
    return (
        check.outcome is Answer.PASS
        and j.verdict in (Verdict.INCONCLUSIVE, Verdict.DESCRIBED)
        and not j.excludes_regression
    )


def _details(j: Judgement) -> str:
    unit = symbol(j.unit)
    shift = f"shift {text(j.shift, j.unit, is_signed=True)} {unit}, 95 % interval {interval_text(j)} {unit}"
    return f"{shift}, tolerance ±{text(j.tolerance, j.unit)} {unit}; {power_text(j)}"
