"""For the tests of your datasets: `assert_thread_safe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from threadloader._engine.settings import DatasetCopy

__all__ = ["assert_thread_safe"]


def assert_thread_safe(
    dataset: Any,
    *,
    dataset_copy: DatasetCopy = "auto",
    indices: Sequence[Any] | None = None,
) -> None:
    """Fail a test if a dataset is not safe in the threads of a `ThreadLoader`.

    It loads samples one by one, and then in many threads at once that change over as often as they
    can.

    Args:
        dataset: The dataset.
        dataset_copy: As for `ThreadLoader`: what each worker has of the dataset.
        indices: The samples to load; by default 16 that are spread over the dataset.

    Raises:
        AssertionError: It is not safe; the message has a paragraph for each reason.
        ValueError: No sample could be loaded, so there is nothing to check.
    """
    from threadloader._check.checking import check  # noqa: PLC0415  # for tests only

    __tracebackhide__ = True  # pytest shows the line that called
    report = check(dataset, dataset_copy=dataset_copy, indices=indices)
    if report.findings:
        findings = "\n".join(map(str, report.findings))
        msg = f"{type(dataset).__name__} is not safe in threads:\n{findings}"
        raise AssertionError(msg)
