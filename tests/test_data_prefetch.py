"""Prefetching changes when samples are cut, never which: same samples, bounded memory, errors and ends as they are."""

import threading

import pytest
import torch

from training import data
from training.config import DataError

BATCHES = [32] * 4 + [64] * 4 + [1000] * 3


class Watched:
    """A stream that says who asked for what, and that waits or fails where a test wants it."""

    def __init__(self, fail_at: int | None = None) -> None:
        text = torch.randint(0, 256, (80_003,), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
        self.stream, self.fail_at = data.Stream(text, 16, seed=1), fail_at
        self.asked: list[tuple[str, int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.called = threading.Semaphore(0)

    @property
    def sequence_length(self) -> int:
        return self.stream.sequence_length

    def samples(self, first: int, count: int) -> torch.Tensor:
        who = threading.current_thread().name
        self.asked.append((who, first, count))
        self.called.release()
        if who.startswith("data"):
            self.gate.wait(10)
        if self.fail_at is not None and first <= self.fail_at < first + count:
            raise DataError("data: /data/web/train.bin changed while this job reads it: it had 8 bytes and has 4")
        return self.stream.samples(first, count)


def ladder(prefetcher: data.Prefetcher, parts: int = 1, rank: int = 1, ranks: int = 3) -> list[torch.Tensor]:
    """Ask as a process does: each step its share, in some parts."""
    found, cursor = [], 0
    for batch in BATCHES:
        first, end = data.share(batch, rank, ranks)
        for part in range(parts):
            low, high = data.share(end - first, part, parts)
            found.append(prefetcher.samples(cursor + first + low, high - low))
        cursor += batch
    return found


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
@pytest.mark.parametrize("parts", [1, 4])
def test_the_samples_are_the_same_with_and_without(ahead, parts):
    watched = Watched()
    prefetcher = data.Prefetcher(watched, ahead)
    prefetcher.follow(data.coming(BATCHES, 0))
    found = ladder(prefetcher, parts)
    plain = Watched()
    wanted = ladder(data.Prefetcher(plain, 0), parts)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    late = [who for who, _, _ in watched.asked if not who.startswith("data")]
    assert len(late) == (parts if ahead else len(found)), "the first step cannot be foretold, all others are"
    prefetcher.close()


def test_what_was_not_foretold_is_cut_on_the_spot():
    watched = Watched()
    prefetcher = data.Prefetcher(watched, 2)
    prefetcher.follow(data.coming([30] * 4, 0))
    asked = [(0, 10), (30, 10), (75, 15), (60, 3), (95, 7), (5000, 4), (1, 2)]
    for first, count in asked:
        assert torch.equal(prefetcher.samples(first, count), watched.stream.samples(first, count))
    prefetcher.close()


def test_no_more_is_held_than_was_asked_for():
    """Ten steps may be asked for, two are made ready: the third is begun when the first of them is taken."""
    watched = Watched()
    prefetcher = data.Prefetcher(watched, 2)
    prefetcher.follow(data.coming([10] * 10, 0))
    prefetcher.samples(0, 10)
    prefetcher.samples(10, 10)
    for _ in range(4):  # the first step's, and those made ready of steps 2, 3 and 4
        assert watched.called.acquire(timeout=10)
    assert not watched.called.acquire(timeout=0.05)
    assert [first for _, first, _ in watched.asked] == [0, 10, 20, 30]
    prefetcher.samples(20, 10)
    assert watched.called.acquire(timeout=10)
    assert watched.asked[-1][1] == 40
    prefetcher.close()


def test_what_goes_wrong_in_a_thread_is_raised_where_the_sample_is_asked_for():
    prefetcher = data.Prefetcher(Watched(fail_at=70), 2)
    prefetcher.follow(data.coming([32] * 4, 0))
    prefetcher.samples(0, 32)
    prefetcher.samples(32, 32)
    with pytest.raises(DataError, match=r"/data/web/train\.bin changed while this job reads it"):
        prefetcher.samples(64, 32)
    prefetcher.close()


def test_closing_leaves_no_thread_even_with_work_under_way():
    before = threading.active_count()
    watched = Watched()
    prefetcher = data.Prefetcher(watched, 4)
    prefetcher.follow(data.coming([32] * 9, 0))
    prefetcher.samples(0, 32)
    watched.gate.clear()
    waiting = threading.Thread(target=prefetcher.samples, args=(32, 32))
    waiting.start()
    for _ in range(2):
        assert watched.called.acquire(timeout=10)
    watched.gate.set()
    waiting.join(10)
    prefetcher.close()
    prefetcher.close()
    assert threading.active_count() == before


def test_the_wait_is_what_is_not_ready_and_no_more():
    """A step's samples that are ready cost no cut: the training thread asks the stream for none."""
    watched = Watched()
    prefetcher = data.Prefetcher(watched, 1)
    prefetcher.follow(data.coming([32] * 6, 0))
    for step in range(6):
        prefetcher.samples(32 * step, 32)
    mine = [first for who, first, _ in watched.asked if not who.startswith("data")]
    assert (mine, prefetcher.late) == ([0], 1)
    prefetcher.close()
