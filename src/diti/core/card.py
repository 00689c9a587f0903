"""The pictures of a run's card.md: written when a run ends, read by the report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def picture_lines(pictures: Mapping[str, str]) -> str:
    """Markdown of pictures: file → what it shows."""
    return "".join(f"\n![{words}]({file})\n" for file, words in pictures.items())


def pictures_of(folder: Path) -> dict[str, str]:
    """File → what it shows, of the pictures in a run folder that its card names."""
    named = re.findall(
        r"^!\[(.+)\]\((.+)\)$", (folder / "card.md").read_text(encoding="utf-8", errors="replace"), re.MULTILINE
    )
    return {file: words for words, file in named if (folder / file).is_file()}
