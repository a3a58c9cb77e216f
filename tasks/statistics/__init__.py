"""Numbers in, numbers out: intervals, decisions, detectors, predictors. Knows of no file, frame or gate."""

from tasks.statistics.detection import (
    Baseline,
    EDetector,
    TwoTiers,
    alarm_threshold,
    fit_baseline,
    spikes,
)
from tasks.statistics.launches import across_launches
from tasks.statistics.loss_curve import (
    SIGMA_RUN,
    LossForecast,
    batch_shift,
    critical_batch,
    effective_tokens,
    forecast_loss,
)
from tasks.statistics.means import (
    LAUNCH_SD,
    SMALLEST_WINDOW,
    Array,
    Decision,
    Mean,
    batch_length,
    batch_means,
    decide,
    inverse,
    noise_left,
    paired_difference,
    ratio,
    t_quantile,
    warm_up,
)
from tasks.statistics.predictive import TAILS, Predictive, bisect
from tasks.statistics.scaling import SIGMA, SLOPES, strong_scaling, weak_scaling

__all__ = [
    "LAUNCH_SD",
    "SIGMA",
    "SIGMA_RUN",
    "SLOPES",
    "SMALLEST_WINDOW",
    "TAILS",
    "Array",
    "Baseline",
    "Decision",
    "EDetector",
    "LossForecast",
    "Mean",
    "Predictive",
    "TwoTiers",
    "across_launches",
    "alarm_threshold",
    "batch_length",
    "batch_means",
    "batch_shift",
    "bisect",
    "critical_batch",
    "decide",
    "effective_tokens",
    "fit_baseline",
    "forecast_loss",
    "inverse",
    "noise_left",
    "paired_difference",
    "ratio",
    "spikes",
    "strong_scaling",
    "t_quantile",
    "warm_up",
    "weak_scaling",
]
