"""Text: untrusted strings made safe to look at."""

import hashlib
import re

# Escaped by a backslash: what Markdown reads as markup, and what would make a link of an address.
_MARKUP = re.compile(r"[\\`*_{}\[\]<>|&#~$@]|(?<=:)/(?=/)|(?<=www)\.", re.IGNORECASE)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def shown(text: str, limit: int = 20_000, keep: str = "") -> str:
    """The text with everything invisible spelled out, cut after ``limit`` characters.

    Control characters become ``\\x1b``; bidi marks, zero-width characters, odd spaces and lone surrogates
    become ``⟨U+202E⟩``. Characters in ``keep`` stay. The result encodes as UTF-8; it is not yet HTML.
    """
    rest = len(text) - limit
    text = text[:limit]
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char in keep else _spelled(char) for char in text)
    return f"{text}… ⟨{rest:,} more characters⟩" if rest > 0 else text


def _spelled(char: str) -> str:
    code = ord(char)
    return _NAMED.get(char, f"\\x{code:02x}") if code < 0xA0 else f"⟨U+{code:04X}⟩"


def literal(text: str) -> str:
    """The text as one line of Markdown, also inside a table, that shows it and does nothing else."""
    return _MARKUP.sub(r"\\\g<0>", shown(text))


def token(text: str) -> str:
    """One token for a narrow cell: spaces at its ends are visible, and so is an empty one."""
    if not text:
        return "⟨empty⟩"
    core = text.strip(" ")
    before, after = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    return shown("␣" * before + core + "␣" * (after if core else 0), limit=48)


def anchor(case: str, victim: str | None = None) -> str:
    """Stable id of a case, or of one victim of it, that is the same in every report of the same case."""
    return f"case-{_slug(case)}" + (f"~{_slug(victim)}" if victim is not None else "")


def _slug(name: str) -> str:
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:100]
    if slug == name:
        return slug
    # Names that differ only in what was replaced or cut must not share a link.
    return f"{slug}-{hashlib.sha256(name.encode('utf-8', 'backslashreplace')).hexdigest()[:8]}"


def number(value: float) -> str:
    """A figure of at most four significant digits."""
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def count(number: int, noun: str) -> str:
    """``1 case`` or ``2 cases``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
