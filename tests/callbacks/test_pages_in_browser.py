"""The report's page and a sweep's page in a browser: nothing complains, filters and links work, and no width of the window makes them scroll sideways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynacompile.callbacks.report import write_report
from dynacompile.callbacks.sweep_page import write_page
from dynacompile.callbacks.sweep_runs import Run
from scripts import pictures
from tests.callbacks.pages import opened, skip_without_browser
from tests.callbacks.test_report_page import long_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> None:
    skip_without_browser(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def report(browser, tmp_path_factory) -> Path:
    return write_report(long_run(), tmp_path_factory.mktemp("report") / "page.html")


@pytest.fixture(scope="module")
def sweep(browser, tmp_path_factory) -> Path:
    numbers = {"step_ms_eager": 50.0, "step_ms_compiled": 40.0, "speedup": 1.25}
    runs = [Run(("compile=default",), {f"compile/{name}": value for name, value in numbers.items()}), Run(("compile=x",), failed="ConfigError: no", number=1)]
    folder = tmp_path_factory.mktemp("sweep")
    return folder / write_page(runs, folder)


FILTERED = """(() => {
  const input = document.querySelector('#find-events');
  input.value = 'move the print'; input.dispatchEvent(new Event('input'));
  const rows = [...document.querySelectorAll('#events tbody tr:not(.more)')];
  return [rows.filter(row => row.offsetParent).length, rows.length, document.querySelector('output[for=find-events]').textContent].join('|');
})()"""


def test_the_filter_shows_the_rows_that_match_and_says_how_many(report):
    shown, rows, said = opened(report, FILTERED).split("|")
    assert int(shown) == 1 < int(rows) and said == f"1 of {rows} rows"


def test_a_count_leads_to_the_rows_of_its_module(report):
    script = """(() => {
      document.querySelector('#part-net a').click();
      return [document.querySelector('#find-events').value, location.hash].join(' ');
    })()"""
    assert opened(report, script) == "net #happened"


def test_every_link_within_the_page_has_its_place(report):
    script = """[...document.querySelectorAll('a[href^="#"]')].map(a => a.getAttribute('href')).filter(h => !document.getElementById(h.slice(1))).join(' ')"""
    assert opened(report, script) == ""


@pytest.mark.further
def test_pictures_are_taken(report, sweep, tmp_path):
    (report.parent / "compile_report.html").write_bytes(report.read_bytes())
    long_run().write(report.parent / "summary.json")
    pictures.main(["--run", str(report.parent), "--sweep", str(sweep.parent), "--to", str(tmp_path)])
    for picture in pictures.PICTURES:
        header = (tmp_path / f"{picture.name}.png").read_bytes()[:24]
        assert header.startswith(b"\x89PNG") and f"{int.from_bytes(header[16:20])}x{int.from_bytes(header[20:24])}" == picture.size


@pytest.mark.parametrize("name", ["report", "sweep"])
@pytest.mark.parametrize("size", ["320x700", "390x800", "1000x980"])
def test_pages_do_not_scroll_sideways(name, size, request):
    page = request.getfixturevalue(name)
    wide, window = opened(page, "document.documentElement.scrollWidth + ' ' + window.innerWidth", "--size", size).split()
    assert int(wide) <= int(window) == int(size.split("x")[0])


@pytest.mark.parametrize("name", ["report", "sweep"])
@pytest.mark.parametrize("look", ["light", "dark"])
def test_text_has_contrast(name, look, request):
    """Of every text with its background at least 4.5, as WCAG asks for."""
    script = """(() => {
      const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!c.endsWith(', 0)')) return c; }
        return 'rgb(255, 255, 255)'; };
      let least = 99, text = '';
      for (const e of document.querySelectorAll('main *:not(svg *)')) {
        if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
        const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < least) { least = (a + 0.05) / (b + 0.05); text = e.textContent.slice(0, 40); }
      }
      return JSON.stringify([least, text, matchMedia('(prefers-color-scheme: dark)').matches]);
    })()"""
    least, text, is_dark = json.loads(opened(request.getfixturevalue(name), script, *(["--dark"] if look == "dark" else [])))
    assert least >= 4.5, text
    assert is_dark == (look == "dark")


CONTROLS = """(() => {
  const controls = 'a[href], button, input, select, summary';
  const name = e => `${e.tagName} ${(e.getAttribute('aria-label') || e.textContent || e.id).trim().slice(0, 40)}`;
  const seen = [...document.querySelectorAll(controls)].filter(e => e.checkVisibility({contentVisibilityAuto: true, visibilityProperty: true}));
  const told = e => e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels.length) || e.title;
  return {
    count: seen.length,
    unreachable: seen.filter(e => { e.focus(); return document.activeElement !== e || e.tabIndex !== 0; }).map(name),
    nameless: seen.filter(e => !told(e)).map(name),
    unmarked: seen.filter(e => {
      e.focus({focusVisible: true});
      const style = getComputedStyle(e);
      return style.outlineStyle === 'none' && style.boxShadow === 'none';
    }).map(name),
    mouse_alone: [...document.querySelectorAll('[onclick]')].filter(e => !e.matches(controls)).map(name),
  };
})()"""


@pytest.mark.parametrize("name", ["report", "sweep"])
def test_every_control_is_reached_by_keyboard_has_a_name_and_shows_that_it_has_the_focus(name, request):
    told = opened(request.getfixturevalue(name), CONTROLS)
    assert told.pop("count") and not any(told.values()), told
