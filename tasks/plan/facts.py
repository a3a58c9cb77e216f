"""What gates may know of a stage, from its plan."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.gates.core import StageFacts
    from tasks.plan import StagePlan

_FROM_ELSEWHERE = {"fingerprint", "memory_gib_per_gpu", "tier_ends", "asks_canary", "steps_at_stake"}


def facts(plan: StagePlan, fingerprint: str) -> StageFacts:
    """Return the facts of a stage; ``fingerprint`` is the data's, empty before a trainer has said it."""
    from tasks.gates.core import StageFacts

    same = {field.name for field in dataclasses.fields(StageFacts)} - _FROM_ELSEWHERE
    asks = "canary" in plan.gates and plan.gates["canary"].get("shadow") is not True
    network = plan.cluster.network
    joined = [tier.gpus for tier in network.tiers] if network else []
    return StageFacts(
        fingerprint=fingerprint,
        memory_gib_per_gpu=plan.cluster.memory_gib_per_gpu,
        tier_ends=(plan.cluster.gpus_per_node, *(joined or [plan.cluster.gpus])),
        asks_canary=asks,
        steps_at_stake=_until_the_canary(plan) if asks and plan.steps_in("canary") else plan.real.steps,
        **{name: getattr(plan, name) for name in same},
    )


def _until_the_canary(plan: StagePlan) -> int:
    """Steps of the real stage after which its canary has judged."""
    replayed = plan.real.hand_over_steps if plan.steps_in("replay") else 0
    return plan.real.canary_steps + replayed
