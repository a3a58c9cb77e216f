"""``python -m tasks.services.airflow_main ARGUMENTS``: the command ``airflow``, with garbage collected rarely.

Its API server makes over 900,000 objects that stay while it imports and builds itself; looking through them again and
again took a fifth to a third of its processor time here (10.5 s became 7.3 s, 11.3 s became 9.3 s). What is garbage
is freed later, not never.
"""

from __future__ import annotations

import gc
import runpy

THRESHOLDS = (50_000, 20, 100)  # Python's own are 700, 10, 10

if __name__ == "__main__":
    gc.set_threshold(*THRESHOLDS)
    runpy.run_module("airflow", run_name="__main__", alter_sys=True)
