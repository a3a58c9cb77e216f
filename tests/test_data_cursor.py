"""The cursor over any ladder: batches that grow, worlds that shrink, resumes, ranges left out; deep is not dearer."""

import time
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from training import data
from training.config import ConfigError, Data, DataSource
from training.config.data import Skips, skipped_otherwise
from training.data.mixture import RING, Mixture
from training.data.order import Order

LENGTH = 4
GROWTHS = ((32, 64, 128), (256, 512, 1000))
WORLDS = (8, 64, 1000, 992, 1)


class Places:
    """Tokens that are their own places, so that a sample shows which window it is."""

    def __init__(self, windows: int) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return self.windows * LENGTH + 1

    def cut(self, starts: torch.Tensor, width: int) -> torch.Tensor:
        return starts[:, None] + torch.arange(width)

    def documents(self, starts: torch.Tensor, width: int) -> None:
        return None


def stream(skips: tuple[tuple[int, int], ...] = ()) -> data.MixedStream:
    """A stream of 20,000 windows, more than any ladder below takes, without some ranges."""
    return data.MixedStream([data.Stream(Places(20_000), LENGTH, seed=3)], (1.0,), Skips(skips), seed=3)


WHOLE = stream().samples(0, 20_000)[:, 0].tolist()


@st.composite
def ranges(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    """Up to five ranges [first, end) that ascend and do not touch."""
    ends = sorted(draw(st.sets(st.integers(0, 3000), min_size=0, max_size=10)))
    return tuple(pair for pair in list(pairwise(ends))[::2])


@st.composite
def ladders(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Stages of (batch, steps, ranks); a stage may be begun anew on another world at any step."""
    batches = draw(st.sampled_from(GROWTHS))
    stages = []
    for batch in batches:
        for _ in range(draw(st.integers(1, 2))):
            stages.append((batch, draw(st.integers(1, 3)), draw(st.sampled_from(WORLDS))))
    return stages


def taken(stages: list[tuple[int, int, int]], skips: tuple[tuple[int, int], ...]) -> list[int]:
    """Return the stream's numbers in the order in which a ladder's steps take them, rank by rank."""
    found, cursor = [], 0
    for batch, steps, ranks in stages:
        fresh = stream(skips)  # each stage opens the stream anew at its cursor
        for _ in range(steps):
            for rank in range(ranks):
                first, end = data.share(batch, rank, ranks)
                if end > first:
                    found += fresh.samples(cursor + first, end - first)[:, 0].tolist()
            cursor += batch
    return found


@settings(max_examples=12, deadline=None)
@given(stages=ladders(), skips=ranges())
@example(stages=[(256, 2, 8), (512, 2, 64), (1000, 1, 1000), (1000, 1, 992)], skips=((100, 700), (1500, 1501)))
@example(stages=[(32, 3, 8), (64, 3, 8), (128, 3, 8), (128, 2, 1000)], skips=((0, 5), (96, 128)))
def test_a_ladder_takes_every_sample_once_in_order_but_those_left_out(stages, skips):
    found = taken(stages, skips)
    left_out = {number for first, end in skips for number in range(first, end)}
    wanted = [token for number, token in enumerate(WHOLE) if number not in left_out][: len(found)]
    assert found == wanted
    assert len(found) == sum(batch * steps for batch, steps, _ in stages)


@settings(max_examples=50, deadline=None)
@given(skips=ranges(), cursor=st.integers(0, 4000), count=st.integers(0, 500))
def test_a_cursor_opened_anywhere_continues_what_came_before(skips, cursor, count):
    found = Skips(skips)
    runs = [number for first, many in found.runs(cursor, count) for number in range(first, first + many)]
    assert runs == [found.number(cursor + place) for place in range(count)]
    assert not any(first <= number < end for number in runs for first, end in skips)


@settings(max_examples=50, deadline=None)
@given(skips=ranges(), others=ranges(), cursor=st.integers(0, 3000))
def test_a_change_of_ranges_is_refused_just_where_a_sample_already_taken_would_differ(skips, others, cursor):
    def so_far(ranges):
        return [Skips(ranges).number(place) for place in range(cursor)]

    differs = skipped_otherwise(skips, others, cursor)
    assert (differs is None) == (so_far(skips) == so_far(others))
    if differs:
        assert f"a range must lie beyond sample {Skips(skips).number(cursor)}" in differs


def test_a_range_left_out_moves_no_other_sample():
    text = torch.randint(0, 256, (50_003,), dtype=torch.uint8, generator=torch.Generator().manual_seed(4))
    whole = data.Stream(text, 16, seed=1)
    skipping = data.MixedStream([data.Stream(text, 16, seed=1)], (1.0,), Skips(((100, 164), (300, 301))), seed=1)
    assert torch.equal(skipping.samples(0, 100), whole.samples(0, 100))
    assert torch.equal(skipping.samples(100, 136), whole.samples(164, 136))
    assert torch.equal(skipping.samples(90, 300), torch.cat((whole.samples(90, 10), whole.samples(164, 136),
                                                             whole.samples(301, 154))))  # fmt: skip


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        (((5, 5),), r"data\.skip_samples\.0: \[5, 5\) is empty"),
        (((0, 4), (4, 6)), r"data\.skip_samples\.1: 4 must lie beyond 4"),
        (((-1, 4),), r"data\.skip_samples\.0: \[-1, 4\) is empty"),
    ],
)
def test_ranges_that_mean_nothing_are_refused(ranges, said):
    with pytest.raises(ConfigError, match=said):
        Data((DataSource("stdlib"),), skip_samples=ranges)


@pytest.mark.parametrize("windows", [1, 2, 5, 255, 256, 257, 1000])
def test_a_computed_order_has_every_window_once_an_epoch(windows):
    order = Order(windows, "7", drawn_whole=0)
    epochs = order.numbers(0, 3 * windows).view(3, windows)
    assert all(sorted(epoch.tolist()) == list(range(windows)) for epoch in epochs)
    if windows > 200:
        assert not torch.equal(epochs[0], epochs[1])
        assert not torch.equal(epochs[0], Order(windows, "8", drawn_whole=0).numbers(0, windows))
        assert torch.equal(order.numbers(windows - 3, 7), epochs.flatten()[windows - 3 : windows + 4])


def test_a_computed_order_is_as_mixed_as_a_drawn_one():
    """Rank correlation with the place, and with the window before it: 0 within 4 standard errors."""
    windows = 20_000
    numbers = Order(windows, "7", drawn_whole=0).numbers(0, windows).double()
    places = torch.arange(windows).double()
    limit = 4 / windows**0.5
    assert abs(torch.corrcoef(torch.stack((numbers, places)))[0, 1]) < limit
    assert abs(torch.corrcoef(torch.stack((numbers[1:], numbers[:-1])))[0, 1]) < limit


@settings(max_examples=25, deadline=None)
@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    first=st.integers(0, 10**12),
    count=st.integers(0, 300),
    key=st.text(max_size=3),
)
def test_sources_are_counted_without_being_visited(weights, first, count, key):
    mixture = Mixture(tuple(weights), key)
    sources = mixture.sources(first, count)
    for source, weight in enumerate(weights):
        before, after = mixture.taken(source, first), mixture.taken(source, first + count)
        assert after - before == int((sources == source).sum())
        exact = weight / sum(weights) * (first + count)
        # An arc's ends are rounded to one in 2^32.
        assert abs(after - exact) < 8 + (first + count) / RING, "nobody waits for their share"
    assert sum(mixture.taken(source, first) for source in range(len(weights))) == first


def test_after_a_whole_turn_of_the_ring_proportions_are_exact():
    mixture = Mixture((0.5, 0.25, 0.25), "1")
    assert [mixture.taken(source, 3 * RING) for source in range(3)] == [3 * RING // 2, 3 * RING // 4, 3 * RING // 4]


def test_a_weight_that_is_never_read_is_refused():
    with pytest.raises(ConfigError, match=r"data\.sources\.1\.weight: 1e-12 of 1 is never read"):
        Mixture((1.0, 1e-12), "1")


def test_each_source_gives_every_window_once_in_an_epoch_of_its_own():
    texts = [torch.arange(41, dtype=torch.uint8), 100 + torch.arange(81, dtype=torch.uint8)]
    streams = [data.Stream(text, 4, seed=f"1/{index}") for index, text in enumerate(texts)]
    mixed = data.MixedStream(streams, (1.0, 3.0), Skips(()), seed=1)
    samples = mixed.samples(0, 400)
    small, large = samples[samples[:, 0] < 100], samples[samples[:, 0] >= 100]
    assert abs(len(small) - 100) < 4
    assert sorted(small[:10, 0].tolist()) == list(range(0, 40, 4))
    assert sorted(large[:20, 0].tolist()) == list(range(100, 180, 4))
    assert torch.equal(torch.cat([mixed.samples(n, 1) for n in range(37, 90)]), samples[37:90])
    state = mixed.state(400)
    assert [source["samples"] for source in state["sources"]] == [len(small), len(large)]
    assert state["sources"][0] == {"samples": len(small), "epoch": len(small) // 10, "window": len(small) % 10}


def test_opening_deep_in_the_stream_costs_what_opening_at_its_start_does():
    """The 10^13th sample of 3 sources of 10^9 windows each, among ranges left out; best of 20, either end in turn."""

    def seconds(cursor: int) -> float:
        begin = time.perf_counter()
        streams = [data.Stream(Places(10**9), LENGTH, seed=f"1/{index}") for index in range(3)]
        skips = Skips(tuple((n * 1000, n * 1000 + 10) for n in range(1, 200)))
        samples = data.MixedStream(streams, (1.0, 2.0, 3.0), skips, seed=1).samples(cursor, 64)
        assert samples.shape == (64, LENGTH + 1)
        return time.perf_counter() - begin

    both = [(seconds(0), seconds(10**13)) for _ in range(20)]
    start, deep = (min(times) for times in zip(*both, strict=True))
    assert deep < 2 * start, f"{deep * 1e3:.2f} ms against {start * 1e3:.2f} ms"
