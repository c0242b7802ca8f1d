"""What podman and docker are told, word by word, and what of their options an owner may replace."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from glm_spark.config.model import Config
from glm_spark.engine import container
from glm_spark.engine.spec import RankSpec

SPEC = RankSpec(
    cluster="glm",
    node="spark-2",
    rank=1,
    generation=7,
    argv=("tensorfold", "serve", "/root/.cache/huggingface/hub/x", "--rank", "1"),
    environment={"HF_HUB_OFFLINE": "1", "NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0"},
)
IMAGE = Config.model_fields["engine"].default.image


def config(**tables: Any) -> Config:
    nodes = [{"name": "spark-1"}, {"name": "spark-2", "address": "192.168.100.2"}]
    return Config.model_validate({"node": nodes, **tables})


PODMAN = """podman --events-backend=none run --name=glm-spark-glm-spark-2-7-1
--label=io.glm-spark.cluster=glm --label=io.glm-spark.node=spark-2
--label=io.glm-spark.generation=7 --label=io.glm-spark.rank=1
--pull=never --log-driver=none --network=host --ipc=host
--device=nvidia.com/gpu=all --device=/dev/infiniband
--cap-add=IPC_LOCK --ulimit=memlock=-1 --ulimit=stack=67108864 --oom-score-adj=500
--sdnotify=ignore --http-proxy=false --cgroups=split
--mount=type=bind,source=/var/lib/glm-spark/huggingface,target=/root/.cache/huggingface,readonly
--mount=type=bind,source=/var/cache/glm-spark/kernels/a1897d591f70,target=/cache
--env=HF_HUB_OFFLINE=1 --env=NCCL_IB_HCA=rocep1s0f0,roceP2p1s0f0
--env=GLM_SPARK_CLUSTER=glm --env=GLM_SPARK_NODE=spark-2 --env=GLM_SPARK_GENERATION=7
--env=GLM_SPARK_CONTAINER=glm-spark-glm-spark-2-7-1"""

DOCKER = """docker run --name=glm-spark-glm-spark-2-7-1
--label=io.glm-spark.cluster=glm --label=io.glm-spark.node=spark-2
--label=io.glm-spark.generation=7 --label=io.glm-spark.rank=1
--pull=never --log-driver=none --network=host --ipc=host --shm-size=16g
--gpus=all --device=/dev/infiniband
--cap-add=IPC_LOCK --ulimit=memlock=-1 --ulimit=stack=67108864 --oom-score-adj=500
--mount=type=bind,source=/var/lib/glm-spark/huggingface,target=/root/.cache/huggingface,readonly
--mount=type=bind,source=/var/cache/glm-spark/kernels/a1897d591f70,target=/cache
--env=HF_HUB_OFFLINE=1 --env=NCCL_IB_HCA=rocep1s0f0,roceP2p1s0f0
--env=GLM_SPARK_CLUSTER=glm --env=GLM_SPARK_NODE=spark-2 --env=GLM_SPARK_GENERATION=7
--env=GLM_SPARK_CONTAINER=glm-spark-glm-spark-2-7-1"""


@pytest.mark.parametrize(("runtime", "words"), [("podman", PODMAN), ("docker", DOCKER)])
def test_a_container_is_run_as_the_recipe_does(runtime: str, words: str) -> None:
    made = container.run(
        config(engine={"runtime": runtime}), SPEC, "/var/cache/glm-spark/kernels/a1897d591f70", split=True
    )
    assert list(made) == [*words.split(), IMAGE, *SPEC.argv]
    assert "--init" not in made
    assert "--rm" not in made  # the keeper removes it, also when podman itself was killed


def run(runtime: str = "podman", **tables: Any) -> tuple[str, ...]:
    engine = {"runtime": runtime, **tables.pop("engine", {})}
    return container.run(config(engine=engine, **tables), SPEC, "/kernels")


def test_an_owners_limit_replaces_ours_and_his_mounts_stand_beside_them() -> None:
    mine = ["--ulimit=memlock=8388608:8388608", "--cgroups=no-conmon", "--volume=/data:/data:ro"]
    words = run(engine={"container_options": mine, "runtime_options": ["--cgroup-manager=cgroupfs"]})
    assert words[:4] == ("podman", "--events-backend=none", "--cgroup-manager=cgroupfs", "run")
    assert [word for word in words if word.startswith(("--ulimit", "--cgroups"))] == [
        "--ulimit=stack=67108864",
        "--ulimit=memlock=8388608:8388608",
        "--cgroups=no-conmon",
    ]
    assert len([word for word in words if word.startswith(("--mount", "--volume"))]) == 3
    assert words.index("--volume=/data:/data:ro") < words.index(IMAGE)


def test_how_the_gpu_is_given_can_be_said() -> None:
    words = run("docker", engine={"gpu_options": ["--device=nvidia.com/gpu=all"]})
    assert "--device=nvidia.com/gpu=all" in words
    assert "--gpus=all" not in words


def test_over_sockets_no_rdma_device_is_asked_for() -> None:
    assert "--device=/dev/infiniband" not in run(fabric={"transport": "socket"})


def test_only_what_is_read_is_mounted_and_only_the_spill_tier_is_written() -> None:
    mounted = [word for word in run(model={"path": "/data/model"}) if word.startswith("--mount=")]
    assert mounted == [
        "--mount=type=bind,source=/data/model,target=/model,readonly",
        "--mount=type=bind,source=/kernels,target=/cache",
    ]
    spill = run(engine={"spill": {"gib": 64.0, "directory": "/spill/here"}})
    assert "--mount=type=bind,source=/spill/here,target=/spill" in spill


@pytest.mark.parametrize(
    "option",
    [
        "-d",
        "--detach",
        "--rm",
        "--name=mine",
        "--log-driver=journald",
        "--init",
        "--network=bridge",
        "privileged",
        "--",
    ],
)
def test_what_a_ranks_life_depends_on_is_not_an_owners_to_set(option: str) -> None:
    with pytest.raises(ValidationError, match=r"glm-spark itself|a long option"):
        config(engine={"container_options": [option]})


def test_neither_secrets_nor_systemds_variables_reach_the_runtime() -> None:
    here = {
        "PATH": "/bin",
        "NOTIFY_SOCKET": "/run/x",
        "CREDENTIALS_DIRECTORY": "/run/c",
        "WATCHDOG_USEC": "1",
        "HTTPS_PROXY": "http://user:secret@proxy",
        "DOCKER_HOST": "unix:///run/docker.sock",
    }
    assert container.tool_environment(here) == {"PATH": "/bin", "DOCKER_HOST": "unix:///run/docker.sock"}
    assert "HTTPS_PROXY" in container.tool_environment(here, network=True)


def test_a_container_that_may_be_gone_is_removed_without_complaint() -> None:
    ours = ("rm", "--force", "--ignore", "--time=0", "--volumes", "x")
    assert container.remove(config(), "x") == ("podman", "--events-backend=none", *ours)
    assert container.remove(config(engine={"runtime": "docker"}), "x") == ("docker", "rm", "--force", "--volumes", "x")


def test_the_engines_parser_runs_without_gpu_and_network() -> None:
    words = container.parse_arguments(config(), ("serve", "/model", "--tp", "2"))
    assert words[-4:] == ("serve", "/model", "--tp", "2")
    assert "--network=none" in words
    assert "--entrypoint=python" in words
    assert not [word for word in words if "gpu" in word or "infiniband" in word]
