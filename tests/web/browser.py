"""A real Chromium, if there is one: pages in it reach nothing but our own servers."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright

__all__ = ["WIDE", "chromium_path", "opened"]

WIDE = (1440, 900)


def chromium_path() -> str | None:
    """Return where Chromium is; None if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@asynccontextmanager
async def opened(size: tuple[int, int] = WIDE, **options: Any) -> AsyncIterator[Page]:
    """Give a page of a new browser. Errors of its scripts, and what it refuses to load, fail the test."""
    path = chromium_path()
    if path is None:
        pytest.skip("Chromium is not installed (Debian: chromium)")
    wrong: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        context = await browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        page = await context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
        yield page
        await browser.close()
    assert [] == wrong
