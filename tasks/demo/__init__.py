"""``scaleup demo``: Airflow and MLflow start here, a ladder climbs in them, and the terminal follows it live."""

from __future__ import annotations

import argparse
import errno
import getpass
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from rich.console import Console

from tasks.demo import preflight
from tasks.demo.follow import follow, waiting_line
from tasks.demo.summary import addresses, links, summary
from tasks.errors import ScaleupError
from tasks.run import new_run_id, runs
from tasks.run_id import safe
from tasks.services import airflow, mlflow
from tasks.services.airflow_api import AirflowApi, AirflowRefused, AirflowUnreachable, wait_seconds
from tasks.services.interruption import Interrupted, Interruption
from tasks.services.process import ServiceFailed
from tasks.services.together import Together, only_one
from tasks.stage_dir import RunDir, StageDir, read_json

DAG_SECONDS = 120.0
_INTERRUPTED = 130  # what a shell says of a command that Ctrl-C ended
_ENDED_HERE = "ended from the terminal of `make demo`"


def parser() -> argparse.ArgumentParser:
    """Return the command line of ``scaleup demo``."""
    new = argparse.ArgumentParser(prog="scaleup demo", description=__doc__)
    new.add_argument("experiment", nargs="?", default="gpt_stdlib", help="a file in configs/experiments")
    new.add_argument(
        "--keep",
        action=argparse.BooleanOptionalAction,
        default=os.environ.get("KEEP", "1") not in ("0", "no", "false"),
        help="leave both UIs up until Ctrl-C when the ladder has ended",
    )
    new.add_argument("--airflow-port", type=int, default=8080, metavar="PORT")
    new.add_argument("--mlflow-port", type=int, default=5000, metavar="PORT")
    new.add_argument("--new", action="store_true", help="start a new run, also where an earlier one is unfinished")
    return new


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 where every stage was promoted, 1 where not, 130 after Ctrl-C."""
    options = parser().parse_args(argv)
    console = Console(highlight=False)
    try:
        with Interruption() as interruption, only_one():
            return _demo(options, console, interruption)
    except ScaleupError as error:
        console.print(f"[bold red]demo:[/] {error}", markup=True, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EPIPE):
            raise
        # The terminal was closed, or `| head` has enough. What Python would still print at its end goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _INTERRUPTED


def _demo(options: argparse.Namespace, console: Console, interruption: Interruption) -> int:
    for name in preflight.end_leftovers():
        console.print(f"{name} of an earlier demo was still there and has been ended", style="dim")
    preflight.check(options.experiment, options.airflow_port, options.mlflow_port)
    os.environ["MLFLOW_TRACKING_URI"] = mlflow.url(options.mlflow_port)
    os.environ["SCALEUP_AIRFLOW_URL"] = airflow.url(options.airflow_port)
    together = Together(
        [mlflow.service(options.mlflow_port)],
        tell=lambda line: console.print(f"  {line}", style="dim"),
        waiting=waiting_line(console),
        shield=interruption.shield,
    )
    with _ended(together, console, interruption):
        _start(together, options, console)
        api = airflow.api(options.airflow_port)
        dag_id = f"scale_up_{options.experiment}"
        _wait_for_dag(together, api, dag_id)
        run_id = _begin(api, dag_id, options, console)
        run = RunDir.of(options.experiment, safe(run_id))
        try:
            _start_the_rest(together)
            state = follow(run, lambda: api.state(dag_id, run_id), together.mend, console)
        except BaseException:  # Ctrl-C, or the terminal that it was shown in is gone
            _give_up(api, dag_id, run_id)
            raise
        together.wait_healthy()
        console.print(summary(run, state))
        for line in links(run, options.airflow_port):
            console.print(line, markup=False, soft_wrap=True)
        code = 0 if state == "success" else 1
        if options.keep:
            _stay(together, console)
    return code


def _start(together: Together, options: argparse.Namespace, console: Console) -> None:
    """Start what a ladder needs for its first steps, and return when Airflow takes a run: the rest may follow it."""
    console.print("starting Airflow and MLflow, on 127.0.0.1 alone")
    (tracking,) = together.services
    if not airflow.is_prepared():
        together.launch(tracking)  # bringing the database up to date keeps one core busy; this is for the other
        together.waiting("Airflow's database, which is made once")
        airflow.prepare_database(options.airflow_port)
        together.waiting("")
    airflow.configure(options.airflow_port)
    for line in addresses(options.airflow_port, options.mlflow_port):
        console.print(line, markup=False, soft_wrap=True)
    api_server, scheduler, dag_processor, triggerer = airflow.services(
        options.airflow_port, mlflow.url(options.mlflow_port)
    )
    together.services = [tracking, api_server, scheduler, dag_processor, triggerer]
    for service in (api_server, dag_processor):  # a run is taken by the one, and its DAG is found by the other
        together.launch(service)
    together.wait_for(api_server, lambda: airflow.answers(options.airflow_port))
    together.launch(scheduler)


def _start_the_rest(together: Together) -> None:
    """Wait until the run's first tasks can run, and only then start what they need later: two cores are soon busy."""
    together.wait_healthy()
    # What is logged before MLflow is up is delivered later, and no step of a ladder waits for a trigger.
    for service in together.services:
        if service.name not in together.running:
            together.launch(service)


def _begin(api: AirflowApi, dag_id: str, options: argparse.Namespace, console: Console) -> str:
    """Return the run to follow: an unfinished one of this experiment goes on, else a new one starts."""
    api.unpause(dag_id)
    for earlier, note in api.unfinished(dag_id).items():
        if options.new or note == _ENDED_HERE or _was_given_up(RunDir.of(options.experiment, safe(earlier))):
            api.mark_run_failed(dag_id, earlier, _ENDED_HERE)  # its teardowns, still to come, let the next one in
        else:
            console.print(f"run {earlier} is unfinished and goes on; `--new` would start another")
            return earlier
    run_id = new_run_id()
    api.trigger(dag_id, run_id, {"note": f"demo, started by {getpass.getuser()}"})
    return run_id


def _wait_for_dag(together: Together, api: AirflowApi, dag_id: str) -> None:
    """Wait until Airflow has the DAG as its file is now: one of an earlier demo may have other stages."""
    (dag_processor,) = (service for service in together.services if service.name == "airflow-dag-processor")
    since = together.running[dag_processor.name].started
    try:
        together.wait_for(dag_processor, lambda: api.has_dag(dag_id, since), DAG_SECONDS)
    except ServiceFailed as error:
        if not together.running[dag_processor.name].alive:
            raise
        errors = "\n".join(api.import_errors()) or "Airflow reports no import error"
        raise ScaleupError(f"Airflow has no DAG {dag_id} after {DAG_SECONDS:.0f} s: {errors}") from error


def _was_given_up(run: RunDir) -> bool:
    """Say whether a person ended the run, for instance with Ctrl-C."""
    return any((read_json(path) or {}).get("cause") == "person" for path in run.path.glob("*/cause.json"))


def _give_up(api: AirflowApi, dag_id: str, run_id: str) -> None:
    # Where this fails, the next demo does it: the stage's cause says that a person ended the run.
    with suppress(AirflowUnreachable, AirflowRefused):
        replace(api, timeout=5.0).mark_run_failed(dag_id, run_id, _ENDED_HERE)


@contextmanager
def _ended(together: Together, console: Console, interruption: Interruption) -> Iterator[None]:
    """End all services and their jobs when the block ends, however it ends."""
    try:
        yield
    finally:
        interruption.ignore()
        with suppress(OSError):  # where the terminal was closed, nobody reads this
            console.print("ending Airflow and MLflow", style="dim")
        try:
            together.stop()
        finally:
            end_jobs()


def end_jobs() -> list[str]:
    """Cancel the local jobs of all runs that Airflow started in this home; return a line for each."""
    from tasks.cancel import cancel, mark_person
    from tasks.launch import job_of, launcher_of
    from tasks.run import plan_of

    ended = []
    for run in runs():
        if "dag_id" not in (read_json(run.info) or {}).get("origin", {}):
            continue  # `scaleup run` in another terminal looks after its own
        for path in run.path.glob("*/job.json"):
            stage = StageDir(path.parent)
            job = job_of(stage)
            if job is not None and not launcher_of(plan_of(stage)).poll(job).over:
                mark_person(stage, getpass.getuser(), "the demo was ended in the terminal")
                ended.append(cancel(stage))
    return ended


def _stay(together: Together, console: Console) -> None:
    console.print("\nBoth UIs stay up until Ctrl-C.", style="bold")
    try:
        while True:
            together.mend()
            wait_seconds(1.0)
    except Interrupted:
        console.print()


if __name__ == "__main__":
    sys.exit(main())
