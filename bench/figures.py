"""The figures, their budgets and aims, and their presentation.

A budget must be met (exit status 1 otherwise), an aim is what we would like. Most are ratios to pgbench on the same
PostgreSQL in the same run, so that they apply to any machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec


class Budget(msgspec.Struct, frozen=True):
    """What a figure should be. `at_most`: less is better."""

    budget: float
    aim: float
    at_most: bool = False

    def judge(self, value: float) -> str:
        """Whether a value meets the aim, meets the budget, or misses it."""
        better = (lambda bound: value <= bound) if self.at_most else (lambda bound: value >= bound)
        if better(self.aim):
            return "meets the aim"
        return "meets" if better(self.budget) else "MISSES"


BUDGETS = {
    "accept_ratio_64": Budget(0.65, 0.8),
    "accept_p99_64": Budget(8, 6, at_most=True),
    "accept_ratio_1": Budget(0.33, 0.45),
    "accept_to_naive": Budget(1.5, 2.5),
    "way_ratio": Budget(0.27, 0.35),
    "way_http_ratio": Budget(0.6, 0.8),
    "way_kannel": Budget(1.9, 2.5),
    "way_processor": Budget(260, 200, at_most=True),
    "overhead": Budget(2, 1, at_most=True),
    "way_wal": Budget(4_500, 3_500, at_most=True),
    "way_accept_p99": Budget(20, 12, at_most=True),
    "idle_commits": Budget(8, 4, at_most=True),
    "backlog_plain": Budget(12_000, 17_000),
    "backlog_webhooks": Budget(7_500, 10_000),
    "routing": Budget(3, 2, at_most=True),
    "claim_organizations": Budget(2, 1.2, at_most=True),
    "claim_lines": Budget(2, 1.5, at_most=True),
    "claim_snapshot": Budget(1.5, 1.1, at_most=True),
    "look_snapshot": Budget(2, 1.2, at_most=True),
    "growth_ratio": Budget(0.95, 1.0),
    "pages_p95": Budget(50, 25, at_most=True),
    "pages_failed": Budget(0, 0, at_most=True),
    "pages_accept": Budget(0.98, 1.0),
    "pages_memory": Budget(130, 100, at_most=True),
    "contacts_import": Budget(30_000, 60_000),
    "campaign_staging": Budget(30_000, 60_000),
    "whatsapp_way": Budget(3_200, 4_500),
    "whatsapp_statuses": Budget(8_000, 15_000),
    "whatsapp_answer_p99": Budget(250, 100, at_most=True),
    "memory_api": Budget(100, 72, at_most=True),
    "memory_worker": Budget(130, 110, at_most=True),
    "start_delivered": Budget(10, 4, at_most=True),
}


WORK = "PostgreSQL, for a message: commits, bytes of WAL, rows (moved: updated, and written into every index)"


class Figure(msgspec.Struct, frozen=True):
    """One line of the table. `values`: one per round; their median is shown and judged."""

    key: str
    label: str
    values: list[float]
    unit: str = ""

    @property
    def value(self) -> float:
        return statistics.median(self.values)


class Report:
    """All figures of a run, in order, and remarks."""

    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}
        self.facts: list[tuple[str, str]] = []
        #: Microseconds of processor time per message, by part of the measurement and process.
        self.costs: dict[str, dict[str, float]] = {}
        #: PostgreSQL's work per message, by part of the measurement: commits, WAL, rows.
        self.work: dict[str, dict[str, float]] = {}

    def add(self, key: str, label: str, values: Sequence[float], unit: str = "") -> Figure:
        """Add a figure."""
        self.figures[key] = figure = Figure(key, label, list(values), unit)
        return figure

    def ratio(self, key: str, label: str, over: str, under: str) -> None:
        """Add the quotient of two figures' medians, if both exist."""
        if over in self.figures and under in self.figures and self.figures[under].value:
            self.add(key, label, [self.figures[over].value / self.figures[under].value])

    def missed(self) -> list[str]:
        """The labels of figures that miss their budget."""
        return [
            figure.label
            for key, figure in self.figures.items()
            if key in BUDGETS and BUDGETS[key].judge(figure.value) == "MISSES"
        ]

    def text(self) -> str:
        """The tables, for people."""
        parts = [_table(["", "median", "of", "budget", "aim", ""], self._rows())]
        if self.costs:
            parts.append("Processor time, microseconds a message:\n" + _table(*_by_part(self.costs, ".0f")))
        if self.work:
            parts.append(f"{WORK}:\n" + _table(*_by_part(self.work, ".3g")))
        return "\n\n".join(parts)

    def markdown(self) -> str:
        """The tables as Markdown."""
        lines = [f"{name}: {value}  " for name, value in self.facts]
        lines += ["", *_markdown(["", "median", "of", "budget", "aim", ""], self._rows())]
        if self.costs:
            lines += ["", "Processor time, microseconds a message:", "", *_markdown(*_by_part(self.costs, ".0f"))]
        if self.work:
            lines += ["", f"{WORK}:", "", *_markdown(*_by_part(self.work, ".3g"))]
        return "\n".join(lines) + "\n"

    def as_json(self) -> bytes:
        """Everything, for programs."""
        figures = {
            key: {"label": one.label, "median": one.value, "values": one.values, "unit": one.unit}
            | ({"verdict": BUDGETS[key].judge(one.value)} if key in BUDGETS else {})
            for key, one in self.figures.items()
        }
        content = {
            "facts": dict(self.facts),
            "figures": figures,
            "costs": self.costs,
            "work": self.work,
            "missed": self.missed(),
        }
        return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"

    def _rows(self) -> list[list[str]]:
        rows = []
        for key, figure in self.figures.items():
            limits = ["", "", ""]
            if (budget := BUDGETS.get(key)) is not None:
                sign = "≤" if budget.at_most else "≥"
                limits = [f"{sign} {_number(budget.budget)}", f"{sign} {_number(budget.aim)}"]
                limits.append(budget.judge(figure.value))
            spread = " ".join(_number(value) for value in figure.values) if len(figure.values) > 1 else ""
            rows.append([figure.label, f"{_number(figure.value)} {figure.unit}".strip(), spread, *limits])
        return rows


def _by_part(values: dict[str, dict[str, float]], form: str) -> tuple[list[str], list[list[str]]]:
    names = list(dict.fromkeys(name for of_part in values.values() for name in of_part))
    rows = [
        [part, *(format(of_part[name], form) if name in of_part else "" for name in names)]
        for part, of_part in values.items()
    ]
    return ["", *names], rows


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 or column == len(head) - 1 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
