"""`heliograph simulate graph`: ready at once, prints its address, and exits gracefully."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from heliograph.cli.running.simulate import app
from tests import forks
from tests.forks import Forked
from tests.ports import held_port
from tests.suppliers.graph_peer import USER, reminder


async def started(*arguments: str) -> tuple[Forked, dict[str, Any]]:
    process = await begun("--port", "0", "--latency-ms", "0", "--json", *arguments)
    assert process.stdout is not None
    async with asyncio.timeout(120):
        return process, json.loads(await process.stdout.readline())


async def begun(*arguments: str, kind: str = "graph") -> Forked:
    pipe = asyncio.subprocess.PIPE
    return await forks.start("simulate", kind, *arguments, environment=os.environ, stdout=pipe, stderr=pipe)


async def ended(process: Forked) -> tuple[int | None, str]:
    """Stop it by Ctrl-C; returns the status and the last output."""
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(120):
        _, err = await process.communicate()
    return process.returncode, err.decode()


async def listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def call(url: str, body: Any = None, token: str = "graph-token") -> Any:
    def exchange() -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            url, data, {"authorization": f"Bearer {token}", "content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)

    return await asyncio.to_thread(exchange)


async def test_with_no_flags_there_is_a_demo() -> None:
    process, first = await started()
    base = f"{first['url']}/v25.0"
    templates = await call(f"{base}/900100200300400/message_templates?fields=name,language,parameter_format,category")
    assert [(one["name"], one["language"], one["parameter_format"]) for one in templates["data"]] == [
        ("order_shipped", "fr", "POSITIONAL"),
        ("appointment_reminder", "en", "POSITIONAL"),
        ("delivery_update", "en", "NAMED"),
        ("login_code", "en", "POSITIONAL"),
    ]
    body = {"messaging_product": "whatsapp", "to": USER, "type": "template", "template": reminder()}
    assert (await call(f"{base}/{first['number']}/messages", body))["messages"][0]["message_status"] == "accepted"
    status, said = await ended(process)
    assert status == 0
    assert "accepted: 1" in said


async def test_a_config_a_file_of_templates_and_flags(tmp_path: Path) -> None:
    config, templates = tmp_path / "graph.json", tmp_path / "templates.json"
    hello = {"name": "hello", "language": "en", "components": [{"type": "BODY", "text": "Hello there"}]}
    templates.write_text(json.dumps([hello]))
    config.write_text(json.dumps({"options": {"number": "+212520001234", "token": "one", "status_delay": 0}}))
    process, first = await started("--config", str(config), "--templates", str(templates), "--token", "two")
    summary = await call(f"{first['url']}/_sim")
    assert list(summary["numbers"].values()) == ["212520001234"]
    assert summary["templates"] == ["hello en APPROVED"]
    path = f"{first['url']}/v25.0/{first['number']}"
    assert (await call(path, token="one"))["error"]["code"] == 190
    assert (await call(path, token="two"))["id"] == first["number"]  # an option takes precedence
    assert (await ended(process))[0] == 0

    setup = {
        "apps": [{"id": "1", "secret": "s", "verify_token": "v"}],
        "accounts": [{"id": "2", "subscribed": ["1"]}],
        "numbers": [{"id": "3", "account": "2", "digits": "33155000001"}],
        "tokens": [{"token": "t", "app": "1"}],
    }
    config.write_text(json.dumps({"setup": setup}))
    process, first = await started("--config", str(config))
    assert first["number"] == "3"
    assert (await ended(process))[0] == 0


async def test_quiet_says_nothing() -> None:
    process, first = await started()
    quiet = await begun("--port", str(first["port"]), "--quiet")
    out, err = await asyncio.wait_for(quiet.communicate(), 120)
    assert (quiet.returncode, out) == (1, b"")
    assert b"cannot start" in err
    await ended(process)

    with held_port() as port:
        process = await begun("--port", str(port), "--quiet")
        async with asyncio.timeout(120):
            while not await listening(port):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = await asyncio.wait_for(process.communicate(), 120)
        assert (process.returncode, out, err) == (0, b"", b"")


async def test_an_option_takes_precedence_with_its_default_value_too(tmp_path: Path) -> None:
    config = tmp_path / "smsc.json"
    config.write_text(json.dumps({"options": {"systems": {"acme": "geheim"}}}))
    for flags, systems in (((), ["acme"]), (("--system", "heliograph:secret"), ["heliograph"])):
        process = await begun("--port", "0", "--config", str(config), "--json", *flags, kind="smsc")
        assert process.stdout is not None
        async with asyncio.timeout(120):
            first = json.loads(await process.stdout.readline())
        assert first["systems"] == systems
        assert (await ended(process))[0] == 0


async def test_mistakes_are_told(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "typo.json").write_text('{"options": {"colour": "red"}}')
    graph, smsc, receiver = ("graph", "--port", "0"), ("smsc", "--port", "0"), ("receiver", "--port", "0")
    for arguments, said in (
        ((*graph, "--batch", "0"), "batch"),
        ((*graph, "--config", str(tmp_path / "bad.json")), "truncated"),
        ((*graph, "--config", str(tmp_path / "none.json")), "No such file"),
        ((*graph, "--config", str(tmp_path / "typo.json")), "colour"),
        ((*smsc, "--config", str(tmp_path / "typo.json")), "colour"),
        ((*graph, "--templates", str(tmp_path / "none.json")), "No such file"),
        ((*graph, "--signature", "crayon"), "crayon"),
        ((*graph, "--default-script", "unheard"), "unheard"),
        # As from an unset shell variable: the system takes it for all addresses.
        ((*graph, "--host", ""), "host is empty"),
        ((*smsc, "--host", ""), "host is empty"),
        # The system takes a port modulo 65,536.
        (("graph", "--port", "70000"), "port is not between 0 and 65535"),
        (("smsc", "--port", "70000"), "port is not between 0 and 65535"),
        ((*graph, "--webhook-url", "127.0.0.1:8080"), "webhook_url does not begin with http://"),
        ((*graph, "--number", "five"), "number is not in E.164 form"),
        ((*graph, "--throughput", "-1"), "throughput is not a number of 0 or more"),
        ((*smsc, "--latency", "nan"), "latency is not a number of 0 or more"),
        ((*receiver, "--latency", "nan"), "latency is not a number of 0 or more"),
        ((*smsc, "--missing", "2"), "missing is not between 0 and 1"),
    ):
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert said in result.output.replace("\n", " "), result.output
    (tmp_path / "key.pem").write_text("no certificate")
    process = await begun("--port", "0", "--tls-certificate", str(tmp_path / "key.pem"), kind="smsc")
    async with asyncio.timeout(120):
        _, err = await process.communicate()
    assert (process.returncode, b"the certificate and its key cannot be used" in err) == (1, True), err
    for option in ("--ledger", "--tls-certificate", "--tls-key"):
        result = await asyncio.to_thread(CliRunner().invoke, app, [*smsc, option, "/nonexistent/x"])
        assert "/nonexistent/x cannot be" in str(result.exception), option
