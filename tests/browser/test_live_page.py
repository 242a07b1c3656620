"""The live page in a real browser: it is live, shows text as text, says when it is cut off, and recovers."""

import json
import re
import threading

import pytest
from playwright.sync_api import expect, sync_playwright

from gateway.rig import Loop, Rig, reply
from headgate.gateway.app import Gateway
from programs import program

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LOST = re.compile(r"^connection lost, trying again; this is from \d\d:\d\d:\d\d$")
SOON = 15_000  # milliseconds


@pytest.fixture(scope="module")
def browser():
    path = program("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    page = browser.new_page()
    page.troubles = []
    page.on("pageerror", lambda error: page.troubles.append(str(error)))
    page.on("request", lambda request: page.troubles.append(request.url) if is_foreign(request.url) else None)
    yield page
    page.close()
    assert page.troubles == []


def is_foreign(url):
    return not url.startswith(("http://127.0.0.1:", "data:"))


def call(rig, tenant, *fields):
    """Send a call from a thread; it may wait for long."""
    headers = [f"x-headgate-tenant: {tenant}", "Content-Type: application/json", *fields]
    thread = threading.Thread(target=rig.ask, args=("POST", "/v1/x", headers, b"{}"), daemon=True)
    thread.start()
    return thread


def test_the_page_names_what_holds_calls_back_and_who_waits_with_markup_shown_as_text(page):
    with Rig(rates="20/s burst 1") as rig:
        page.goto(f"{rig.url}/.headgate/ui")
        expect(page.locator("#sentence")).to_contain_text("No call has come yet.", timeout=SOON)
        rig.ask("POST", "/v1/x", body=b"{}")
        gate = rig.gateway.gates()[0]
        gate.set_backoff(60, reason="<img src=x onerror=alert(1)>")
        rig.gateway.counts.note_error(
            str(gate.key), 429, b'{"error": {"message": "<b>slow</b>"}}', rig.gateway.now()
        )
        threads = [call(rig, tenant) for tenant in ("ann", "<i>ben</i>")]
        expect(page.locator("#waiting tbody tr")).to_have_count(2, timeout=SOON)
        expect(page.locator("#sentence")).to_contain_text("asked us to wait")
        expect(page.locator("#waiting")).to_contain_text("<i>ben</i>")
        expect(page.locator("#windows")).to_contain_text("<img src=x onerror=alert(1)>")
        expect(page.locator("#errors")).to_contain_text("<b>slow</b>")
        assert page.locator("main img, main i, main b").count() == 0
        gate.window.clear()
        for thread in threads:
            thread.join(10)
        expect(page.locator("#waiting")).to_be_hidden(timeout=SOON)


def test_the_page_says_that_the_gateway_cannot_be_reached_and_is_live_again_when_it_is_back(page):
    loop = Loop()
    with Rig() as rig:
        page.goto(f"{rig.url}/.headgate/ui")
        expect(page.locator("#link")).to_have_text("live", timeout=SOON)
        rig.loop.run(rig.gateway.close())
        expect(page.locator("#link")).to_have_text(LOST, timeout=SOON)
        expect(page.locator("body.lost")).to_have_count(1)
        settings = rig.gateway.settings

        async def start():
            again = Gateway(type(settings)(upstreams=settings.upstreams, listen=f"127.0.0.1:{rig.port}"))
            await again.start()
            return again

        again = loop.run(start())
        expect(page.locator("#link")).to_have_text("live", timeout=SOON)
        expect(page.locator("body.lost")).to_have_count(0)
        loop.run(again.close())
    loop.close()


def test_rates_can_be_set_with_the_keyboard_alone(page):
    with Rig(rates="20/s", allow_control=True) as rig:
        rig.ask("POST", "/v1/x", body=b"{}")
        page.goto(f"{rig.url}/.headgate/ui")
        expect(page.locator("#control")).to_be_visible(timeout=SOON)
        page.locator("input[name=rates]").focus()
        page.keyboard.type("33/minute")
        page.keyboard.press("Enter")
        expect(page.locator("#done")).to_contain_text("were set", timeout=SOON)
        assert rig.gateway.gates()[0].snapshot().rates[0].limit == 33


def test_every_control_is_reached_in_order_by_the_keyboard_and_shows_that_it_has_the_focus(page):
    with Rig(rates="20/s", allow_control=True) as rig:
        rig.ask("POST", "/v1/x", body=b"{}")
        page.goto(f"{rig.url}/.headgate/ui")
        expect(page.locator("#control")).to_be_visible(timeout=SOON)
        reached = []
        for _ in range(4):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.name || document.activeElement.textContent"))
            style = "getComputedStyle(document.activeElement)"
            assert page.evaluate(f"{style}.outlineStyle") == "solid"
            assert page.evaluate(f"parseFloat({style}.outlineWidth)") >= 2
            page.wait_for_timeout(1_100)  # the page is drawn again, and the focus stays
        assert reached == ["gate", "End its backoff window", "rates", "Set the rates of this gate"]


def test_an_order_that_cannot_be_given_says_so(page):
    with Rig(rates="20/s", allow_control=True) as rig:
        rig.ask("POST", "/v1/x", body=b"{}")
        page.goto(f"{rig.url}/.headgate/ui")
        expect(page.locator("#control")).to_be_visible(timeout=SOON)
        rig.loop.run(rig.gateway.close())
        page.get_by_role("button", name="End its backoff window").click()
        expect(page.locator("#done")).to_have_text(
            "nothing was done: the gateway cannot be reached", timeout=SOON
        )


# Colours as the browser computes them, and the contrast of WCAG 2.
CONTRAST = """() => {
  const channel = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = (rgb) => { const [r, g, b] = rgb.match(/[0-9.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
  const behind = (node) => { for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor; if (!colour.endsWith(", 0)")) return colour; } };
  const texts = [...document.querySelectorAll("main *")].filter((node) => node.checkVisibility()
    && [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()));
  return texts.map((node) => { const pair = [light(getComputedStyle(node).color), light(behind(node))];
    return [node.textContent, (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05)]; });
}"""
TOO_WIDE = """() => [...document.querySelectorAll("main *")]
  .filter((node) => node.getBoundingClientRect().right > innerWidth)
  .map((node) => node.tagName + " " + node.textContent)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_the_contrast_that_people_need_to_read_it(browser, scheme):
    with Rig(lambda _request: reply(b"slow", "429 Too Many Requests"), rates="20/s", retries=0) as rig:
        rig.ask("POST", "/v1/x", body=b"{}")
        page = browser.new_page(color_scheme=scheme)
        page.goto(f"{rig.url}/.headgate/ui")
        expect(page.locator("#errors tbody tr")).to_have_count(1, timeout=SOON)
        seen = page.evaluate(CONTRAST)
        assert len(seen) > 30
        assert [(text, ratio) for text, ratio in seen if ratio < 4.5] == []
        page.close()


@pytest.mark.parametrize("width", [390, 800, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_full_of_long_names_fits_its_window(browser, width, scheme):
    with Rig(rates="20/s burst 1", allow_control=True) as rig:
        key = "Authorization: Bearer sk-1"
        rig.ask("POST", "/v1/x", [key], b"{}")
        gate = rig.gateway.gates()[0]
        gate.set_backoff(60, reason="rate_limited")
        rig.gateway.counts.note_error(str(gate.key), 429, b"x" * 300, rig.gateway.now())
        thread = call(rig, "a" * 200, key)
        page = browser.new_page(viewport={"width": width, "height": 700}, color_scheme=scheme)
        page.goto(f"{rig.url}/.headgate/ui")
        expect(page.locator("#waiting tbody tr")).to_have_count(1, timeout=SOON)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(TOO_WIDE) == []
        page.close()
        gate.window.clear()
        thread.join(10)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_the_page_fits_its_window(browser, width):
    with Rig(lambda _request: reply(json.dumps({"id": "1"}).encode()), rates="20/s") as rig:
        rig.ask("POST", "/v1/x", body=b"{}")
        page = browser.new_page(viewport={"width": width, "height": 700})
        page.goto(f"{rig.url}/.headgate/ui")
        expect(page.locator("#limits tbody tr")).to_have_count(2, timeout=SOON)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()


def test_a_hidden_page_asks_for_nothing(page):
    with Rig() as rig:
        page.goto(f"{rig.url}/.headgate/ui")
        expect(page.locator("#link")).to_have_text("live", timeout=SOON)
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {get: () => true, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        live = rig.gateway.pages["events"].__self__
        page.wait_for_timeout(100)
        for _ in range(100):
            if live.watchers == 0:
                break
            page.wait_for_timeout(50)
        assert live.watchers == 0
