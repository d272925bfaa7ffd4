"""Where a process spends its time: `--profile api` during accepts, `--profile worker` on the whole way.

If py-spy is in PATH it samples from outside, which slows nothing; otherwise cProfile, which makes calls look more
expensive than they are, so its shares are only a hint and its rate is no measurement.
"""

from __future__ import annotations

import asyncio
import pstats
import shutil
from io import StringIO
from pathlib import Path

from bench import way
from bench.stage import Stage

SECONDS = 12


async def profile(stage: Stage, name: str, results: Path) -> str:
    """Run a load and return the profile, or where it was written."""
    results.mkdir(exist_ok=True)
    spy = shutil.which("py-spy")
    raw = stage.place / "profile"
    if spy is None:
        stage.profiled[name] = ["-m", "cProfile", "-o", str(raw)]
    await stage.empty()
    smsc = receiver = None
    if name == "worker":
        smsc, receiver = await stage.start_smsc(), await stage.start_receiver()
    await stage.start_api(1)
    if name == "worker":
        await stage.start_worker()
    bound = way.IN_FLIGHT if name == "worker" else 0
    loading = asyncio.create_task(stage.load(connections=64, warm_up=1.0, seconds=float(SECONDS), in_flight=bound))
    written = results / f"profile-{name}.json"
    if spy is not None:
        await stage.run(
            *(spy, "record", "--pid", str(stage.parts[name].pid), "--duration", str(SECONDS)),
            *("--format", "speedscope", "--output", str(written)),
        )
    result = await loading
    if receiver is not None:
        await way.settle(stage)
    await stage.stop(name)
    for control in (smsc, receiver):
        if control is not None:
            control.close()
    rate = f"{result.rate:,.0f} accepted/s, processor µs a message: " + ", ".join(
        f"{one} {cost:.0f}" for one, cost in result.costs(result.accepted).items()
    )
    if spy is not None:
        return f"{rate}\nSamples in {written} (speedscope)"
    out = StringIO()
    stats = pstats.Stats(str(raw), stream=out)
    stats.sort_stats("tottime").print_stats(40)
    out.write("Ours, with all that they call:\n")
    stats.sort_stats("cumtime").print_stats("heliograph/", 40)
    return f"{rate}\n{out.getvalue()}"
