"""The page in headless Chromium, which Debian's package `chromium` is, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.inspection.drawing.diagram import draw
from torchtrt_executorch.inspection.drawing.page import page
from torchtrt_executorch.inspection.drawing.timeline import rows

from ...runtime.programs import needs_device_copies
from ..programs import planned, repeated, unplanned

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
WIDTHS = (1280, 400)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


class Opened:
    """A page that is open, and what the browser had to say of it.

    Attributes:
        said: Messages on the console, errors, and whatever was asked of a network.
    """

    def __init__(self, browser: Any, file: Path, width: int, scheme: str) -> None:
        viewport = {"width": width, "height": 900}
        self.tab = browser.new_page(viewport=viewport, color_scheme=scheme)
        self.said: list[str] = []
        self.tab.on("console", lambda message: self.said.append(message.text))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.tab.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.tab.on("request", self._asked)
        self.tab.goto(file.as_uri())

    def _asked(self, request: Any) -> None:
        if not request.url.startswith("file:"):
            self.said.append(request.url)


def opened(
    browser: Any, folder: Path, program: bytes, width: int = 1280, scheme: str = "light"
) -> Opened:
    facts = read(program)
    file = folder / "page.html"
    file.write_text(page(facts, advise(facts)), encoding="utf-8")
    return Opened(browser, file, width, scheme)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_lanes_boxes_and_arrows(
    browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    """A box in its device's lane for each row, and an arrow from row to row."""
    page = opened(browser, tmp_path, planned(), width, scheme)
    tab = page.tab
    (method,) = read(planned()).methods
    lanes = {}
    for lane in tab.locator(".devices span").all():
        lanes[lane.inner_text()] = lane.bounding_box()
    assert tuple(lanes) == method.devices
    shown = rows(method)
    assert tab.locator("[role=option]").count() == len(shown)
    tops = []
    for row in shown:
        at = tab.locator(
            f"[data-row='{row.number}'] {'.crossing' if row.source else '.box'}"
        )
        box, lane = at.bounding_box(), lanes[row.device]
        tops.append(box["y"])
        if row.source:
            ends = sorted(_centre(lanes[each]) for each in (row.source, row.device))
            assert box["x"] == pytest.approx(ends[0], abs=8)
            assert box["x"] + box["width"] == pytest.approx(ends[1], abs=8)
        else:
            assert lane["x"] <= box["x"]
            assert box["x"] + box["width"] <= lane["x"] + lane["width"]
    assert tops == sorted(tops)
    for line in draw(method).lines:
        ends = line.arrow.source, line.arrow.target
        found = tab.locator(f"[data-from='{ends[0]}'][data-to='{ends[1]}'] line")
        assert found.count() >= 1
        first = found.first.bounding_box()
        source = tab.locator(f"[data-row='{ends[0]}']").bounding_box()
        assert first["y"] >= source["y"]
    wide = tab.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    assert page.said == []


def _centre(box: Any) -> float:
    return box["x"] + box["width"] / 2


def test_staging_is_drawn(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, unplanned())
    assert page.tab.locator(".arrow.staged").count() >= 4
    assert page.tab.get_by_text("staging").first.is_visible()
    assert page.said == []


@pytest.mark.parametrize("width", WIDTHS)
def test_keyboard(browser: Any, tmp_path: Path, width: int) -> None:
    """Arrow keys go from row to row, and the panel says what the row does."""
    page = opened(browser, tmp_path, planned(), width)
    tab, list_ = page.tab, page.tab.locator(".lanes")
    assert tab.locator(".panel").is_hidden()
    list_.focus()
    shown = rows(read(planned()).methods[0])
    for row in shown[:4]:
        tab.keyboard.press("ArrowDown")
        (chosen,) = tab.locator("[aria-selected=true]").all()
        assert chosen.get_attribute("data-row") == str(row.number)
        assert list_.get_attribute("aria-activedescendant") == chosen.get_attribute(
            "id"
        )
    panel = tab.locator(".panel")
    assert "float32 [16, 16], 1.0 KiB" in panel.inner_text()
    assert "read by" in panel.inner_text() and "made by" in panel.inner_text()
    assert tab.locator(".arrow.on").count() >= 1
    panel.locator("a").first.click()
    assert tab.locator("[aria-selected=true]").count() == 1
    tab.keyboard.press("End")
    chosen = tab.locator("[aria-selected=true]")
    assert chosen.get_attribute("data-row") == str(shown[-1].number)
    tab.keyboard.press("Escape")
    assert panel.is_hidden()
    tab.locator(".find input").fill("sigmoid")
    tab.keyboard.press("Enter")
    assert "aten::sigmoid" in tab.locator("[aria-selected=true]").text_content()
    assert page.said == []


@needs_device_copies
def test_screen_readers(browser: Any, tmp_path: Path) -> None:
    """Every row is an option of a named list, and is named itself."""
    page = opened(browser, tmp_path, planned())
    list_ = page.tab.get_by_role("listbox", name="Instructions forward")
    options = list_.get_by_role("option")
    shown = rows(read(planned()).methods[0])
    assert options.count() == len(shown)
    copy = next(row for row in shown if row.kind == "copy")
    said = (
        f"Instruction {copy.first}: copies 1.0 KiB from {copy.source} to {copy.device}"
    )
    assert list_.get_by_role("option", name=said, exact=True).count() == 1
    assert page.tab.get_by_role("img", name="bytes in use").count() == 3
    assert page.tab.locator("html").get_attribute("lang") == "en"


def test_ten_thousand_instructions(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, tmp_path, repeated(planned(), 10_000))
    tab = page.tab
    assert (tmp_path / "page.html").stat().st_size < 20e6
    tab.locator(".find input").fill("#9990")
    tab.keyboard.press("Enter")
    chosen = tab.locator("[aria-selected=true]")
    assert chosen.is_visible()
    box = chosen.bounding_box()
    assert 0 <= box["y"] <= 900
    assert tab.locator(".far").count() > 0
    assert page.said == []


HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "'\"><svg onload=alert(1)>",
    "{{ 7*7 }}</title><style>*{display:none}",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_inert(browser: Any, tmp_path: Path, name: str) -> None:
    """Names with markup in them are text, wherever the page shows them."""
    from ..hostile import with_names

    program = with_names(planned(), name)
    page = opened(browser, tmp_path, program)
    tab = page.tab
    assert name in tab.locator("body").text_content()
    tab.locator(".lanes").focus()
    for _ in range(6):
        tab.keyboard.press("ArrowDown")
    assert tab.locator("script").count() == 2
    assert tab.locator("img, style ~ style, iframe, object").count() == 0
    assert tab.locator("h1").is_visible()
    assert page.said == []
