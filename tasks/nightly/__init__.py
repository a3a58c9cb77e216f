"""Nightly regression runs: small scales by the clock, each judged against its own past.

:mod:`night` plans, looks and gives up; :mod:`conclude` carries what was judged into incidents, baselines and the page.
"""
