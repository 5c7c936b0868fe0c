"""`streamguard publish`: recorded events to the events topic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.progress import TextColumn

from streamguard.cli.progress import Complaints, FileProgress, file_progress, left_out
from streamguard.cli.service import load_briefly, service_options
from streamguard.errors import RecordTooLargeError
from streamguard.importers import AUTO, CHOICES, Imported, Intake, events_of, recording

if TYPE_CHECKING:
    from streamguard.settings import Settings
    from streamguard.stream.publish import Publisher

__all__ = ["command"]

INTERRUPTED: Final = 130

REFRESH_EVENTS: Final = 500

WITHOUT_ID: Final = "events without event_id (published twice, they count twice)"


@click.command("publish", short_help="Send recorded events to the events topic.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@service_options
@click.option(
    "--format", "form", type=click.Choice(CHOICES), default=AUTO, show_default=True, help="Whose recordings they are."
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), metavar="EVENTS_PER_SECOND", help="Send no faster than this."
)
@click.option(
    "--skip", type=click.IntRange(min=0), default=0, metavar="EVENTS", help="Leave out so many events at the beginning."
)
def command(
    files: tuple[str, ...],
    config: Path | None,
    bootstrap: str | None,
    form: str,
    *,
    rate: float | None,
    skip: int,
) -> None:
    """Send recorded events to the events topic, keyed by run, in the order of the files (- for standard input).

    Files are what `streamguard replay` reads: events, one JSON object a line, or recordings of other tools. A record's
    timestamp is its event's `time`, where it has one: a topic whose retention is over by then deletes it soon.

    When it is interrupted it says how many events are acknowledged. Going on with --skip of that number repeats fewer
    than 256 events, and those do no harm: events of the same event_id are duplicates within a run's window (its newest
    256 events, or twice the history if that is more), as long as the guard remembers the run: until its run_ended, or a
    day of silence. So far publishing all of it again does no harm either. Imported events have event_ids, and no
    run_ended; events of your own need event_ids too.

    Exits 1 if something could not be read; the rest is sent all the same.
    """
    settings = load_briefly(config, kafka__bootstrap=bootstrap)
    console = Console(stderr=True)
    asyncio.run(_Publishing(settings, console, form, rate, skip).run(files))


class _Publishing:
    """One call of the command."""

    def __init__(self, settings: Settings, console: Console, form: str, rate: float | None, skip: int) -> None:
        self._settings = settings
        self._console = console
        self._complaints = Complaints(console)
        self._form = form
        self._rate = rate
        self._skip = skip
        self._start = time.monotonic()

    async def run(self, files: Sequence[str]) -> None:
        """Send all files. Ends with code 1 if something was refused, 130 if it was interrupted."""
        from streamguard.stream.kafka import close, make_event_producer, started  # noqa: PLC0415 - Kafka loads when used
        from streamguard.stream.publish import Publisher  # noqa: PLC0415
        from streamguard.stream.topics import check_events_topic  # noqa: PLC0415

        await check_events_topic(self._settings)
        producer = make_event_producer(self._settings.kafka, self._settings.limits.record_bytes)
        await started(producer, self._settings.kafka)
        publisher = Publisher(producer, self._settings.topics.events, self._rate)
        self._start = time.monotonic()
        done = False
        try:
            await self._send(files, publisher)
            done = True
        except asyncio.CancelledError:
            raise SystemExit(INTERRUPTED) from None
        finally:
            await close(producer)
            publisher.settle()
            if not done:
                self._say_how_far(publisher)
        self._say_done(publisher)
        if self._complaints.count:
            raise SystemExit(1)

    async def _send(self, files: Sequence[str], publisher: Publisher) -> None:
        rate = TextColumn("{task.fields[rate]}")
        with file_progress("publishing", files, self._console, rate) as (progress, sizes):
            read = 0
            for name, size in zip(files, sizes, strict=True):
                for imported in self._events(name, size, progress):
                    read += 1
                    if read <= self._skip:
                        continue
                    await self._send_one(name, imported, publisher, read)
                    if publisher.sent % REFRESH_EVENTS == 0:
                        progress.progress.update(
                            progress.task, rate=f"{self._per_second(publisher):,.0f} events a second"
                        )
            await publisher.flush()

    async def _send_one(self, name: str, imported: Imported, publisher: Publisher, position: int) -> None:
        try:
            await publisher.send(imported.event, imported.value, position)
        except RecordTooLargeError as error:
            self._complaints.say(f"{name}:{imported.line}: {error}")

    def _events(self, name: str, size: int, progress: FileProgress) -> Iterator[Imported]:
        limits = self._settings.limits
        found = recording(name, self._form, limits.record_bytes)
        intake = Intake(
            name, record_bytes=limits.record_bytes, json_depth=limits.json_depth, refuse=self._complaints.refuse
        )
        for imported in events_of(progress.follow(found.lines, size), found.format, intake):
            if imported.event.event_id is None:
                intake.noted[WITHOUT_ID] += 1
            yield imported
        left_out(self._console, found.format, intake)

    def _per_second(self, publisher: Publisher) -> float:
        return publisher.acknowledged / max(time.monotonic() - self._start, 1e-6)

    def _say_done(self, publisher: Publisher) -> None:
        seconds = time.monotonic() - self._start
        click.echo(
            f"{publisher.acknowledged:,} events of {publisher.runs:,} runs published to {self._settings.topics.events} "
            f"in {seconds:.1f} s ({self._per_second(publisher):,.0f} a second)"
        )
        if self._complaints.count:
            self._console.print(f"{self._complaints.count:,} could not be read or sent", style="red")

    def _say_how_far(self, publisher: Publisher) -> None:
        reached = max(self._skip, publisher.reached)
        self._console.print(
            f"stopped: {reached:,} events of these files stand on {self._settings.topics.events}; "
            f"to go on: the same command with --skip {reached}",
            highlight=False,
            soft_wrap=True,
        )
