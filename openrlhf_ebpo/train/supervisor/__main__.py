"""The supervisor of one training: `python train/supervisor/__main__.py CHANNEL DRIVER WORD...`, run by driver.py.

CHANNEL: the file descriptor on which the driver asks. DRIVER: its process id. WORD...: for Python, to start it again.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[3])  # of the package, whatever lies in the current folder
    from openrlhf_ebpo.train.supervisor.watch import main

    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
