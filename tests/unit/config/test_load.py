"""A file that cannot be used is answered with every fault of it at once, in plain words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glm_spark.config.load import ConfigFault, judge, load
from glm_spark.config.tree import tables


def test_two_names_and_one_address_are_enough(loaded: Any) -> None:
    config = loaded("")
    assert [node.name for node in config.node] == ["spark-1", "spark-2"]
    assert (config.leader.name, config.size, config.api.port) == ("spark-1", 2, 8888)


def test_every_fault_of_the_file_is_in_one_message(write: Any) -> None:
    path = write(
        """
[[node]]
name = "spark-1"
[[node]]
name = "spark-1"
address = "192.168.100.999"
[engine]
parallel = 9
contxt = 4096
[model]
drafter = "dflash2"
[timeouts]
lease_seconds = 1
[control]
port = 8888
"""
    )
    with pytest.raises(ConfigFault) as caught:
        load(path)
    assert set(caught.value.faults) == {
        'node[1].name: "spark-1" is also node[0].name; each Spark needs its own',
        'node[1].address = "192.168.100.999": an IPv4 address such as 192.168.100.2 is wanted',
        'engine.parallel = 9: a whole number from 1 to 8 or "auto" is wanted',
        "engine.contxt: no such key; did you mean context?",
        "model.drafter: dflash2 is licensed CC BY-NC-ND 4.0 (non-commercial); set model.accept_noncommercial = true "
        'to accept that, or use drafter = "mtp"',
        "timeouts.lease_seconds: 1 must be longer than timeouts.suspect_seconds = 2",
        "api.port: 8888 is also control.port; give each its own port",
    }
    message = str(caught.value)
    assert message.startswith(f"{path}: 7 faults\n")
    assert all(fault in message for fault in caught.value.faults)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[api]\nport = 70000", "api.port = 70000: a whole number from 1 to 65535 is wanted"),
        ("[api]\nport = true", "api.port = true: a whole number from 1 to 65535 is wanted"),
        ('[api]\nport = "8888"', 'api.port = "8888": a whole number from 1 to 65535 is wanted'),
        ("[api]\nport = 8888.0", "api.port = 8888.0: a whole number from 1 to 65535 is wanted"),
        ("[api]\nopen = 1", "api.open = 1: true or false is wanted"),
        ('[api]\nhost = "spark-1"', 'api.host = "spark-1": an IP address such as 127.0.0.1 or 0.0.0.0 is wanted'),
        ('[fabric]\ntransport = "tcp"', 'fabric.transport = "tcp": "roce" or "socket" is wanted'),
        ('[fabric]\nnetdevs = "enp1*"', 'fabric.netdevs = "enp1*": a list of texts, each in quotes, is wanted'),
        (
            '[fabric]\nnetdevs = ["enp1[s0"]',
            'fabric.netdevs[0] = "enp1[s0": the pattern has a bracket that is not closed',
        ),
        ("[stop]\nkill_seconds = nan", "stop.kill_seconds = nan: a number of seconds from 0.1 to 600 is wanted"),
        ("[stop]\ndrain_seconds = inf", "stop.drain_seconds = inf: a number of seconds from 0 to 3600 is wanted"),
        (
            "[engine]\ncontext = 1048577",
            "engine.context = 1048577: a whole number of tokens from 0 to 1048576 is wanted",
        ),
        ("[engine]\nparallel = 0", 'engine.parallel = 0: a whole number from 1 to 8 or "auto" is wanted'),
        (
            "[engine]\nparallel = 4",
            'engine.parallel: 4 needs the DFlash2 drafter; with model.drafter = "mtp" use parallel = 1 or "auto"',
        ),
        ("[engine]\nvision = false\nvision_urls = true", "engine.vision_urls: true needs engine.vision = true"),
        (
            "[engine.tuning]\nmulti_window = 33",
            'engine.tuning.multi_window = 33: a whole number of rows from 16 to 64 in steps of 8, or "auto", is wanted',
        ),
        (
            "[engine.tuning]\ncache_gib = -1",
            'engine.tuning.cache_gib = -1: a number of GiB from 0 to 128 or "auto" is wanted',
        ),
        (
            "[engine.spill]\ngib = 10",
            "engine.spill.directory: missing; engine.spill.gib is above 0, so say where the spill tier lies",
        ),
        (
            '[engine]\nenvironment = { NCCL_DEBUG = "INFO" }',
            "engine.environment: 'NCCL_DEBUG': only TENSORFOLD_*, TF_GLM_* and TF_ROCE_* names are passed on",
        ),
        (
            '[engine]\nenvironment = { TF_GLM_KV = "bf16" }',
            "engine.environment: TF_GLM_KV has a setting of its own, engine.tuning.kv; set it there",
        ),
        (
            '[engine]\nenvironment = { TF_GLM_X = "" }',
            "engine.environment: TF_GLM_X is empty or holds a control character; give it a value or leave it out",
        ),
        (
            '[engine]\ncommand = ["bin/tensorfold"]',
            "engine.command: the program's name or its absolute path is wanted first",
        ),
        (
            "[engine]\ncommand = []",
            'engine.command: a list such as ["tensorfold"], its first entry a program, is wanted',
        ),
        (
            '[engine]\nimage = "some/image:latest"',
            'engine.image = "some/image:latest": an image pinned by its digest, NAME@sha256: and 64 hexadecimal '
            "digits, or localhost/NAME of your own is wanted",
        ),
        (
            '[model]\nname = "-x"',
            'model.name = "-x": a name of 1 to 200 characters without spaces that does not start with - is wanted',
        ),
        ('[model]\npath = "weights"', 'model.path = "weights": an absolute path is wanted, one that starts with /'),
        (
            '[model]\ncache = "~/.cache"',
            'model.cache = "~/.cache": an absolute path is wanted; ~ is not expanded, write the directory out',
        ),
        (
            '[model]\ncache = "/a:/b"',
            'model.cache = "/a:/b": a path without : and , is wanted, because it is mounted into a container',
        ),
        (
            '[model]\nalias = ["GLM-5.3-Flash-EXL3"]',
            'model.alias[0]: "GLM-5.3-Flash-EXL3" is listed twice or is model.name itself; give each name once',
        ),
        (
            '[metrics]\nlisten = "9099"',
            'metrics.listen = "9099": ADDRESS:PORT such as 192.168.1.5:9099 is wanted, or empty',
        ),
        ('[metrics]\nlisten = "192.168.1.5:8888"', "metrics.listen: 8888 is also api.port; give each its own port"),
        (
            '[api]\nhost = "0.0.0.0"',
            "api.host: 0.0.0.0 is reachable from a network; set api.keys_file, or api.open = true to serve it "
            "without keys",
        ),
        ("engine = 3", "node[1].engine: no such key; it is a table of its own; write [engine] on a line of its own"),
    ],
)
def test_a_bad_value_is_named_with_what_is_wanted(faults: Any, text: str, fault: str) -> None:
    assert faults(text) == (fault,)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("[engine]\nparalel = 2", "engine.paralel: no such key; did you mean parallel?"),
        ("[engin]\nparallel = 1", "engin: no such key; did you mean [engine]?"),
        ("[nodes]\n", "nodes: no such key; did you mean [[node]]?"),
        ("[model]\ncontext = 4096", "model.context: no such key; it belongs in [engine]"),
        ("[engine]\nkv = 'fp8'", "engine.kv: no such key; it belongs in [engine.tuning]"),
        ("[engine]\nport = 1", "engine.port: no such key; it belongs in [control] or [api] or [weights]"),
        (
            "[engine.tuning]\nTF_GLM_HC_SPLIT = 0",
            "engine.tuning.TF_GLM_HC_SPLIT: no such key; the setting for it is engine.tuning.hc_split",
        ),
        ("[api]\nleaseseconds = 1", "api.leaseseconds: no such key; did you mean lease_seconds in [timeouts]?"),
        ("[log]\nzzz = 1", "log.zzz: no such key; leave it out; config.toml.example lists every key"),
    ],
)
def test_a_misspelt_or_misplaced_key_is_told_where_it_belongs(faults: Any, text: str, advice: str) -> None:
    assert faults(text) == (advice,)


@pytest.mark.parametrize(
    "text",
    [
        '[cluster]\ntoken = "hunter2-hunter2"',
        '[api]\nkeys_file = "hunter2-hunter2"',
        '[cluster]\ntoken_file = "hunter2-hunter2"',
        '[engine]\nenvironment = { HF_TOKEN = "hunter2-hunter2" }',
        '[api]\nkeys = ["hunter2-hunter2"]',
        '[cluster.hunter3]\nsecret = "hunter2-hunter2"',
        'token = "hunter2-hunter2',
    ],
)
def test_a_secret_that_was_put_into_the_file_is_not_repeated(faults: Any, text: str) -> None:
    assert "hunter2" not in "".join(faults(text))


@pytest.mark.parametrize(
    ("text", "only"),
    [
        # A wider bind asks for keys or open: with open itself at fault, only that is said.
        ('[api]\nhost = "0.0.0.0"\nopen = "yes"', "api.open"),
        (
            '[model]\ndrafter = "dflash2"\naccept_noncomercial = true',
            "model.accept_noncomercial",
        ),
        ('[model]\ndrafter = "dflash"\n[engine]\nparallel = 4', "model.drafter"),
        ("[api]\nport = 0\n[control]\nport = 8888", "api.port"),
        (
            "[timeouts]\nlease_seconds = 1\nsuspect_seconds = 'x'",
            "timeouts.suspect_seconds",
        ),
    ],
)
def test_what_only_follows_from_another_fault_is_left_out(faults: Any, text: str, only: str) -> None:
    assert [fault.split(" =")[0].split(":")[0] for fault in faults(text)] == [only]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "node: no Spark is listed; two or three [[node]] entries are wanted, the leader's first"),
        (
            "[[node]]\nname = 'a'",
            "node: one Spark is listed; two or three [[node]] entries are wanted, the leader's first",
        ),
        (
            "".join(f"[[node]]\nname = 's{n}'\naddress = '10.0.0.{n}'\n" for n in range(1, 5)),
            "node: 4 Sparks are listed; two or three [[node]] entries are wanted, the leader's first",
        ),
        ("[node]\nname = 'a'", "node: written as [node]; write [[node]], with two brackets, once for each Spark"),
        ("node = 3", "node: write [[node]] on a line of its own, once for each Spark, with its keys below"),
        (
            "[[node]]\nname = 'a'\n[[node]]\naddress = '10.0.0.2'",
            "node[1].name: missing; the Spark's host name is wanted",
        ),
        (
            "[[node]]\nname = 'a'\n[[node]]\nname = 'b'",
            "node[1].address: missing; give b's address on the cable, as the leader reaches it",
        ),
        (
            "[[node]]\nname = 'a'\n[[node]]\nname = 'b c'\naddress='10.0.0.2'",
            'node[1].name = "b c": a host name of 1 to 63 letters, digits, dots and - is wanted',
        ),
        (
            "[[node]]\nname = 'a.lan'\n[[node]]\nname = 'A'\naddress='10.0.0.2'",
            'node[1].name: "A" is also node[0].name; each Spark needs its own',
        ),
        (
            "[[node]]\nname = 'a'\naddress='10.0.0.2'\n[[node]]\nname = 'b'\naddress='10.0.0.2'",
            'node[1].address: "10.0.0.2" is also node[0].address; each Spark needs its own',
        ),
        (
            "[[node]]\nname = 'a'\n[[node]]\nname = 'b'\naddress='169.254.7.7'",
            "node[1].address: 169.254.7.7 is link-local and changes at every reboot; give the port a fixed address, or "
            "set fabric.allow_link_local = true",
        ),
        (
            "[[node]]\nname = 'a'\n[[node]]\nname = 'b'\naddress='0.0.0.0'",
            'node[1].address = "0.0.0.0": the address of one host is wanted, such as 192.168.100.2',
        ),
        (
            "api = 3\n[[node]]\nname='a'\n[[node]]\nname='b'\naddress='10.0.0.2'",
            "api: is a table; write [api] on a line of its own and its keys below",
        ),
    ],
)
def test_the_sparks_themselves_are_judged(write: Any, text: str, fault: str) -> None:
    with pytest.raises(ConfigFault) as caught:
        load(write(text))
    assert caught.value.faults == (fault,)


def test_a_syntax_error_has_its_line_and_column(faults: Any) -> None:
    (fault,) = faults("[engine\ncontext = 1")
    assert fault.startswith("not TOML: ")
    assert "(at line 6, column 8)" in fault


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 3000 + "]" * 3000,
        "x = " + "1" * 5000,
        "context = 0x" + "f" * 5000,
    ],
)
def test_absurd_toml_is_a_fault_like_any_other(faults: Any, text: str) -> None:
    assert len(faults(text)) == 1


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xef\xbb\xbf[[node]]\nname='a'\n[[node]]\nname='b'\naddress='10.0.0.2'\n")
    assert load(path).leader.name == "a"


class TestTheFileItself:
    def test_missing(self, tmp_path: Path) -> None:
        self._said(tmp_path / "nowhere.toml", "no such file")

    def test_a_directory(self, tmp_path: Path) -> None:
        self._said(tmp_path, "is a directory")

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        self._said(tmp_path / "pipe", "is not a regular file")

    def test_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "config.toml"
        path.write_bytes(b"# one\n# caf\xe9\n")
        self._said(path, "not UTF-8 text: line 2")

    def test_too_large(self, tmp_path: Path) -> None:
        path = tmp_path / "config.toml"
        path.write_bytes(b"#" * ((1 << 20) + 1))
        self._said(path, "larger than 1 MiB")

    def test_an_impossible_name(self) -> None:
        self._said("a\0b", "not a usable path")

    def test_not_readable(self, tmp_path: Path) -> None:
        """Root reads everything, so another user is asked to."""
        path = tmp_path / "config.toml"
        path.write_text("")
        path.chmod(0)
        if os.geteuid():
            self._said(path, "no permission to read it")
            return
        tmp_path.chmod(0o755)
        said_end, heard_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            try:
                load(path)
            except ConfigFault as fault:
                os.write(heard_end, str(fault).encode())
            os._exit(0)
        os.close(heard_end)
        with os.fdopen(said_end, "rb") as heard:
            assert b"permission" in heard.read()
        os.waitpid(child, 0)

    @staticmethod
    def _said(path: Path | str, words: str) -> None:
        with pytest.raises(ConfigFault) as caught:
            load(path)
        assert words in str(caught.value)


_names = st.sampled_from([*sorted({name for _, section in tables() for name in section.model_fields}), "zzz", "a b"])
_plain = st.one_of(
    st.none().map(lambda _: ""),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.just("auto"),
)
_values = st.recursive(
    _plain,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_names, inner, max_size=5)),
    max_leaves=25,
)


# How long a busy machine takes to draw an example says nothing about the code.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(_names, _values, max_size=8))
def test_whatever_a_file_holds_it_is_a_configuration_or_faults(
    data: dict[str, Any],
) -> None:
    config, faults = judge(data)
    assert (config is None) == bool(faults)
    assert len({str(fault) for fault in faults}) == len(faults)
    assert all("\n" not in str(fault) for fault in faults)
