"""The commands of docs/deploy/compose.yaml and docs/deploy/kubernetes, run here in the order that these give.

Containers are processes, on addresses of loopback. No image is built: that takes a registry. What the image's
RUN lines do, scripts/check_packages.py does.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (pip install 'switchagg[dev]')")
pytest.importorskip("finsy", reason='needs the extra: pip install "switchagg[p4runtime]"')

DEPLOY = Path(__file__).parents[1] / "docs" / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OBJECTS: dict[tuple[str, str], dict[str, Any]] = {
    (each["kind"], each["metadata"]["name"]): each
    for path in MANIFESTS
    for each in yaml.safe_load_all(path.read_text())
}
BLOCK = 128 + os.getpid() % 127  # other tests' copies have others


class Host:
    """This computer in the place of the containers' hosts.

    Args:
        state: folder in the place of /state.
        names: addresses and names of the files, by those that they have here.
    """

    def __init__(self, state: Path, names: dict[str, str]) -> None:
        if shutil.which("switchagg", path=str(Path(sys.executable).parent)) is None:
            pytest.skip("switchagg is not installed beside this Python")
        self._names = names | {"/job/": f"{DEPLOY}/", "/state": str(state)}
        self._processes = contextlib.ExitStack()

    def here(self, text: str) -> str:
        """Returns a text of the files with names and folders of this computer."""
        for name, ours in self._names.items():
            text = text.replace(name, ours)
        return text

    def start(self, line: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        """Starts a container's command. It ends with this host, if it has not before."""
        variables = {name: self.here(value) for name, value in environment.items()}
        process = subprocess.Popen(
            [self.here(word) for word in line],
            env=os.environ | variables | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._processes.enter_context(process)
        self._processes.callback(process.terminate)
        return process

    def until(self, line: list[str]) -> None:
        """Returns when a command of a health check ends well."""
        end = time.monotonic() + 60
        while self.start(line, {}).wait():
            assert time.monotonic() < end, line
            time.sleep(0.2)

    @contextlib.contextmanager
    def open(self) -> Iterator[Host]:
        with self._processes:
            yield self


def _all_are_right(workers: list[subprocess.Popen[str]]) -> None:
    for rank, worker in enumerate(workers):
        said, _ = worker.communicate(timeout=60)
        assert (worker.returncode, said) == (0, f"rank {rank} of {len(workers)}: the sum is right\n")


# ---------------------------------------------------------------------- compose


def test_the_services_do_a_job_together(tmp_path: Path) -> None:
    with Host(tmp_path, {"172.30.0.": f"127.30.{BLOCK}.", "$$": "$"}).open() as host:

        def start(name: str) -> subprocess.Popen[str]:
            service = SERVICES[name]
            line = service.get("entrypoint", ["switchagg"]) + service["command"]
            return host.start(line, service.get("environment", {}))

        start("switch")
        assert start("tenant").wait(60) == 0
        start("controller")
        host.until([sys.executable, *SERVICES["controller"]["healthcheck"]["test"][2:]])
        _all_are_right([start("worker0"), start("worker1")])


def test_the_image_is_built_from_what_is_here() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and not line.startswith(("#", " "))]
    assert {name for name, _ in instructions} == {"FROM", "WORKDIR", "COPY", "RUN", "ENTRYPOINT", "CMD"}
    assert shlex.split(next(rest for name, rest in instructions if name == "ENTRYPOINT"))[0] == "[switchagg]"
    for name, service in SERVICES.items():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file(), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).is_file(), name


# ---------------------------------------------------------------------- Kubernetes

POD = OBJECTS["Deployment", "switchagg"]["spec"]["template"]
JOB = OBJECTS["Job", "train"]["spec"]
CONTAINERS = {each["name"]: each for each in POD["spec"]["initContainers"] + POD["spec"]["containers"]}
WORKER: dict[str, Any] = JOB["template"]["spec"]["containers"][0]


def _started(host: Host, container: dict[str, Any], secret: Path, **variables: str) -> subprocess.Popen[str]:
    """A container as the kubelet starts it, with the variables that its manifest names."""
    environment = dict(variables)
    for each in container.get("env", ()):
        match each:
            case {"name": name, "value": value}:
                environment[name] = value
            case {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}:
                environment[name] = "POD_IP"
            case {"name": name, "valueFrom": {"secretKeyRef": {"key": "token"}}}:
                environment[name] = secret.read_text().strip()
            case _:
                pytest.fail(f"a variable of a kind that this test does not know: {each}")
    words = container.get("command", ["switchagg"]) + container.get("args", [])
    for name, value in environment.items():
        words = [word.replace(f"$({name})", value) for word in words]
    return host.start(words, environment)


def test_the_pods_do_a_job_together(tmp_path: Path) -> None:
    address = f"127.31.{BLOCK}.10"
    names = {"127.0.0.1": f"127.31.{BLOCK}.1", "POD_IP": address, "//switchagg:": f"//{address}:"}
    token = tmp_path / "token"
    with Host(tmp_path, names).open() as host:
        for each in POD["spec"]["initContainers"]:
            assert _started(host, each, token).wait(60) == 0

        def pod() -> list[subprocess.Popen[str]]:
            running = [_started(host, each, token) for each in POD["spec"]["containers"]]
            host.until([sys.executable, *CONTAINERS["switch"]["livenessProbe"]["exec"]["command"][1:]])
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                get = CONTAINERS["controller"][probe]["httpGet"]
                url = f"http://{address}:{_port(CONTAINERS['controller'], get['port'])}{get['path']}"
                host.until([sys.executable, "-c", f"import urllib.request as r; r.urlopen({url!r})"])
            return running

        def job() -> None:  # as Kubernetes numbers the pods of an indexed Job
            indices = range(JOB["completions"])
            _all_are_right([_started(host, WORKER, token, JOB_COMPLETION_INDEX=str(i)) for i in indices])

        running = pod()
        job()
        for container in running:
            container.kill()
            container.wait()
        pod()
        job()


def _port(container: dict[str, Any], port: str | int) -> int:
    """The number of a container's port."""
    return next(each["containerPort"] for each in container["ports"] if port in each.values())


def test_the_manifests_fit_together() -> None:
    service = OBJECTS["Service", "switchagg"]["spec"]
    assert service["selector"].items() <= POD["metadata"]["labels"].items()
    listen = next(word for word in CONTAINERS["controller"]["args"] if word.startswith("--listen="))
    for each in service["ports"]:
        assert listen.endswith(f":{_port(CONTAINERS['controller'], each['targetPort'])}")
    variables = {each["name"]: each.get("value") for each in WORKER["env"]}
    reached = {(each["port"], each.get("protocol", "TCP")) for each in service["ports"]}
    assert reached == {(8080, "TCP"), (8080, "UDP")}
    assert variables["SWITCHAGG_CONTROLLER"] == "http://switchagg:8080"
    assert int(variables["WORLD_SIZE"]) == JOB["completions"] == JOB["parallelism"]
    names = OBJECTS["Service", JOB["template"]["spec"]["subdomain"]]
    assert names["spec"]["clusterIP"] == "None"
    assert names["spec"]["selector"].items() <= JOB["template"]["metadata"]["labels"].items()
    assert variables["MASTER_ADDR"] == f"train-0.{names['metadata']['name']}"
    # Without it, SWITCHAGG_PORT and the like of the Service called switchagg would be there.
    assert not any(each["spec"]["enableServiceLinks"] for each in (POD, JOB["template"]))
    claims = {each["persistentVolumeClaim"]["claimName"] for each in POD["spec"]["volumes"]}
    assert {("PersistentVolumeClaim", name) for name in claims} <= set(OBJECTS)
    guide = (DEPLOY.parent / "how-to" / "kubernetes.md").read_text()
    secret = next(each["valueFrom"] for each in WORKER["env"] if "valueFrom" in each)["secretKeyRef"]
    assert f"create secret generic {secret['name']} --from-literal={secret['key']}=" in guide
    program = JOB["template"]["spec"]["volumes"][0]["configMap"]["name"]
    assert f"create configmap {program} --from-file=docs/deploy/first_job.py" in guide
    for path in MANIFESTS:
        assert f"kubectl apply -f docs/deploy/kubernetes/{path.name}" in guide


@pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None,
    reason="needs the schemas of Kubernetes: pip install kubernetes-validate",
)
@pytest.mark.parametrize(("kind", "name"), OBJECTS)
def test_the_manifests_follow_the_schema(kind: str, name: str) -> None:
    from kubernetes_validate import utils

    utils.validate(OBJECTS[kind, name], utils.latest_version(), strict=True)
