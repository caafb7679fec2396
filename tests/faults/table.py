"""What the kills have done, as a Markdown table."""

from collections import defaultdict

HEAD = (
    "| mode | killed | kills | ended | went on | hung | resumed | starts that failed | `running` afterwards | orphans |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)
ENDS = (
    "| mode | trainings | steps | largest error of the prior | prompts skipped | doubled | other problems |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


def of(rows: list[dict]) -> str:
    """Kills by mode and kind; under it the trainings that came to their end."""
    kills = blamed(rows)
    lines = [kills_line(mode, kind, kills[mode, kind]) for mode, kind in sorted(kills)]
    modes = sorted({row["mode"] for row in rows if row["event"] in ("end", "stuck")})
    ends = [ends_line(mode, [row for row in rows if row["mode"] == mode]) for mode in modes]
    return "\n".join([*HEAD, *lines, "", *ENDS, *ends])


def blamed(rows: list[dict]) -> dict[tuple[str, str], list[dict]]:
    """The kills, each with what came of it: a late end, starts that failed by themselves, and processes that outlived it."""
    found: dict[tuple[str, str], list[dict]] = defaultdict(list)
    last: dict[tuple[str, int], dict] = {}
    for row in rows:
        story = row["mode"], row["story"]
        if row["event"] == "kill":
            last[story] = {**row, "failed": 0, "orphans": []}
            found[row["mode"], row["kind"]].append(last[story])
        elif row["event"] == "late_end":
            last[story] |= {"outcome": "ended", "status": row["status"]}
        elif row["event"] in ("failed", "stuck") and story in last:
            last[story]["failed"] += row["event"] == "failed"
            last[story]["stuck"] = row["event"] == "stuck"
        elif row["event"] in ("orphan", "escaped") and (cause := last.get(story)):
            cause["orphans"].append(row["kind"])
    return found


def kills_line(mode: str, kind: str, kills: list[dict]) -> str:
    outcomes = [kill["outcome"] for kill in kills]
    counts = [outcomes.count(outcome) for outcome in ("ended", "went on", "hung")]
    resumed = sum(kill["outcome"] != "went on" and not kill.get("stuck") for kill in kills)
    running = sum(kill.get("status") == "running" for kill in kills)
    orphans = sum(len(kill["orphans"]) for kill in kills)
    cells = [mode, kind, len(kills), *counts, resumed, sum(kill["failed"] for kill in kills), running, orphans]
    return f"| {' | '.join(map(str, cells))} |"


def ends_line(mode: str, rows: list[dict]) -> str:
    ends = [row for row in rows if row["event"] == "end"]
    stuck = [f"{sum(row['event'] == 'stuck' for row in rows)} stuck"] * any(row["event"] == "stuck" for row in rows)
    other = sorted({problem.partition(":")[0] for row in ends for problem in row["problems"]})
    error = max((row["prior_error"] for row in ends), default=float("nan"))
    totals = [sum(row[name] for row in ends) for name in ("steps", "skipped", "doubled")]
    cells = [mode, len(ends), totals[0], f"{error:.0e}", *totals[1:], ", ".join(stuck + other) or "none"]
    return f"| {' | '.join(map(str, cells))} |"
