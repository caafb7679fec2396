"""Read by every Python that the campaign starts with --forked: Ray starts its workers with what it takes for Python."""

import os
import sys

sys.executable = os.environ.get("OPENRLHF_EBPO_FAULTS_PYTHON", sys.executable)
