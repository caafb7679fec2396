"""The figures of the paper's analysis, made again on models that are small enough for many seeds."""
