"""An MCP server of the OpenAI Agents SDK, in this process."""

from __future__ import annotations

from typing import Any

import mcp.types
from agents.mcp import MCPServer
from looping import Shelf

__all__ = ["ShelfServer"]


class ShelfServer(MCPServer):
    """An MCP server with the shelf's tool."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__()
        self.shelf = shelf

    @property
    def name(self) -> str:
        """Return its name."""
        return "shelf"

    async def connect(self) -> None:
        """Nothing to connect to."""

    async def cleanup(self) -> None:
        """Nothing to leave."""

    async def list_tools(self, *_: Any) -> Any:
        """Return the one tool."""
        schema = {"type": "object", "properties": {"book": {"type": "string"}}}
        return [mcp.types.Tool.model_validate({"name": "look", "inputSchema": schema})]

    async def call_tool(self, _: str, arguments: dict[str, Any] | None, *__: Any) -> Any:
        """Look."""
        page = self.shelf.look((arguments or {})["book"])
        return mcp.types.CallToolResult.model_validate({"content": [{"type": "text", "text": page}]})

    async def list_prompts(self) -> Any:
        """No prompts."""

    async def get_prompt(self, *_: Any) -> Any:
        """No prompt."""
