"""One module per page. Each has `render(view, app) -> dict`: what its components show for a view; no Gradio in it."""
