"""Check that everything runs on this machine's GPU: `bash scripts/gpu_check.sh` (docs/gpus.md)."""

from gpu.check import main

if __name__ == "__main__":
    main()
