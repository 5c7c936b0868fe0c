"""OpenAI Agents SDK: an agent whose tools are guarded.

    agent = GuardedAgent(name="Assistant", tools=[...], handoffs=[GuardedAgent(...)])
    async with guarding(guard.run()):
        await Runner.run(agent, "...")

Guarded are function tools, those of MCP servers that the SDK calls, and agents as tools. Hosted tools (web search, code
interpreter, hosted MCP) run at OpenAI, shell, computer and patch tools in the SDK itself: nobody is asked about those.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

from streamguard.adapters.call import Blocked, Call, Outcome, guarded_call
from streamguard.adapters.guarding import current
from streamguard.errors import MissingExtraError

try:
    from agents import Agent, FunctionTool, ModelResponse, RunContextWrapper, RunHooks, Tool, ToolOutputText
    from agents.tool import ToolOutputFileContent, ToolOutputImage
    from agents.tool_context import ToolContext
except ImportError as error:
    raise MissingExtraError(
        "streamguard.adapters.openai_agents needs the OpenAI Agents SDK: pip install 'streamguard[openai-agents]'"
    ) from error

__all__ = ["CompactionHooks", "GuardedAgent", "guarded_tool"]

Context = TypeVar("Context")
Invoke = Callable[[ToolContext[Any], str], Awaitable[Any]]

PARTS: Final = ("text", "image", "file")
"""Types of parts that an output can consist of."""


@dataclass
class GuardedAgent(Agent[Context]):
    """An `Agent` that asks before every call of its tools, and tells what came of it.

    Calls that the guard blocks get its message as their result; warnings follow the result they came with. An abort
    ends the run with `RunAbortedError`. Agents handed off to are to be guarded themselves.
    """

    @classmethod
    def of(cls, agent: Agent[Context]) -> GuardedAgent[Context]:
        """Return a guarded agent that is otherwise like this one."""
        return cls(**{field.name: getattr(agent, field.name) for field in fields(agent) if field.init})

    async def get_all_tools(self, run_context: RunContextWrapper[Context]) -> list[Tool]:
        """Return the tools of this turn, guarded."""
        tools = await super().get_all_tools(run_context)
        return [guarded_tool(tool) if isinstance(tool, FunctionTool) else tool for tool in tools]


class CompactionHooks(RunHooks[Any]):
    """Tells of compactions by the model's provider: `Runner.run(agent, input, hooks=CompactionHooks())`."""

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:  # noqa: ARG002 - the SDK's signature
        """Look for a compaction in what the model answered. Raises `RunAbortedError`, `RunOverError`."""
        if any(getattr(item, "type", None) == "compaction" for item in response.output):
            await current().run.compacted(trigger="provider")


def guarded_tool(tool: FunctionTool) -> FunctionTool:
    """Return a guarded copy of a tool, to be used in any agent; one that is guarded already is returned as it is."""
    if isinstance(tool.on_invoke_tool, _GuardedInvoke):
        return tool
    guarded = copy.copy(tool)
    guarded.on_invoke_tool = _GuardedInvoke(guarded, guarded.on_invoke_tool)
    return guarded


class _GuardedInvoke:
    """Stands before what a tool does. The SDK looks for attributes of its own there: they are passed on."""

    def __init__(self, tool: FunctionTool, invoke: Invoke) -> None:
        self._tool = tool
        self._invoke = invoke
        self.__signature__ = inspect.signature(invoke)  # it tells the SDK which context is wanted

    def __getattr__(self, name: str) -> Any:
        if name in {"_tool", "_invoke"}:  # while it is being copied
            raise AttributeError(name)
        return getattr(self._invoke, name)

    def __agents_bind_function_tool__(self, tool: FunctionTool) -> _GuardedInvoke:
        """Stay guarded when the SDK copies the tool."""
        bind = getattr(self._invoke, "__agents_bind_function_tool__", None)
        return _GuardedInvoke(tool, bind(tool) if callable(bind) else self._invoke)

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        guarded = current()
        call = Call(guarded, self._tool.qualified_name, _parsed(arguments), getattr(context, "tool_call_id", None))
        output = await guarded_call(call, lambda: self._invoke(context, arguments), Outcome)
        if isinstance(output, Blocked):
            return self._as_output(output.message)
        if self._tool.output_json_schema is not None:
            return output  # a warning would not fit in; the next tool's result takes it along
        warnings = guarded.run.take_warnings()
        return _with(output, "\n".join(warnings)) if warnings else output

    def _as_output(self, message: str) -> Any:
        return message if self._tool.output_json_schema is None else {"error": message}


def _parsed(arguments: str) -> Any:
    """Return the arguments as a value, so that blanks and the order of keys do not count; else as they are."""
    try:
        return json.loads(arguments) if arguments else {}
    except ValueError:
        return arguments


def _with(output: Any, warning: str) -> Any:
    """Put a warning after an output, whichever of the SDK's shapes that has."""
    parts = list(output) if isinstance(output, list | tuple) else [output]
    if parts and all(_type(part) in PARTS for part in parts):
        return [*parts, ToolOutputText(text=warning)]
    return f"{output}\n\n{warning}"


def _type(part: Any) -> Any:
    if isinstance(part, dict):
        return part.get("type")
    return part.type if isinstance(part, ToolOutputText | ToolOutputImage | ToolOutputFileContent) else None
