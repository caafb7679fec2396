"""Changes to an installed, unmodified OpenRLHF: the table of replacements, its check and application, code of several
processes. A folder below is a process: controller, policy, rollout; cpu is the stack without a GPU."""
