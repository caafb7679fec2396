"""The Space: python app.py --runs DIR … (see --help). On the Hub the flags come from the Space's variables."""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
if importlib.util.find_spec("openrlhf_ebpo") is None:  # a checkout that is not installed
    sys.path.append(str(HERE.parent))

from ebpo_space.main import main  # noqa: E402

if __name__ == "__main__":
    main()
