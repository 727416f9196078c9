"""Sums and means over the tokens of one sample, in a flat vector of N tokens."""

from torch import Tensor


def segment_sum(values_N: Tensor, segment_N: Tensor, num_segments: int) -> Tensor:
    """sum_S[s] = sum of values_N where segment_N == s; 0 for a segment without tokens."""
    return values_N.new_zeros(num_segments).index_add(0, segment_N, values_N)


def segment_count(segment_N: Tensor, num_segments: int, like: Tensor) -> Tensor:
    """Tokens of every segment, at least 1 (so that it can divide), in the dtype of `like`."""
    return segment_sum(like.new_ones(len(segment_N)), segment_N, num_segments).clamp(min=1)


def segment_mean(values_N: Tensor, segment_N: Tensor, num_segments: int) -> Tensor:
    """mean_S[s] = mean of values_N where segment_N == s; 0 for a segment without tokens."""
    count_S = segment_count(segment_N, num_segments, values_N)
    return segment_sum(values_N, segment_N, num_segments) / count_S
