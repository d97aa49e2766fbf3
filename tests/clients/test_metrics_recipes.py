"""The recipes of docs/observing.md for metrics, as they stand there: Lightning, Prometheus."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from clients.points import Points, model
from threadloader import ThreadLoader

PAGE = Path(__file__).parents[2] / "docs" / "observing.md"


def recipe(heading: str, **names: Any) -> dict[str, Any]:
    """Return the names of the code below a heading, once it has run."""
    section = PAGE.read_text(encoding="utf-8").partition(f"### {heading}\n")[2]
    code = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[0]
    exec(code, names)  # noqa: S102  # our own page
    return names


def test_a_callback_of_lightning_logs_every_few_steps() -> None:
    lightning = pytest.importorskip("lightning")
    torch = pytest.importorskip("torch")
    noted = pytest.importorskip("lightning.pytorch.loggers.logger").DummyLogger()
    logged: list[dict[str, float]] = []
    noted.log_metrics = lambda metrics, step: logged.append(metrics | {"step": step})

    class Fitted(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.line = model()

        def training_step(self, batch: Any, _index: int) -> Any:
            return torch.nn.functional.mse_loss(self.line(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = ThreadLoader(Points(), batch_size=2, threads=1)
    callback = recipe("Lightning")["LoaderMetrics"]()
    quiet = ("enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=noted,
        log_every_n_steps=2,
        callbacks=[callback],
        **dict.fromkeys(quiet, False),
    )
    trainer.fit(Fitted(), loader)
    ours = [metrics for metrics in logged if "loader/threads" in metrics]
    assert [metrics["step"] for metrics in ours] == [*range(2, len(loader) + 1, 2)]
    assert all(metrics["loader/batches_total"] == metrics["step"] for metrics in ours)


def test_a_scrape_of_prometheus_has_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    registry = prometheus_client.CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    with ThreadLoader(range(64), 4, threads=2) as loader:
        recipe("Prometheus", loader=loader)
        for number, _ in enumerate(loader):
            text = prometheus_client.generate_latest(registry).decode()
            assert f"threadloader_batches_total {number + 1}.0" in text
        assert all(name in text for name in loader.metrics("threadloader_"))
