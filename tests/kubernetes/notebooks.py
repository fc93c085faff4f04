"""Cells of JupyterLab, as a user runs them."""

from playwright.sync_api import Page, expect
from tests.acceptance.browser import load


def run_cell(page: Page, source: str, output: str) -> None:
    """In a new notebook, as its first cell, which is saved."""
    page.locator(".jp-LauncherCard[data-category='Notebook']").first.click()
    _run(page, source, output)
    page.keyboard.press("Control+s")


def run_in_new_tab(page: Page, session: str, source: str, output: str) -> None:
    """In the notebook of `run_cell`, and so in its kernel. `session`: the address of the session."""
    tab = page.context.new_page()
    load(tab, f"{session}lab/tree/Untitled.ipynb")
    _run(tab, source, output)
    tab.close()


def _run(page: Page, source: str, output: str) -> None:
    expect(page.get_by_text("| Idle")).to_be_visible(timeout=120_000)
    outputs = page.locator(".jp-Notebook .jp-OutputArea-output")
    before = outputs.count()
    cell = page.locator(".jp-Notebook .jp-Cell .cm-content").last
    cell.click()
    cell.press_sequentially(source)
    page.keyboard.press("Shift+Enter")
    expect(outputs.nth(before)).to_contain_text(output, timeout=60_000)
