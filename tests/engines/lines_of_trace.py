"""Which functions of an engine the host's time goes to, from a torch trace with Python's frames.

    python tests/engines/lines_of_trace.py TRACE.json.gz [--package sglang] [--step decode_step] [--top 40]

For each function of the package, by its file and first line: its time with all that it calls, its time without what it
calls of the package, and its calls; a step, of all steps. Frames make Python slower, most where calls are small, so
shares are to be read and not times.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from pathlib import Path


def read(file: Path) -> list[dict]:
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rb") as text:
        return [event for event in json.load(text)["traceEvents"] if event.get("ph") == "X"]


def times_of(events: list[dict], package: str, step: str) -> tuple[float, dict[str, list[float]]]:
    """The mean step in µs, and of each function [inclusive, own, calls] a step."""
    steps = sorted((e["ts"], e["ts"] + e["dur"], e["tid"]) for e in events
                   if e["name"] == step and e.get("cat") == "user_annotation")  # fmt: skip
    first, last, thread = steps[0][0], steps[-1][1], steps[0][2]
    frames = sorted(
        (e["ts"], -e["dur"], e["name"])
        for e in events
        if e.get("cat") == "python_function" and e["tid"] == thread and first <= e["ts"] < last
        and f"{package}/" in e["name"].partition("(")[0]
    )  # fmt: skip
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    open_frames: list[tuple[float, str]] = []
    for begin, minus, name in frames:
        end = begin - minus
        while open_frames and open_frames[-1][0] <= begin:
            open_frames.pop()
        if all(name != other for _, other in open_frames):
            found[name][0] -= minus
        found[name][1] -= minus
        found[name][2] += 1
        if open_frames:
            found[open_frames[-1][1]][1] += minus
        open_frames.append((end, name))
    return (last - first) / len(steps), {name: [each / len(steps) for each in values] for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--package", default="sglang")
    parser.add_argument("--step", default="decode_step")
    parser.add_argument("--top", type=int, default=40)
    args = parser.parse_args()
    mean, found = times_of(read(args.trace), args.package, args.step)
    print(f"a step takes {mean:,.0f} us")
    print("inclusive      own  calls  function")
    for name, (whole, own, calls) in sorted(found.items(), key=lambda each: -each[1][0])[: args.top]:
        print(f"{whole / mean:9.1%} {own / mean:8.1%} {calls:6.1f}  {name}")


if __name__ == "__main__":
    main()
