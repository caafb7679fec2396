"""The estimators in other trainers: one file a trainer, which alone imports it. docs/integrations.md shows what to
change."""
