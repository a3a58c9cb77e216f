"""A trainer with planted faults, which knows nothing of this project: a loss and step times that are noise around a
level, text files as checkpoints. Faults in `config.json`'s `extra` begin at a step, or happen a number of times:

    slow_from, slow_by          step seconds grow by this part
    excess_from, excess         the loss lies so many nats higher
    nan_at, nan_times           the loss of these steps is NaN, in the first so many attempts to take them
    exit_at_nan                 as a trainer that refuses to go on with it
    hang_at, hang_times         no step more, for ever
    wait_at, wait_for           no step more until a file is there
"""

import json
import random
import sys
import time
from pathlib import Path


def main(folder):
    config = json.loads((folder / "config.json").read_text())
    extra, length = config["extra"], config["sequence_length"]
    files = sorted((folder / "checkpoints").glob("*.state"))
    done, tokens = map(int, files[-1].read_text().split()) if files else (config["start"]["step"], 0)
    last = config["spans"][-1]["first_step"] + config["spans"][-1]["steps"] - 1
    with (folder / "metrics.jsonl").open("a", buffering=1) as metrics:
        metrics.write(json.dumps({"kind": "header", "trainer": "faulty"}) + "\n")
        for span in config["spans"]:
            for step in range(max(done + 1, span["first_step"]), span["first_step"] + span["steps"]):
                stand_still(folder, extra, step)
                tokens += span["batch_sequences"] * length
                noise = random.Random(f"{config['seed']} {step}")
                loss = 3.0 + noise.gauss(0.0, 0.005)
                loss += extra.get("excess", 0.0) if step >= extra.get("excess_from", last + 1) else 0.0
                seconds = 0.5 + noise.gauss(0.0, 0.005)
                seconds *= 1.0 + extra.get("slow_by", 0.0) if step >= extra.get("slow_from", last + 1) else 1.0
                if step in extra.get("nan_at", ()) and first_times(folder, f"nan_{step}", extra.get("nan_times", 1)):
                    loss = float("nan")
                times = {"step_seconds": seconds, "wall_seconds": 0.01, "time": time.time()}
                metrics.write(json.dumps({"step": step, "tokens": tokens, "loss": loss, **times}) + "\n")
                if loss != loss and extra.get("exit_at_nan"):
                    sys.exit(f"step {step}: the loss is not a number")
                if step % config["checkpointing"]["every_steps"] == 0 or step in (config["hand_over_step"], last):
                    save(folder, step, tokens)


def save(folder, step, tokens):
    (folder / "checkpoints").mkdir(exist_ok=True)
    draft = folder / "checkpoints" / ".draft"
    draft.write_text(f"{step} {tokens}")
    draft.rename(folder / "checkpoints" / f"{step:08d}.state")


def first_times(folder, what, times):
    """Say whether this is one of the first so many times, over all attempts."""
    for number in range(times):
        mark = folder / f"{what}.{number}"
        if not mark.exists():
            mark.touch()
            return True
    return False


def stand_still(folder, extra, step):
    if step == extra.get("hang_at") and first_times(folder, "hang", extra.get("hang_times", 1)):
        while True:
            time.sleep(60)
    while step == extra.get("wait_at") and not Path(extra["wait_for"]).exists():
        time.sleep(0.01)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
