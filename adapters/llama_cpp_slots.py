"""Slots of llama.cpp's server whose K/V travel through files: saved when a request ends, restored for the next one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kvfence.adapters.http_client import HTTPClient
from kvfence.adapters.prefix_pool import common

Tokens = tuple[int, ...]
KEPT = 64  # files; the one that was not used for longest goes first
POLL = 0.002  # seconds between two looks at a slot that a withdrawn request may still be in


class SavedSlots:
    """What requests have left in their slots, a file each, found by its tokens.

    Which slot a request gets, and which file is restored there, is decided here; what a file holds, and how much of it
    is used, is the server's. A slot for which there is no file is emptied: what is shared has been in one.
    """

    def __init__(self, http: HTTPClient, folder: Path, slots: int) -> None:
        self._http, self._folder = http, folder
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(slots):
            self._free.put_nowait(slot)
        self.files: dict[Tokens, Path] = {}  # what was not used for longest first
        self._made = 0

    @asynccontextmanager
    async def slot(self, prompt: Tokens) -> AsyncIterator[int]:
        """A slot for a request, with the K/V of the saved tokens that have most in common with it."""
        slot = await self._free.get()
        try:
            while (await self._http.json("GET", "/slots"))[slot]["is_processing"]:
                await asyncio.sleep(POLL)
            best = max(self.files, key=lambda tokens: common(tokens, prompt), default=())
            if common(best, prompt):
                self.files[best] = self.files.pop(best)  # nobody may delete it before it is read
                await self._do(slot, "restore", filename=self.files[best].name)
            else:
                await self._do(slot, "erase")
            yield slot
        finally:
            self._free.put_nowait(slot)

    async def save(self, slot: int, tokens: Tokens) -> None:
        """Keep what a slot holds: K/V of these tokens."""
        self._made += 1
        file = self.files.pop(tokens, self._folder / f"{self._made}.bin")
        await self._do(slot, "save", filename=file.name)
        self.files[tokens] = file
        while len(self.files) > KEPT:
            self.files.pop(next(iter(self.files))).unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete all files."""
        for file in self._folder.iterdir():
            file.unlink()
        self.files.clear()

    async def _do(self, slot: int, action: str, **body: str) -> None:
        await self._http.json("POST", f"/slots/{slot}?action={action}", body)
