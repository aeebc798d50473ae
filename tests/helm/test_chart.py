"""The chart, linted and rendered by Helm itself: `make test-chart`. Nothing here talks to a cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.chart

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "framekeeper"
VALUES: dict[str, Any] = {"database": {"url": "postgresql://framekeeper@db/framekeeper"}}
#: Each value of which a template makes a decision, once each way; the first of each pair is the default.
CHOICES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (
        {},
        {"gateway": {"replicas": 1, "service": {"type": "LoadBalancer"}, "env": {"FRAMEKEEPER_AUTH": "on"}}},
    ),
    ({}, {"videos": {"existingClaim": "mine"}}),
    ({}, {"videos": {"storageClassName": "nfs"}}),
    ({}, {"images": {"registry": "example.org/", "tag": "2", "pullSecrets": [{"name": "pull"}]}}),
    (
        {},
        {
            "engine": {
                "gpus": 0,
                "profile": "cpu-tiny",
                "runtime": "omni-0.30-cpu",
                "env": {"FRAMEKEEPER_X": "1"},
            }
        },
    ),
    (
        {},
        {
            "engine": {
                "runtimeClassName": "nvidia",
                "nodeSelector": {"gpu": "h200"},
                "tolerations": [{"key": "gpu"}],
            }
        },
    ),
    ({}, {"engine": {"cache": {"storageClassName": "fast"}}}),
    ({}, {"networkPolicy": {"enabled": False}}),
    ({}, {"podDisruptionBudget": {"enabled": False}}),
    ({}, {"serviceMonitor": {"enabled": True}}),
)
#: Kubernetes releases: the oldest that Chart.yaml allows, and the newest with a published schema here.
RELEASES = ("1.27", "1.37")


def over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, mapping by mapping, as Helm does it."""
    both = {
        key: over(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in changes.items()
    }
    return base | both


def combinations() -> Iterator[dict[str, Any]]:
    """Values of every combination of CHOICES."""
    for chosen in itertools.product(*CHOICES):
        values = VALUES
        for each in chosen:
            values = over(values, each)
        yield values


def objects(values: dict[str, Any]) -> list[dict[str, Any]]:
    from helm_python import chart

    with chart.Chart.load(CHART) as loaded:
        texts = loaded.render(values, name="fk", namespace="video")
    return [each for text in texts.values() for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def rendered(**changes: Any) -> dict[str, dict[str, Any]]:
    """Every object by kind and name, with these values over VALUES."""
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in objects(over(VALUES, changes))}


def pods(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        each["spec"]["template"]["spec"] for each in found if each["kind"] in ("Deployment", "StatefulSet")
    ]


def assert_hardened(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostIPC", "hostPID", "hostNetwork"} & pod.keys()
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    for container in pod["containers"] + pod.get("initContainers", []):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"]["cpu"]
    for container in pod["containers"]:
        assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
        assert container.keys() & {"readinessProbe", "startupProbe"}
        mounted = {each["name"] for each in container["volumeMounts"]}
        assert mounted <= {each["name"] for each in pod["volumes"]} | {"cache"}


def test_every_combination_of_values_makes_valid_and_hardened_objects() -> None:
    import kubernetes_validate

    checked: set[tuple[str, str]] = set()
    for values in combinations():
        found = objects(values)
        for pod in pods(found):
            assert_hardened(pod)
        for each in found:
            # Most objects come out alike again and again, and Kubernetes' schema of a pod is large.
            text = repr(each)
            for release in RELEASES:
                if each["kind"] != "ServiceMonitor" and (text, release) not in checked:
                    kubernetes_validate.validate(each, release, strict=True)
                    checked.add((text, release))
    assert {text.split("'kind': '")[1].split("'")[0] for text, _ in checked} == {
        "Deployment",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "Service",
        "StatefulSet",
    }


def test_helm_finds_no_fault_in_any_combination() -> None:
    from helm_python import chart

    for values in combinations():
        assert chart.lint(CHART, values, strict=True)["errors"] == []


def test_kubernetes_schema_would_tell() -> None:
    import kubernetes_validate

    engine = rendered()["StatefulSet/fk-engine"]
    engine["spec"]["template"]["spec"]["containers"][0]["readOnlyRootFilesytem"] = True
    with pytest.raises(kubernetes_validate.ValidationError, match="readOnlyRootFilesytem"):
        kubernetes_validate.validate(engine, RELEASES[0], strict=True)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"database": {"url": "postgresql://user:secret@db/x"}}, "/database/url"),
        ({"database": {"url": ""}}, "/database/url"),
        ({"engine": {"grups": 2}}, "grups"),
        ({"engine": {"gpus": -1}}, "/engine/gpus"),
        ({"engine": {"env": {"PATH": "/"}}}, "PATH"),
        ({"gateway": {"replicas": 0}}, "/gateway/replicas"),
        ({"networkPolicy": {"enable": False}}, "enable"),
        ({"podDisruptionBudget": {"enable": False}}, "enable"),
        ({"serviceMonitor": {"enable": True}}, "enable"),
    ],
)
def test_values_that_cannot_work_are_named(changes: dict[str, Any], named: str) -> None:
    from helm_python import chart

    with chart.Chart.load(CHART) as loaded, pytest.raises(Exception, match=named):
        loaded.render(over(VALUES, changes), name="fk", namespace="video")


def test_the_engine_gets_its_cards_its_name_and_time_to_drain() -> None:
    template = rendered(engine={"gpus": 2, "groups": 2, "drainSeconds": 100})["StatefulSet/fk-engine"][
        "spec"
    ]["template"]
    [container] = template["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert container["image"] == "framekeeper-engine:0.1.0-omni-0.30-cu130"
    environment = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
    assert environment["FRAMEKEEPER_HOST_ID"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert environment["FRAMEKEEPER_ENGINE_GROUPS"] == "2"
    assert template["spec"]["terminationGracePeriodSeconds"] == 130
    assert container["startupProbe"]["httpGet"]["path"] == "/health/startup"


def test_no_password_is_in_any_object() -> None:
    found = rendered()
    assert not [name for name in found if name.startswith("Secret/")]
    for name in ("Deployment/fk-gateway", "StatefulSet/fk-engine"):
        pod = found[name]["spec"]["template"]["spec"]
        [secrets] = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "secrets"]
        assert secrets == {"secretName": "framekeeper-database", "defaultMode": 0o440}


def test_the_engine_may_reach_the_database_and_names_only() -> None:
    policy = rendered()["NetworkPolicy/fk-engine"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert {each["port"] for rule in policy["egress"] for each in rule["ports"]} == {5432, 53}


def test_what_is_scraped_has_the_job_names_of_the_alerts() -> None:
    found = rendered(serviceMonitor={"enabled": True})
    label = found["ServiceMonitor/fk"]["spec"]["jobLabel"]
    jobs = [found[f"Service/fk-{name}"]["metadata"]["labels"][label] for name in ("gateway", "engine")]
    assert jobs == ["framekeeper-gateway", "framekeeper-supervisor"]


def test_optional_objects_are_there_when_asked_for() -> None:
    assert "ServiceMonitor/fk" not in rendered()
    assert "ServiceMonitor/fk" in rendered(serviceMonitor={"enabled": True})
    assert "NetworkPolicy/fk-engine" not in rendered(networkPolicy={"enabled": False})
    assert "PodDisruptionBudget/fk-gateway" in rendered()
    assert "PodDisruptionBudget/fk-gateway" not in rendered(gateway={"replicas": 1})
    assert "PersistentVolumeClaim/fk-videos" in rendered()
    assert "PersistentVolumeClaim/fk-videos" not in rendered(videos={"existingClaim": "mine"})
