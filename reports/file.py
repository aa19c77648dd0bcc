"""A report's file, written whole or not at all."""

import os
from pathlib import Path

from kvfence.reports.records import RecordError


def write(text: str, file: Path) -> None:
    """Write a text as UTF-8, with its folder; raises RecordError where that is impossible."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(text.encode())
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise RecordError(f"cannot write report {file}: {error.strerror}") from error
