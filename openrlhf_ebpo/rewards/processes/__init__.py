"""Processes that run a reward and can be killed, and the limits of a reward."""
