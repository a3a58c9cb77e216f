"""Run inside the oracle's own environment: series as JSON on standard input, the breaks that Apache Otava finds out."""

import json
import sys

from otava.analysis import compute_change_points

asked = json.load(sys.stdin)
options = {"window_len": asked["window"], "max_pvalue": asked["p_value"], "min_magnitude": asked["least_change"]}
found = [[int(point.index) for point in compute_change_points(list(y), **options)[0]] for y in asked["series"]]
json.dump(found, sys.stdout)
