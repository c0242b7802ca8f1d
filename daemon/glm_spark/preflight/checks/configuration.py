"""Is this Spark in the file, and can what the file points at be used?"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context


def run(context: Context) -> Iterator[Finding]:
    listed = [node.name for node in context.config.node]
    if context.me not in listed:
        yield context.finding(
            "config.not-listed",
            Severity.ERROR,
            "config.toml",
            measured=f"this Spark, {context.me}, is not among the [[node]] entries ({', '.join(listed)})",
            wanted="an entry for each Spark, by its host name",
            fix=f'Add [[node]] name = "{context.me}" in rank order to the file on all Sparks, or name it with --node.',
        )
    elif context.leads and context.config.api.keys_file:
        yield from _keys_file(context, context.config.api.keys_file)


def _keys_file(context: Context, path: str) -> Iterator[Finding]:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError as error:
        yield context.finding(
            "config.keys-file",
            Severity.ERROR,
            f"api.keys_file {path}",
            measured=error.strerror or "cannot be read",
            wanted="a file with one API key a line",
            fix="Make it with mode 0600, or correct api.keys_file. Until then no client is let in.",
        )
        return
    if mode & 0o077:
        yield context.finding(
            "config.keys-file",
            Severity.ERROR,
            f"api.keys_file {path}",
            measured=f"mode {mode:04o}, open to others than its owner",
            wanted="mode 0600",
            fix=f"Run chmod 600 {path}.",
        )


CHECK = Check(
    id="configuration",
    measures="the [[node]] entries and the files that the configuration names",
    wants="this Spark among the entries, the files readable and private",
    advice="Use one file for all Sparks.",
    run=run,
)
