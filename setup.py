"""What pyproject.toml cannot say: a long description, and the modules of the .proto files.

The description is README.md with links that work outside the repository, too.
"""

import re
import runpy
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
RELATIVE_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def long_description() -> str:
    """README.md, its relative links led to the repository that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base = f"{project['urls']['Source']}/blob/main/"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return RELATIVE_LINK.sub(lambda link: f"]({base}{link[1]})", text)


class BuildWithStubs(build_py):
    """Copies the package, and makes the modules of its .proto files beside it."""

    def run(self):
        super().run()
        if not self.editable_mode:  # a clone makes them on first use
            maker = runpy.run_path(str(ROOT / "ingot" / "serve" / "grpc" / "make_stubs.py"))
            maker["generate"](Path(self.build_lib) / maker["PACKAGE"])


setup(
    cmdclass={"build_py": BuildWithStubs},
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
