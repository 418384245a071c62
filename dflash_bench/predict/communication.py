"""What an agreement takes once the last rank has arrived, among a number of ranks.

Measured where a profile has that number of ranks; between and beyond, a line in log2(ranks) or in ranks through several
profiles, whichever lies nearer; or what the user says. With one profile and nothing said it is what that profile has,
and the prediction says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dflash_bench.errors import UsageError
from dflash_bench.model import FloatArray
from dflash_bench.predict.trace import StepTrace


class CommunicationSource(StrEnum):
    """Where the time of an agreement comes from."""

    MEASURED = "measured"
    FITTED = "fitted"
    GIVEN = "given"
    UNCHANGED = "as in the profile, for want of another"


@dataclass(frozen=True, slots=True)
class Communication:
    """The agreement among a number of ranks: samples in ns to redraw from, a factor on them with its relative error."""

    samples: FloatArray
    factor: float
    error: float
    source: CommunicationSource
    law: str | None = None

    @property
    def mean_ns(self) -> float:
        return float(self.samples.mean()) * self.factor


def measure_communication(traces: Sequence[StepTrace]) -> FloatArray:
    """Time of each agreement of a run behind its last arrival, float64 [n] in ns.

    The rank that came last waits for nobody: of the k-th agreement its is the shortest stay, once it is known how much
    later or earlier than the others each one left. No clock is compared, so captures of several hosts do as well.
    """
    n = min(t.num_steps for t in traces)
    stays = np.stack([t.agreement[-n:] - t.leave_skew[-n:] for t in traces])
    shortest: FloatArray = np.maximum(stays.min(axis=0), 0.0)
    return shortest


def communication_for(
    ranks: int, runs: Sequence[Sequence[StepTrace]], given_us: dict[int, float] | None = None
) -> Communication:
    """The agreement among `ranks` ranks; the first of `runs` is the one that is redrawn.

    Raises UsageError for a given time that is not positive.
    """
    own = measure_communication(runs[0])
    if given_us and ranks in given_us:
        if given_us[ranks] <= 0:
            raise UsageError(f"the agreement among {ranks} ranks takes {given_us[ranks]:g} µs: it must be above 0")
        return Communication(own, given_us[ranks] * 1e3 / own.mean(), 0.0, CommunicationSource.GIVEN)
    by_size: dict[int, list[float]] = {}
    for traces in runs:
        by_size.setdefault(len(traces), []).append(float(measure_communication(traces).mean()))
    if ranks in by_size:
        means = np.array(by_size[ranks])
        error = float(means.std(ddof=1) / means.mean()) if len(means) > 1 else 0.0
        return Communication(own, float(means.mean()) / own.mean(), error, CommunicationSource.MEASURED)
    sizes = sorted(size for size in by_size if size > 1) or sorted(by_size)
    if len(sizes) < 2:
        return Communication(own, 1.0, 0.0, CommunicationSource.UNCHANGED)
    return _fit(ranks, own, {size: float(np.mean(by_size[size])) for size in sizes})


def _fit(ranks: int, own: FloatArray, means: dict[int, float]) -> Communication:
    sizes, values = np.array(list(means)), np.array(list(means.values()))
    fits = []
    for name, scale in (("log2(ranks)", np.log2), ("ranks", np.asarray)):
        slope, intercept = np.polyfit(scale(sizes.astype(float)), values, 1)
        miss = float(np.sqrt(np.mean((slope * scale(sizes.astype(float)) + intercept - values) ** 2)))
        fits.append((miss, name, float(slope * scale(np.array(float(ranks))) + intercept), slope, intercept))
    # two points lie on every line: the laws differ only in what they say beyond, and half of that is the doubt
    _, name, value, slope, intercept = min(fits, key=lambda f: f[0]) if len(sizes) > 2 else fits[0]
    other = max(abs(f[2] - value) for f in fits)
    value = max(value, float(values.min()))
    law = f"{intercept / 1e3:.0f} µs + {slope / 1e3:.0f} µs × {name}, through {', '.join(map(str, sizes))} ranks"
    return Communication(own, value / float(own.mean()), other / 2 / value, CommunicationSource.FITTED, law)
