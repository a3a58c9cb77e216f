"""Airflow and MLflow on this machine, for the demo and for tests: started, watched, mended, and wholly ended again."""
