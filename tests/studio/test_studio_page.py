"""The studio in a real browser: every tab, bad uploads, two visitors, no path opened, nothing asked outside."""

import asyncio
import gc
import io
import re
import socket
import tempfile
import urllib.error
import urllib.request

import pytest
from browser import launch, open_page
from PIL import Image
from tiny import tiny_backbone

pytest.importorskip("gradio", reason="gradio is not installed (pip install 'diti-torch[studio]')")

from diti.representation.solve.run import solve
from diti.studio.server import launched
from diti.studio.world import open_world

PATIENCE = 30_000  # ms, on a busy machine
# gradio's own, of its dependencies; never a resource that was left open
OTHERS = ("DeprecationWarning", "FutureWarning", "UserWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in OTHERS]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studio") / "model"
    solve(
        "toyfaces:300", tiny_backbone(), code_dim=12, subsets=3, images=300, pixel_axes=24, stretches=3, out=folder
    )
    return folder


@pytest.fixture(scope="module")
def world(model, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITI_CACHE", str(tmp_path_factory.mktemp("studio-cache")))
        yield open_world(str(model), "toyfaces:120")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def address(world):
    with launched(world, "127.0.0.1", free_port(), None) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    with launch() as found:
        yield found


@pytest.fixture(scope="module")
def opened(browser, address):
    """One page for all tests: they follow each other as a visitor would."""
    with open_page(browser, address, width=1280, height=800) as found:
        found.page.set_default_timeout(PATIENCE)
        found.page.locator(".recons figure").first.wait_for()  # the first result is drawn, whole
        yield found


@pytest.fixture
def visit(opened):
    yield opened
    assert (opened.errors, opened.outside) == ([], [])


def tab(visit, name):
    visit.page.get_by_role("tab", name=name, exact=True).first.click()


def shown(visit):
    """Addresses of the pictures before and after."""
    return visit.page.locator(".before-after:visible img").evaluate_all("all => all.map(i => i.src)")


def after(visit):
    """The same once nothing is drawn any more."""
    line = visit.page.locator(".status .note:visible").first
    for _ in range(100):
        before = shown(visit)
        visit.page.wait_for_timeout(300)
        if shown(visit) == before and "Done" in line.inner_text():
            break
    return before


def wait_for_change(visit, before):
    visit.page.wait_for_function(
        """before => { const all = [...document.querySelectorAll('.before-after img')]
            .filter(i => i.offsetParent).map(i => i.src);
            const line = [...document.querySelectorAll('.status .note')].filter(i => i.offsetParent)[0];
            return all.length > 1 && JSON.stringify(all) !== JSON.stringify(before)
                && /Done/.test(line.innerText) }""",
        arg=before,
    )


def toast(visit, words):
    """A friendly message with these words is shown; it is closed again."""
    found = visit.page.locator(".toast-body").filter(has_text=re.compile(words))
    found.first.wait_for()
    visit.page.evaluate("document.querySelectorAll('.toast-close').forEach(button => button.click())")
    found.first.wait_for(state="detached")


def test_interpolate(visit):
    page = visit.page
    page.locator("#chosen-a").scroll_into_view_if_needed()
    first = page.locator("#chosen-a img").get_attribute("src")
    page.locator(".offered:visible button").nth(5).click()
    page.wait_for_function("old => document.querySelector('#chosen-a img').src !== old", arg=first)
    before = after(visit)
    page.get_by_role("button", name="Coarse (late)").locator("visible=true").click()
    page.wait_for_function(
        "[...document.querySelectorAll('.strip [aria-selected=true]')].filter(i => i.offsetParent).length === 1"
    )
    wait_for_change(visit, before)
    before = after(visit)
    slider = page.locator("#scale input[type=range]")
    slider.focus()
    slider.press("Home")  # the keyboard counts as a release, too
    wait_for_change(visit, before)
    page.locator(".strip:visible .cell").nth(0).focus()
    before = after(visit)
    page.keyboard.press("Shift+ArrowRight")
    wait_for_change(visit, before)


def test_an_animation_can_be_kept(visit):
    visit.page.click("#play")
    links = visit.page.locator(".film a[download]")
    links.first.wait_for()
    assert [link.get_attribute("download") for link in links.all()] == ["diti-way.gif", "diti-way.png"]
    with visit.page.expect_download() as kept:
        links.first.click()
    with Image.open(kept.value.path()) as film:
        assert film.format == "GIF" and film.n_frames > 10


def test_long_work_says_how_far_it_is_and_can_be_stopped(visit, monkeypatch):
    page = visit.page
    assert not page.locator("#stop").is_visible()
    monkeypatch.setattr("diti.studio.tabs.interpolate.FULL_STEPS", 1000)  # some seconds of drawing
    page.click("#play")
    page.locator("#stop").wait_for()
    page.wait_for_function("/drawing/.test(document.querySelector('.at-work').innerText)")
    page.click("#stop")
    page.locator(".film .note").filter(has_text="Stopped.").wait_for()
    page.locator("#stop").wait_for(state="hidden")


def test_manipulate(visit):
    page = visit.page
    tab(visit, "Manipulate")
    page.locator(".bars:visible").first.wait_for()
    page.locator(".before-after:visible img").first.wait_for()
    before = after(visit)
    slider = page.locator("#strength-0 input[type=range]")
    slider.focus()
    slider.press("End")
    wait_for_change(visit, before)
    page.locator("#wanted input").click()
    page.get_by_role("option", name="hat", exact=True).click()
    page.locator("#strength-1").wait_for()
    page.locator(".bars:visible").nth(1).wait_for()
    named = [page.locator(f"#strength-{place}").inner_text() for place in (0, 1)]
    assert "hat: less to more" in named[1] and "hat" not in named[0]
    assert not page.locator("#strength-2").is_visible(), "a slider for each attribute and no other"
    before = after(visit)
    page.locator(".lead:visible").click()  # the list of names lies over what follows
    box = page.locator("#kept").get_by_label("brightness", exact=True)
    box.check()  # what is held changes the picture of what is moved
    wait_for_change(visit, before)
    ends = [page.locator("#strength-0 input[type=range]").get_attribute(end) for end in ("min", "max")]
    assert -4 <= float(ends[0]) < 0 < float(ends[1]) <= 4, "of the safe range"


def test_axes_are_turned_named_and_made_from_examples(visit, model):
    page = visit.page
    tab(visit, "Axes")
    page.locator(".ends .thumbs:visible img").first.wait_for()
    page.locator(".strip:visible .cell").nth(2).click()
    page.get_by_role("button", name="axis 8", exact=True).click()
    page.locator("[aria-pressed=true]:visible").filter(has_text="axis 8").wait_for()
    before = after(visit)
    slider = page.locator("#turn input[type=range]")
    slider.focus()
    slider.press("End")
    wait_for_change(visit, before)
    page.locator("#axis-name textarea, #axis-name input").fill("glow")
    page.click("#keep")
    page.get_by_role("button", name="glow", exact=True).wait_for()
    assert "glow" in (model / "names.json").read_text()
    page.get_by_text("Make a slider of your own").click()
    page.click("#make")
    toast(visit, "at least one picture")
    faces = page.locator(".block.offered:visible").nth(1).locator("button")
    faces.nth(1).click()
    page.get_by_label("lack it (unlike)").check()
    faces.nth(2).click()
    page.locator(".thumbs:visible figure").nth(17).wait_for()  # 16 at the ends of the axis, and both examples
    page.click("#make")
    page.locator("#own-strength").wait_for()


def ends(page):
    """The two rows of pictures behind a cell."""
    return page.locator(".cell-ends .thumbs:visible").all()


def test_understand(visit):
    page = visit.page
    tab(visit, "Understand")
    page.locator(".seen figure:visible").nth(3).wait_for()
    page.click("#measure")
    page.locator("[data-cell='2,0']").click()
    page.locator(".cell-ends .thumbs:visible").nth(1).wait_for()
    least, most = ({img.get_attribute("src") for img in row.locator("img").all()} for row in ends(page))
    assert len(least) > 1 and not least & most, "nobody sees least and most of something"
    page.click("#losses")
    page.locator(".chart:visible").wait_for()
    slider = page.locator("#time input[type=range]")
    slider.focus()
    slider.press("Home")
    page.locator(".seen figcaption").filter(has_text="t = 0").wait_for()
    own, noisy, *_ = page.locator(".seen img").evaluate_all("all => all.map(i => i.src)")
    slider.press("End")
    page.locator(".seen figcaption").filter(has_text="t = 999").wait_for()
    again, drowned, *_ = page.locator(".seen img").evaluate_all("all => all.map(i => i.src)")
    assert own == again and noisy != drowned


def test_search(visit):
    page = visit.page
    tab(visit, "Search")
    page.locator(".found button").nth(15).wait_for()
    page.get_by_role("button", name="Fine (early)").locator("visible=true").click()
    page.get_by_text("in 4 of 12 numbers").wait_for()
    assert page.locator(".found button").count() == 16
    distances = [float(words) for words in page.locator(".found button").all_inner_texts()]
    assert distances == sorted(distances) and distances[0] == 0, "nearest first, and that is the picture itself"
    page.locator(".axes-box:visible button").first.click()
    page.get_by_text("alone; below each its distance in standard deviations").wait_for()
    page.get_by_role("button", name="Coarse (late)").locator("visible=true").click()
    page.get_by_text("in 4 of 12 numbers").wait_for()
    nearest, chosen = (page.locator(".found img").nth(place).get_attribute("src") for place in (0, 3))
    assert nearest != chosen
    page.locator(".found button").nth(3).click()
    page.wait_for_function("src => document.querySelector('.found img').src === src", arg=chosen)


def picture(width, height, colour=(20, 160, 90)):
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, "PNG")
    return buffer.getvalue()


def test_uploads(visit, tmp_path):
    page = visit.page
    tab(visit, "Interpolate")
    chosen = page.locator("#chosen-a img")
    before = chosen.get_attribute("src")

    def give(name, data):
        given = {"name": name, "mimeType": "image/png", "buffer": data}
        if len(data) > 2**20:  # playwright is slow with large buffers
            given = tmp_path / "large.png"
            given.write_bytes(data)
        page.locator(".upload input").first.set_input_files(given)

    for name, data, words in (
        ("broken.png", picture(64, 64)[:80], "cannot be read as a picture"),
        ("words.png", b"these are only words", "cannot be read as a picture"),
        ("huge.png", hundred_megapixels(), "100 megapixels"),
        ("long.png", bytes(9 * 2**20), "too large"),
    ):
        give(name, data)
        toast(visit, words)
    assert chosen.get_attribute("src") == before
    give("../../../../etc/passwd", picture(64, 48))  # a path as a name does nothing
    page.wait_for_function("old => document.querySelector('#chosen-a img').src !== old", arg=before)


def hundred_megapixels():
    """A PNG of 100 megapixels, all white: some kilobytes."""
    buffer = io.BytesIO()
    Image.new("1", (10_000, 10_000), 1).save(buffer, "PNG")
    return buffer.getvalue()


def test_two_visitors_do_not_see_each_other(visit, browser, address):
    tab(visit, "Interpolate")
    with open_page(browser, address, width=390, height=844, dark=True) as other:
        other.page.set_default_timeout(PATIENCE)
        other.page.locator(".recons figure").first.wait_for()
        theirs = other.page.locator("#chosen-a img").get_attribute("src")
        before = after(visit)
        visit.page.locator(".upload input").first.set_input_files(
            {"name": "mine.png", "mimeType": "image/png", "buffer": picture(50, 50, (160, 20, 90))}
        )
        wait_for_change(visit, before)
        mine = visit.page.locator("#chosen-a img").get_attribute("src")
        assert mine != theirs
        other.page.get_by_role("button", name="All", exact=True).locator("visible=true").first.click()
        assert other.page.locator("#chosen-a img").get_attribute("src") == theirs
        width = other.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, "a phone must not scroll sideways"
        assert (other.errors, other.outside) == ([], [])


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/gradio_api/file=/etc/passwd", None, 403),
        ("/gradio_api/file=pyproject.toml", None, 403),
        ("/gradio_api/upload", b"files", 404),
        ("/gradio_api/queue/join", b'{"data": [{"path": "/etc/passwd"}]}', 400),
    ],
)
def test_no_path_is_opened(address, path, body, status):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(address + path, body), timeout=10)
    refused.value.close()
    assert refused.value.code == status


def test_with_a_password_nothing_is_shown_before_it_was_given(world, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with launched(world, "127.0.0.1", free_port(), ("me", "secret")) as locked:
        assert len(list(tmp_path.glob("diti-studio-*"))) == 1
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{locked}/config", timeout=10)
        refused.value.close()
        assert refused.value.code == 401
    assert not list(tmp_path.glob("diti-studio-*"))  # nothing is left when it is closed


def open_loops():
    gc.collect()
    loops = [known for known in gc.get_objects() if isinstance(known, asyncio.BaseEventLoop)]
    return {id(loop) for loop in loops if not loop.is_closed()}


def test_no_event_loop_is_left_open(world):
    before = open_loops()
    with launched(world, "127.0.0.1", free_port(), None):
        assert len(open_loops() - before) == 1  # the server's
    assert not open_loops() - before
