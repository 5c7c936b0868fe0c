"""The executor's client inside agent frameworks: one object for the framework, and `guarding` around a run.

    async with GuardClient(options) as guard, guarding(guard.run(agent_id="my-agent")):
        await agent.ainvoke(...)

Each framework has a module of its own here, and an extra of the same name: `pip install 'streamguard[langchain]'`.
"""

from streamguard.adapters.guarding import guarding

__all__ = ["guarding"]
