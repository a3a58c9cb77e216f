"""What a job reads: from files to samples, in one order for every world.

``corpus`` text as bytes; ``token_file``, ``megatron`` mapped tokens; ``sources`` finds which; ``order``, ``mixture``,
``stream`` say which sample a cursor is; ``prefetch`` has it ready; ``dataset`` puts them together.
"""

from training.data.corpus import BYTES, HELD_OUT_PERCENT, Corpus, load
from training.data.dataset import Dataset, held_out_samples, open_dataset
from training.data.prefetch import Prefetcher, coming
from training.data.stream import MixedStream, Samples, Stream, cut, share

__all__ = [
    "BYTES", "HELD_OUT_PERCENT", "Corpus", "Dataset", "MixedStream", "Prefetcher", "Samples", "Stream", "coming", "cut",
    "held_out_samples", "load", "open_dataset", "share",
]  # fmt: skip
