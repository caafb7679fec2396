"""Upstream's `train_ppo_ray` with the estimator `ebpo`: every flag of upstream's, and those of this project.

python -m openrlhf_ebpo.cli.train_ppo_ray --advantage_estimator ebpo --rollout.n_samples_per_prompt 4 ...
"""

from __future__ import annotations

import sys

from openrlhf_ebpo.command import error_exit
from openrlhf_ebpo.train.supervisor.watch import under_supervision


@error_exit()
def main(argv: list[str] | None = None) -> None:
    supervisor = under_supervision()
    from openrlhf_ebpo.train import driver  # and torch with it, which the supervisor does without

    driver.main(sys.argv[1:] if argv is None else argv, supervisor)


if __name__ == "__main__":
    main()
