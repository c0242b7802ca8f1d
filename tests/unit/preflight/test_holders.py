"""A busy port or full memory is told with the program that holds it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from glm_spark.config.model import Config
from glm_spark.finding import Finding
from glm_spark.preflight import holders
from glm_spark.preflight.checks import ports
from glm_spark.preflight.context import Context, Moment
from tests.unit.fabric.sparks import config

LISTEN = (
    "import socket, sys\n"
    "taken = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET,"
    " dualstack_ipv6=sys.argv[1] == '::')\n"
    "print(taken.getsockname()[1], flush=True)\n"
    "sys.stdin.read()\n"
)


class Squatter:
    """Another program that listens on a port of its own choice."""

    def __init__(self, address: str, **marks: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LISTEN, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **marks},
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def squatters() -> Iterator[list[Squatter]]:
    made: list[Squatter] = []
    yield made
    for one in made:
        one.end()


def _settings(key: str, port: int) -> Config:
    """A configuration in which one port is that one, and the others are free."""
    with closing(socket.create_server(("", 0))) as a, closing(socket.create_server(("", 0))) as b:
        spare = [a.getsockname()[1], b.getsockname()[1]]
    with closing(socket.create_server(("", 0))) as c:
        spare.append(c.getsockname()[1])
    sections: dict[str, dict[str, int]] = {"control": {}, "api": {}, "engine": {}}
    for name in ("control.port", "api.port", "engine.http_port", "engine.master_port"):
        section, field = name.split(".")
        sections[section][field] = port if name == key else spare.pop()
    made = config()
    updates = {name: getattr(made, name).model_copy(update=values) for name, values in sections.items()}
    return made.model_copy(update=updates)


def busy(key: str, port: int, me: str = "spark-1", moment: Moment = "start") -> list[Finding]:
    return list(ports.run(Context(config=_settings(key, port), me=me, moment=moment)))


@pytest.mark.parametrize("key", ["control.port", "api.port", "engine.http_port", "engine.master_port"])
def test_a_busy_port_names_who_has_it(key: str, squatters: list[Squatter]) -> None:
    squatters.append(Squatter("127.0.0.1"))
    taken = squatters[0]
    (finding,) = busy(key, taken.port)
    assert finding.code == "port.busy"
    assert finding.subject == f"port {taken.port} ({key})"
    name = os.path.basename(sys.executable)
    assert finding.measured == f"{name} (pid {taken.process.pid}) listens on 127.0.0.1:{taken.port}"
    assert key in finding.fix


def test_only_control_matters_on_a_worker(squatters: list[Squatter]) -> None:
    squatters.append(Squatter("0.0.0.0"))
    assert len(busy("control.port", squatters[0].port, me="spark-2")) == 1
    assert busy("engine.http_port", squatters[0].port, me="spark-2") == []


def test_only_a_listener_in_the_way_is_busy(squatters: list[Squatter]) -> None:
    squatters += [Squatter("127.0.0.9"), Squatter("::"), Squatter("::1")]
    elsewhere, everywhere, six = (one.port for one in squatters)
    assert busy("engine.http_port", elsewhere) == []
    assert len(busy("engine.master_port", elsewhere)) == 1
    assert len(busy("engine.http_port", everywhere)) == 1
    assert busy("engine.http_port", six) == []


def test_the_daemons_own_ports_are_not_busy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as own:
        port = own.getsockname()[1]
        assert busy("control.port", port) == busy("api.port", port) == []
        assert len(busy("engine.http_port", port)) == 1


def test_a_running_sets_rank_is_no_fault_to_a_person_who_asks(squatters: list[Squatter]) -> None:
    squatters += [Squatter("127.0.0.1", GLM_SPARK_CLUSTER="glm"), Squatter("127.0.0.1", GLM_SPARK_CLUSTER="other")]
    ours, others = (one.port for one in squatters)
    assert busy("engine.http_port", ours, moment="check") == []
    assert len(busy("engine.http_port", ours, moment="start")) == 1
    assert len(busy("engine.http_port", others, moment="check")) == 1


def test_the_biggest_come_first() -> None:
    # In a process namespace of its own this test may have little company.
    with subprocess.Popen(["sleep", "600"]) as one, subprocess.Popen(["sleep", "600"]) as other:
        biggest = holders.by_memory(3)
        one.kill()
        other.kill()
    assert len(biggest) == 3
    assert [one.rss for one in biggest] == sorted((one.rss for one in biggest), reverse=True)
    assert all(one.program for one in biggest)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["/usr/bin/ollama", "serve"], "ollama"),
        (["/usr/bin/python3.11", "-u", "/opt/vllm/serve.py", "--api-key", "secret"], "serve.py"),
        (["python3", "-m", "http.server", "8888"], "http.server"),
        (["bash", "-c", "nc -l secret"], "bash"),
        ([""], "kthread"),
        ([], "kthread"),
    ],
)
def test_a_program_has_the_name_people_know_and_no_arguments(arguments: list[str], name: str) -> None:
    assert holders.program_of(arguments, "kthread") == name


@pytest.mark.parametrize(
    ("arguments", "yes"),
    [
        (["/usr/bin/python3", "/usr/bin/glm-spark", "run", "--config", "x"], True),
        (["python3", "-P", "-m", "glm_spark.cli", "run"], True),
        (["/usr/bin/glm-spark", "--config", "x", "run"], True),
        (["/usr/bin/glm-spark", "status"], False),
        (["vim", "run"], False),
    ],
)
def test_a_running_daemon_is_known_by_its_command(arguments: list[str], yes: bool) -> None:
    assert holders.is_daemon(arguments) is yes
