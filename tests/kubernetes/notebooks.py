"""Cells of JupyterLab, as a user runs them."""

from playwright.sync_api import Page, expect


def run_cell(page: Page, source: str, output: str) -> None:
    """In a new notebook, as its first cell."""
    page.locator(".jp-LauncherCard[data-category='Notebook']").first.click()
    expect(page.get_by_text("| Idle")).to_be_visible(timeout=120_000)
    _run(page, source, 0, output)


def run_next_cell(page: Page, source: str, output: str) -> None:
    """In the notebook that is open, in the same kernel."""
    expect(page.get_by_text("| Idle")).to_be_visible(timeout=120_000)
    _run(page, source, page.locator(".jp-Notebook .jp-OutputArea-output").count(), output)


def _run(page: Page, source: str, outputs: int, output: str) -> None:
    cell = page.locator(".jp-Notebook .jp-Cell .cm-content").last
    cell.click()
    cell.press_sequentially(source)
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-Notebook .jp-OutputArea-output").nth(outputs)).to_contain_text(output, timeout=60_000)
