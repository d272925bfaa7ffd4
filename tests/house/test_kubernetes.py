"""The example for Kubernetes is valid, and its objects and the product agree with each other."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate.utils import all_versions, major_minor

from heliograph.api.door.probes import PATHS
from heliograph.base.process.settings import Settings
from heliograph.cli.terminal import process
from heliograph.cli.terminal.console import FAILED, UNREACHABLE, WRONG
from tests import kubernetes
from tests.house.test_containers import demand_command, demand_setting, times_to_end

TEMPLATES = kubernetes.templates()
#: Seconds that a container on a busy node may take to start, before it waits for the database.
START = 15.0
VERSIONS = sorted({major_minor(one) for one in all_versions()}, key=lambda one: int(one.split(".")[1]))


def pods() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each pod's specification with its only container."""
    found = []
    for template in TEMPLATES.values():
        (container,) = template["spec"]["containers"]
        found.append((template["spec"], container))
    return found


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in kubernetes.objects() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def allowance(probe: dict[str, Any]) -> float:
    """Seconds for which a probe may fail."""
    return float(probe["periodSeconds"] * probe["failureThreshold"])


@pytest.mark.parametrize("version", [kubernetes.OLDEST, VERSIONS[-1]])
def test_kubernetes_knows_every_field(version: str) -> None:
    assert version in VERSIONS
    for found in kubernetes.objects():
        # It returns the version of the schemas that it used.
        assert kubernetes_validate.validate(found, version, strict=True) == version


def test_a_field_that_it_does_not_know_is_an_error() -> None:
    found = one("Deployment", "heliograph-api")
    found["spec"]["template"]["spec"]["terminationGracePeriod"] = 45
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(found, VERSIONS[-1], strict=True)


def test_its_objects_are_these() -> None:
    names = [(found["kind"], found["metadata"]["name"]) for found in kubernetes.objects()]
    assert sorted(names) == [
        ("CronJob", "heliograph-backup"),
        ("Deployment", "heliograph-api"),
        ("Deployment", "heliograph-worker"),
        ("Ingress", "heliograph"),
        ("Job", "heliograph-migrate"),
        ("NetworkPolicy", "heliograph"),
        ("PersistentVolumeClaim", "heliograph-backups"),
        ("PodDisruptionBudget", "heliograph-api"),
        ("PodDisruptionBudget", "heliograph-worker"),
        ("Service", "heliograph"),
    ]
    assert set(TEMPLATES) == {"api", "worker", "migrate", "backup"}


def test_commands_settings_mounts_and_secrets_agree() -> None:
    for pod, container in pods():
        demand_command(container["args"])
        ports, settings = kubernetes.ports(container), kubernetes.settings(container)
        for name in settings:
            demand_setting(name)
        if "--port" in container["args"]:
            assert ports["http"] == int(container["args"][container["args"].index("--port") + 1])
        if "metrics" in ports:
            assert settings["HELIOGRAPH_METRICS_LISTEN"].endswith(f":{ports['metrics']}")
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert set(mounts) == set(volumes)
        files = {f"{mounts['secrets']}/{item['path']}" for item in volumes["secrets"]["secret"]["items"]}
        named = {value for name, value in settings.items() if name.endswith("_FILE")}
        assert named | {word for word in container["args"] if word.startswith("/run/secrets/")} == files
    # Processes that answer requests or connect to suppliers do not get the owner's password.
    assert {name for name, made in TEMPLATES.items() if "owner_database_url" in str(made)} == {"migrate", "backup"}
    claimed = TEMPLATES["backup"]["spec"]["volumes"][-1]["persistentVolumeClaim"]["claimName"]
    assert one("PersistentVolumeClaim", claimed)


def test_pods_satisfy_the_restricted_standard() -> None:
    for pod, container in pods():
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert container["securityContext"] == {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"secret", "emptyDir", "persistentVolumeClaim"}
        assert pod["automountServiceAccountToken"] is False
        # Kubernetes would set HELIOGRAPH_PORT and HELIOGRAPH_SERVICE_HOST, after the service's name.
        assert pod["enableServiceLinks"] is False
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]


def test_what_selects_pods_finds_them() -> None:
    labels = {name: made["metadata"]["labels"] for name, made in TEMPLATES.items()}
    for part in ("api", "worker"):
        deployment, budget = one("Deployment", f"heliograph-{part}"), one("PodDisruptionBudget", f"heliograph-{part}")
        (spread,) = TEMPLATES[part]["spec"]["topologySpreadConstraints"]
        for selector in (deployment["spec"]["selector"], budget["spec"]["selector"], spread["labelSelector"]):
            assert selector == {"matchLabels": labels[part]}
        assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    service, policy = one("Service", "heliograph")["spec"], one("NetworkPolicy", "heliograph")["spec"]
    assert service["selector"] == labels["api"]
    assert all(policy["podSelector"]["matchLabels"].items() <= label.items() for label in labels.values())
    (rule,) = one("Ingress", "heliograph")["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"]["service"] == {"name": "heliograph", "port": {"name": service["ports"][0]["name"]}}
    assert kubernetes.settings(TEMPLATES["api"]["spec"]["containers"][0])["HELIOGRAPH_PUBLIC_URL"].endswith(
        f"://{rule['host']}"
    )
    known = {name for _, container in pods() for name in kubernetes.ports(container)}
    admitted = {port["port"] for way in policy["ingress"] for port in way["ports"]}
    assert admitted == known == {"http", "metrics"}
    assert service["ports"][0]["targetPort"] in known


def test_probes_ask_what_answers_and_wait_for_the_database() -> None:
    for _, container in pods():
        for name, asked in container.items():
            if name.endswith("Probe"):
                assert asked.get("httpGet", {}).get("path", "/livez") in PATHS
                assert asked.get("httpGet", asked.get("tcpSocket"))["port"] in kubernetes.ports(container)
    api, sending = (TEMPLATES[part]["spec"]["containers"][0] for part in ("api", "worker"))
    # It would be killed instead of saying what it lacks; and without this probe a pod is ready as soon as it runs, so
    # that a version which cannot start would replace the one that works.
    assert allowance(api["startupProbe"]) >= process.PATIENCE + START
    assert allowance(sending["startupProbe"]) >= process.PATIENCE + START
    # It gets no more requests before it stops accepting connections.
    settings = kubernetes.settings(api)
    assert allowance(api["readinessProbe"]) < float(settings["HELIOGRAPH_NOT_READY_SECONDS"])


def test_pods_have_time_to_end() -> None:
    needed, defaults = times_to_end(), Settings()
    for name in ("api", "worker"):
        pod = TEMPLATES[name]["spec"]
        said = kubernetes.settings(pod["containers"][0]).get("HELIOGRAPH_NOT_READY_SECONDS", defaults.not_ready_seconds)
        more = float(said) - defaults.not_ready_seconds
        assert pod["terminationGracePeriodSeconds"] > needed[name] + more


def test_migrations_are_tried_again_only_while_the_database_is_unavailable() -> None:
    job = one("Job", "heliograph-migrate")["spec"]
    codes = [rule["onExitCodes"] for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
    assert codes == [{"operator": "In", "values": [FAILED, WRONG]}]
    assert UNREACHABLE not in codes[0]["values"]
    assert job["template"]["spec"]["restartPolicy"] == "Never"
