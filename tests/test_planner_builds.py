"""What the planner calls a candidate compiles: a seeded sample of the ranked ones of problems of every sort.

scripts/check_plan_space.py builds every kind of the main kernel there is; this asks the planner.
"""

from __future__ import annotations

import random

import pytest

import tilewright
from tilewright import branches, ladder, nvrtc
from tilewright.plan_branch import BranchPlan
from tilewright.planner.candidate import Candidate
from tilewright.planner.family import families

pytestmark = pytest.mark.skipif(not nvrtc.available(), reason="cuda-core or NVRTC is not installed")

SAMPLED = 3  # families of each question, besides its pick
QUESTIONS = (
    ((8192, 8192, 8192), {"layout": "rc"}),
    ((640, 7168, 7168), {"layout": "rr"}),
    ((16, 4096, 4096), {"layout": "cc"}),
    ((8192, 8192, 512), {"layout": "cr", "dtype": "fp16"}),
    ((300, 5000, 777), {"layout": "rc"}),  # lines that TMA cannot read
    ((1024, 1024, 1024), {"dtype": "fp32"}),
    ((1, 2112, 7168), {"layout": "rc", "pdl": True}),
    ((8, 4096, 4096), {"layout": "rc"}),
)


def sample() -> list[Candidate]:
    rng = random.Random(1)
    found: list[Candidate] = []
    for shape, more in QUESTIONS:
        first, *ranked = tilewright.plan(*shape, gpu="h200", **more).ranked
        of: dict[str, list[Candidate]] = {}
        for each in ranked:
            of.setdefault(each.family, []).append(each)
        some = [first, *(rng.choice(of[name]) for name in rng.sample(sorted(of), min(SAMPLED, len(of))))]
        found += [each for each in some if each.plan not in [other.plan for other in found]]
    return found


def test_the_sample_is_of_every_family() -> None:
    kinds = sample()
    assert {each.family for each in kinds} == {each.name for each in families()}
    assert len({(each.family, each.label, each.plan) for each in kinds}) == len(kinds) > 20


@pytest.mark.parametrize("candidate", sample(), ids=lambda each: f"{each.family} {each.label}")
def test_a_candidate_compiles_without_a_warning(candidate: Candidate) -> None:
    assert candidate.plan is not None
    plan = candidate.plan
    file = branches.kernel(plan.branch, plan.kernel) if isinstance(plan, BranchPlan) else ladder.rung(plan.rung)
    report = nvrtc.compile_kernel(file.source(plan, "gpu", "sm_90a")).report
    assert not report.warnings
    assert report.registers is not None
    assert 0 < report.registers <= 255
