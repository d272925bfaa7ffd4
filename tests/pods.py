"""Pods of the example for Kubernetes, run by podman. What podman lacks of a node is done here: volumes are laid out as
by a kubelet, and probes are executed as written."""

from __future__ import annotations

import asyncio
import copy
import os
import secrets
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

from tests import kubernetes
from tests.ports import held_port

#: No more than the limit of a root that is itself in a container.
CONFIGURATION = '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
#: Allows listening on an address that does not exist yet: the network's bridge comes with its first pod.
IP_FREEBIND = 15


async def run(*command: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The command's exit status and output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


class Pod:
    """A running pod. Made by `Node.start`."""

    def __init__(self, node: Node, name: str, template: dict[str, Any], published: dict[str, int]) -> None:
        self.name, self._node, self._published = name, node, published
        (self.container,) = template["spec"]["containers"]
        self._grace = template["spec"].get("terminationGracePeriodSeconds", 30)
        self._inside = f"{name}-{self.container['name']}"

    def url(self, port: str = "http") -> str:
        """The URL of one of its ports."""
        return f"http://127.0.0.1:{self._published[port]}"

    async def passes(self, probe: str) -> bool:
        """Whether one of its probes succeeds now."""
        asked = self.container[probe]
        try:
            async with asyncio.timeout(asked.get("timeoutSeconds", 1)):
                if "tcpSocket" in asked:
                    # The port forwarder accepts any connection: only a response comes from the process.
                    return await self._get(self.url(asked["tcpSocket"]["port"]) + "/metrics")
                return await self._get(self.url(asked["httpGet"]["port"]) + asked["httpGet"]["path"])
        except (TimeoutError, OSError, aiohttp.ClientError):
            return False

    async def _get(self, url: str) -> bool:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status < 400

    async def execute(self, *command: str) -> str:
        """The output of a command in it. AssertionError if the command fails."""
        return await self._node.podman("exec", self._inside, *command)

    async def log_contains(self, words: str) -> bool:
        """Whether its log, of all its starts, contains this."""
        return words in await self._node.podman("logs", self._inside)

    async def ended(self) -> int:
        """Its exit status, once it has ended by itself."""
        return int((await self._node.podman("wait", self._inside)).split()[-1])

    async def stop(self) -> int:
        """Stop it as a node stops a deleted pod: SIGTERM, and SIGKILL after the grace period. Returns its exit
        status."""
        await self._node.podman("stop", "--time", str(self._grace), self._inside)
        return int(await self._node.podman("inspect", "--format", "{{.State.ExitCode}}", self._inside))


class Node:
    """A network of pods, and their configuration. Use with `async with`, which skips the test if podman cannot give a
    container a network, and removes the pods at the end."""

    def __init__(self, podman: list[str], image: str, place: Path) -> None:
        """`place`: a directory for volumes, which everybody may pass through."""
        self._podman, self._image, self._place = podman, image, place
        self._name = f"heliograph-test-{secrets.token_hex(4)}"
        self._environment = os.environ | {"CONTAINERS_CONF": str(place / "containers.conf")}
        #: The content of the secret.
        self.secret: dict[str, str] = {}
        self._stack = AsyncExitStack()
        self._pods: list[str] = []
        self._count = 0

    async def __aenter__(self) -> Node:
        self._place.mkdir(mode=0o711)
        (self._place / "containers.conf").write_text(CONFIGURATION)
        await self.podman("network", "create", self._name)
        tried = ("run", "--rm", "--network", self._name, self._image, "--version")
        status, said = await run(*self._podman, *tried, environment=self._environment)
        if status != 0:
            await self.__aexit__()
            pytest.skip(f"no container gets a network here: {said.strip()[-300:]}")
        shown = msgspec.json.decode(await self.podman("network", "inspect", self._name))
        #: This machine, as seen by pods.
        self.gateway: str = shown[0]["subnets"][0]["gateway"]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._pods:
            removing = ("pod", "rm", "--force", "--ignore", "--time", "0", *self._pods)
            await run(*self._podman, *removing, environment=self._environment)
        await run(*self._podman, "network", "rm", "--force", self._name, environment=self._environment)
        await self._stack.aclose()

    async def podman(self, *words: str) -> str:
        """podman's output. AssertionError if it fails."""
        status, said = await run(*self._podman, *words, environment=self._environment)
        assert status == 0, f"{words}\n{said}"
        return said

    async def relay(self, port: int) -> int:
        """A port of the gateway that is forwarded to one of the loopback address."""

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                inside, outside = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(_pump(reader, outside), _pump(inside, writer))

        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        sock.bind((self.gateway, 0))
        server = await asyncio.start_server(accepted, sock=sock)
        self._stack.callback(server.close)
        number: int = sock.getsockname()[1]
        return number

    async def start(self, template: dict[str, Any], **changed: str) -> Pod:
        """Start a pod from this template; `changed`: additional settings."""
        self._count += 1
        name = f"{self._name}-{self._count}"
        spec = copy.deepcopy(template["spec"])
        (container,) = spec["containers"]
        container["image"] = self._image
        container["env"] += [{"name": key, "value": value} for key, value in changed.items()]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            container.pop(probe, None)  # podman would run curl in the container, which has none
        published = {key: self._stack.enter_context(held_port()) for key in kubernetes.ports(container)}
        container["ports"] = [
            {"containerPort": inside, "hostIP": "127.0.0.1", "hostPort": published[key]}
            for key, inside in kubernetes.ports(container).items()
        ]
        group = spec["securityContext"]["fsGroup"]
        for volume in spec["volumes"]:
            path = self._place / name / volume["name"]
            self._lay_out(path, volume, group)
            volume.clear()
            volume |= {"name": path.name, "hostPath": {"path": str(path), "type": "Directory"}}
        file = self._place / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}))
        self._pods.append(name)
        await self.podman("kube", "play", "--network", self._name, str(file))
        return Pod(self, name, template, published)

    def _lay_out(self, path: Path, volume: dict[str, Any], group: int) -> None:
        path.mkdir(parents=True)
        os.chown(path, 0, group)
        path.chmod(0o2777)
        if "secret" in volume:
            for item in volume["secret"]["items"]:
                file = path / item["path"]
                file.write_text(self.secret[item["key"]])
                os.chown(file, 0, group)
                file.chmod(volume["secret"]["defaultMode"])


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
