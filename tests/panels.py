"""A page's panels of Plotly, in a real browser."""


def panel(page, name: str):
    return page.locator(f'.panel[data-panel="{name}"]')


def lines(page, name: str) -> list[dict]:
    """The traces of a drawn panel: name, width, points."""
    return (
        panel(page, name)
        .locator(".plot")
        .evaluate("e => e.data.map((t, i) => ({name: t.name, width: t.line.width, n: e.calcdata?.[i]?.length ?? 0}))")
    )
