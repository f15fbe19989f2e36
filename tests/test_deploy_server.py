"""What deploys the server: every command is one that the command line takes, and parts fit."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingot.cli.parser import build_parser
from ingot.errors import UsageError

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
POD_SPARE_SECONDS = 5


def documents(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((DEPLOY / name).read_text()) if each]


def unit() -> dict[str, dict[str, list[str]]]:
    """The sections of the unit, and the values of each key in them."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in (DEPLOY / "ingot.service").read_text().splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return found


def dockerfile(name: str) -> dict[str, str]:
    text = (DEPLOY / name).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split(" ", 1) for line in lines)


def pod() -> dict[str, Any]:
    (deployment,) = documents("kubernetes/deployment.yaml")
    return deployment["spec"]["template"]["spec"]


def service(name: str = "ingot") -> dict[str, Any]:
    (compose,) = documents("compose.yaml")
    return compose["services"][name]


def commands() -> dict[str, list[str]]:
    """What each file has ingot do."""
    (container,) = pod()["containers"]
    program, *words = shlex.split(unit()["Service"]["ExecStart"][0])
    assert program.endswith("/ingot")
    return {
        "kubernetes": container["args"],
        "compose": service()["command"],
        "systemd": words,
    }


def parsed(words: list[str]) -> Any:
    return build_parser().parse_args(words)


@pytest.mark.parametrize("place", ["kubernetes", "compose", "systemd"])
def test_a_command_is_one_that_the_command_line_takes(place):
    args = parsed(commands()[place])
    assert args.verb.name == "serve" and len(args.models) == 1
    assert args.api_key_file is not None and args.log_format == "json"
    assert args.port == 8000 and args.shutdown_timeout == 30


def test_an_option_that_is_none_would_be_found():
    with pytest.raises(UsageError, match="no option --shutdown-timeouts"):
        parsed([*commands()["systemd"], "--shutdown-timeouts=3"])


def test_the_image_serves_as_nobody_with_no_compiler():
    given = dockerfile("server.Dockerfile")
    assert re.fullmatch(r"python:3\.\d+-slim", given["FROM"])
    assert "[serve,grpc]" in (DEPLOY / "server.Dockerfile").read_text()
    assert given["USER"].isdigit() and given["USER"] != "0"
    assert not re.search(r"torch|compile\]|g\+\+|apt-get", " ".join(given.values()))
    words = json.loads(given["ENTRYPOINT"]) + json.loads(given["CMD"])
    assert words == ["ingot", "serve", "--help"]
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args(words[1:])
    assert end.value.code == 0


def test_ports_are_those_that_the_server_listens_on():
    args = parsed(commands()["kubernetes"])
    (container,) = pod()["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"http": args.port, "grpc": args.grpc_port}
    (service_,) = documents("kubernetes/service.yaml")
    for port in service_["spec"]["ports"]:
        assert port["port"] == ports[port["targetPort"]]
    assert dockerfile("server.Dockerfile")["EXPOSE"].split() == [str(p) for p in ports.values()]
    published = {int(each.rpartition(":")[2]) for each in service()["ports"]}
    assert published == set(ports.values())
    assert all(each.startswith("127.0.0.1:") for each in service()["ports"])


def test_probes_ask_what_the_server_answers_without_a_key():
    (container,) = pod()["containers"]
    assert parsed(container["args"]).open_health
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness")}
    assert {probe["path"] for probe in probes.values()} == {"/health"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/live", "port": "http"}
    assert "/live" in dockerfile("server.Dockerfile")["HEALTHCHECK"]


def test_what_ends_a_server_waits_for_its_answers():
    for place, seconds in {
        "kubernetes": pod()["terminationGracePeriodSeconds"],
        "compose": int(service()["stop_grace_period"].removesuffix("s")),
        "systemd": int(unit()["Service"]["TimeoutStopSec"][0]),
    }.items():
        (container,) = pod()["containers"]
        before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        waits = before if place == "kubernetes" else 0
        timeout = parsed(commands()[place]).shutdown_timeout
        assert seconds >= waits + timeout + POD_SPARE_SECONDS


def test_files_that_a_command_names_are_mounted():
    (container,) = pod()["containers"]
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert {volume["name"] for volume in pod()["volumes"]} == set(mounts.values())
    args = parsed(container["args"])
    for path in (*map(Path, args.models), args.api_key_file):
        assert str(path.parent) in mounts
    compose = parsed(commands()["compose"])
    assert str(Path(compose.models[0]).parent) in service()["volumes"][0].split(":")
    assert compose.api_key_file == Path("/run/secrets") / service()["secrets"][0]
    credential = unit()["Service"]["LoadCredential"][0].partition(":")[0]
    keys = str(parsed(commands()["systemd"]).api_key_file)
    assert keys == f"${{CREDENTIALS_DIRECTORY}}/{credential}"


def test_containers_may_do_nothing_but_serve():
    (container,) = pod()["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod()["securityContext"]["runAsNonRoot"]
    assert str(pod()["securityContext"]["runAsUser"]) == dockerfile("server.Dockerfile")["USER"]
    assert service()["read_only"] and service()["cap_drop"] == ["ALL"]


def test_manifests_are_of_one_application():
    (kustomization,) = documents("kubernetes/kustomization.yaml")
    listed = set(kustomization["resources"])
    files = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")}
    assert listed == files - {"kustomization.yaml"}
    found = [each for name in listed for each in documents(f"kubernetes/{name}")]
    kinds = {each["kind"]: each for each in found}
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        kinds["Deployment"]["spec"]["selector"]["matchLabels"],
        kinds["Service"]["spec"]["selector"],
        kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    target = kinds["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (
        "Deployment",
        kinds["Deployment"]["metadata"]["name"],
    )
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod()["volumes"] if len(v) > 1
              and "persistentVolumeClaim" in v]  # fmt: skip
    assert claims == [kinds["PersistentVolumeClaim"]["metadata"]["name"]]


def test_prometheus_asks_the_server_with_a_key():
    (config,) = documents("prometheus.yml")
    (job,) = config["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    assert target == f"ingot:{parsed(commands()['compose']).port}"
    secret = Path(job["authorization"]["credentials_file"]).name
    assert secret in service("prometheus")["secrets"]


def test_the_unit_has_what_systemd_reads(tmp_path):
    sections = unit()
    assert list(sections) == ["Unit", "Service", "Install"]
    assert sections["Service"]["Restart"] == ["on-failure"]
    assert sections["Service"]["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return  # the rest is a check of systemd's own
    program = sections["Service"]["ExecStart"][0].split()[0]
    path = tmp_path / "ingot.service"
    path.write_text((DEPLOY / "ingot.service").read_text().replace(program, "/bin/true"))
    done = subprocess.run([analyze, "verify", "--man=no", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_file_for_ray_describes_an_application():
    from ingot.serve.ray.arguments import read_args

    (config,) = documents("ray/serve.yaml")
    (application,) = config["applications"]
    assert application["import_path"] == "ingot.serve.ray.app:build"
    read_args(application["args"])


def test_kustomize_builds_the_manifests():
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        return  # the files themselves are read above
    command = [kubectl, "kustomize", DEPLOY / "kubernetes"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    built = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    (kustomization,) = documents("kubernetes/kustomization.yaml")
    kinds = {each["kind"] for name in kustomization["resources"]
             for each in documents(f"kubernetes/{name}")}  # fmt: skip
    assert built.keys() == kinds
    assert built["Deployment"]["spec"]["template"]["spec"]["containers"] == pod()["containers"]


def test_compose_reads_its_file(tmp_path):
    command = ["docker", "compose", "version"]
    if shutil.which("docker") is None or subprocess.run(command, capture_output=True).returncode:
        return  # the file itself is read above
    command = ["docker", "compose", "-f", DEPLOY / "compose.yaml", "--profile", "*", "config"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    read = yaml.safe_load(done.stdout)["services"]
    (compose,) = documents("compose.yaml")
    assert read.keys() == compose["services"].keys()
    assert read["ingot"]["command"] == service()["command"]
