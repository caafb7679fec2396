"""One module per page, and the table of them in the order of their tabs. A page is one module that ends with its
`PAGE`, one line here and, where it needs them, NAME.js and NAME.css in static/."""

from . import configuration, dynamics, evaluation, overview, samples, understand

PAGES = {
    page.name: page
    for page in (
        overview.PAGE,
        dynamics.PAGE,
        samples.PAGE,
        evaluation.PAGE,
        configuration.PAGE,
        understand.PAGE,
    )
}
