"""The verbs as a shell sees them: what is printed where, and the exit status."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glm_spark.cli import main
from glm_spark.config import token as tokens
from glm_spark.config.load import load
from tests.unit.cli import sets

COMMAND = [sys.executable, "-c", "import sys; from glm_spark.cli import main; sys.exit(main())"]
TWO_SPARKS = '[[node]]\nname = "spark-1"\n[[node]]\nname = "spark-2"\naddress = "192.168.100.2"\n'


def body(status: Any) -> dict[str, Any]:
    told: dict[str, Any] = status.model_dump(mode="json")
    return told


@pytest.fixture
def glm(daemon: Any, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a verb against the daemon; (exit status, stdout, stderr)."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--socket", str(daemon.path)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_alone_it_names_the_three_verbs_an_owner_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.split("\n") if line.startswith("  glm-spark")] == [
        "status",
        "check",
        "restart",
    ]
    assert len(out.split("\n")) < 10


def test_run_hands_the_file_and_the_name_to_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    import glm_spark.service

    asked: list[Any] = []

    def serve(*given: Any) -> int:
        asked.append(given)
        return 7

    monkeypatch.setattr(glm_spark.service, "main", serve)
    assert main(["run", "--config", "/a.toml", "--node", "spark-2"]) == 7
    assert main(["run"]) == 7
    assert asked == [(Path("/a.toml"), "spark-2"), (Path("/etc/glm-spark/config.toml"), None)]


class TestStatus:
    @pytest.mark.parametrize(
        ("name", "code"),
        [
            ("live", 0),
            ("live-degraded", 1),
            ("loading", 1),
            ("verifying", 1),
            ("waiting", 2),
            ("live-suspect", 2),
            ("failed", 2),
            ("unknown", 3),
        ],
    )
    def test_the_exit_status_says_how_it_is(self, daemon: Any, glm: Any, name: str, code: int) -> None:
        daemon.will("GET /v1/status", (200, body(sets.EVERY[name])))
        assert glm("status")[0] == code

    def test_a_pipe_gets_plain_lines(self, daemon: Any, glm: Any) -> None:
        daemon.will("GET /v1/status", (200, body(sets.EVERY["failed"])))
        _, out, err = glm("status")
        assert err == ""
        assert out.isascii()
        assert "\x1b" not in out
        assert all(line == line.rstrip() for line in out.split("\n"))
        (why,) = [line for line in out.split("\n") if line.startswith("why")]
        assert why.endswith("wanted one file for all")  # not folded, so that grep finds it

    def test_json_is_what_the_daemon_said(self, daemon: Any, glm: Any) -> None:
        daemon.will("GET /v1/status", (200, body(sets.EVERY["live"])))
        code, out, _ = glm("status", "--json")
        assert (code, json.loads(out)) == (0, body(sets.EVERY["live"]))

    def test_no_daemon_is_could_not_find_out(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["status", "--socket", str(tmp_path / "none.sock")]) == 3
        out, err = capsys.readouterr()
        assert out == ""
        assert "it is not running on this Spark. Start it: systemctl start glm-spark" in err

    def test_a_socket_that_a_killed_daemon_left_is_no_daemon(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        import socket

        path = tmp_path / "control.sock"
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
        assert main(["status", "--socket", str(path)]) == 3
        assert "is not running" in capsys.readouterr().err

    def test_the_socket_is_looked_for_where_systemd_put_it(self, daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        daemon.will("GET /v1/status", (200, body(sets.EVERY["live"])))
        monkeypatch.setenv("RUNTIME_DIRECTORY", str(daemon.path.parent))
        assert main(["status"]) == 0

    @pytest.mark.parametrize(
        ("reply", "words"),
        [
            ((200, b"<html>"), "is not glm-spark"),
            ((200, {"state": "live"}), "is of another version; restart it"),
            ((404, {"error": {"message": "There is no such thing here."}}), "is of another version; restart it"),
            (
                (403, {"error": {"message": "Only root and members of group glm-spark may use this socket."}}),
                "members of group glm-spark",
            ),
            ((500, {}), "HTTP 500"),
        ],
    )
    def test_a_strange_answer_is_could_not_find_out(
        self, daemon: Any, glm: Any, reply: tuple[int, Any], words: str
    ) -> None:
        daemon.will("GET /v1/status", reply)
        code, _, err = glm("status")
        assert code == 3
        assert words in err

    def test_history_tells_each_incident(self, daemon: Any, glm: Any) -> None:
        incident = {
            "at": sets.NOW,
            "state": "recovering",
            "reason": sets.LOST.model_dump(mode="json"),
            "seconds_to_live": 190,
            "extra": "e",
        }
        daemon.will("GET /v1/incidents", (200, [incident, {"strange": "one"}]))
        code, out, _ = glm("status", "--history")
        assert code == 0
        assert "spark-2: session: no beat for 15.2 s" in out
        assert "live again after 3 min 10 s" in out
        assert "extra: e" in out
        assert out.split("\n")[0].split("  ")[1] == "recovering"
        assert "strange: one" in out
        daemon.will("GET /v1/incidents", (200, []))
        assert glm("status", "--history")[1] == "No incident so far.\n"

    def test_watch_tells_each_change_once_and_outlives_the_daemon(self, daemon: Any) -> None:
        loading, live = body(sets.EVERY["loading"]), body(sets.EVERY["live"])
        daemon.will("GET /v1/status", (200, loading), (200, loading), (500, {}), (200, live))
        watching = subprocess.Popen(
            [*COMMAND, "status", "--watch", "--json", "--socket", str(daemon.path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        assert [json.loads(watching.stdout.readline())["state"] for _ in range(2)] == ["loading", "live"]
        watching.send_signal(signal.SIGINT)
        rest, err = watching.communicate(timeout=10)
        assert rest == ""
        assert err.count("HTTP 500") == 1
        assert watching.returncode == 130

    def test_on_a_terminal_colours_are_used_unless_no_color_is_set(self, daemon: Any) -> None:
        daemon.will("GET /v1/status", (200, body(sets.EVERY["waiting"])))
        words = [*COMMAND, "status", "--socket", str(daemon.path)]
        environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "90"}
        environ.pop("NO_COLOR", None)
        assert b"\x1b[" in on_a_terminal(words, environ)
        assert b"\x1b" not in on_a_terminal(words, {**environ, "NO_COLOR": "1"})


def on_a_terminal(words: list[str], environ: dict[str, str]) -> bytes:
    """What the words write to a terminal of their own."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as child:
        os.close(theirs)
        heard = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # EIO: the last holder of the other side has gone
                break
            if not piece:
                break
            heard += piece
        child.wait(timeout=10)
    os.close(ours)
    return heard


class TestRestartAndStop:
    def test_a_restart_is_followed_until_the_next_generation_is_live(self, daemon: Any, glm: Any) -> None:
        before, after = sets.EVERY["live"], sets.live(generation=8)
        steps = [before, before, sets.EVERY["stopping"], sets.EVERY["loading"], after]
        daemon.will("GET /v1/status", *((200, body(step)) for step in steps))
        daemon.will("POST /v1/restart", (202, {"begun": True, "findings": []}))
        code, out, err = glm("restart")
        assert (code, err) == (0, "")
        lines = out.strip().split("\n")
        assert lines[:3] == ["live", "stopping", "loading, weights"]
        assert lines[3].startswith("GLM-5.3-Flash-EXL3 is live after ")

    def test_a_restart_that_fails_says_why(self, daemon: Any, glm: Any) -> None:
        daemon.will("GET /v1/status", (200, body(sets.EVERY["live"])), (200, body(sets.EVERY["failed"])))
        daemon.will("POST /v1/restart", (202, {"begun": True, "findings": []}))
        code, out, _ = glm("restart")
        assert code == 2
        assert "failed after" in out
        assert "engine.settings-differ" in out

    def test_the_failure_before_a_restart_is_not_its_outcome(self, daemon: Any, glm: Any) -> None:
        failed = sets.EVERY["failed"]
        daemon.will("GET /v1/status", *((200, body(s)) for s in (failed, failed, sets.live(generation=8))))
        daemon.will("POST /v1/restart", (202, {"begun": True, "findings": []}))
        assert glm("restart")[0] == 0

    @pytest.mark.parametrize("verb", ["restart", "stop"])
    def test_what_is_refused_is_said_with_what_to_do(self, daemon: Any, glm: Any, verb: str) -> None:
        daemon.will("GET /v1/status", (200, body(sets.EVERY["live"])))
        daemon.will(f"POST /v1/{verb}", (409, {"begun": False, "findings": [sets.LOST.model_dump(mode="json")]}))
        code, out, err = glm(verb)
        assert (code, out) == (2, "")
        assert f"the {verb} was not begun, and nothing was stopped" in err
        assert "systemctl start glm-spark on spark-2" in err
        code, out, _ = glm(verb, "--json")
        assert json.loads(out)["begun"] is False

    def test_a_stop_is_done_when_no_spark_has_a_rank(self, daemon: Any, glm: Any) -> None:
        stopped = sets.status("waiting", nodes=(sets.spark(0), sets.spark(1)))
        steps = [sets.EVERY["live"], sets.EVERY["live"], sets.EVERY["stopping"], stopped]
        daemon.will("GET /v1/status", *((200, body(step)) for step in steps))
        daemon.will("POST /v1/stop", (202, {"begun": True, "findings": []}))
        code, out, _ = glm("stop")
        assert code == 0
        assert out.strip().split("\n")[-1].startswith("stopped after ")

    def test_a_restart_ends_when_the_set_is_stopped_meanwhile(
        self, daemon: Any, glm: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("glm_spark.cli.command._AT_REST_SECONDS", 0.1)
        at_rest = sets.status("waiting", reason=sets.STOPPED)
        daemon.will("GET /v1/status", *((200, body(s)) for s in (sets.EVERY["live"], sets.EVERY["loading"], at_rest)))
        daemon.will("POST /v1/restart", (202, {"begun": True, "findings": []}))
        code, _, err = glm("restart")
        assert code == 2
        assert "stopped meanwhile" in err
        assert "glm-spark restart" in err

    def test_a_set_at_rest_is_given_time_to_begin_its_restart(self, daemon: Any, glm: Any) -> None:
        at_rest = sets.status("waiting", reason=sets.STOPPED)
        daemon.will("GET /v1/status", *((200, body(s)) for s in (at_rest, at_rest, sets.live(generation=8))))
        daemon.will("POST /v1/restart", (202, {"begun": True, "findings": []}))
        assert glm("restart")[0] == 0

    def test_a_stop_ends_when_the_set_is_restarted_meanwhile(self, daemon: Any, glm: Any) -> None:
        steps = (sets.EVERY["live"], sets.EVERY["stopping"], sets.EVERY["loading"], sets.live(generation=8))
        daemon.will("GET /v1/status", *((200, body(step)) for step in steps))
        daemon.will("POST /v1/stop", (202, {"begun": True, "findings": []}))
        code, _, err = glm("stop")
        assert code == 2
        assert "started again meanwhile" in err
        assert "glm-spark stop" in err

    def test_no_wait_returns_at_once(self, daemon: Any, glm: Any) -> None:
        daemon.will("GET /v1/status", (200, body(sets.EVERY["live"])))
        daemon.will("POST /v1/restart", (202, {"begun": True, "findings": []}))
        assert glm("restart", "--no-wait")[0] == 0
        assert daemon.asked == ["GET /v1/status", "POST /v1/restart"]

    def test_no_daemon(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["stop", "--json", "--socket", str(tmp_path / "none")]) == 3
        assert "not running" in json.loads(capsys.readouterr().out)["error"]


class TestCheckAndPlan:
    def test_check_of_the_set_asks_the_daemon(self, daemon: Any, glm: Any) -> None:
        found = [sets.UNUSED.model_dump(mode="json"), sets.LOST.model_dump(mode="json")]
        for answer in (found, {"findings": found}):
            daemon.will("GET /v1/check", (200, answer))
            code, out, _ = glm("check", "--cluster")
            assert code == 2
            assert out.index("session: no beat") < out.index("enP2p1s0f1np1")
            assert out.rstrip().endswith("1 error, 1 warning on the set.")
        assert json.loads(glm("check", "--cluster", "--json")[1]) == {"findings": found}
        daemon.will("GET /v1/check", (200, {"findings": found[:1]}))
        assert glm("check", "--cluster")[0] == 1
        daemon.will("GET /v1/check", (200, []))
        assert glm("check", "--cluster")[:2] == (0, "Nothing wrong on the set.\n")

    @pytest.mark.parametrize("verb", ["check", "plan"])
    def test_a_bad_file_is_78(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
        path = tmp_path / "config.toml"
        path.write_text("[api]\nport = 0\n")
        assert main([verb, "--config", str(path), "--socket", str(tmp_path / "none")]) == 78
        assert "api.port = 0" in capsys.readouterr().err

    def test_check_works_with_the_daemon_stopped(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "config.toml"
        path.write_text(TWO_SPARKS)
        code = main(["check", "--config", str(path), "--node", "spark-1", "--json"])
        found = json.loads(capsys.readouterr().out)["findings"]
        severities = {finding["severity"] for finding in found}
        assert code == (
            2 if "error" in severities else 3 if "unknown" in severities else 1 if "warning" in severities else 0
        )
        assert all(finding["node"] == "spark-1" for finding in found)

    def test_a_plan_shows_links_command_lines_and_environments(self, daemon: Any, glm: Any) -> None:
        rank = {
            "node": "spark-2",
            "rank": 1,
            "argv": ["tensorfold", "serve", "/a b"],
            "environment": {"TF_GLM_KV": "fp8"},
        }
        plan = {"links": [sets.LINK.model_dump(mode="json")], "ranks": [rank], "findings": []}
        daemon.will("GET /v1/plan", (200, plan))
        code, out, _ = glm("plan")
        assert code == 0
        assert "rail enp1s0f0np0 192.168.100.1 roce-enp1s0f0np0 GID 3 MTU 9000  -  enp1s0f1np1 192.168.100.2" in out
        assert "rank 1 on spark-2\n  tensorfold serve '/a b'\n  TF_GLM_KV=fp8\n" in out
        assert json.loads(glm("plan", "--json")[1]) == plan

    def test_without_a_daemon_a_plan_is_what_this_spark_sees(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "config.toml"
        path.write_text(TWO_SPARKS)
        code = main(["plan", "--config", str(path), "--node", "spark-1", "--socket", str(tmp_path / "none"), "--json"])
        out, err = capsys.readouterr()
        assert set(json.loads(out)) == {"links", "ranks", "here", "findings"}
        assert "what this Spark can see alone" in err
        assert code in (2, 3)


class TestConfig:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(TWO_SPARKS)
        return path

    def test_a_good_file(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["config", "--config", str(path), "--node", "spark-2"]) == 0
        assert capsys.readouterr().out == f"{path}: fine. spark-1 leads spark-2. This Spark is spark-2, rank 1.\n"

    def test_a_bad_file(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path.write_text(TWO_SPARKS + "[api]\nport = 0\n[engin]\n")
        assert main(["config", "--config", str(path)]) == 78
        out, err = capsys.readouterr()
        assert out == ""
        assert "2 faults" in err
        assert main(["config", "--config", str(path), "--json"]) == 78
        assert len(json.loads(capsys.readouterr().out)["faults"]) == 2

    def test_a_name_that_is_not_in_the_file(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["config", "--config", str(path), "--node", "spark-9"]) == 78
        assert "spark-1, spark-2" in capsys.readouterr().err

    def test_what_is_in_effect(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["config", "--config", str(path), "--print"]) == 0
        printed = path.with_name("printed.toml")
        printed.write_text(capsys.readouterr().out)
        assert load(printed).parallel == 1
        assert main(["config", "--config", str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["settings"]["engine.parallel"] == 1

    def test_a_reader_that_leaves_early_is_no_fault(self, path: Path) -> None:
        shell = f"{' '.join(map(repr, COMMAND))} config --print --config {path} | true; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=20)
        assert (done.stdout, done.stderr) == ("0\n", "")

    def test_a_reader_that_is_gone_before_the_first_word_is_no_fault(self) -> None:
        read, write = os.pipe()
        os.close(read)
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        with os.fdopen(write, "wb") as closed:
            done = subprocess.run(
                [*COMMAND, "token", "new"], stdout=closed, stderr=subprocess.PIPE, env=buffered, timeout=20
            )
        assert (done.returncode, done.stderr) == (0, b"")


class TestToken:
    def test_a_token_is_printed(self) -> None:
        done = subprocess.run([*COMMAND, "token", "new"], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0
        assert len(done.stdout.strip()) >= tokens.SHORTEST

    def test_redirected_into_a_file_it_is_one_the_daemon_accepts(self, tmp_path: Path) -> None:
        path, file = tmp_path / "token", tmp_path / "config.toml"
        shell = f"umask 022; {' '.join(map(repr, COMMAND))} token new > {path}"
        subprocess.run(["bash", "-c", shell], check=True, timeout=20)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        file.write_text(f'{TWO_SPARKS}[cluster]\ntoken_file = "{path}"\n')
        assert tokens.read(load(file), {}) == path.read_bytes().strip()

    def test_the_folder_is_made_when_it_is_missing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["token", "new", "--output", str(tmp_path / "etc/glm-spark/token")]) == 0
        assert (tmp_path / "etc/glm-spark/token").is_file()
        (tmp_path / "file").touch()
        assert main(["token", "new", "--output", str(tmp_path / "file/token")]) == 2
        assert "file/token" in capsys.readouterr().err

    def test_a_file_that_is_there_is_left_alone(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "token"
        assert main(["token", "new", "--output", str(path)]) == 0
        made = path.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert main(["token", "new", "--output", str(path)]) == 2
        assert path.read_text() == made
        assert made.strip() not in "".join(capsys.readouterr())


def test_status_does_not_import_what_it_does_not_need(daemon: Any) -> None:
    """It has to be quick: the heavy rooms take ten times as long to import as the answer takes."""
    daemon.will("GET /v1/status", (200, body(sets.EVERY["live"])))
    code = (
        f"import sys; from glm_spark.cli import main; main(['status', '--socket', {str(daemon.path)!r}]); "
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert not {"aiohttp", "asyncio", "pyroute2", "pyverbs", "tomli", "prometheus_client"} & set(done.stderr.split())
