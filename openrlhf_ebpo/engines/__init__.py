"""Ray and rollout engines started from a command: `train --sample`, `data difficulty` and `eval`."""
