"""The Space: python app.py --runs DIR … (see --help). On the Hub the flags come from the Space's variables.

openrlhf_ebpo is installed, or lies beside this file, where `openrlhf-ebpo hub deploy-space` puts it.
"""

from openrlhf_ebpo.space.main import main

if __name__ == "__main__":
    main()
