"""The quickstart: a tiny model learns to spell words backward, first by example, then with EBPO, through all of the
stack."""
