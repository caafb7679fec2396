"""Everything that can be known before anything starts: what this machine has, and what it lacks."""
