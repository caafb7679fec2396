"""Shared by the scripts of research/: small models with their tasks, measurements that are kept, statistics, tables,
plots."""
