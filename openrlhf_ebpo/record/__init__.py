"""What a run leaves on disk, and what reads it again. Needs neither torch nor Ray."""
