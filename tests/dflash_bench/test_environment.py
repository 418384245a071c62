"""What must be alike for two runs to be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_runs import run

from dflash_bench.environment import CONDITIONS, STACK, Effect, differences, is_refused, stack

INFO = run([], seed=0, steps=100, **{"version.torch": "2.13.0", "driver": "550.1"}).info


def test_runs_that_are_alike_do_not_differ():
    assert differences([INFO, INFO], [INFO]) == ()


@pytest.mark.parametrize(
    ("change", "name", "effect"),
    [
        ({"device": "H300"}, "device", Effect.REFUSED),
        ({"workload": None}, "workload", Effect.REFUSED),
        ({"settings": {**INFO.settings, "workload_toml": "x"}}, "workload file", Effect.MARKED),
        ({"world": 4}, "world", Effect.REFUSED),
        ({"settings": {**INFO.settings, "driver": "570.2"}}, "driver", Effect.REFUSED),
        ({"settings": {"seed": 0, "steps": 100, "version.torch": "2.13.0"}}, "driver", Effect.MARKED),
        ({"settings": {**INFO.settings, "power_limit_w": "350.00"}}, "power limit", Effect.MARKED),
        ({"settings": {**INFO.settings, "cpu": "AMD EPYC"}}, "cpu", Effect.MARKED),
        ({"settings": {**INFO.settings, "cores": 2}}, "cores", Effect.MARKED),
        ({"settings": {**INFO.settings, "delay": "2:150"}}, "delay", Effect.MARKED),
        ({"settings": {**INFO.settings, "check": True}}, "check", Effect.MARKED),
        ({"settings": {**INFO.settings, "backend": "nccl"}}, "backend", Effect.MARKED),
        ({"settings": {**INFO.settings, "seed": 3}}, "seed", Effect.MARKED),
        ({"settings": {**INFO.settings, "steps": 99}}, "steps", Effect.MARKED),
        ({"settings": {**INFO.settings, "version.torch": "2.11.0"}}, "torch", Effect.MARKED),
    ],
)
def test_each_key_is_told_with_both_values_and_what_follows(change, name, effect):
    (found,) = differences([INFO], [replace(INFO, **change)])
    assert (found.condition.name, found.effect) == (name, effect)
    assert found.finding.code == f"different_{name.replace(' ', '_')}"
    assert ("no verdicts" in found.finding.text) == (effect is Effect.REFUSED)
    assert is_refused([found]) == (effect is Effect.REFUSED)


def test_runs_of_one_side_that_differ_among_themselves_are_told_too():
    (found,) = differences([INFO, replace(INFO, device="H300")], [INFO])
    assert found.base == "H300 and simulated"


def test_the_stack_names_what_the_run_states():
    assert stack(INFO) == {"torch": "2.13.0", "driver": "550.1"}
    assert set(STACK) <= {each.name for each in CONDITIONS}


def test_a_run_that_does_not_say_is_not_taken_for_alike():
    silent = replace(INFO, settings={k: v for k, v in INFO.settings.items() if k != "seed"})
    (found,) = differences([INFO], [silent])
    assert found.candidate == "not stated"


def test_workload_files_of_one_name_that_say_different_things_are_no_pair():
    one, other = (replace(INFO, settings={**INFO.settings, "workload_toml": text}) for text in ("a = 1", "a = 2"))
    (found,) = differences([one], [other])
    assert is_refused([found])
    assert "a = 1" not in found.finding.text, "its text is long; a fingerprint tells as much"
