"""How long a training runs: a number of images, or minutes, converted to images once the speed is known.

Notation: the share of a run that is over rises from 0 to 1; the learning rate follows it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from diti.core.processes import from_main, is_main
from diti.core.training import TrainingConfig

FIRST_LOOK = 60.0  # seconds after which the speed is known well enough
OF_THE_RUN = 0.1  # share of a run shorter than ten minutes, instead
LATE = 1.02  # times the given minutes: beyond this the rest is shortened
STEPS = 20  # between two looks at the clock
ENDLESS = 1 << 62  # images of a run whose speed is not known yet


@dataclass
class Pace:
    """The length of a run, and the line along which its share rises: from `share` at `images` to 1 at `length`."""

    length: int  # images at which it ends
    measured: bool = False  # in minutes: then the length is the measured one, not that of the settings
    images: int = 0
    share: float = 0.0
    seconds: float = 0.0  # spent so far

    @classmethod
    def of(cls, images: int, minutes: float | None) -> Pace:
        """Before the first step."""
        return cls(images) if minutes is None else cls(ENDLESS, measured=True)

    def expected(self, images: int) -> int:
        """The length to show; `images` until it is known."""
        return images if self.length == ENDLESS else self.length

    def over(self, images: int) -> float:
        """The share of the run that is over after `images` images."""
        if images >= self.length:
            return 1.0
        return self.share + (1 - self.share) * max(0, images - self.images) / (self.length - self.images)

    def plan(self, images: int, speed: float, minutes: float, batch: int) -> bool:
        """Fit the rest of the run into the remaining minutes; whether that was needed. speed: images/s.

        A run gets shorter where the machine has become slower, never longer.
        """
        if self.length == ENDLESS and self.seconds < min(FIRST_LOOK, OF_THE_RUN * 60 * minutes):
            return False
        if self.seconds + (self.length - images) / speed <= LATE * 60 * minutes:
            return False
        left = max(0.0, 60 * minutes - self.seconds) * speed
        self.share, self.images = self.over(images), images
        self.length = images + batch * max(1, round(left / batch))
        return True


class Watch:
    """Measures how fast a run is and keeps it to its minutes; all processes use the clock of the first."""

    def __init__(self, pace: Pace, config: TrainingConfig, images: int) -> None:
        self.pace, self.minutes, self.batch = pace, config.minutes, config.train_batch_size
        self.began = time.monotonic() - pace.seconds
        self.restart(images)

    def restart(self, images: int) -> None:
        """Measure the speed from here on."""
        self.mark = images, time.monotonic()

    def look(self, images: int) -> bool:
        """Whether the first process has changed the length of the run, as it may every few steps."""
        if self.minutes is None or images % (STEPS * self.batch):
            return False
        changed = is_main() and self._plan(images, self.minutes)
        self.pace.length, self.pace.images = (int(from_main(n)) for n in (self.pace.length, self.pace.images))
        self.pace.share, self.pace.seconds = (from_main(n) for n in (self.pace.share, self.pace.seconds))
        return changed

    def _plan(self, images: int, minutes: float) -> bool:
        now, (start, at) = time.monotonic(), self.mark
        self.pace.seconds = now - self.began
        if images <= start or now <= at:
            return False
        changed = self.pace.plan(images, (images - start) / (now - at), minutes, self.batch)
        if now - at > FIRST_LOOK:  # the recent speed: it shows when a machine has become slower
            self.restart(images)
        return changed
