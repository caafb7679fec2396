"""Training with EBPO: what replaces or wraps parts of OpenRLHF, by the rows of seams/."""
