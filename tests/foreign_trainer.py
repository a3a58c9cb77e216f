"""A trainer of another make: it knows config.json, metrics.jsonl and the exit code, and nothing else of this project.

Its model is one number that descends to 3; its checkpoints are text files of its own. It saves at the hand-over and on
SIGUSR1, goes on from its newest file, and cannot replay. `config.json`'s `extra` may tell it to wait for a file or to
die once.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

FIELDS = {"loss": "real", "step_seconds": "modelled", "tokens_per_gpu_second": "modelled"}
asked_to_stop = []


def main(folder):
    signal.signal(signal.SIGUSR1, lambda *_: asked_to_stop.append(True))
    config = json.loads((folder / "config.json").read_text())
    last = config["spans"][-1]["first_step"] + config["spans"][-1]["steps"] - 1
    extra, length = config["extra"], config["sequence_length"]
    step, tokens, weight = resume(folder, config["start"])
    with (folder / "metrics.jsonl").open("a", buffering=1) as metrics:
        metrics.write(json.dumps({"kind": "header", "trainer": "foreign", "fields": FIELDS}) + "\n")
        if step == config["start"]["step"]:
            metrics.write(json.dumps(held_out(step, tokens, weight, "start")) + "\n")
        for span in config["spans"]:
            for number in range(max(step + 1, span["first_step"]), span["first_step"] + span["steps"]):
                obey(folder, extra, number)
                noise = random.Random(f"{config['seed']} {number}").gauss(0.0, 0.01)
                loss = (weight - 3.0) ** 2 + 1.0 + noise
                weight -= 20 * span["learning_rate"] * 2 * (weight - 3.0)
                tokens += span["batch_sequences"] * length
                if number == extra.get("diverge_at"):
                    loss = float("nan")
                record = {"step": number, "tokens": tokens, "loss": loss, "phase": span["phase"], "time": time.time()}
                seconds = random.Random(f"speed {config['seed']} {number}").gauss(0.5, 0.005)
                speed = span["batch_sequences"] * length / config["gpus"] / seconds
                record |= {"step_seconds": seconds, "tokens_per_gpu_second": speed}
                metrics.write(json.dumps(record) + "\n")
                if number in (config["hand_over_step"], last):
                    path = save(folder, number, tokens, weight)
                    if not extra.get("silent"):
                        metrics.write(json.dumps(held_out(number, tokens, weight, "step")) + "\n")
                        metrics.write(json.dumps({"kind": "checkpoint", "step": number, "path": str(path)}) + "\n")
                elif number % config["checkpointing"]["every_steps"] == 0:
                    save(folder, number, tokens, weight)
                step = number
                if asked_to_stop and number < last:
                    save(folder, number, tokens, weight)
                    return
        metrics.write(json.dumps(held_out(step, tokens, weight, "end")) + "\n")


def resume(folder, start):
    files = sorted((folder / "checkpoints").glob("*.state"))
    if not files and start["checkpoint"] is None:
        return 0, 0, 0.0
    step, tokens, weight = (files[-1] if files else Path(start["checkpoint"])).read_text().split()
    return int(step), int(tokens), float(weight)


def save(folder, step, tokens, weight):
    (folder / "checkpoints").mkdir(exist_ok=True)
    draft = folder / "checkpoints" / ".draft"
    draft.write_text(f"{step} {tokens} {weight!r}")
    return draft.rename(folder / "checkpoints" / f"{step:08d}.state").relative_to(folder)


def held_out(step, tokens, weight, at):
    return {"kind": "held_out", "step": step, "tokens": tokens, "loss": (weight - 3.0) ** 2 + 1.0, "at": at}


def evaluate(checkpoint):
    step, tokens, weight = checkpoint.read_text().split()
    print(json.dumps({"loss": held_out(int(step), int(tokens), float(weight), "")["loss"], "sequences": 1}))


def checkpoints(folder):
    for path in sorted((folder / "checkpoints").glob("*.state")):
        whole = len(path.read_text().split()) == 3
        print(json.dumps({"step": int(path.stem), "path": f"checkpoints/{path.name}", "whole": whole}))


def obey(folder, extra, number):
    if number == extra.get("fail_at"):
        sys.exit("the loss function is not defined here")
    if number == extra.get("die_at") and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    while number == extra.get("wait_at") and not Path(extra["wait_for"]).exists() and not asked_to_stop:
        time.sleep(0.01)


if __name__ == "__main__":
    {"evaluate": evaluate, "checkpoints": checkpoints}.get(sys.argv[1], main)(Path(sys.argv[-1]))
