"""glm-spark token new: a fresh shared secret, kept from other eyes on its way to a file."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from pathlib import Path

from glm_spark.cli import exits
from glm_spark.config import token


def main(arguments: argparse.Namespace) -> int:
    fresh = token.new()
    if arguments.output is not None:
        return _write(arguments.output, fresh)
    _make_private(sys.stdout.fileno())
    print(fresh)
    return exits.FINE


def _write(path: Path, fresh: str) -> int:
    """A new file of mode 0600, in a folder that is made when missing: the token comes before all else in it. An
    existing file, perhaps in use by the other Sparks, is left alone."""
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        print(f"glm-spark: {path} is there already; remove it first if no Spark needs it any more", file=sys.stderr)
        return exits.WRONG
    except OSError as error:
        print(f"glm-spark: {path} cannot be written: {error.strerror}", file=sys.stderr)
        return exits.WRONG
    with os.fdopen(handle, "w") as file:
        file.write(f"{fresh}\n")
    print(f"Written to {path}. Put the same file, mode 0600, on the other Sparks.", file=sys.stderr)
    return exits.FINE


def _make_private(handle: int) -> None:
    """A file the shell has just made for us follows the umask, 0644 as a rule, and the daemon would refuse it."""
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_size == 0 and status.st_uid == os.geteuid():
        os.fchmod(handle, 0o600)
