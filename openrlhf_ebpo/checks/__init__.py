"""Everything that can be known before anything starts: about flags, files, models and rewards, and about this
machine."""
