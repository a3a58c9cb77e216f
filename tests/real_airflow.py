"""One real Airflow and one real MLflow for all tests that need them, looked after as the demo does."""

import os
import signal
import threading
from contextlib import contextmanager
from urllib.parse import quote

from running import until

from tasks.demo import end_jobs
from tasks.launchers.processes import marked
from tasks.run_id import safe
from tasks.services import airflow, mlflow, ports
from tasks.services.airflow_api import AirflowUnreachable, fetch
from tasks.services.together import Together
from tasks.stage_dir import RunDir, home, read_json


class RealAirflow:
    """The services, and what tests do to them."""

    def __init__(self):
        self.port, self.mlflow_port = ports.free_port(), ports.free_port()
        self.mlflow_url = mlflow.url(self.mlflow_port)
        self.together = Together([])
        self._ended = threading.Event()
        self._looking_after = threading.Thread(target=self._look_after)
        self.api = None

    @contextmanager
    def up(self):
        """Start all, mend what dies, and end all."""
        airflow.prepare(self.port)
        self.together.services = [mlflow.service(self.mlflow_port), *airflow.services(self.port, self.mlflow_url)]
        try:
            self.together.start()
            self.api = airflow.api(self.port)
            self._looking_after.start()
            yield self
        finally:
            self._ended.set()
            if self._looking_after.is_alive():
                self._looking_after.join()
            self.together.stop()
            end_jobs()

    def _look_after(self):
        while not self._ended.wait(0.3):
            self.together.mend()

    def trigger(self, experiment, run_id, **conf):
        """Start a DAG run through the API; return its folder."""
        dag_id = f"scale_up_{experiment}"
        until(lambda: self.api.has_dag(dag_id), 90)
        self.api.unpause(dag_id)
        self.api.trigger(dag_id, run_id, conf)
        return RunDir.of(experiment, safe(run_id))

    def states(self, run):
        """Return the state of each task; nothing while the API server is away."""
        try:
            return self.api.task_states(f"scale_up_{run.experiment}", run.run_id)
        except AirflowUnreachable:
            return {}

    def wait_for(self, run, task, *states, seconds=90):
        """Wait until a task is in one of the states."""
        return until(lambda: self.states(run).get(task) in states, seconds)

    def ended(self, run, seconds=120):
        """Wait until the DAG run has ended; return how."""

        def state():
            try:
                found = self.api.state(f"scale_up_{run.experiment}", run.run_id)
            except AirflowUnreachable:
                return None
            return found if found in ("success", "failed") else None

        return until(state, seconds)

    def question(self, run, task):
        """Wait until a person is asked; return what, as Airflow would show it."""
        self.wait_for(run, task, "awaiting_input")
        # Airflow fails a task that is answered before its scheduler has heard the end of the process that asked. That
        # takes less than a second, so no person meets it.
        heard, log = f"task_id='{task}', run_id='{run.run_id}'", home() / "services" / "airflow-scheduler.log"
        until(lambda: any(heard in line and "Received executor event" in line for line in log.read_text().splitlines()))
        return self.api.call(self._asked(run, task))["body"]

    def answer(self, run, task, option, **said):
        """Answer as a person does on Airflow's page "Required Actions"."""
        self.api.call(self._asked(run, task), {"chosen_options": [option], "params_input": said}, "PATCH")

    def _asked(self, run, task):
        place = f"/dags/scale_up_{run.experiment}/dagRuns/{quote(run.run_id)}/taskInstances/{task}"
        return f"{place}/-1/hitlDetails"

    def kill_service(self, name):
        """Kill -9 a service's main process and wait until another has taken its place."""
        before = self.together.running[name]
        os.kill(before.pid, signal.SIGKILL)
        until(lambda: self.together.running[name].pid != before.pid)

    def kill_tasks(self):
        """Kill -9 every process that runs a task's code: Airflow gives each a process group of its own."""
        scheduler = self.together.running["airflow-scheduler"]
        victims = [p for p in scheduler.members() if p.pid != scheduler.pid and os.getpgid(p.pid) == p.pid]
        for victim in victims:
            victim.kill()
        return len(victims)

    def tries(self, run, task):
        """Return how often a task was begun."""
        path = f"/dags/scale_up_{run.experiment}/dagRuns/{quote(run.run_id)}/taskInstances/{task}"
        return self.api.call(path)["try_number"]

    def logged_tokens(self, stage, key="curves/loss"):
        """Return the token axis of a stage's curve as MLflow has it, each stored point once."""
        run_id = read_json(stage.tracking)["run_id"]
        query = f"run_id={run_id}&metric_key={quote(key, safe='')}&max_results=10000"
        found = fetch(f"{self.mlflow_url}/api/2.0/mlflow/metrics/get-history?{query}")
        return [point["step"] for point in found["metrics"]]


def kill_job(stage):
    """Kill -9 the trainer of a stage's job, once it runs."""
    for victim in until(lambda: marked(read_json(stage.job)["name"])):
        os.kill(victim["pid"], signal.SIGKILL)
