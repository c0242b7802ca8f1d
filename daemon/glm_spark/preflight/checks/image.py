"""Is the engine's image there, and is it the pinned one?"""

from __future__ import annotations

import shutil

from glm_spark.engine import images
from glm_spark.engine.container import tool_environment
from glm_spark.finding import Finding, Severity
from glm_spark.handover import jobs
from glm_spark.preflight.context import Check, Context


async def run(context: Context) -> list[Finding]:
    runtime = context.config.engine.runtime
    environment = tool_environment(context.environ)
    if runtime == "process" or shutil.which(runtime, path=environment["PATH"]) is None:
        return []  # that there is no runtime is the check of the program's to say
    found = await images.look(context.config, context.me)
    if isinstance(found, images.Image):
        return []
    if found.code == "image.missing" and context.moment == "check":
        taken = context.me != context.config.leader.name and jobs.may(context.config)
        if context.config.engine.pull or taken:
            fix = "It is fetched before the next start."
            if taken:
                fix = f"It is taken from {context.config.leader.name} before the next start, where it cannot be pulled."
            return [found.model_copy(update={"severity": Severity.NOTE, "fix": fix})]
    return [found]


CHECK = Check(
    id="image",
    measures="the runtime's store on this Spark",
    wants="the image that engine.image pins by its digest",
    advice="Load it by its digest, or set engine.pull = true.",
    run=run,
    deadline=20.0,
)
