"""Every setting, with its default, unit and meaning. Read once from the environment at startup, then passed down.

`HELIOGRAPH_` + the name in capitals sets one: `HELIOGRAPH_DATABASE_URL`. `docs/settings.md` is checked against this
file by a test. Modules elsewhere read variables that are not settings (`OTHERS`), and the log's format while there are
no settings yet.

It has over 400 lines because every setting is declared here, and nowhere else.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from heliograph.base import retry
from heliograph.base.network import smtp
from heliograph.base.network.addresses import parse_networks
from heliograph.base.process.guessing import weakness

#: How proxies report their clients.
PROXIES_SAY = ("x-forwarded-for", "forwarded", "proxy-protocol")
#: The key that `heliograph up` uses until the operator sets one; any other command refuses to start with it.
DEFAULT_SECRET_KEY = "insecure-default-for-heliograph-up-only"  # noqa: S105

#: Settings that may instead be in a file named by `HELIOGRAPH_…_FILE`, or in a systemd credential.
SECRETS = (
    "secret_key",
    "other_secret_key",
    "database_url",
    "database_direct_url",
    "reader_database_url",
    "owner_database_url",
    "smtp_url",
)

#: The shortest retention of the audit log.
LEAST_AUDIT_MONTHS = 13
#: Minimum characters of a secret key.
SHORTEST_SECRET_KEY = 32


#: Names that begin like a setting but are read elsewhere: secrets for commands, and options for tests.
OTHERS = frozenset(
    f"HELIOGRAPH_{name}"
    for name in (
        "API_KEY",
        "BACKUP_PASSPHRASE",
        "EXAMPLES",
        "FAULTS",
        "PROFILE",
        "SIGNING_SECRET",
        "SUPPLIER_PASSWORD",
        "TEST_DATABASE_URL",
        "WHATSAPP_APP_SECRET",
        "WHATSAPP_TOKEN",
    )
)
#: Suffix of a number's name → its largest value: a day of seconds, or a hundred years. A larger one is meant in another
#: unit, or there is no date so long ago.
MOST = {"_seconds": 86_400, "_hours": 876_600, "_days": 36_525, "_months": 1_200, "_percent": 100}
#: What a value that is not of its setting's type must be.
WANTED = {bool: "true or false", int: "a whole number", float: "a number"}
_is_shift = re.compile(r"(-?[0-9]{1,9}(\.[0-9]+)?(:running)?)?").fullmatch
_is_crash = re.compile(r"([^\s:]+(:[0-9]{1,9})?)?").fullmatch
_is_url = re.compile(r"https?://[^/?#\s]\S*").fullmatch
#: Suppliers' secrets other than the password, as named in their modules (`cli/traffic/supplier_kinds.py`).
_is_suppliers_secret = re.compile(r"HELIOGRAPH_SUPPLIER_[A-Z_]+_(?:KEY|PASSWORD|SECRET|TOKEN)").fullmatch


class SettingsError(Exception):
    """A setting is missing or malformed; the message names it."""


class SecretKeyUnset(SettingsError):
    """There is no secret key, or only the default, which is public."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process."""

    database_url: Annotated[str, "PostgreSQL 15 or later to connect to; if empty, `heliograph up` runs its own"] = ""
    secret_key: Annotated[str, "Encrypts webhook and supplier secrets and signs cursors; at least 32 characters"] = ""
    other_secret_key: Annotated[
        str,
        (
            "Decrypts and verifies what the secret key cannot, but encrypts nothing; for changing the secret key, see"
            " `heliograph rekey`"
        ),
    ] = ""
    public_url: Annotated[str, "Base URL used in links and shown to users; if empty, the listening address"] = ""
    smtp_url: Annotated[
        str,
        (
            "Mail server for invitations and forgotten passwords: `smtp://user:password@host:587` (STARTTLS) or"
            " `smtps://user:password@host:465`; if empty, no mails are sent"
        ),
    ] = ""
    mail_from: Annotated[str, "Sender of mails: `no-reply@example.com` or `Acme <no-reply@example.com>`"] = ""
    owner_database_url: Annotated[
        str,
        (
            "URL of the role that owns the tables, for `heliograph migrate` alone; if empty, the role of"
            " HELIOGRAPH_DATABASE_URL owns them, and could change the audit log"
        ),
    ] = ""
    database_direct_url: Annotated[
        str,
        (
            "URL past PgBouncer in transaction mode, which HELIOGRAPH_DATABASE_URL then names; for notifications,"
            " migrations and commands. If empty, HELIOGRAPH_DATABASE_URL names PostgreSQL itself"
        ),
    ] = ""
    database_pooler_prepares: Annotated[
        bool,
        (
            "Whether that PgBouncer keeps prepared statements (1.21 or later, `max_prepared_statements` above 0);"
            " without it, each statement is planned again"
        ),
    ] = False
    reader_database_url: Annotated[
        str,
        (
            "URL of a standby from which lists, reports and exports are read; while it is down or behind, and if empty,"
            " they are read from HELIOGRAPH_DATABASE_URL"
        ),
    ] = ""
    reader_wait_seconds: Annotated[
        float, "How long a read waits for that standby to replay what was committed before the read began"
    ] = 0.5
    wal_archive: Annotated[
        str,
        (
            "Directory, outside the data directory, below which `heliograph up` archives its PostgreSQL's WAL, for"
            " restoring any point in time"
        ),
    ] = ""
    console_listen: Annotated[
        str,
        (
            "The only address and port at which the operators' console is served, such as `127.0.0.1:8090`, so that"
            " it can be kept off the internet; if empty, it is served below `/console` where the API is"
        ),
    ] = ""
    console_url: Annotated[
        str, "URL of the console as browsers see it, if it has one of its own; if empty, HELIOGRAPH_PUBLIC_URL"
    ] = ""
    metrics_listen: Annotated[
        str,
        (
            "Address and port for Prometheus, such as `127.0.0.1:9464`; each process takes the next free port from"
            " there on; if empty, there are no metrics"
        ),
    ] = ""
    board_url: Annotated[
        str, "URL of a dashboard for these metrics, such as one in Grafana, that the console's page *Health* links to"
    ] = ""
    traces_url: Annotated[
        str,
        (
            "OpenTelemetry collector that traces are sent to (OTLP over HTTP), such as `http://127.0.0.1:4318`; needs"
            " `heliograph[traces]`; if empty, nothing is traced"
        ),
    ] = ""
    traces_ratio: Annotated[
        float,
        "Share of requests without a sampled `traceparent`, of campaign messages and of replies that is traced, 0 to 1",
    ] = 0.01
    traces_per_second: Annotated[
        int,
        "Maximum number of traces begun per second and process, including those that a `traceparent` asks for",
    ] = 50
    database_pool: Annotated[int, "Database connections per process, plus one that monitors them"] = 8
    database_patience_seconds: Annotated[float, "How long a request waits for the database before it gets 503"] = 2.0
    page_patience_seconds: Annotated[
        float, "How long the database may take for a read of a page before the page says that it must wait"
    ] = 3.0
    log_level: Annotated[str, "debug, info, warning or error"] = "info"
    log_format: Annotated[str, "`json` or `text`"] = "json"

    rate_sms_send: Annotated[int, "SMS sends per minute and key"] = 10_000
    rate_campaigns: Annotated[int, "Campaign mutations per minute and key"] = 60
    rate_mutations: Annotated[int, "Other mutations per minute and key"] = 6_000
    rate_reads: Annotated[int, "Reads per minute and key"] = 3_000
    rate_failures: Annotated[int, "Failed authentications per minute and address"] = 100
    max_body_bytes: Annotated[int, "Maximum size of a request body, in bytes"] = 262_144
    max_campaign_body_bytes: Annotated[int, "Maximum size of a campaign's request body, in bytes"] = 1_048_576
    max_callback_bytes: Annotated[int, "Maximum size of a callback from Meta, in bytes; Meta sends up to 3 MB"] = (
        4_194_304
    )
    body_deadline_seconds: Annotated[float, "Time limit for a request's header to arrive, and again for its body"] = (
        10.0
    )
    keep_alive_seconds: Annotated[float, "Time after which an idle connection is closed"] = 75.0
    max_connections: Annotated[
        int, "Maximum open connections per API process; beyond it, the connection idle for longest is closed"
    ] = 8_192
    max_connections_per_address: Annotated[
        int, "Maximum of these per address (IPv6: per /64); trusted proxies are not limited"
    ] = 1_024
    max_unsent_bytes: Annotated[
        int, ("Maximum unread response data per API process, in bytes; beyond it, the slowest clients are disconnected")
    ] = 67_108_864
    rate_unauthenticated: Annotated[
        int, "Requests without a key per minute, address and API process; health checks are not counted"
    ] = 6_000
    trusted_proxies: Annotated[
        str, "Networks of the proxies trusted to report client addresses, comma-separated CIDRs"
    ] = ""
    proxy_says: Annotated[str, "How these proxies report them: `x-forwarded-for`, `forwarded` or `proxy-protocol`"] = (
        "x-forwarded-for"
    )
    not_ready_seconds: Annotated[
        float, "How long a stopping API process reports not ready before it stops accepting connections"
    ] = 5.0
    idempotency_hours: Annotated[int, "How long idempotency keys are kept, in hours"] = 72
    idempotency_wait_seconds: Annotated[
        float, "How long a duplicate request waits for the first one before it gets 409"
    ] = 2.0

    lease_seconds: Annotated[
        float, "Time after which a claimed row returns to the queue unless its lease is renewed"
    ] = 60.0
    claim_limit: Annotated[int, "Maximum number of rows claimed at once"] = 500
    uncertain_grace_seconds: Annotated[
        float, "How long to wait for a receipt before deciding an attempt whose outcome is unknown"
    ] = 90.0
    supplier_patience_seconds: Annotated[
        float,
        (
            "How long to wait for a slow or throttling supplier before trying the next one; one-time codes "
            "wait a fifth of this"
        ),
    ] = 15.0
    receipt_deadline_hours: Annotated[
        int, "Time after which a sent message without a receipt becomes `unknown`, in hours"
    ] = 72
    whatsapp_uncertain_grace_seconds: Annotated[
        float, "How long to wait for a status before deciding a WhatsApp attempt whose outcome is unknown"
    ] = 180.0
    drain_seconds: Annotated[float, "How long a stopping process lets work in progress finish"] = 20.0
    poll_seconds: Annotated[float, "Longest interval between polls of an idle queue"] = 1.0

    whatsapp_window_margin_seconds: Annotated[
        float, "How long before its end a service window counts as closed, since replies take time to arrive"
    ] = 60.0

    webhook_allow_http: Annotated[
        bool, "Whether to accept http:// webhook URLs (`heliograph up` does, for loopback)"
    ] = False
    webhook_allow_networks: Annotated[str, "Private networks that webhooks may be sent to, comma-separated CIDRs"] = ""
    webhook_timeout_seconds: Annotated[float, "Time limit for a webhook attempt as a whole"] = 15.0
    webhook_connect_seconds: Annotated[float, "Time limit for connecting, within a webhook attempt"] = 5.0
    webhook_schedule: Annotated[str, "Delay before each webhook attempt, in seconds, comma-separated"] = (
        "0,5,30,300,1800,7200,18000,36000,50400,72000,86400"
    )
    webhook_disable_hours: Annotated[int, "Time after which an endpoint that has only failed is disabled, in hours"] = (
        120
    )
    webhook_concurrency: Annotated[int, "Maximum concurrent webhook attempts per worker"] = 256

    disk_free_percent: Annotated[
        int, "Doctor and console warn when less of the database's disk is free, in percent"
    ] = 10
    text_retention_days: Annotated[int, "How long message text is kept, in days"] = 30
    metadata_retention_months: Annotated[int, "How long messages are kept, in months"] = 13
    audit_retention_months: Annotated[int, "How long the audit log is kept, in months; at least 13"] = 25

    clock_shift: Annotated[
        str, "For tests only: seconds by which this process's clock is ahead (`n`, or `n:running`)"
    ] = ""
    crash_at: Annotated[str, "For tests only: exit at the named point (`name` or `name:nth`)"] = ""

    def __post_init__(self) -> None:
        self._check_secret_keys()
        if self.audit_retention_months < LEAST_AUDIT_MONTHS:
            raise SettingsError(f"HELIOGRAPH_AUDIT_RETENTION_MONTHS must be at least {LEAST_AUDIT_MONTHS}")
        if self.proxy_says not in PROXIES_SAY:
            raise SettingsError(f"HELIOGRAPH_PROXY_SAYS must be one of {', '.join(PROXIES_SAY)}")
        self._check_mail()
        if not _is_shift(self.clock_shift):
            raise SettingsError("HELIOGRAPH_CLOCK_SHIFT must be seconds, such as 3600 or -3600:running")
        if not _is_crash(self.crash_at):
            raise SettingsError("HELIOGRAPH_CRASH_AT must be a name, or a name and a number, such as name:3")
        for name, listen in (("METRICS", self.metrics_listen), ("CONSOLE", self.console_listen)):
            host, _, port = listen.rpartition(":")
            # Without an address, it would be every one of this machine's.
            if listen and not (host.strip("[]") and port.isdigit() and port.isascii() and int(port) < 65_500):
                raise SettingsError(f"HELIOGRAPH_{name}_LISTEN must be an address and a port, such as 127.0.0.1:9464")
        try:
            retry.webhook(self.webhook_schedule)
        except ValueError as error:
            raise SettingsError(f"HELIOGRAPH_WEBHOOK_SCHEDULE is invalid: {error}") from None
        for name in ("trusted_proxies", "webhook_allow_networks"):
            try:
                parse_networks(getattr(self, name))
            except ValueError as error:
                raise SettingsError(f"HELIOGRAPH_{name.upper()} must list networks: {error}") from None
        for name in ("public_url", "console_url", "board_url"):
            if (url := getattr(self, name)) and not _is_url(url):
                raise SettingsError(
                    f"HELIOGRAPH_{name.upper()} must begin with http:// or https:// and a host, not be {url!r}"
                )

    @property
    def secret_keys(self) -> tuple[str, ...]:
        """The secret key, and the other one if set. For `crypto.derive_key`."""
        return (self.secret_key, self.other_secret_key) if self.other_secret_key else (self.secret_key,)

    @property
    def direct_database(self) -> str:
        """Name of the setting whose URL leads to PostgreSQL without a pooler in between."""
        return "database_direct_url" if self.database_direct_url else "database_url"

    @property
    def direct_url(self) -> str:
        """That URL, as it was when the process started."""
        return self.database_direct_url or self.database_url

    @property
    def pooler(self) -> str:
        """The pooler in between: "", "unprepared" or "prepared". For `open_pool`."""
        if not self.database_direct_url:
            return ""
        return "prepared" if self.database_pooler_prepares else "unprepared"

    def _check_secret_keys(self) -> None:
        for name in ("secret_key", "other_secret_key"):
            secret: str = getattr(self, name)
            if secret and len(secret) < SHORTEST_SECRET_KEY:
                raise SettingsError(
                    f"HELIOGRAPH_{name.upper()} must have at least {SHORTEST_SECRET_KEY} characters; generate one with"
                    " `openssl rand -base64 48`"
                )
        if self.other_secret_key and self.other_secret_key == self.secret_key:
            raise SettingsError("HELIOGRAPH_OTHER_SECRET_KEY must differ from HELIOGRAPH_SECRET_KEY, or be omitted")

    def _check_mail(self) -> None:
        if not self.smtp_url:
            return
        try:
            smtp.parse(self.smtp_url)
        except ValueError as error:
            raise SettingsError(f"HELIOGRAPH_SMTP_URL is invalid: {error}") from None
        try:
            smtp.parse_sender(self.mail_from)
        except ValueError as error:
            raise SettingsError(f"HELIOGRAPH_MAIL_FROM, which HELIOGRAPH_SMTP_URL needs, is invalid: {error}") from None
        if not self.public_url:
            # A request's Host header can be forged, and the link in a mail must not lead there.
            raise SettingsError(
                "HELIOGRAPH_PUBLIC_URL must be set with HELIOGRAPH_SMTP_URL: it begins the links in mails"
            )


def demand_secret_key(settings: Settings) -> None:
    """Refuse to work without a real secret key. Raises SecretKeyUnset, and SettingsError if it can be guessed."""
    if not settings.secret_key or settings.secret_key == DEFAULT_SECRET_KEY:
        raise SecretKeyUnset(
            "HELIOGRAPH_SECRET_KEY is not set. Generate one with `openssl rand -base64 48`, keep it "
            "safe, and use the same one for every process: what is encrypted with it cannot be decrypted "
            "with another"
        )
    for name in ("secret_key", "other_secret_key"):
        secret: str = getattr(settings, name)
        if secret and (weak := weakness(secret)):
            raise SettingsError(
                f"HELIOGRAPH_{name.upper()} {weak} and can be guessed. Generate one with `openssl rand -base64 48`"
            )


class Shown(msgspec.Struct, frozen=True):
    """A setting in force. `value`: as it may be shown; `source`: its origin, one of SOURCES."""

    name: str
    value: str
    source: str


#: `start`: given by the process that started this one, such as `heliograph up`.
SOURCES = ("default", "environment", "file", "credential", "start")


def in_force(settings: Settings, environment: Mapping[str, str] = os.environ) -> list[Shown]:
    """Every setting; secrets are blanked."""
    listed = []
    for field in msgspec.structs.fields(Settings):
        value = getattr(settings, field.name)
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        if field.name in SECRETS and value:
            shown = "(set)"
        listed.append(
            Shown(f"HELIOGRAPH_{field.name.upper()}", shown, _source(field.name, value == field.default, environment))
        )
    return listed


def _source(name: str, is_default: bool, environment: Mapping[str, str]) -> str:
    variable = f"HELIOGRAPH_{name.upper()}"
    if variable in environment:
        return "environment"
    if name in SECRETS and f"{variable}_FILE" in environment:
        return "file"
    credentials = environment.get("CREDENTIALS_DIRECTORY")
    if name in SECRETS and credentials and os.path.exists(os.path.join(credentials, f"heliograph_{name}")):
        return "credential"
    return "default" if is_default else "start"


def unknown_names(environment: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Variables that look like settings but are not, each with the most similar setting's name, if any."""
    known = {f"HELIOGRAPH_{name.upper()}" for name in Settings.__struct_fields__} | OTHERS
    known |= {f"HELIOGRAPH_{name.upper()}_FILE" for name in SECRETS}
    strange = sorted(
        name
        for name in environment
        if name.startswith("HELIOGRAPH_") and name not in known and not _is_suppliers_secret(name)
    )
    return {name: next(iter(get_close_matches(name, sorted(known), n=1, cutoff=0.8)), None) for name in strange}


def _check_range(name: str, kind: type, value: Any) -> None:
    """Refuse numbers that make no sense: zero days of retention would erase everything at once.

    A time may be 0, meaning no wait, but a lease of 0 s would end at once. Raises SettingsError.
    """
    variable = f"HELIOGRAPH_{name.upper()}"
    if kind is int and value < 1:
        raise SettingsError(f"{variable} must be 1 or more, not {value}")
    if kind is float and not 0 <= value < math.inf:
        raise SettingsError(f"{variable} must be 0 or more and finite, not {value:g}")
    if name == "lease_seconds" and value == 0:
        raise SettingsError(f"{variable} must be more than 0")
    for unit, most in MOST.items() if kind is not str else ():
        if name.endswith(unit) and value > most:
            raise SettingsError(f"{variable} must be {most:,} or less, not {value:,}: it counts {unit[1:]}")


def _from_file(name: str, environment: Mapping[str, str]) -> str | None:
    """A secret from the file named by `HELIOGRAPH_…_FILE`, or from systemd's credential of that name; None if neither
    is given. Raises SettingsError, also for an empty file: naming one means that a secret is wanted, and without a URL
    `heliograph up` would start a database of its own."""
    variable = f"HELIOGRAPH_{name.upper()}_FILE"
    path = environment.get(variable)
    if path is None and (credentials := environment.get("CREDENTIALS_DIRECTORY")):
        path = os.path.join(credentials, f"heliograph_{name}")
        if not os.path.exists(path):
            return None
    if path is None:
        return None
    try:
        # Without the byte order mark that editors of Windows write: it would be part of a key.
        with open(path, encoding="utf-8-sig") as file:
            found = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(
            f"{path}, which {variable} or a systemd credential names, cannot be read: {reason}"
        ) from None
    if not found:
        raise SettingsError(f"{path}, which {variable} or a systemd credential names, is empty")
    return found


def current(settings: Settings, name: str, environment: Mapping[str, str] = os.environ) -> str:
    """The current value of a secret in its file, or that of the settings if it has no file; "" if the file cannot be
    read or is empty, because it is being replaced."""
    known: str = getattr(settings, name)
    if f"HELIOGRAPH_{name.upper()}" in environment:
        return known
    try:
        found = _from_file(name, environment)
    except SettingsError:
        return ""
    return known if found is None else found


def from_environment(environment: Mapping[str, str] = os.environ, **overrides: object) -> Settings:
    """Settings from `HELIOGRAPH_*` variables; `overrides` (from the command line) take precedence. Raises
    SettingsError."""
    hints = get_type_hints(Settings, include_extras=True)
    values: dict[str, object] = {}
    for name, hint in hints.items():
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        text = environment.get(f"HELIOGRAPH_{name.upper()}")
        if text is None and name in SECRETS:
            text = _from_file(name, environment)
        if text is None:
            continue
        try:
            values[name] = msgspec.convert(text, kind, strict=False)
        except msgspec.ValidationError:
            raise SettingsError(f"HELIOGRAPH_{name.upper()} must be {WANTED[kind]}, not {text!r}") from None
        _check_range(name, kind, values[name])
    return Settings(**(values | overrides))  # type: ignore[arg-type]
