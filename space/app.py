"""The app in a checkout: python space/app.py --runs DIR … (see --help)."""

from openrlhf_ebpo.space.main import main

if __name__ == "__main__":
    main()
