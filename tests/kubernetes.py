"""The example for Kubernetes, parsed from its files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tests.house.project import ROOT

FILES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
#: The oldest version that it supports: earlier ones require `onPodConditions` in each rule of a `podFailurePolicy`.
OLDEST = "1.29"


def objects() -> Iterator[dict[str, Any]]:
    """All objects that the files define."""
    for path in FILES:
        yield from yaml.safe_load_all(path.read_text())


def template(found: dict[str, Any]) -> dict[str, Any] | None:
    """The pod template of an object; None if it has none."""
    spec = found["spec"]
    if found["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    made: dict[str, Any] | None = spec.get("template")
    return made


def templates() -> dict[str, dict[str, Any]]:
    """All pod templates, by the name of their only container: `api`, `worker`, `migrate`, `backup`."""
    found = (template(one) for one in objects())
    return {made["spec"]["containers"][0]["name"]: made for made in found if made is not None}


def settings(container: dict[str, Any]) -> dict[str, str]:
    """Its environment variables."""
    return {one["name"]: one["value"] for one in container["env"]}


def ports(container: dict[str, Any]) -> dict[str, int]:
    """Its ports by name."""
    return {port["name"]: port["containerPort"] for port in container.get("ports", ())}
