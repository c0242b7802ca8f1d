"""Runs the checks: all at once, each under its deadline, told in a fixed order."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import cast

from glm_spark.finding import Finding, Severity
from glm_spark.preflight.aside import in_a_thread
from glm_spark.preflight.checks import ALL
from glm_spark.preflight.context import Check, Context

log = logging.getLogger("glm_spark.preflight")


async def run(context: Context, checks: Sequence[Check] = ALL) -> tuple[Finding, ...]:
    """What the checks found, in the order of `checks`. Never raises for a check's sake.

    A check that does not return by its deadline, or that fails itself, is one finding of severity "unknown".
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_one(context, check), name=f"preflight {check.id}") for check in checks]
    return tuple(dict.fromkeys(finding for task in tasks for finding in task.result()))


async def _one(context: Context, check: Check) -> tuple[Finding, ...]:
    try:
        async with asyncio.timeout(check.deadline):
            if inspect.iscoroutinefunction(check.run):
                return tuple(await cast(Awaitable[Iterable[Finding]], check.run(context)))
            plain = cast(Callable[[Context], Iterable[Finding]], check.run)
            return await in_a_thread(lambda: tuple(plain(context)), f"preflight {check.id}")
    except TimeoutError:
        return (_timeout(context, check),)
    except Exception as error:
        log.exception("the check %s failed itself", check.id)
        return (_broken(context, check, error),)


def _timeout(context: Context, check: Check) -> Finding:
    return context.finding(
        "preflight.timeout",
        Severity.UNKNOWN,
        f"check {check.id}",
        measured=f"no answer within {check.deadline:g} s",
        wanted=check.wants,
        fix=f"It reads: {check.measures}. See what holds that up (journalctl -k).",
    )


def _broken(context: Context, check: Check, error: Exception) -> Finding:
    return context.finding(
        "preflight.check-failed",
        Severity.UNKNOWN,
        f"check {check.id}",
        measured=f"the check itself failed: {type(error).__name__}: {error}"[:500],
        wanted=check.wants,
        fix="This is a fault of glm-spark: report it with the lines of the journal above.",
    )
