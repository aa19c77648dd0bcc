"""What the silence of each oracle does not show: told beside every run that conforms."""

from kvfence.reports.records import Run
from kvfence.reports.text import count

UNSEEN = {
    "golden": "K/V that no output token depended on",
    "canary": "a leak of K alone, or of one layer, which changes words without spelling others'",
    "attention": "a value exchanged under its key, until a token changes",
    "blocks": "what the log does not hold, such as a kernel that reads another block than the table says",
    "kv": "what was read from elsewhere, and blocks let go of before their request ended",
    "side": "hits that the engine counts wrong",
    "twin": "what depends on a neighbour's presence or length and not on its words",
}


def silence(run: Run) -> list[tuple[str, str, str]]:
    """Of each oracle its name, in how many cases it was asked, and what its silence does not show."""
    asked = {name: sum(name in case.get("asked", ()) for case in run.cases) for name in UNSEEN}
    return [
        (name, f"asked in {count(n, 'case')}" if n else "not asked", unseen if n else "anything")
        for name, unseen in UNSEEN.items()
        for n in [asked[name]]
    ]
