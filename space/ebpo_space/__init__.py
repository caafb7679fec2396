"""The Space: a Gradio app over run directories, local or from the Hub.

runs.py, hub.py        find runs, and fetch them from the Hub
metrics.py             metrics.jsonl, followed while it grows
groups.py, search.py   rollouts/*.parquet: an index of groups (parquet.py: their columns); filters, search, answers
prompts.py, visits.py  the prompts of a run; a group of a prompt, and the same prompt elsewhere
run_state.py, improvement.py   the state of a run, and its result from start to end
change.py              differences as text, with their intervals (eval/differences.py)
warnings.py, seeds.py, headline.py   warnings by warnings.json; runs of one configuration; who did better
results.py             eval/: results, questions, samples
text.py, reading.py, turns.py   texts of models: escaped, laid out, split into turns
compared_settings.py   run.json: settings, without secrets
parameters.py, links.py   the values of a view, its address, and each visitor's view
figures.py, lines.py, metric_panels.py   data -> Plotly figures; pure
picture.py, cards.py, answer_strip.py, overview_card.py, run_table.py, score_table.py, components.py
    data -> SVG and HTML; pure
page.py, pages/        what a page is; one module a page: its values, its components, what it shows
workspace.py           the runs of a view, and rendered pages, kept between views
app.py                 the Gradio app
server.py, document.py, request_filter.py   static files, long texts and headers; the page's HTML; what visitors may
    ask for
main.py                the command line
static/                style sheets and scripts, one file a matter
"""
