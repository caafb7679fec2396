"""Ray, started for the driver of `train`, for `data difficulty` and for `eval`; rollout engines for the latter two and
for `train --sample`."""
