"""The trainings and the report of scripts/gpu_check.sh (docs/gpus.md)."""
