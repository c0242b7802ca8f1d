"""Which entry of the file this Spark is."""

from __future__ import annotations

from glm_spark.config.load import ConfigFault
from glm_spark.config.model import Config


def find_me(config: Config, override: str | None, host: str) -> str:
    """The name of this Spark's [[node]] entry: `override` if given, else the one that `host` names.

    The short and the full form of a host name match each other. Raises ConfigFault, which lists the entries.
    """
    wanted = override if override is not None else host
    for same in (_equal, _same_host):
        for node in config.node:
            if same(node.name, wanted):
                return node.name
    listed = ", ".join(node.name for node in config.node)
    whose = f"--node {override}" if override is not None else f"this host, {host or 'which has no name'},"
    fix = "give one of them" if override is not None else "name it in a [[node]] entry, or say which it is with --node"
    raise ConfigFault((f"node: {whose} is not among the Sparks listed: {listed}; {fix}",))


def _equal(name: str, host: str) -> bool:
    return name.lower() == host.lower()


def _same_host(name: str, host: str) -> bool:
    """Equal up to the domain, where one of the two has none."""
    if "." in name and "." in host:
        return False
    return _equal(name.split(".")[0], host.split(".")[0])
