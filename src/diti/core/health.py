"""Whether a training still learns. A network that collapses to predicting nothing does not recover by itself.

Judged at each line of the log; the loop then goes back to what was good and halves the rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median
from typing import Any

MOST_FALLS = 3  # each halves the rate; if an eighth of it is still too much, the settings are at fault
REMEMBERED = 8  # lines that a new one is compared with; with fewer than half of them the loss may still settle
ABSURD = 3.0  # times the loss of predicting nothing: no network starts there
GAIN = 0.2  # share of the loss of predicting nothing that must be gained, and of the best gain that must be kept
CLEAR = 8.0  # standard errors by which a rise must exceed the noise of a line: never reached by chance so far
PATIENCE = 12_800  # images after the warm-up, two lines of the log: a network that learns has shown it by then
WORTH = 0.01  # share of the validation loss by which a quarter of the run should lower it to be worth its time
STALLED = f"validation loss has not improved by {100 * WORTH:g} % over the last quarter; stopping now is fine"


@dataclass(frozen=True)
class Line:
    """What one line of the log says about the images since the line before."""

    images: int  # seen since the start
    loss: float  # mean
    error: float  # standard error of that mean
    nothing: float | None = None  # mean loss of predicting nothing for the same images, where that is known

    @property
    def share(self) -> float:
        """The loss as a share of the loss of predicting nothing."""
        return self.loss / self.nothing if self.nothing else 0.0


@dataclass
class Health:
    """What is remembered of a run to judge its next line; part of its state."""

    recent: list[float] = field(default_factory=list)  # losses of the last good lines
    best: float = 1.0  # least share of the loss of predicting nothing so far
    falls: int = 0

    @property
    def rate_factor(self) -> float:
        """Halved each time the training diverged."""
        return 0.5**self.falls

    def fault(self, line: Line, *, steady: bool) -> str | None:
        """What is wrong with a line, or None. steady: a good training's loss does not double."""
        if not math.isfinite(line.loss):
            return "the loss is not a number"
        if line.nothing is not None:
            if line.share > ABSURD:
                return f"the loss is {line.share:.3g} times that of predicting nothing"
            gain = 1 - self.best
            if gain > GAIN and 1 - line.share < GAIN * gain:
                return f"the loss is back at that of predicting nothing, {line.loss:.3g}"
        if steady and len(self.recent) >= REMEMBERED // 2:
            usual = median(self.recent)
            if line.loss > max(self.recent) and line.loss - usual > max(abs(usual), CLEAR * line.error):
                return f"the loss rose from {usual:.3g} to {line.loss:.3g}"
        return None

    def never_began(self, line: Line, warmup: int, must_gain: float) -> bool:
        """Whether a network that should long since have gained a share of the loss has not."""
        gained = 1 - min(self.best, line.share)
        return line.nothing is not None and line.images >= warmup + PATIENCE and gained < must_gain

    def remember(self, line: Line) -> None:
        """Take in a good line."""
        self.recent = [*self.recent, line.loss][-REMEMBERED:]
        if line.nothing is not None:
            self.best = min(self.best, line.share)


def stalled(log: list[dict[str, Any]]) -> bool:
    """Whether the last quarter of the images so far has lowered the validation loss by less than it is worth."""
    found = [(r["images"], r["validation_loss"]) for r in log if isinstance(r.get("validation_loss"), float)]
    if not found:
        return False
    quarter = 0.75 * found[-1][0]
    before = [loss for images, loss in found if images <= quarter]
    lately = [loss for images, loss in found if images > quarter]
    return len(found) > 3 and bool(before) and min(lately) > (1 - WORTH) * min(before)
