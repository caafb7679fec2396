"""Write and read the run directory. Needs neither torch nor Ray."""
