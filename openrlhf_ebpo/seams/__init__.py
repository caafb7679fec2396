"""Where this project enters an installed, unmodified OpenRLHF: what is replaced there, checked and put in place."""
