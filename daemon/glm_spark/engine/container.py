"""What podman and docker are told about a rank: command lines, from the configuration and the rank. Pure.

The options are those of the MiaAI recipe v1.10 (start.sh), with what keeps a rank findable and ended added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from glm_spark.config.model import Config
from glm_spark.engine.paths import mounts
from glm_spark.engine.spec import RankSpec

LABEL = "io.glm-spark"
MARK = "GLM_SPARK_CONTAINER"  # set inside the container only: podman, docker and the keeper do not carry it
CONTAINER_KERNELS = "/cache"  # where the recipe's image keeps compiled kernels
OOM_SCORE = 500  # a rank goes before the daemon, which runs at -900 and would pass that on
NOT_STARTED = frozenset({125, 126, 127})  # podman's and docker's own exit statuses: no container, no program in it

# Read by podman, docker and what they start; nothing else of the daemon's environment reaches them.
TOOL_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
    "CONTAINERS_REGISTRIES_CONF",
    "REGISTRY_AUTH_FILE",
    "DOCKER_HOST",
    "DOCKER_CONFIG",
    "DOCKER_CONTEXT",
)
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
FALLBACK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def tool_environment(here: Mapping[str, str], *, network: bool = False) -> dict[str, str]:
    """The environment of podman or docker. `network`: with the proxies, which may hold a password, for a pull."""
    names = (*TOOL_VARIABLES, *PROXY_VARIABLES) if network else TOOL_VARIABLES
    return {"PATH": FALLBACK_PATH, **{name: here[name] for name in names if here.get(name)}}


def tool(config: Config) -> tuple[str, ...]:
    """The program with its own options, before any verb.

    podman tells the journal of each event, with every label and under the daemon's unit, which its owner reads.
    """
    quiet = ("--events-backend=none",) if config.engine.runtime == "podman" else ()
    return (config.engine.runtime, *with_replacements(quiet, config.engine.runtime_options))


def name_of(spec: RankSpec) -> str:
    return f"glm-spark-{spec.cluster}-{spec.node}-{spec.generation}-{spec.rank}"


def labels(spec: RankSpec) -> dict[str, str]:
    return {
        f"{LABEL}.cluster": spec.cluster,
        f"{LABEL}.node": spec.node,
        f"{LABEL}.generation": str(spec.generation),
        f"{LABEL}.rank": str(spec.rank),
    }


def run(config: Config, spec: RankSpec, kernels: str, *, split: bool = False, image: str = "") -> tuple[str, ...]:
    """The command that runs the rank in the foreground, its output passed through.

    `kernels` is the kernel cache's directory of this image on this Spark. `split` puts the container below the
    control group that podman itself is in, so that one write ends all of it; podman only. `image` is what the runtime
    knows the image by, where that is not engine.image.
    """
    engine = config.engine
    podman = engine.runtime == "podman"
    options = [f"--name={name_of(spec)}", *(f"--label={name}={value}" for name, value in labels(spec).items())]
    options += ["--pull=never", "--log-driver=none", "--network=host", "--ipc=host"]
    # With the host's IPC the container has the host's /dev/shm. docker takes a size beside it and ignores it; podman
    # refuses to start ("cannot set shmsize when running in the {host} IPC Namespace", 4.3).
    if not podman:
        options.append(f"--shm-size={engine.shm_gib}g")
    options += engine.gpu_options or (["--device=nvidia.com/gpu=all"] if podman else ["--gpus=all"])
    if config.fabric.transport == "roce":
        options.append("--device=/dev/infiniband")
    options += ["--cap-add=IPC_LOCK", "--ulimit=memlock=-1", "--ulimit=stack=67108864"]
    options.append(f"--oom-score-adj={OOM_SCORE}")
    if podman:
        options += ["--sdnotify=ignore", "--http-proxy=false", *(["--cgroups=split"] if split else [])]
    options += (_mount(here, there, writable=there == "/spill") for here, there in needed_mounts(config).items())
    options.append(_mount(kernels, CONTAINER_KERNELS, writable=True))
    told = {**spec.environment, **spec.marks, MARK: name_of(spec)}
    options += (f"--env={name}={value}" for name, value in told.items())
    further = with_replacements(options, engine.container_options)
    return (*tool(config), "run", *further, image or engine.image, *spec.argv)


def with_replacements(ours: Iterable[str], further: Iterable[str]) -> tuple[str, ...]:
    """`further` after `ours`, less those of ours that it replaces: the same --ulimit, or --cgroups and the like.

    podman 4.3 and docker refuse some options given twice and take the first or last of others.
    """
    added = tuple(further)
    replaced = {_kind(option) for option in added}
    return (*(option for option in ours if _kind(option) not in replaced), *added)


_REPEATABLE = frozenset({"--env", "--mount", "--volume", "--device", "--label", "--cap-add", "--security-opt"})


def _kind(option: str) -> tuple[str, ...]:
    """What two options must share for one to stand for the other; itself for those that may be given many times."""
    name, _, value = option.partition("=")
    if name == "--ulimit":
        return (name, value.partition("=")[0])
    return (name, value) if name in _REPEATABLE else (name,)


def needed_mounts(config: Config) -> dict[str, str]:
    """Directory on this Spark -> directory in the container, for what this start reads or spills to."""
    model = config.model
    cached = not model.path or (model.drafter == "dflash2" and not model.drafter_path)
    pairs = mounts(config)
    if model.drafter == "mtp" and model.drafter_path:
        pairs.pop(model.drafter_path.rstrip("/"), None)
    if not cached:
        pairs.pop(model.cache.rstrip("/") or "/", None)
    return pairs


def _mount(here: str, there: str, *, writable: bool) -> str:
    """--mount, not --volume: docker would make a missing directory, empty and root's, without a word."""
    return f"--mount=type=bind,source={here},target={there}" + ("" if writable else ",readonly")


def remove(config: Config, name: str) -> tuple[str, ...]:
    """Ends a container that may still run, and removes it with its anonymous volumes. Fine when it is not there."""
    if config.engine.runtime == "podman":
        return (*tool(config), "rm", "--force", "--ignore", "--time=0", "--volumes", name)
    return (*tool(config), "rm", "--force", "--volumes", name)


def listing(config: Config, cluster: str, node: str) -> tuple[str, ...]:
    """Prints the names of this Spark's containers of this cluster, one a line, whatever state they are in."""
    wanted = (f"--filter=label={LABEL}.cluster={cluster}", f"--filter=label={LABEL}.node={node}")
    return (*tool(config), "ps", "--all", "--no-trunc", *wanted, "--format={{.Names}}")


def parse_arguments(config: Config, arguments: Iterable[str], image: str = "") -> tuple[str, ...]:
    """Runs the engine's own parser over a rank's arguments, with no GPU, no network and nothing mounted.

    The recipe (start.sh) does the same before it stops anything: exit status 0 fine, 2 rejected with the reason.
    """
    code = "import sys; from tensorfold.cli import build_parser; build_parser().parse_args(sys.argv[1:])"
    options = ["--rm", "--pull=never", "--network=none", "--log-driver=none", "--entrypoint=python"]
    if config.engine.runtime == "podman":
        options += ["--sdnotify=ignore", "--http-proxy=false"]
    limits = [option for option in config.engine.container_options if option.startswith(("--ulimit=", "--cgroups="))]
    mounted = [
        option for option in config.engine.container_options if option.startswith(("--mount=", "--volume=", "--env="))
    ]
    return (*tool(config), "run", *options, *limits, *mounted, image or config.engine.image, "-c", code, *arguments)
