"""Clients that public generators create from the OpenAPI document, compiled and used with the server. Neither side
knows the other: openapi-python-client, openapi-typescript with tsc, and openapi-generator for Python and Java.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from heliograph.api.document import openapi
from heliograph.api.routes import OPERATIONS
from heliograph.base.database.pool import Pool

from .conftest import Api, make_tenant, running

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".peers" / "bin"
NODE_MODULES = ROOT / ".peers" / "npm" / "node_modules"
SCRIPTS = Path(__file__).parent / "peers"
#: JVM options for runs of seconds: compile little, and share nothing.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
NO_EXTRAS = "models,apis,supportingFiles,modelDocs=false,apiDocs=false,modelTests=false,apiTests=false"


async def run(*command: str | Path, place: Path) -> bytes:
    """The command's output. It must succeed and report no problem."""
    assert NODE_MODULES.exists(), "`make .peers/npm/stamp` installs the generators"
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=place,
        env=os.environ
        | {
            "PATH": f"{PEERS}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(place),
            "JDK_JAVA_OPTIONS": QUICK,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(500):
        out, err = await process.communicate()
    assert process.returncode == 0, (out + err).decode()
    return out


async def fetch_document(api: Api, place: Path) -> None:
    async with api.session.get(api.base_url + "/v1/openapi.json") as answer:
        (place / "openapi.json").write_bytes(await answer.read())


async def openapi_generator(place: Path, generator: str, *options: str) -> None:
    """Generate a client in `place`/`generator`. A schema that the generator does not understand fails the test."""
    log = await run(
        PEERS / "openapi-generator-cli",
        *("generate", "-i", "openapi.json", "-g", generator, "-o", generator),
        *("--global-property", NO_EXTRAS, *options),
        place=place,
    )
    troubles = [line for line in log.decode().splitlines() if " ERROR " in line or "Exception" in line]
    assert [line for line in troubles if "writing file" not in line] == []


@pytest.mark.lasts(6)
async def test_a_generated_client_does_everything(database_url: str, pool: Pool, tmp_path: Path) -> None:
    tenant = await make_tenant(pool)
    async with running(database_url) as api:
        await fetch_document(api, tmp_path)
        generate = ("generate", "--path", "openapi.json", "--meta", "none", "--output-path", "heliograph_client")
        # A warning fails it: an operation or a shape that it cannot read would be left out.
        await run(PEERS / "openapi-python-client", *generate, "--fail-on-warning", place=tmp_path)
        out = await run(PEERS / "python", SCRIPTS / "use_client.py", api.base_url, tenant.secret, place=tmp_path)
    assert msgspec.json.decode(out) == {
        "index": "Heliograph",
        "health": "v1",
        "send": ["accepted", 1, 999],
        "replayed": ["replayed", True],
        "conflict": [409, "idempotency_conflict"],
        "preview": 1,
        "pages": [2, 2, 1],
        "references": ["order-1", "order-2", "order-3", "order-4", "order-5"],
        "read": ["Hello", "+258841234567", None, "accepted"],
        "canceled": "canceled",
        "contacts": [["Ana Silva", ["vip"]]],
        "campaign": 0,
        "campaign_end": "canceled",
        "deleted": True,
        "keys": ["shop", "test"],
        "scope": [403, "api_key_scope_required"],
        "revoked": "revoked",
        "senders": [["HELIOGRAPH", "approved", True], ["ACME", "pending", False]],
        "secret": True,
        "attempts": [],
        "disabled": "disabled",
        "quota": 1000,
        "ledger": ["grant", "refund", "usage"],
        "events": True,
        "no key": [401, "unauthorized"],
    }


@pytest.mark.lasts(9)
async def test_types_that_openapi_typescript_makes_compile_and_send(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    tenant = await make_tenant(pool)
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "use_client.ts").write_text((SCRIPTS / "use_client.ts").read_text())
    async with running(database_url) as api:
        await fetch_document(api, tmp_path)
        await run(
            "node",
            NODE_MODULES / ".bin" / "openapi-typescript",
            "openapi.json",
            "-o",
            "heliograph.d.ts",
            place=tmp_path,
        )
        strictly = ("--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes", "--skipLibCheck", "false")
        target = ("--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom,dom.iterable")
        await run("node", NODE_MODULES / ".bin" / "tsc", *strictly, *target, "use_client.ts", place=tmp_path)
        out = await run("node", "use_client.js", api.base_url, tenant.secret, place=tmp_path)
    assert msgspec.json.decode(out) == {
        "sent": ["accepted", None, None],
        "replayed": ["replayed", True],
        "campaign": None,
        "contact": None,
        "contacts": ["Ana Silva"],
        "refused": ["validation_error", 1],
        "key": ["sms:send"],
        "told": "undelivered",
    }


@pytest.mark.lasts(8)
async def test_a_python_client_that_openapi_generator_makes_sends(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    tenant = await make_tenant(pool)
    async with running(database_url) as api:
        await fetch_document(api, tmp_path)
        await openapi_generator(tmp_path, "python", "--package-name", "heliograph_generated")
        script = SCRIPTS / "use_openapi_generator.py"
        out = await run(PEERS / "python", script, api.base_url, tenant.secret, place=tmp_path / "python")
    assert msgspec.json.decode(out) == {
        "sent": ["accepted", 1, None],
        "read": "Hello",
        "messages": ["accepted"],
        "contact": ["vip"],
        "campaign": 0,
        "hook": "active",
        "refused": [400, "validation_error"],
        "open": "eaten_by_a_goat",
    }


#: The option that docs/api.md recommends.
OPEN = "disallowAdditionalPropertiesIfNotPresent=false"


@pytest.mark.lasts(5)
async def test_a_client_that_openapi_generator_makes_accepts_later_fields(tmp_path: Path) -> None:
    """Without the option, all classes of its usual Java client refuse fields that are not in their document."""
    assert f"`--additional-properties {OPEN}`" in (ROOT / "docs" / "api.md").read_text()
    document = openapi.document(OPERATIONS, "")
    (tmp_path / "openapi.json").write_bytes(document)
    await openapi_generator(tmp_path, "java", "--additional-properties", f"openApiNullable=false,{OPEN}")
    classes = (tmp_path / "java").rglob("model/*.java")
    refusing = {path.stem for path in classes if "is not defined in the" in path.read_text()}
    schemas = msgspec.json.decode(document)["components"]["schemas"]
    assert refusing == {name for name, one in schemas.items() if one.get("additionalProperties") is False}


#: The generated sources have an annotation that Java has not had since version 11.
GENERATED = (
    "package javax.annotation; public @interface Generated { String[] value(); String date(); String comments(); }"
)


@pytest.mark.lasts(14)
async def test_a_java_client_that_openapi_generator_makes_compiles_and_sends(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    assert shutil.which("javac"), "a Java compiler is missing: on Debian, apt-get install default-jdk-headless"
    tenant = await make_tenant(pool)
    async with running(database_url) as api:
        await fetch_document(api, tmp_path)
        packages = "invokerPackage=org.heliograph,apiPackage=org.heliograph.api,modelPackage=org.heliograph.model"
        properties = f"openApiNullable=false,{packages}"
        await openapi_generator(tmp_path, "java", "--library", "native", "--additional-properties", properties)
        (tmp_path / "Generated.java").write_text(GENERATED)
        # The generator itself contains the libraries that the client needs.
        (library,) = (ROOT / ".peers").glob("lib/python*/site-packages/openapi_generator_cli/openapi-generator.jar")
        sources = [*(tmp_path / "java" / "src" / "main").rglob("*.java"), SCRIPTS / "UseClient.java"]
        compiled = ("-d", "classes", "-proc:none", "-nowarn", "-cp", library)
        await run(
            "javac",
            "-J-XX:TieredStopAtLevel=1",
            "-J-XX:+UseSerialGC",
            *compiled,
            "Generated.java",
            *sources,
            place=tmp_path,
        )
        path = f"classes{os.pathsep}{library}"
        out = await run("java", "-cp", path, "UseClient", api.base_url, tenant.secret, place=tmp_path)
    assert out.decode().split("\n") == ["accepted 1 null", "Sale 1", "400", ""]
