"""People are told once of what happened, by real servers: mail over SMTP, Slack's and PagerDuty's formats over HTTP."""

import json
import threading
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml
from aiosmtpd.controller import Controller
from nightly_cases import TONIGHT, night_of, past_of, plan_file, point
from running import look_to_the_end

from tasks import cli
from tasks.cancel import record_cause
from tasks.errors import ConfigInvalid, GateFailed
from tasks.evaluate import evaluate
from tasks.launch import launch
from tasks.nightly import points
from tasks.nightly.climb import run_night
from tasks.promote import override
from tasks.report import report
from tasks.services.ports import free_port
from tasks.stage_dir import read_json, write_json
from tasks.telling import tell
from tasks.telling.events import events
from tasks.telling.message import bars
from tasks.watch import look

MAIL = {"kind": "smtp", "host": "h", "from": "a@b", "to": ["c@d"]}
IMPOSSIBLE = {"finite_loss": {}, "within": {"metric": "loss", "high": 0.001}}


class Mailbox:
    """What the SMTP server was given."""

    def __init__(self):
        self.mails = []

    async def handle_DATA(self, server, session, envelope):
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))
        return "250 kept"


@pytest.fixture
def mailbox():
    box = Mailbox()
    box.port = free_port()
    controller = Controller(box, hostname="127.0.0.1", port=box.port)
    controller.start()
    yield box
    controller.stop()


@pytest.fixture
def hooks():
    """A web server that keeps what is posted, by path, and answers as it is told to."""

    class Hooks(BaseHTTPRequestHandler):
        posted, answers = [], {}

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code = self.answers.get(self.path, 200)
            if code < 300:
                self.posted.append((self.path, body))
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Hooks)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Hooks.url = f"http://127.0.0.1:{server.server_port}"
    yield Hooks
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def told_to(configs, tmp_path):
    """Write telling.yaml; secrets go to files that are theirs alone."""

    def write(tell, **channels):
        for channel in channels.values():
            for key in ("url_file", "key_file"):
                if key in channel:
                    file = tmp_path / f"{channel['kind']}_secret"
                    file.write_text(channel[key] + "\n")
                    file.chmod(0o600)
                    channel[key] = str(file)
        (configs.root / "telling.yaml").write_text(yaml.safe_dump({"channels": channels, "tell": tell, "tries": 3}))

    return write


def mail(mailbox, *to):
    to = list(to or ["ops@example.org"])
    return {"kind": "smtp", "host": "127.0.0.1", "port": mailbox.port, "from": "scaleup@example.org", "to": to}


def failed(begin, configs):
    """A stage whose gate says no at its end."""
    stage = begin(stages=[{**configs.stages()[0], "gates": IMPOSSIBLE}], owner="mo@example.org")
    launch(stage)
    look_to_the_end(stage)
    with pytest.raises(GateFailed):
        evaluate(stage)
    return stage


def test_a_stage_that_its_gates_refuse_is_mailed_once_with_what_how_much_and_what_to_type(
    begin, configs, mailbox, told_to
):
    told_to({"stopped": ["mail"], "promoted": ["mail"]}, mail=mail(mailbox, "owner", "ops@example.org"))
    stage = failed(begin, configs)
    report(stage)
    report(stage)
    tell(stage.run)
    (first,) = mailbox.mails
    assert first["To"] == "mo@example.org, ops@example.org"
    assert "[scaleup] tiny/run_1: gpus_8 goes no further: within says FAIL" in first["Subject"]
    text = first.get_content()
    assert "- within failed:" in text and "0.001" in text
    assert "loss █" in text and "step 1 to 40" in text
    assert 'scaleup promote tiny/run_1 gpus_8 --because "..."' in text
    assert f"report: {stage.report_html}" in text
    override(stage, "a known glitch", "mo")
    report(stage)
    assert [one["Subject"].strip() for one in mailbox.mails[1:]] == [
        "[scaleup] tiny/run_1: gpus_8 is promoted by mo: a known glitch (rehearsal)"
    ]


def test_slack_and_pagerduty_get_their_formats_and_a_promotion_closes_the_incident(begin, configs, hooks, told_to):
    chat = {"kind": "slack", "url_file": f"{hooks.url}/services/T0/B0/hush"}
    pager = {"kind": "pagerduty", "key_file": "r0utingkey", "url": f"{hooks.url}/v2/enqueue"}
    told_to({"stopped": ["chat", "pager"], "promoted": ["pager"]}, chat=chat, pager=pager)
    stage = failed(begin, configs)
    report(stage)
    (path, said), (_, opened) = hooks.posted
    assert path == "/services/T0/B0/hush" and "gpus_8 goes no further" in said["text"]
    assert [block["type"] for block in said["blocks"]][:2] == ["section", "section"]
    assert all(block["text"]["type"] == "mrkdwn" and len(block["text"]["text"]) <= 3000 for block in said["blocks"])
    assert (opened["event_action"], opened["routing_key"], opened["payload"]["severity"]) == (
        "trigger", "r0utingkey", "critical",
    )  # fmt: skip
    assert opened["payload"]["summary"].startswith("tiny/run_1: gpus_8") and opened["payload"]["source"]
    override(stage, "a known glitch", "mo")
    report(stage)
    (_, closed) = hooks.posted[-1]
    assert closed == {"routing_key": "r0utingkey", "event_action": "resolve", "dedup_key": opened["dedup_key"]}
    kept = (stage.run.path / "told.json").read_text()
    assert "hush" not in kept and "r0utingkey" not in kept


def test_a_channel_that_fails_stops_nothing_is_asked_again_and_given_up(begin, configs, hooks, told_to, capsys):
    chat = {"kind": "slack", "url_file": f"{hooks.url}/hush"}
    told_to({"stopped": ["chat"]}, chat=chat)
    hooks.answers["/hush"] = 503
    stage = failed(begin, configs)
    for _ in range(5):
        report(stage)
    said = capsys.readouterr().err
    assert said.count("telling: chat did not take") == 3 and "503" in said and "hush" not in said
    (known,) = read_json(stage.run.path / "told.json").values()
    assert known["channels"]["chat"]["tries"] == 3 and known["channels"]["chat"]["sent"] is None


def test_a_message_that_did_not_get_through_goes_out_with_the_next_look(begin, configs, hooks, told_to):
    told_to({"stopped": ["chat"]}, chat={"kind": "slack", "url_file": f"{hooks.url}/hush"})
    hooks.answers["/hush"] = 500
    stage = failed(begin, configs)
    report(stage)
    del hooks.answers["/hush"]
    report(stage)
    report(stage)
    assert len(hooks.posted) == 1


def test_a_running_stage_tells_of_pages_of_queues_and_of_old_checkpoints(running, mailbox, told_to):
    told_to({kind: ["mail"] for kind in ("paged", "checkpoint_old", "queue_late")}, mail=mail(mailbox))
    stage = running()
    look(stage)
    live = read_json(stage.live)
    alarm = {"rule": "throughput", "action": "page", "step": 12, "time": 1.0, "says": "steps take 9% longer"}
    write_json(stage.live, {**live, "alarms": [alarm, {**alarm, "step": 14}]})
    write_json(stage.watch, {**read_json(stage.watch), "running_since": 1.0})
    for path in stage.checkpoints.iterdir():
        path.touch()
    assert [event.kind for event in events(stage.run, 1.0)] == ["paged", "paged"]
    seen = read_json(stage.watch)
    write_json(stage.watch, {**seen, "last_look": seen["last_look"] + 7200})
    tell(stage.run)
    tell(stage.run)
    record_cause(stage, "queue", "it waits since 72.1 h")
    tell(stage.run)
    subjects = [one["Subject"].split(": ", 1)[1] for one in mailbox.mails]
    assert subjects[0] == "gpus_8, rule throughput (page): steps take 9% longer (rehearsal)"
    assert "its newest checkpoint, of step 15, is 2.0 h old; at most 1 h is asked" in subjects[1]
    assert subjects[2:] == ["gpus_8 is stopped (queue): it waits since 72.1 h (rehearsal)"]


def test_without_channels_nobody_is_told_and_nothing_is_kept(begin, configs):
    stage = failed(begin, configs)
    report(stage)
    assert tell(stage.run) == [] and not (stage.run.path / "told.json").exists()


def test_a_broken_file_of_channels_harms_no_run_and_is_named_by_the_command(begin, configs, capsys):
    stage = begin()
    (configs.root / "telling.yaml").write_text("channels: {chat: {kind: fax}}")
    assert tell(stage.run) == []
    assert "nobody was told of tiny/run_1" in capsys.readouterr().err
    assert cli.main(["tell", "latest"]) == 2
    assert "telling.yaml is not a valid file of channels" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"tell": {"stopped": ["male"]}}, "tell.stopped.0: unknown channel 'male'; the only channel is mail"),
        ({"tell": {"stoped": ["mail"]}}, "stoped"),
        ({"channels": {"chat": {"kind": "slack", "url_file": "/nowhere/x"}}}, "'/nowhere/x' does not exist"),
        ({"channels": {"mail": {**MAIL, "to": []}}}, "must not be empty"),
        ({"channels": {"mail": {**MAIL, "user": "x"}}}, "go together"),
    ],
)
def test_each_mistake_in_the_file_is_said(configs, capsys, said, problem):
    (configs.root / "telling.yaml").write_text(yaml.safe_dump({"channels": {"mail": MAIL}, **said}))
    assert cli.main(["tell", "--try", "mail"]) == 2
    assert problem in capsys.readouterr().err


def test_a_secret_that_others_may_read_is_refused(configs, told_to, tmp_path):
    from tasks.config.telling import load_telling

    told_to({}, chat={"kind": "slack", "url_file": "http://127.0.0.1:1/hush"})
    (tmp_path / "slack_secret").chmod(0o644)
    with pytest.raises(ConfigInvalid, match="mode 0644, so others may read it"):
        load_telling()


def test_a_channel_is_tried_from_the_command_line(mailbox, told_to, capsys):
    told_to({}, mail=mail(mailbox))
    assert cli.main(["tell", "--try", "mail"]) == 0
    assert mailbox.mails[0]["Subject"] == "[scaleup] a trial of channel mail"
    assert cli.main(["tell", "--try", "male"]) == 2
    assert "there is no such channel; there are: mail" in capsys.readouterr().err


def test_bars_of_a_curve():
    assert bars([1.0, 1.0, 1.0]) == "▁▁▁"
    assert bars([float(value) for value in range(80)]) == bars([float(value) for value in range(40)])
    assert bars([2.0, 1.0]) == "█▁"


def test_a_nightly_alarm_is_told_once_and_its_end_closes_it(configs, mailbox, hooks, tmp_path):
    plan_file(configs.root, owner="ada@example.org")
    key = tmp_path / "key"
    key.write_text("k")
    key.chmod(0o600)
    mail = {"kind": "smtp", "host": "127.0.0.1", "port": mailbox.port, "from": "s@example.org", "to": ["owner"]}
    channels = {"mail": mail, "pager": {"kind": "pagerduty", "key_file": str(key), "url": f"{hooks.url}/pager"}}
    both = ["mail", "pager"]
    said = {"channels": channels, "tell": {"regression": both, "recovered": both}}
    (configs.root / "telling.yaml").write_text(yaml.safe_dump(said))
    past_of(14, 100)
    points.write(point(night_of(1), tokens_per_gpu_second=90))
    for attempt in (0, 1, 2):
        points.write(point(TONIGHT, attempt, tokens_per_gpu_second=90.2))
    for night in (TONIGHT, TONIGHT):  # concluded twice
        run_night(print, night=night)
    (mail,) = mailbox.mails
    assert mail["To"] == "ada@example.org" and "tiny/tokens_per_gpu_second moved from" in mail["Subject"]
    assert "tokens_per_gpu_second (modelled) moved from" in mail.get_content()
    assert "15 nights, " in mail.get_content() and "scaleup ack tiny/tokens_per_gpu_second" in mail.get_content()
    for index in (-1, -2, -3):
        points.write(point(night_of(index), tokens_per_gpu_second=100.1))
        run_night(print, night=night_of(index))
    assert "is over" in mailbox.mails[-1]["Subject"] and len(mailbox.mails) == 2
    events = [body for _, body in hooks.posted]
    assert [event["event_action"] for event in events].count("resolve") == 1
    assert {event["dedup_key"] for event in events if event["event_action"] == "resolve"} == {events[0]["dedup_key"]}
