"""What a person decides on a run: promote, amend, tell; and the checkpoints of it."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from tasks.errors import ConfigInvalid, ScaleupError
from tasks.run import find_run, ladder_of, user
from tasks.stage_dir import RunDir, StageDir

if TYPE_CHECKING:
    pass


def promote(options: Namespace) -> int:
    """Promote a stage by a person's word."""
    from tasks.promote import override

    stage = _stage(options.run, options.stage)
    record = override(stage, options.because, options.by or user())
    if record.get("kind") == "leave":
        print(f"{stage.name} has {record['person']}'s leave to go on: {record['because']}")
        print(f"it starts when its run goes on: in Airflow clear its tasks, or scaleup run {_go_on(stage.run)}")
    else:
        who = record["person"] or "its gates"
        print(f"{stage.name} is promoted by {who}: {record['because']}\n{record['checkpoint']['path']}")
    return 0


def checkpoints(options: Namespace) -> int:
    """Look at a run's checkpoints."""
    from tasks.cli import checkpoints as verbs

    return int(getattr(verbs, options.verb)(options))


def amend(options: Namespace) -> int:
    """Change the recipe of a run under way, from a checkpoint on."""
    from tasks.amend import Asked, amend

    stage = _stage(options.run, options.stage)
    asked = Asked.said(options.set, options.skip_samples, options.image, options.code, options.from_step)
    done = amend(stage, asked, because=options.because, by=options.by or user())
    print(f"revision {done.revision.number} of the recipe holds for {stage.name} after step {done.revision.step}:")
    print("\n".join(f"  {line}" for line in done.revision.said))
    if done.attempt is not None:
        print(f"attempt {done.attempt} goes on under it; whoever watched the stage watches on")
    else:
        print(f"it holds when the run goes on: in Airflow clear its tasks, or scaleup run {_go_on(stage.run)}")
    return 0


def tell(options: Namespace) -> int:
    """Tell what is new in a run, or try a channel."""
    from tasks.config.telling import load_telling
    from tasks.telling import tell as told
    from tasks.telling import try_channel

    telling = load_telling()
    if options.try_channel is None:
        print("\n".join(told(find_run(options.run))) or "there is nothing new to tell, or nobody to tell it to")
        return 0
    channel = telling.channels.get(options.try_channel)
    if channel is None:
        there = ", ".join(sorted(telling.channels)) or "none, see configs/telling.yaml"
        raise ConfigInvalid(f"--try {options.try_channel}: there is no such channel; there are: {there}")
    try_channel(options.try_channel, channel, options.owner)
    print(f"{options.try_channel} took a trial message")
    return 0


def _stage(said: str, name: str) -> StageDir:
    found = find_run(said)
    names = [decided.name for decided in ladder_of(found).stages]
    if name not in names:
        raise ScaleupError(
            f"{found.experiment}/{found.run_id} has no stage {name!r}; its stages are {', '.join(names)}"
        )
    return found.stage(name)


def _go_on(found: RunDir) -> str:
    return f"{found.experiment} --run-id {found.run_id}"
