"""openrlhf-ebpo space: look at training runs in a browser."""

from __future__ import annotations


def main(argv: list[str] | None = None) -> None:
    from openrlhf_ebpo.space.main import main

    main(argv)


if __name__ == "__main__":
    main()
