"""The executor's side: publish what an agent does, ask before it does it, obey.

    async with GuardClient(ExecutorOptions(...)) as client, client.run(agent_id="my-agent") as run:
        decision = await run.before_tool("read", {"path": "a"})
        if not decision.blocked:
            await run.after_tool(decision, result=await read("a"))

`LocalGuard` has the same API without Kafka.
"""

from streamguard.executor.client import GuardClient
from streamguard.executor.local import LocalGuard
from streamguard.executor.options import ExecutorOptions, Mode
from streamguard.executor.run import Decision, Run

__all__ = ["Decision", "ExecutorOptions", "GuardClient", "LocalGuard", "Mode", "Run"]
