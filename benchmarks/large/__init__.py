"""What the benchmarks for a GPU share: where their models run, and responses of equal length."""
