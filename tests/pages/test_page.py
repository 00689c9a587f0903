"""The page of reports and explorations: what the file holds, and what a real browser makes of it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from browser import launch, open_page
from jinja2 import UndefinedError
from PIL import Image

from diti.core.errors import InputError
from diti.pages.blocks import Cell, Figure, Film, Page, Section, Table
from diti.pages.page import render, save_page
from diti.pages.templates import template

HOSTILE = "<img src=x onerror=alert(1)>\"'&"
VOID = {"meta", "link", "img", "input"}


class AttributeClassifier(HTMLParser):
    """Elements with their attributes and text; fails on a tag that is not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[dict[str, Any]] = []
        self.elements: list[dict[str, Any]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        element = {"tag": tag, "text": "", **dict(attributes)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1]["tag"] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element["text"] += data

    def all(self, tag: str, **wanted: str) -> list[dict[str, Any]]:
        return [e for e in self.elements if e["tag"] == tag and all(e.get(k) == v for k, v in wanted.items())]


def test_reader_notices_tags_out_of_order():
    for wrong in ("<p><b></p></b>", "<p>", "</p>"):
        with pytest.raises(AssertionError):
            AttributeClassifier(wrong)


def draw(path: Path, width: int, height: int) -> Path:
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(path)
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Every kind of block, with a hostile name in every text, a wide table and a large and a small picture."""
    folder = tmp_path_factory.mktemp("figures")
    scores = Table(
        "table1",
        f"Scores {HOSTILE}",
        ["method", f"AP {HOSTILE}", "remark"],
        [
            [Cell("paper", tone="paper"), Cell("62.6", 62.6, tone="paper"), Cell("64 px")],
            [Cell(HOSTILE), Cell("91.3 [90.8, 91.9]", 91.3, 90.8, 91.9, tone="best"), Cell("one seed")],
            [Cell("PCA", tone="baseline"), Cell("–", tone="baseline"), Cell("")],
        ],
        note=f"Of test rows.\n\n{HOSTILE}",
    )
    names = [f"attribute_{index}" for index in range(40)]
    wide = Table("per attribute", "Wide", ["run", *names], [[Cell("x" * 90), *(Cell("0.5", 0.5) for _ in names)]])
    large = Figure(draw(folder / "large.png", 1500, 500), f"Large {HOSTILE}", HOSTILE)
    small = Figure(draw(folder / "small.png", 96, 32), "", "three faces")
    sections = [
        Section(
            "Scores", f"First\nline.\n\n \n\nSecond {HOSTILE}", [scores, wide], [f"diti probe {HOSTILE}", "ls"]
        ),
        Section(f"Bilder für {HOSTILE}", "", [large, small]),
        Section("Scores", "x" * 300, [wide, large], ["diti report " + "runs/a " * 40], folded=True),
        Section("???"),
    ]
    return Page(f"Report {HOSTILE}", f"Lead {HOSTILE}", sections, {"data": "0f" * 60, HOSTILE: HOSTILE})


@pytest.fixture(scope="module")
def read(page: Page) -> AttributeClassifier:
    return AttributeClassifier(render(page))


def test_tags_are_balanced_and_hostile_text_stays_text(read, page):
    assert read.all("html")[0]["lang"] == "en"
    assert [e["tag"] for e in read.elements if "onerror" in e or "x" in (e.get("src"), e["tag"])] == []
    assert read.all("title")[0]["text"] == page.title == read.all("h1")[0]["text"]
    assert read.all("dt")[-1]["text"] == read.all("dd")[-1]["text"] == HOSTILE
    assert read.all("pre")[0]["text"] == f"diti probe {HOSTILE}\nls"
    assert HOSTILE in {e["text"] for e in read.all("th", scope="row")}
    assert f"AP {HOSTILE}" in {e["text"] for e in read.all("th", scope="col")}
    assert read.all("img")[0]["alt"] == HOSTILE


def test_nothing_comes_from_outside(read, page):
    assert not re.search(r"https?://|<script|@import|url\(", render(page))
    assert [e.get("href") for e in read.all("link")] == ["data:,"]
    policy = read.all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_pictures_are_embedded_as_they_are(read, page):
    files = [b.path for s in page.sections for b in s.blocks if isinstance(b, Figure)]
    images = read.all("img")
    for image, file in zip(images, files, strict=True):
        assert image["src"].startswith("data:image/png;base64,")
        assert base64.b64decode(image["src"].split(",")[1]) == file.read_bytes()
    shown = [(image["width"], image["height"], image.get("class")) for image in images[:2]]
    assert shown == [("1500", "500", None), ("480", "160", "sharp")]  # 96x32, five times as large


def test_table_says_what_its_tones_mean(read):
    body = [(e["text"], e.get("class")) for e in read.elements if e["tag"] in ("th", "td")][:12]
    assert body == [
        ("method", None),
        (f"AP {HOSTILE}", "number"),
        ("remark", None),
        ("paper", "paper"),
        ("62.6", "number paper"),
        ("64 px", None),
        (HOSTILE, None),
        ("91.3 [90.8, 91.9]", "number best"),
        ("one seed", None),
        ("PCA", "baseline"),
        ("–", "number baseline"),
        ("", None),
    ]
    below = [e["text"].split("\n") for e in read.all("div", **{"class": "below"})]
    legend = "grey: the paper's own number, not measured here"
    assert [line for line in below[0] if line] == ["Of test rows.", HOSTILE, legend, "CSV: table1.csv"]
    assert [line for line in below[1] if line] == ["CSV: per attribute.csv"]  # nothing grey, no legend


def test_links_lead_to_anchors_and_files(page):
    unfolded = replace(page, sections=[replace(section, folded=False) for section in page.sections])
    read = AttributeClassifier(render(unfolded))
    links = [unquote(e["href"]) for e in read.all("a")]
    ids = [e["id"] for e in read.elements if "id" in e]
    assert len(ids) == len(set(ids)) == 5
    assert [link[1:] for link in links if link.startswith("#")] == ids  # in the order of the sections, facts last
    assert [link for link in links if not link.startswith("#")] == [
        "table1.csv",
        "per attribute.csv",
        "per attribute.csv",
    ]
    assert len(read.all("details")) == 1 and "open" not in read.all("details")[0], "the facts fold on every page"


def test_parts_that_fold_are_the_list_of_contents(read):
    assert not read.all("nav") and len(read.all("details")) == 2
    assert [e["text"].strip() for e in read.all("summary")] == ["Scores", "Facts"]


def test_what_a_template_lacks_is_an_error():
    with pytest.raises(UndefinedError, match="'page' is undefined"):
        template("pages/page.html.jinja").render(mark="", allowed="")


def test_a_film_brings_the_one_script_that_the_policy_names(tmp_path):
    Image.new("RGB", (60, 10)).save(tmp_path / "f.png")
    film = Film(tmp_path / "f.png", 3, "", "three frames", "<pull>")
    text = render(Page("t", "", [Section("s", blocks=[film])]))
    read = AttributeClassifier(text)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    named = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = read.all("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
    assert policy.endswith(f"script-src 'sha256-{named}'") and text.count("<script") == 1
    slider = read.all("input")[0]
    assert (slider["type"], slider["max"], slider["value"], slider["data-frames"]) == ("range", "2", "1", "3")
    assert "&lt;pull&gt;" in text and read.all("img")[0]["alt"] == "three frames"


def test_a_key_cannot_become_another_address():
    table = Table("javascript:alert(1)//../x", "t", ["a"], [])
    links = AttributeClassifier(render(Page("t", "", [Section("s", blocks=[table])]))).all("a")
    assert [e["href"] for e in links] == ["javascript%3Aalert%281%29%2F%2F..%2Fx.csv"]


def test_paragraphs_are_split_at_empty_lines_only():
    read = AttributeClassifier(render(Page("t", "a\nb\n\n\n  c *d*\n \n", [])))
    assert [e["text"] for e in read.all("p")] == ["a\nb", "c *d*"]
    assert not read.all("nav") and not read.all("footer")


def test_figures_must_be_png_files(tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.jpg")
    for name, complaint in (("none.png", "missing"), ("text.png", "not a PNG"), ("photo.jpg", "not a PNG")):
        with pytest.raises(InputError, match=complaint):
            render(Page("t", "", [Section("s", blocks=[Figure(tmp_path / name, "", "")])]))


def test_a_page_that_fails_leaves_the_old_one(tmp_path, page):
    path = save_page(Page("old", "", []), tmp_path / "report" / "index.html")
    broken = Page("new", "", [Section("s", blocks=[Figure(tmp_path / "none.png", "", "")])])
    with pytest.raises(InputError):
        save_page(broken, path)
    assert "<h1>old</h1>" in path.read_text(encoding="utf-8")
    assert [p.name for p in path.parent.iterdir()] == ["index.html"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launch() as browser:
        yield browser


@pytest.fixture(scope="module")
def url(page: Page, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_page(page, tmp_path_factory.mktemp("report") / "index.html").as_uri()


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, WCAG 2.1."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def colours(page: Any) -> tuple[float, list[float]]:
    """Luminance of the page, and of the text, notes, links and code on it."""
    of = "(s, p) => getComputedStyle(document.querySelector(s))[p]"
    paper = page.evaluate(f"({of})('html', 'backgroundColor')")
    inks = [
        page.evaluate(f"({of})('{where}', 'color')") for where in ("p", "td.paper", ".below", "a", "dt", "pre")
    ]
    return luminance(paper), [luminance(ink) for ink in inks]


def test_browser_shows_everything_and_asks_for_nothing(browser, url, page):
    with open_page(browser, url) as visit:
        visit.assert_quiet()
        images = visit.page.evaluate(
            "[...document.images].map(i => [i.naturalWidth, getComputedStyle(i).imageRendering])"
        )
        assert images == [[1500, "auto"], [96, "pixelated"], [1500, "auto"]]
        assert visit.page.locator("td", has_text="91.3").evaluate("c => getComputedStyle(c).textAlign") == "right"
        visit.page.goto(f"{url}#scores-2")
        assert visit.page.locator("details[open] summary").inner_text() == "Scores", "a link opens what is folded"
        visit.page.locator("summary", has_text="Facts").click()
        visit.assert_quiet()
        paper, inks = colours(visit.page)
        assert paper > 0.9
        assert min((paper + 0.05) / (ink + 0.05) for ink in inks) >= 4.5


def test_phone_in_the_dark(browser, url):
    with open_page(browser, url, width=360, dark=True) as visit:
        visit.page.locator("summary", has_text="Scores").click()
        assert visit.page.locator("details img").is_visible()
        assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        boxes = visit.page.evaluate(
            "[...document.querySelectorAll('.scroll')].map(b => b.scrollWidth > b.clientWidth)"
        )
        assert boxes[1:] == [True, True]  # the wide tables scroll in their own boxes
        edges = visit.page.evaluate("[...document.images].map(i => i.getBoundingClientRect().right)")
        assert max(edges) <= 360 - 16  # within the margin
        frame = visit.page.evaluate("getComputedStyle(document.images[0]).backgroundColor")
        assert frame == "rgb(255, 255, 255)"
        paper, inks = colours(visit.page)
        assert paper < 0.05
        assert min((ink + 0.05) / (paper + 0.05) for ink in inks) >= 4.5
        visit.assert_quiet()


def test_the_browser_would_notice(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text('<img src="http://127.0.0.2:9/x.png"><script>console.error("oh"); missing()</script>')
    with open_page(browser, bad.as_uri()) as visit:
        assert visit.outside == ["http://127.0.0.2:9/x.png"]
        assert len(visit.failed) == 1
        assert "oh" in visit.errors and any("missing is not defined" in error for error in visit.errors)
