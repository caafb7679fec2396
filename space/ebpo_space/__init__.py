"""The Space: a Gradio app over run directories, local or from the Hub.

runs.py, hub.py        which runs there are, and fetching one from the Hub
metrics.py             metrics.jsonl, followed while it grows
groups.py, search.py   rollouts/*.parquet: an index of groups, one group's answers, search
condition.py, outcome.py, changed.py   how a run is, what came of it, what its estimator changed (paired.py: question by question)
warnings.py, seeds.py  what in the metrics asks for a look; runs of one configuration
results.py, coded.py   eval/: results, questions, samples
estimators.py          baselines and advantages under GRPO, Dr. GRPO, RLOO and EBPO; their error against the Bayes risk
text.py, reading.py, turns.py, words.py   texts of models: escaped, placed, in their turns, found (texts.py: the rest of a long one)
parameters.py, links.py   the values of a view, and its address
figures.py, picture.py, sparkline.py, cards.py, strip.py, run_card.py, seed_table.py, score_table.py, tables.py   data -> Plotly figures, SVG, HTML; pure
pages/                 one module a page: its values, its components, what it shows; the table of pages (page.py: what one is)
workspace.py           the runs of a view with their metrics and groups, kept between views
app.py, layout.py, parts.py   the Gradio app: what its components do, where they stand, and how they are made
server.py, document.py, gate.py   what is served besides, the page's HTML, and what visitors may ask for
main.py                the command line
static/                style sheets and scripts, one file a matter
"""
