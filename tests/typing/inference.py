"""What a type checker makes of `ThreadLoader`: it infers as for torch's DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

from torch.utils.data import DataLoader, Dataset, IterableDataset

from threadloader import ThreadLoader

if TYPE_CHECKING:
    from collections.abc import Iterator


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[str]):
    def __iter__(self) -> Iterator[str]:
        return iter("abc")


def takes_torch_s(loader: DataLoader[int]) -> int:
    """Stand for code that was written for torch's loader."""
    return len(loader)


def check_the_type_of_the_dataset_is_inferred() -> None:
    assert_type(ThreadLoader(Numbers()), ThreadLoader[int])
    assert_type(ThreadLoader(Stream(), 2, num_workers=1), ThreadLoader[str])


def check_an_explicit_type_is_kept() -> None:
    loader: ThreadLoader[int] = ThreadLoader[int](Numbers(), batch_size=2, shuffle=True)
    assert_type(loader, ThreadLoader[int])


def check_it_is_taken_where_torch_s_is() -> None:
    assert_type(takes_torch_s(ThreadLoader(Numbers())), int)


def check_a_context_keeps_the_type() -> None:
    with ThreadLoader(Numbers()) as loader:
        assert_type(loader, ThreadLoader[int])
