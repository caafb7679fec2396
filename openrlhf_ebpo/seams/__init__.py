"""Monkey patches of an installed, unmodified OpenRLHF: the table of what is replaced, its check and its application."""
