"""Reports in Chromium: how large, how soon something is seen and the maps can be used, how long a head and a row take.

The demo's report (all maps of three texts), and made-up maps of 12 × 12 heads on 128 tokens with d_v = 64. Times are
medians of a few fresh pages.
"""

import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from statistics import median

import torch
from common import report
from playwright.sync_api import Browser, sync_playwright

import identilens as idl
from identilens.charts import Page, Section, TokenMap, write_page
from identilens.charts.packing import HeadSpace
from identilens.studies.audit.maps import RULES

TARGETS = {"usable map": 1000, "head switch": 50, "first interval": 500}
VISITS = 3
HEADS, N, D_V = 12, 128, 64

SWITCH = """async () => {
  const heads = [...document.querySelectorAll('.viewer-heads button')], times = [];
  const title = () => document.querySelector('.viewer-title').textContent;
  for (const one of heads.filter((_, at) => at % 7 === 3)) {
    const before = title(), start = performance.now();
    one.click();
    while (title() === before) await new Promise((done) => setTimeout(done));
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b)[times.length >> 1];
}"""
ROW = """async () => {
  const canvas = document.querySelector('.viewer .maps canvas'), panel = document.querySelector('.viewer-row');
  canvas.focus();
  const key = (name) => canvas.dispatchEvent(new KeyboardEvent('keydown', { key: name, bubbles: true }));
  for (let at = 0; at < 60; at += 1) key('ArrowDown');
  const start = performance.now();
  key('Enter');
  while (!panel.querySelector('tr[data-lo]')) await new Promise((done) => setTimeout(done));
  const first = performance.now() - start;
  while (panel.dataset.ready !== 'true') await new Promise((done) => setTimeout(done));
  return [first, performance.now() - start];
}"""


def demo_report(folder: Path) -> Path:
    """Write the demo's report and return its path."""
    texts = files("identilens.demo").joinpath("texts.txt").read_text(encoding="utf-8").splitlines()
    result = idl.audit(idl.load(idl.bundled_model()), [text for text in texts if text])
    return result.to_html(folder / "demo.html")


def made_report(folder: Path) -> Path:
    """Write a page with maps of many heads on a text and return its path."""
    generator = torch.Generator().manual_seed(0)
    tokens = [f"word{place}" for place in range(N)]
    maps = []
    for layer in range(HEADS):
        for head in range(HEADS):
            raw = torch.softmax(2 * torch.randn(N, N, generator=generator), -1)
            space = HeadSpace(torch.randn(N, D_V, generator=generator), D_V, None, RULES)
            choices = {"text": 0, "layer": layer, "head": head}
            maps.append(TokenMap(choices, {"raw": raw}, tokens, tokens, space=space))
    record = {"analysis": "audit", "fingerprint": "", "model": {}, "texts": {"count": 1}}
    sections = [Section("maps", "Maps", maps=maps)]
    return write_page(
        Page("Audit", "made up", [], [], record, sections), folder / "made.html", budget=10**9
    )


def visit(browser: Browser, path: Path) -> dict[str, float]:
    """Return the times of one visit, in milliseconds."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_selector(".viewer[data-ready]")
    page.wait_for_selector("body[data-drawn]")
    page.wait_for_selector(".viewer-heads[data-drawn]", timeout=120_000)
    found = {
        "first paint": page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        ),
        "usable map": float(page.get_attribute(".viewer", "data-ready") or "nan"),
        "head switch": page.evaluate(SWITCH),
    }
    found |= dict(zip(("first interval", "24 intervals"), page.evaluate(ROW), strict=True))
    page.close()
    return found


def main() -> int:
    """Print sizes and times."""
    met = True
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages = {"demo": demo_report(Path(folder)), "12 x 12 heads": made_report(Path(folder))}
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for name, path in pages.items():
            visits = [visit(browser, path) for _ in range(VISITS)]
            times = ", ".join(
                f"{what} {median(one[what] for one in visits):.0f} ms" for what in visits[0]
            )
            print(f"{name}: {path.stat().st_size / 1e6:.2f} MB, {times}")
            met &= report(f"{name}: MB", path.stat().st_size / 1e6, 6, at_least=False)
            for what, target in TARGETS.items():
                met &= report(
                    f"{name}: {what}, ms", [one[what] for one in visits], target, at_least=False
                )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
