"""The answer of a response, and its comparison with a gold answer."""
