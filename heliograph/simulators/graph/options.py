"""The options of the Graph API simulator: where it listens, its initial objects, and its faults.

The rule nobody may break: a default is what Meta does on a good day. Times are seconds of the simulator's clock unless
the name says milliseconds; shares are between 0 and 1.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from heliograph.simulators.options import demand_possible

Signature = Literal["good", "wrong_secret", "missing", "upper", "truncated", "unprefixed", "tampered"]
Grouping = Literal["joined", "single", "mixed"]
Pricing = Literal["sent", "delivered", "both", "none"]
Breach = Literal["131048", "async", "silent"]


class GraphOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of one simulator."""

    host: Annotated[str, "Address to listen on"] = "127.0.0.1"
    port: Annotated[int, "Port to listen on; 0: any free one"] = 8090
    shared: Annotated[bool, "Other processes of this user may bind the address too, such as one that reserves it"] = (
        False
    )
    seed: Annotated[int | None, "Seed of random choices"] = None
    public_url: Annotated[str, "Base URL of `next` links and media; empty: the address it listens on"] = ""

    app_id: Annotated[str, "Id of the Meta app"] = "660000000000001"
    app_secret: Annotated[str, "Its secret, which signs callbacks"] = "graph-app-secret"  # noqa: S105  a simulator\'s
    verify_token: Annotated[str, "Verify token shown in the handshake"] = "graph-verify-token"  # noqa: S105  a simulator\'s
    token: Annotated[str, "Bearer token of a system user with all permissions"] = "graph-token"  # noqa: S105  a simulator\'s
    webhook_url: Annotated[str, "URL for callbacks; empty: none, until it is set"] = ""
    webhook_version: Annotated[str, "Version of the app's subscription; below v24 statuses have `conversation`"] = (
        "v25.0"
    )
    require_proof: Annotated[bool, "Calls without `appsecret_proof` are refused, as the app's settings can demand"] = (
        False
    )
    waba: Annotated[str, "Id of the WhatsApp Business Account"] = "900100200300400"
    business: Annotated[str, "Id of the portfolio that owns it"] = "770000000000001"
    number: Annotated[str, "Its number, in E.164 form"] = "+15550001000"
    number_id: Annotated[str, "Graph id of the number"] = "555000111222333"
    templates: Annotated[str, "JSON file with a list of templates instead of the four of the demo"] = ""

    latency_ms: Annotated[float, "Median time before an answer, milliseconds; 0: at once"] = 120.0
    p99_ms: Annotated[float, "99th percentile of it, milliseconds (log-normal)"] = 1000.0
    status_delay: Annotated[float, "Time from one status to the next"] = 0.3
    magic: Annotated[
        str,
        "For recipients that begin with this prefix, the last four digits choose the outcome (888 is no country's code)"
        "; empty: for none",
    ] = "888"
    default_script: Annotated[str, "Outcome for all other recipients"] = "happy"
    window_refusal: Annotated[
        Literal["async", "sync"], "Text without an open window: accepted and failed later (131047), or refused at once"
    ] = "async"
    pricing_on: Annotated[Pricing, "The status that reports the price"] = "sent"
    pricing_rules: Annotated[
        Literal["2026-10", "2025-07"], "2025-07: utility templates in an open window and all replies are free"
    ] = "2026-10"
    contacts: Annotated[bool, "Status callbacks have `contacts`"] = True
    user_ids: Annotated[bool, "Users have a business-scoped id (`user_id`)"] = True
    rewrite_wa_ids: Annotated[bool, "Brazilian and Mexican numbers come back rewritten, as Meta does"] = True

    throughput: Annotated[
        float, "Messages per second and number; 0: unlimited. HIGH numbers have 12.5 times as many"
    ] = 80.0
    pair_seconds: Annotated[float, "One message per user and number in this time, sustained; 0: unlimited"] = 6.0
    pair_burst: Annotated[int, "How many may be sent ahead of that rate"] = 45
    tier: Annotated[int, "Users per day and portfolio outside service windows; 0: unlimited"] = 0
    tier_breach: Annotated[Breach, "Beyond it: refused, failed later, or accepted and never delivered"] = "131048"
    management_calls: Annotated[int, "Calls per hour and account other than sends; 0: unlimited"] = 5000
    review_delay: Annotated[float, "Time until a new template is reviewed; below 0: never"] = 5.0
    lag: Annotated[float, "Delay of GETs behind events about templates, numbers and accounts"] = 0.0

    batch: Annotated[int, "Most updates in a callback, 1 to 1000"] = 50
    batch_window_ms: Annotated[float, "How long updates are collected, in real milliseconds"] = 5.0
    grouping: Annotated[
        Grouping, "How a callback groups them: joined by number, each in a change of its own, or either at random"
    ] = "joined"
    concurrency: Annotated[int, "Callbacks at a time, 1 to 64"] = 8
    shuffle: Annotated[bool, "Send updates in random order"] = False
    duplicates: Annotated[float, "Share of callbacks sent twice, byte for byte"] = 0.0
    duplicate_items: Annotated[float, "Share of updates repeated in another callback"] = 0.0
    rebatch: Annotated[bool, "Group retried updates differently"] = True
    signature: Annotated[Signature, "How callbacks are signed"] = "good"
    webhook_timeout: Annotated[float, "Real seconds that a callback waits for its response"] = 10.0
    retry_days: Annotated[float, "Retry callbacks for this many days"] = 7.0

    keep: Annotated[int, "Number of messages kept for inspection"] = 100_000
    keep_requests: Annotated[int, "Number of requests kept for inspection"] = 1_000
    keep_callbacks: Annotated[int, "Number of callback attempts kept, with their bodies"] = 1_000


def quick(**changes: Any) -> GraphOptions:
    """Options for a test: any free port, no latency, immediate statuses, and no limit on throughput or pairs."""
    given: dict[str, Any] = {
        "port": 0,
        "seed": 1,
        "latency_ms": 0.0,
        "status_delay": 0.0,
        "throughput": 0.0,
        "pair_seconds": 0.0,
        "batch_window_ms": 0.0,
        "review_delay": 0.0,
    }
    return GraphOptions(**(given | changes))


def checked(options: GraphOptions) -> GraphOptions:
    """The same options. Raises ValueError for impossible values."""
    demand_possible(options, shares=("duplicates", "duplicate_items"), below_zero=("seed", "review_delay"))
    if not 1 <= options.batch <= 1000:
        raise ValueError("batch is not between 1 and 1000")
    if not 1 <= options.concurrency <= 64:
        raise ValueError("concurrency is not between 1 and 64")
    if options.webhook_url and not options.webhook_url.startswith(("http://", "https://")):
        raise ValueError("webhook_url does not begin with http:// or https://")
    if not re.fullmatch(r"\+?[0-9]{1,15}", options.number):
        raise ValueError("number is not in E.164 form")
    if options.latency_ms and options.p99_ms < options.latency_ms:
        raise ValueError("p99_ms is below latency_ms")
    return options
