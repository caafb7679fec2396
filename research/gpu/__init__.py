"""The parts of scripts/gpu_check.sh, and the report that they end in (docs/gpus.md)."""
