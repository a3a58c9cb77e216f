# Two images of this tree: `pipeline` (Airflow, MLflow, gates; no torch) and `trainer` (the same with torch, for jobs that
# the local launcher starts). What changes rarely lies below what changes often, so a changed line reinstalls nothing.
#
#   docker build --target pipeline .
#   docker build --target trainer --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
#
# TORCH_INDEX is one more package index for torch alone; without it torch comes with CUDA, several gigabytes.
FROM python:3.11.14-slim-bookworm AS dependencies
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Owners of files in volumes are numbers, so this one must never change.
RUN useradd --uid 50000 --user-group --create-home --shell /usr/sbin/nologin scaleup \
    && install -d -o scaleup -g scaleup /var/lib/scaleup /var/lib/scaleup/home /var/lib/scaleup/logs
WORKDIR /opt/scaleup
COPY pyproject.toml constraints.txt ./
# Without the code this installs what the code needs, and the command `scaleup`; PYTHONPATH finds the code below.
RUN touch README.md && pip install -c constraints.txt ".[pipeline,tokenize,deploy]"
ENV PYTHONPATH=/opt/scaleup SCALEUP_HOME=/var/lib/scaleup/home AIRFLOW_HOME=/home/scaleup/airflow

FROM dependencies AS pipeline
COPY . .
USER scaleup
ENTRYPOINT ["python", "/opt/scaleup/deploy/start.py"]

FROM dependencies AS torch
ARG TORCH_INDEX=
RUN pip install -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch==2.13.0

FROM torch AS trainer
COPY . .
USER scaleup
ENTRYPOINT ["python", "/opt/scaleup/deploy/start.py"]
