"""A small experiment and its cluster as text, which the tests of configuration spoil in one place or another."""

EXPERIMENT = """\
cluster: c
seed: 1
hand_over_steps: 10
canary_steps: 10
train:
  model: {layers: 40, hidden: 64, heads: 8, ffn: 176, vocabulary: 256}
  sequence_length: 32
rehearsal:
  processes: 2
stages:
  - gpus: 8
    hours: 1
    steps: 50
    batch_sequences: 64
    learning_rate: 3.0e-4
    gates:
      finite_loss:
  - gpus: 64
    hours: 2
    tokens: 500_000
    batch_sequences: 128
    learning_rate: {rule: sqrt, from: gpus_8}
    gates:
      replay_parity:
      scaling_efficiency: {reference: gpus_8, at_least: 0.8}
  - gpus: 1000
    hours: 3
    steps: 50
    batch_sequences: 1000
    learning_rate: {rule: keep, from: gpus_64}
    gates:
      finite_loss:
"""

NIGHTLY = """\
cron: "30 1 * * *"
time_zone: UTC
owner: me
budget: {hours: 2, gpu_hours: 10}
cases:
  - experiments: [x]
    cadence: nightly
"""

CLUSTER = """\
launcher: {kind: local}
gpus_per_node: 8
nodes: 128
emulated: true
flops_per_gpu: 4.0e+14
memory_gib_per_gpu: 80
network:
  inside_node: {latency_us: 5, gbytes_per_second: 450}
  between_nodes: {latency_us: 10, gbytes_per_second: 50}
  tiers: [{gpus: 64}, {gpus: 1024, factor: 0.9}]
  overlap: 0.7
price_per_gpu_hour: 2.5
"""
