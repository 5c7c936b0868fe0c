"""The live page in a real Chromium, fed by a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from browser import opened
from cluster import Cluster, running
from events import call, loop, result
from playwright.async_api import Page, expect

from streamguard.policy import PolicySet
from streamguard.settings import Settings
from streamguard.stream.worker import Worker
from streamguard.web.server import LivePage

ON = PolicySet({"enabled": True, "warningThreshold": 3, "criticalThreshold": 6})
PHONE = (390, 844)
TOKEN = "a+token/of=the&tests%41"  # noqa: S105 - of the tests
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give topics on which one run was stopped, one is half way there, and one is well."""
    async with Cluster(broker, topic_prefix, partitions=2) as cluster:
        async with running(Worker(cluster.settings, ON)):
            await cluster.publish("stuck-run", loop("stuck-run", 7), partition=0)
            near = [call("near-run", 0, agent_id="crawler"), *loop("near-run", 4)[1:]]
            await cluster.publish("near-run", near, partition=1)
            await cluster.publish("well-run", [call("well-run", 0), result("well-run", 0)], partition=1)
            await cluster.verdicts(3)
            await cluster.caught_up()
        yield cluster


@asynccontextmanager
async def served(cluster: Cluster, **fields: Any) -> AsyncIterator[str]:
    """Serve the page; give its address."""
    ui = msgspec.structs.replace(Settings().ui, **{"port": 0, **fields})
    page = LivePage(msgspec.structs.replace(cluster.settings, ui=ui), ON)
    task = asyncio.create_task(page.run())
    host, port = await page.listening()
    try:
        yield f"http://{host}:{port}"
    finally:
        page.stop()
        await task


async def rows(page: Page, selector: str) -> Sequence[str]:
    """Return the texts of elements."""
    return await page.locator(selector).all_inner_texts()


async def test_from_a_verdict_to_the_run(cluster: Cluster) -> None:
    """The feed shows what was said; a click on it opens the run: repeats alike, the verdicts where they fell."""
    async with served(cluster) as address, opened() as page:
        await page.goto(address)
        await page.locator("#feed button", has_text="stuck-run").first.click()
        await expect(page.locator("#run-title")).to_have_text("stuck-run")
        await expect(page.locator("#steps tbody tr")).to_have_count(14)
        marks = set(await rows(page, "#steps .call i"))
        stopped = await rows(page, "#steps tr.stopped .tag")
        warned = await page.locator("#steps .tag.warn").count()

    assert ({"1"}, ["block"], 1) == (marks, stopped, warned)


async def test_who_is_nearest_to_a_threshold_comes_first(cluster: Cluster) -> None:
    """Runs at risk, by how near they are; whoever is well is not among them; lag and latency are shown."""
    async with served(cluster) as address, opened() as page:
        await page.goto(address)
        await expect(page.locator("#risks tbody tr")).to_have_count(2)
        found = await rows(page, "#risks tbody tr td:first-child")
        near = await rows(page, "#risks .near b")
        await expect(page.locator("#f-lag")).to_have_text("0")
        await expect(page.locator("#f-p50")).to_contain_text("s")
        await expect(page.locator("#parts tbody tr")).to_have_count(2)
        await expect(page.locator("#risks .near em").last).to_contain_text("block · generic_repeat")

    assert (["stuck-run", "near-run"], ["7 of 6", "4 of 6"]) == (found, near)


async def test_search_and_keys(cluster: Cluster) -> None:
    """/ searches by run or agent, Enter opens, Esc closes; j picks, t changes the theme, ? tells."""
    async with served(cluster) as address, opened() as page:
        await page.goto(address)
        await expect(page.locator("#risks tbody tr")).to_have_count(2)
        await page.keyboard.press("/")
        await page.keyboard.type("CRAWL")
        await expect(page.locator("#risks tbody tr td:first-child")).to_have_text(["near-run"])
        await page.keyboard.press("Enter")
        await expect(page.locator("#run-title")).to_have_text("near-run")
        await page.keyboard.press("Escape")
        await expect(page.locator("#run")).not_to_be_visible()
        await page.keyboard.press("/")
        await page.keyboard.press("Escape")
        await expect(page.locator("#risks tr.picked")).to_contain_text("near-run")
        await page.keyboard.press("k")
        await expect(page.locator("#risks tr.picked")).to_contain_text("stuck-run")
        before = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        await page.keyboard.press("t")
        after = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        await page.keyboard.press("?")
        await expect(page.locator("#keys")).to_be_visible()

    assert before != after


async def test_names_are_text(cluster: Cluster) -> None:
    """Whatever a run or a tool is called, it is shown as text and runs nothing."""
    async with running(Worker(cluster.settings, ON)):
        for number in range(5):
            await cluster.publish(EVIL, [call(EVIL, number, tool=EVIL), result(EVIL, number)])
        await cluster.verdicts(4)
    async with served(cluster) as address, opened() as page:
        page.on("dialog", lambda dialog: pytest.fail(f"it ran: {dialog.message}"))
        await page.goto(address)
        await page.locator("#feed button", has_text=EVIL).first.click()
        await expect(page.locator("#run-title")).to_have_text(EVIL)
        images = await page.locator("img").count()

    assert 0 == images


async def test_it_fits_a_phone(cluster: Cluster) -> None:
    """At 390 pixels nothing is wider than the screen, neither the page nor a run."""
    async with served(cluster) as address, opened(PHONE) as page:
        await page.goto(address)
        await page.locator("#feed button", has_text="stuck-run").first.click()
        await expect(page.locator("#steps tbody tr")).to_have_count(14)
        widths = await page.evaluate(
            "[document.documentElement.scrollWidth, document.querySelector('#run').scrollWidth]"
        )

    assert [PHONE[0]] * 2 >= widths


async def test_it_goes_on_after_a_restart(cluster: Cluster) -> None:
    """When the server comes back at its address the page goes on by itself; meanwhile it says since when it is old."""
    async with opened() as page:
        async with served(cluster) as address:
            await page.goto(address)
            await expect(page.locator("#link")).to_have_text("live")
        await expect(page.locator("#link")).to_contain_text("no news since", timeout=15_000)
        async with served(cluster, port=int(address.rpartition(":")[2])):
            await expect(page.locator("#link")).to_have_text("live", timeout=15_000)
            shown = await page.locator("#link").text_content()

    assert "live" == shown


async def test_a_token_is_needed(cluster: Cluster) -> None:
    """With tokens set: a wrong one stays out, the right one gets in, by a cookie that no script reads."""
    async with served(cluster, tokens=TOKEN) as address, opened() as page:
        await page.goto(address)
        await page.locator("input[name=token]").fill("wrong-token-of-the-tests")
        await page.locator("button").click()
        await expect(page.locator(".wrong")).to_be_visible()
        await asyncio.sleep(1.1)  # one try a second
        await page.locator("input[name=token]").fill(TOKEN)
        await page.locator("button").click()
        await expect(page.locator("#link")).to_have_text("live")
        [cookie] = await page.context.cookies()

    assert (True, "Strict", False) == (cookie["httpOnly"], cookie["sameSite"], TOKEN in cookie["value"])


async def test_it_only_reads(cluster: Cluster) -> None:
    """Without a token nothing is told; nothing can be written; browsers are told what the page may not do."""
    async with served(cluster, tokens=TOKEN) as address, httpx.AsyncClient(base_url=address) as client:
        outside = [(await client.get(path)).status_code for path in ("/", "/api/stream", "/api/runs", "/static/app.js")]
        disguised = (await client.get("/api/runs", headers={"host": "x/login?"})).status_code
        large = (await client.post("/login", content=b"token=" + b"x" * 10_000)).status_code
        client.headers["authorization"] = f"Bearer {TOKEN}"
        inside = [(await client.get(path)).status_code for path in ("/", "/api/runs", "/static/app.js", "/static/x")]
        writing = [(await client.request(method, "/api/runs")).status_code for method in ("POST", "PUT", "DELETE")]
        policy = (await client.get("/")).headers["content-security-policy"]

    assert ([303, 401, 401, 401], [200, 200, 200, 404], [405] * 3) == (outside, inside, writing)
    assert 413 == large
    assert disguised in {400, 401}
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
