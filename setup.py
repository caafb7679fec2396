"""Metadata, extras and the list of packages are in pyproject.toml; this file lets older tools find them."""

from setuptools import setup

setup()
