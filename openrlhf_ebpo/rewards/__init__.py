"""Rewards: math/ reads and compares answers, processes/ runs rewards and bounds them."""
