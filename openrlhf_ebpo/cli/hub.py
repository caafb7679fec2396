"""Models, priors, runs and results to and from the Hugging Face Hub.

A training pushes by itself with --hub.repo owner/name (`openrlhf-ebpo train --help`); these commands do the rest.
The token comes from HF_TOKEN or `hf auth login`, never from a flag; another Hub than huggingface.co from HF_ENDPOINT.

  openrlhf-ebpo hub push out/run                                          push what a training could not
  openrlhf-ebpo hub push out/run --dry_run                                list what is missing
  openrlhf-ebpo hub push out/run --repo me/model --dry_run                list what would go
  openrlhf-ebpo hub pull me/model model --revision step-000020            bring one step back
  openrlhf-ebpo hub push-run out/run --repo me/my-run                     publish the record of a run
"""

from __future__ import annotations

from openrlhf_ebpo.cli.dispatch import Command, dispatcher

COMMANDS = {
    "push": Command("openrlhf_ebpo.hub.push", "a run's exported models: all that the Hub lacks, or one step"),
    "pull": Command("openrlhf_ebpo.hub.pull", "a model and its prior into a folder, checked file by file"),
    "push-run": Command("openrlhf_ebpo.hub.run_data", "a run directory (metrics, rollouts, evaluation) as a data set"),
    "deploy-space": Command("openrlhf_ebpo.hub.space", "the app that shows runs, as a Space"),
}

main = dispatcher("openrlhf-ebpo hub", __doc__, COMMANDS, extra="hub")

if __name__ == "__main__":
    main()
