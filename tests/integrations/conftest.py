"""Tests that run in the pinned environment of one trainer: scripts/test_integrations.sh makes it and runs its file."""

import os

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRL_DISABLE_TELEMETRY": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "GLOO_SOCKET_IFNAME": "lo",
}
