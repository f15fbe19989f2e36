"""The long description: README.md with links that work outside the repository, too.

Everything else about the package stands in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
RELATIVE_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def long_description() -> str:
    """README.md, its relative links led to the repository that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = f"{project['urls']['Source']}/blob/main/"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return RELATIVE_LINK.sub(lambda link: f"]({base}{link[1]})", text)


setup(long_description=long_description(), long_description_content_type="text/markdown")
