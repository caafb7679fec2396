"""The quickstart: a tiny model learns arithmetic, first by example, then with EBPO, through the whole stack."""
