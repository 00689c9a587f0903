"""What a run found out about what it made: facts, sentences, and the pictures that its card.md names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Findings:
    """What is known about a model after its training or solution."""

    facts: dict[str, Any] = field(default_factory=dict)  # for checks.json
    sentences: tuple[str, ...] = ()  # the same for people
    pictures: dict[str, str] = field(default_factory=dict)  # file in the model folder → what it shows

    def printed(self, folder: Path) -> str:
        """For the terminal: the sentences, and what was written into the folder."""
        written = [f"{folder}/{name}" for name in self.pictures]
        return "\n".join([*self.sentences, f"wrote {', '.join([*written, 'the model'])}"])


def picture_lines(pictures: Mapping[str, str]) -> str:
    """Markdown of pictures: file → what it shows."""
    return "".join(f"\n![{words}]({file})\n" for file, words in pictures.items())


def pictures_of(folder: Path) -> dict[str, str]:
    """File → what it shows, of the pictures in a run folder that its card names."""
    named = re.findall(
        r"^!\[(.+)\]\((.+)\)$", (folder / "card.md").read_text(encoding="utf-8", errors="replace"), re.MULTILINE
    )
    return {file: words for words, file in named if (folder / file).is_file()}
