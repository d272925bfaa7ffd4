"""The bill of materials: what a release installs, third-party files that it contains, and their licences."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from heliograph.base.embedded import install

#: Third-party files inside the package, by their npm name: version and licence. Their READMEs say the same.
VENDORED = {
    "htmx.org": ("4.0.1", "0BSD"),
    "uplot": ("1.6.32", "MIT"),
    "lucide-static": ("1.62.0", "ISC"),
    "swagger-ui-dist": ("5.35.0", "Apache-2.0"),
}
#: Lists taken from a distribution that is not installed, likewise.
TAKEN = {"zxcvbn": ("4.5.0", "MIT")}
#: One entry of a lock file: name, version, marker, digests.
_LOCKED = re.compile(
    r"^([a-z0-9][a-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)(?: ; ([^\\\n]+?))? \\\n((?:    --hash=\S+(?: \\)?\n?)+)",
    re.MULTILINE,
)
_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # RFC 9562: for URLs


def bill_of_materials(root: Path, *, at: int, version: str) -> str:
    """CycloneDX 1.6 as JSON, validated against its schema; deterministic for a project and time (`at`, Unix time)."""
    licences = LicenseFactory()
    ours = Component(
        type=ComponentType.APPLICATION,
        name="heliograph",
        version=version,
        bom_ref="heliograph",
        licenses=[licences.make_from_string("MIT")],
        purl=PackageURL("pypi", None, "heliograph", version),
    )
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, f"heliograph {version} {at}"))
    bom.metadata.timestamp = datetime.fromtimestamp(at, UTC)
    bom.metadata.component = ours
    needed = _locked(root / "requirements.lock", ComponentScope.REQUIRED)
    extra = _locked(root / "requirements-traces.lock", ComponentScope.OPTIONAL)
    components = {one.name: one for one in (*extra, *needed, *_kept(licences), *_postgresql())}
    bom.components.update(components.values())
    bom.register_dependency(ours, list(components.values()))
    said = JsonV1Dot6(bom).output_as_string(indent=2) + "\n"
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(said)
    if wrong is not None:
        raise ValueError(f"the bill of materials is not valid: {str(wrong)[:500]}")
    return said


def _locked(lock: Path, scope: ComponentScope) -> Iterator[Component]:
    licences = LicenseFactory()
    for name, version, marker, digests in _LOCKED.findall(lock.read_text()):
        said = _licence(name)
        yield Component(
            name=name,
            version=version,
            bom_ref=f"pypi/{name}",
            scope=scope,
            purl=PackageURL("pypi", None, name, version),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in re.findall(r"sha256:(\w+)", digests)],
            licenses=[licences.make_from_string(said)] if said else (),
            # Installed only where this holds.
            properties=[Property(name="heliograph:marker", value=marker)] if marker else (),
        )


def _licence(name: str) -> str:
    """The licence as stated by the installed distribution, a name or an expression; "" if it states none."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return ""  # only installed on other systems
    stated = [*(metadata.get_all("License-Expression") or ()), *(metadata.get_all("License") or ())]
    # Some distributions put the whole text there.
    stated = [one for one in stated if "\n" not in one and len(one) < 80]
    classified = [one for one in metadata.get_all("Classifier") or () if one.startswith("License :: OSI")]
    return next(iter([*stated, *(one.rpartition(" :: ")[2] for one in classified)]), "")


def _kept(licences: LicenseFactory) -> Iterator[Component]:
    for kind, listed in (("npm", VENDORED), ("pypi", TAKEN)):
        for name, (version, licence) in listed.items():
            yield Component(
                name=name,
                version=version,
                bom_ref=f"{kind}/{name}",
                scope=ComponentScope.REQUIRED,
                purl=PackageURL(kind, None, name, version),
                licenses=[licences.make_from_string(licence)],
            )


def _postgresql() -> Iterator[Component]:
    """The servers inside the wheel of the embedded PostgreSQL, which includes bills for the libraries."""
    for folder in sorted(install.programs().parents[1].glob("pginstall*")):
        said = subprocess.run([folder / "bin" / "postgres", "--version"], capture_output=True, text=True, check=True)
        version = said.stdout.split()[-1]
        yield Component(
            type=ComponentType.APPLICATION,
            name=f"postgresql-{version.split('.')[0]}",
            version=version,
            bom_ref=f"generic/postgresql@{version}",
            scope=ComponentScope.REQUIRED,
            purl=PackageURL("generic", None, "postgresql", version),
            licenses=[LicenseFactory().make_from_string("PostgreSQL")],
        )
