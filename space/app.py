"""The Space: python app.py --runs DIR … (see --help). On the Hub the flags come from the Space's variables.

openrlhf_ebpo is installed or, in a Space, in package.zip, which `openrlhf-ebpo hub deploy-space` puts beside this file.
"""

import sys
import tempfile
import zipfile
from pathlib import Path

archive = Path(__file__).with_name("package.zip")
if archive.is_file():
    sys.path.insert(0, tempfile.mkdtemp(prefix="openrlhf_ebpo-"))
    zipfile.ZipFile(archive).extractall(sys.path[0])

from openrlhf_ebpo.space.main import main  # noqa: E402  after the path to it

if __name__ == "__main__":
    main()
