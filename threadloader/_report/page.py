"""The page of a loader in a notebook: HTML and CSS alone, in the colours of the notebook.

Light or dark is what the system prefers, unless JupyterLab says which theme it has.  A notebook
that is not trusted is shown without the style sheet; the text says all by itself.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from threadloader._report.verdict import in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threadloader._report.interval import Interval
    from threadloader._report.verdict import Verdict


_LIGHT = (
    "--ink:#1f2328;--soft:#59636e;--rail:#e4e7eb;"
    "--fetch:#0969da;--write:#8250df;--collate:#1a7f64;--copy:#7d6b00;--wait:#bc4c00"
)
_DARK = (
    "--ink:#e6edf3;--soft:#9aa4af;--rail:#30363d;"
    "--fetch:#4493f8;--write:#ab7df8;--collate:#3fb68b;--copy:#c9ae2c;--wait:#f0883e"
)
_STYLE = f"""<style>
.threadloader{{{_LIGHT};color:var(--ink);font:13px/1.5 system-ui,sans-serif;max-width:52em}}
@media (prefers-color-scheme:dark){{.threadloader{{{_DARK}}}}}
[data-jp-theme-light="true"] .threadloader{{{_LIGHT}}}
[data-jp-theme-light="false"] .threadloader{{{_DARK}}}
.threadloader p{{margin:.2em 0}}
.threadloader .soft{{color:var(--soft)}}
.threadloader .rows{{display:grid;grid-template-columns:max-content 1fr max-content max-content;\
column-gap:10px;align-items:center;margin:.4em 0}}
.threadloader .row{{display:contents}}
.threadloader .rail{{background:var(--rail);border-radius:3px;height:9px}}
.threadloader .fill{{display:block;border-radius:3px;height:9px;min-width:1px}}
.threadloader .number{{text-align:right;font-variant-numeric:tabular-nums}}
</style>"""


def page(name: str, described: Sequence[str], statistics: Any, verdict: Verdict | None) -> str:
    """Return the page.

    Args:
        name: Of the loader's class.
        described: What it loads, in a few words.
        statistics: What it has counted.
        verdict: What its loop waits for; None before the first batch.
    """
    parts = [f"<p><strong>{escape(name)}</strong> {escape(' · '.join(described))}</p>"]
    if verdict is not None:
        parts.append(f"<p>{escape(str(verdict))}</p>")
    if statistics.totals.batches:
        parts.append(_bars(statistics.epoch))
        parts.append(_line(_progress(statistics)))
    else:
        parts.append(_line(["nothing was loaded yet"]))
    parts.append(_line(_resources(statistics)))
    return f'{_STYLE}<div class="threadloader">{"".join(parts)}</div>'


def _bars(epoch: Interval) -> str:
    """Return a bar for each stage that took any time, and for what the loop waited."""
    bars = []  # names, colours (variables of the style sheet), seconds and notes
    for name in ("fetch", "write", "collate", "copy"):
        seconds, each = getattr(epoch.stages, name), getattr(epoch.per_sample, name)
        if seconds:
            bars.append((name, name, seconds, f"{in_words(each)} a sample"))
    waited = epoch.wait_seconds + epoch.inline_seconds
    bars.append(("you waited", "wait", waited, f"{epoch.wait_share:.0%} of the time"))
    longest = max(seconds for _, _, seconds, _ in bars) or 1.0
    rows = [
        f'<div class="row"><span>{name}</span> <span class="rail">'
        f'<span class="fill" style="width:{100 * seconds / longest:.1f}%;'
        f'background:var(--{colour})"></span></span> '
        f'<span class="number">{in_words(seconds)}</span> '
        f'<span class="soft">{note}</span></div>'
        for name, colour, seconds, note in bars
    ]
    return f'<div class="rows">{"".join(rows)}</div>'


def _progress(statistics: Any) -> list[str]:
    epoch, epochs = statistics.epoch, statistics.epochs
    said = [
        _number(epoch.batches, "batch", "batches"),
        _number(epoch.samples, "sample", "samples"),
        f"{epoch.samples_per_second:,.0f} samples/s",
        in_words(epoch.seconds),
    ]
    if epochs > 1:
        said.append(f"the last of {epochs:,} epochs")
    if statistics.skipped_count:
        said.append(_number(statistics.skipped_count, "sample", "samples") + " left out")
    return said


def _resources(statistics: Any) -> list[str]:
    workers, running = statistics.workers, statistics.running
    threads = _number(workers, "thread", "threads") if workers else "no threads"
    if running < workers:
        threads += f", {running:,} at once"
    said = [threads, f"window: up to {_number(statistics.window, 'batch', 'batches')} ahead"]
    if statistics.planned:
        said[1] += f", {statistics.planned:,} now, {statistics.done:,} done"
    slots = statistics.slots
    if slots.made:
        held = slots.free_bytes + slots.leased_bytes
        said.append(
            f"slots: {slots.leased:,} with you, {slots.filling:,} being filled, {slots.free:,} free"
            f" ({held / 2**20:,.0f} MiB)"
        )
    return said


def _line(said: Sequence[str]) -> str:
    return f'<p class="soft">{escape(" · ".join(said))}</p>'


def _number(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"
