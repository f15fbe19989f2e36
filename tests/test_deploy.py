"""The files for other machines: the image of the runtime, the workflow and the forms of issues."""

from __future__ import annotations

import fnmatch
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from ingot.version import DISTRIBUTION, __version__
from tests.support.ci import targets_in_ci

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
FORMS = [p for p in sorted((ROOT / ".github/ISSUE_TEMPLATE").iterdir()) if p.name != "config.yml"]


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile and what follows each."""
    lines = text.replace("\\\n", " ").splitlines()
    pairs = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return [(name, rest.strip()) for name, _, rest in pairs]


def workflow() -> dict:
    return yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())


def test_the_image_holds_the_wheel_and_no_compiler():
    steps = instructions((ROOT / "deploy/Dockerfile").read_text())
    given = dict(steps)
    assert [name for name, _ in steps] == [
        *("FROM", "COPY", "RUN", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD")
    ]
    version = re.fullmatch(r"python:(3\.\d+)-slim", given["FROM"])[1]
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    wheel = f"{DISTRIBUTION.replace('-', '_')}-{__version__}-py3-none-any.whl"
    assert fnmatch.fnmatch(wheel, given["COPY"].split()[0])
    assert given["USER"] != "root"
    assert not re.search(r"torch|compile\]|g\+\+|apt-get", " ".join(rest for _, rest in steps))


def test_the_workflow_runs_what_ci_runs():
    steps = [step for job in workflow()["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    assert all(re.fullmatch(r"make [a-z-]+( [A-Z]+=\S.*)?", command) for command in commands)
    called = {command.split()[1] for command in commands}
    assert set(targets_in_ci()) <= called <= TARGETS
    assert all(
        re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step
    )


def test_the_workflow_checks_the_oldest_and_the_newest_python():
    versions = workflow()["jobs"]["check"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    minors = [int(c.removeprefix(prefix)) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    assert versions == [f"3.{min(minors)}", f"3.{max(minors)}"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_is_one_that_the_site_takes(form):
    content = yaml.safe_load(form.read_text())
    assert content.keys() == {"name", "description", "body"}
    for field in content["body"]:
        assert field["type"] in ("input", "textarea") and field["attributes"]["label"]
        assert field.keys() <= {"type", "attributes", "validations"}
    assert any(field.get("validations", {}).get("required") for field in content["body"])


def test_forms_ask_for_verbs_that_there_are():
    from ingot.cli.parser import VERBS

    text = " ".join(form.read_text() for form in FORMS)
    asked = set(re.findall(r"`ingot (\w+)", text))
    assert {"doctor", "explain"} <= asked <= {verb.name for verb in VERBS}


def test_links_of_the_forms_lead_into_this_repository():
    links = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/config.yml").read_text())[
        "contact_links"
    ]
    page = f"{PROJECT['urls']['Source']}/blob/main/"
    assert links and all((ROOT / link["url"].removeprefix(page)).exists() for link in links)
