"""The process around a training: it is the command that the user started, outlives the driver, and makes every end an ending."""
