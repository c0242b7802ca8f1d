"""The command line: what is taken, what is refused, and with which status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glm_spark.standin import main
from tests.unit.standin.sets import Set


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["serve"],
        ["serve", "standin", "--tp", "5"],
        ["serve", "standin", "--rank", "4"],
        ["serve", "standin", "--context", "many"],
        ["serve", "standin", "--kv-dtype", "fp8"],
        ["serve", "standin", "--api-key", "x"],
        ["standin", "--unknown"],
    ],
)
def test_argparse_refuses_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert "usage: tensorfold" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["--context", "-1"],
        ["--context", "1048577"],
        ["--parallel", "foo"],
        ["--parallel", "9"],
        ["--parallel", "4", "--drafter", "none"],
        ["--rank", "1"],
        ["--tp", "2"],
        ["--vision-urls"],
    ],
)
def test_later_refusals_are_one_line_and_1(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "standin", *argv]) == 1
    out, err = capsys.readouterr()
    assert [line[:12] for line in err.splitlines()] == ["tensorfold: "]
    assert out == ""


async def test_status_reaches_the_shell(engine: Set) -> None:
    refused = await engine.run("serve", "standin", "--tp", "5")
    later = await engine.run("serve", "standin", "--tp", "2")
    assert (await refused.ends(), await later.ends()) == (2, 1)


async def test_version_and_info(engine: Set, tmp_path: Path) -> None:
    version = await engine.run("--version")
    assert (await version.ends(), version.lines) == (0, ["tensorfold 0.6.0"])
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "glm5_next"}))
    good = await engine.run("info", str(tmp_path))
    assert await good.ends() == 0
    bad = await engine.run("info", str(tmp_path / "none"))
    assert await bad.ends() == 1
    assert bad.text.startswith("tensorfold: ")


async def test_a_folder_alone_means_serve_and_the_last_value_wins(engine: Set, tmp_path: Path) -> None:
    rank = await engine.run(str(tmp_path), "--port", "1", "--port", str(engine.http_port), "--name", "x")
    await engine.opened(rank)


async def test_a_missing_model_folder_is_refused_unless_the_script_allows_it(engine: Set) -> None:
    rank = await engine.run("serve", "/no/such/folder")
    assert await rank.ends() == 1
    assert rank.lines == ["tensorfold: no such model folder: /no/such/folder"]
    engine.faults(any_model=True)
    await engine.opened(await engine.run("serve", "/no/such/folder", "--port", str(engine.http_port)))


@pytest.mark.parametrize(
    ("script", "named"),
    [('{"hagn": true}', "hagn"), ('{"hang": 1}', "hang"), ('{"reply": "x"}', "reply"), ("/no/file", "/no/file")],
)
def test_a_script_with_a_fault_of_its_own_is_refused(
    script: str, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENSORFOLD_STANDIN", script)
    assert main(["serve", "standin"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("tensorfold: TENSORFOLD_STANDIN: ")
    assert named in err


async def test_a_script_may_be_toml_inline(engine: Set) -> None:
    script = 'exit_phase = "loading"\nexit_code = 7'
    rank = await engine.run("serve", "standin", environment={"TENSORFOLD_STANDIN": script})
    assert await rank.ends() == 7
