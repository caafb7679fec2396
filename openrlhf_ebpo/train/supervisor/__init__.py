"""The process around a training: the command that the user started. It records how every run ended, and kills leftover
processes."""
