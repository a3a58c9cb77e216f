"""What Airflow reads: order, retries and limits of the steps. The work of each step is in ``tasks``."""
