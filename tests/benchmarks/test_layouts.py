"""Every layout for 50 steps on eight real processes, beside one process; `make test` gives most of them four.

Printed is the largest difference of a step's loss, relative in float32 and in nats in bf16.
"""

import layouts
from test_parallel import in_a_world_of_eight, same_curve

STEPS = 50


def test_fifty_steps_of_every_layout_are_those_of_one_process(tmp_path):
    found = in_a_world_of_eight(tmp_path, STEPS, timeout=1500)
    print(f"\n{STEPS} steps on {layouts.PROCESSES} processes, float32: largest relative difference of a loss; gradient")
    for name, said in found["curves"].items():
        alone, cut = said["alone"]["loss"], said["cut"]["loss"]
        assert len(cut) == STEPS
        worst = max(abs(one - other) / one for one, other in zip(alone, cut, strict=True))
        print(f"  {name:34} {worst:8.1e} {said['gradient_error']:8.1e}")
    print("bf16: largest difference in nats")
    for name, said in found["bf16"].items():
        pairs = zip(said["alone"]["loss"], said["cut"]["loss"], strict=True)
        print(f"  {name:34} {max(abs(one - other) for one, other in pairs):8.1e}")
    for said in found["curves"].values():
        same_curve(said["alone"], said["cut"])
