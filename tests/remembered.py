"""What the page said, also where it was over before a test looked."""

from __future__ import annotations

from playwright.sync_api import Page

#: Keeps every text that an element ever had: to be run before a page's own scripts.
REMEMBER = """
    window.everSaid = { ".making b": [], "#banner": [] };
    const note = () => {
        for (const [selector, said] of Object.entries(everSaid))
            for (const each of document.querySelectorAll(selector))
                if (!each.hidden && !said.includes(each.textContent)) said.push(each.textContent);
    };
    new MutationObserver(note).observe(document, {
        subtree: true, childList: true, characterData: true, attributes: true
    });
"""


def ever_said(page: Page, selector: str) -> list[str]:
    """All texts that elements of this selector (one of REMEMBER's) had since the page was loaded."""
    said: list[str] = page.evaluate("selector => everSaid[selector]", selector)
    return said
