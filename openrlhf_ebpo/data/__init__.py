"""Training data: cleaned, given topics and difficulties, put in order. One module a command of `openrlhf-ebpo data`."""
