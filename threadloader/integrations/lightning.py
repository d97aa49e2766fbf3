"""Lightning: a callback that logs the metrics of a trainer's loaders.

    Trainer(callbacks=[LoaderMetrics()])

It logs to the trainer's own loggers, as Lightning's `LearningRateMonitor` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.utilities import CombinedLoader
except ImportError:  # the package has two names
    from pytorch_lightning.callbacks import Callback
    from pytorch_lightning.utilities import CombinedLoader

from threadloader.loader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LoaderMetrics"]


class LoaderMetrics(Callback):  # type: ignore[misc]  # not installed where types are checked
    """Logs what `ThreadLoader.metrics` returns, every few training steps and at the epoch's end.

    Args:
        every_n_steps: Steps from one time to the next; None for the trainer's
            ``log_every_n_steps``.
        prefix: Put before each name; of several training loaders the second one's is followed by
            ``1/``, and so on.
    """

    def __init__(self, every_n_steps: int | None = None, prefix: str = "loader/") -> None:
        self.every_n_steps = every_n_steps
        self.prefix = prefix
        self._logged = 0  # step of the last time

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Count steps from here on; see Lightning's `Callback`."""
        self._logged = trainer.global_step

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Log after so many steps; see Lightning's `Callback`."""
        every = self.every_n_steps or trainer.log_every_n_steps
        # Gradients that are accumulated make no step, and several optimizers make several at once.
        if every and trainer.global_step - self._logged >= every:
            self._logged = trainer.global_step
            self._log(trainer)

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        """Log once more; see Lightning's `Callback`."""
        self._log(trainer)

    def _log(self, trainer: Any) -> None:
        for number, loader in enumerate(_loaders(trainer.train_dataloader)):
            metrics = loader.metrics(f"{self.prefix}{number}/" if number else self.prefix)
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=trainer.fit_loop.epoch_loop._batches_that_stepped)  # noqa: SLF001  # as Lightning's own callbacks


def _loaders(found: Any) -> Iterator[ThreadLoader[Any]]:
    """Yield the loaders of this package among what a trainer has, in its order."""
    if isinstance(found, ThreadLoader):
        yield found
    elif isinstance(found, CombinedLoader):
        yield from _loaders(found.flattened)
    elif isinstance(found, dict):
        yield from _loaders(list(found.values()))
    elif isinstance(found, list | tuple):
        for each in found:
            yield from _loaders(each)
