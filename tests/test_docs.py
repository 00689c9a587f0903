"""Links in the documents lead somewhere: every file and every heading that a relative link names exists."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = sorted(page for place in ("*.md", "docs/**/*.md", "src/**/*.md") for page in REPOSITORY.glob(place))


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings: lower case, no punctuation, spaces as hyphens, -1 for the second alike."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.+?) *$", without_code(page), re.MULTILINE):
        words = re.sub(r"\]\([^)]*\)", "", heading)  # of a link only its text
        anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {f"{anchor}-{n}" if n else anchor for anchor, last in found.items() for n in range(last + 1)}


def broken_links(page: Path) -> list[str]:
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(page))
    broken = []
    for link in links:
        if re.match(r"[a-z]+:", link):  # https: and the like
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_files_and_headings_that_links_name_exist(page):
    assert not broken_links(page)


def test_links_that_lead_nowhere_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# One → two: `three`\n## Twice\n## Twice\n[a](#one--two-three) [b](page.md#twice-1) [c](https://nowhere)\n"
        "```\n[in code](gone.md)\n```\n[gone](gone.md) [no heading](page.md#twice-2)\n"
    )
    assert broken_links(page) == ["gone.md", "page.md#twice-2"]


def test_documents_that_the_code_names_exist():
    named = {
        name
        for folder in ("src", "benchmarks", "examples", "sweeps")
        for path in (REPOSITORY / folder).rglob("*")
        if path.suffix in (".py", ".yaml")
        for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert named, "the pattern finds nothing"
    assert [name for name in sorted(named) if not (REPOSITORY / name).is_file()] == []
